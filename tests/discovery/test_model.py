"""What a model says of regions and images, by hand, and what it keeps in its file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anomalyncd.assign.false_alarms import FalseAlarms, NormalScores
from anomalyncd.assign.images import with_normal
from anomalyncd.assign.product import fit_product
from anomalyncd.assign.unknown import fit_unknown
from anomalyncd.binarize import MEBin
from anomalyncd.config import make_config
from anomalyncd.data.gather import gather
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.errors import DataError, MissingRunError, RunError
from anomalyncd.learn.classifier import Classifier
from anomalyncd.learn.features import FeatureSpace
from anomalyncd.regions.find import Region
from anomalyncd.regions.records import ImageRecord

LINE = NormalScores(0.4, 0.1, 30)


def region(index: int, number: int = 0, score: float = 0.5, area: float = 100.0) -> Region:
    return Region(
        index=index, image=f"{index}.png", region=number, box=(0, 0, 1, 1), square=(0, 0, 1), area=area, score=score
    )


def images(*scores: float) -> list[ImageRecord]:
    return [ImageRecord(index, f"{index}.png", 10, 10, 1, score) for index, score in enumerate(scores)]


def model(n_classes: int | str = 3, **more: Any) -> DiscoveryModel:
    settings = {"n_classes": n_classes, **more.pop("settings", {})}
    return DiscoveryModel(make_config({"features": {"center": False}}, settings), **more)


def classifier(n_base: int = 0) -> Classifier:
    """Regions of two numbers; the classes point along the axes."""
    weight = np.float32([[1, 0], [0, 1]])
    return Classifier(FeatureSpace({"patches": 1.0}), np.concatenate([weight[:n_base], weight]), n_base, 0.1)


def parts(*rows: tuple[float, float]) -> dict[str, Any]:
    return {"patches": np.float16(rows)[:, None, None]}


def test_classes_begin_with_normal_where_there_is_one() -> None:
    assert model(3).classes.tolist() == [0, 1, 2] and model(3).names == {0: "normal", 1: "class 1", 2: "class 2"}
    assert model(3).highest == 2 and model("auto").classes.tolist() == [] and model("auto").highest == 0
    none = model(2, settings={"has_normal": False})
    assert none.classes.tolist() == [1, 2] and none.learned_classes.tolist() == [1, 2] and none.n_region_classes == 2
    known = model(3, names={1: "dent", 7: "old"}, highest=9)
    assert known.names == {0: "normal", 1: "dent", 2: "class 2"} and known.highest == 9
    known.set_count(12)
    assert known.highest == 11
    assert model(3).learned_classes.tolist() == [1, 2] and model(3, learns_normal=True).n_region_classes == 3
    assert not model(3).is_retrained and not model(3, classifier=classifier()).is_retrained
    trained = classifier()
    trained.last_block = {"a": np.zeros(1, np.float32)}
    assert model(3, classifier=trained).is_retrained


def test_regions_are_as_likely_of_a_class_as_their_cosines_say() -> None:
    known = model(3, classifier=classifier(n_base=1))
    found = known.region_probabilities(parts((1, 0), (0.6, 0.8)), [region(0), region(1)], images(0.5, 0.5))
    for row, cosines in zip(found, ((1, 0), (0.6, 0.8)), strict=True):
        weights = np.exp(np.array(cosines) / 0.1)
        np.testing.assert_allclose(row, [0, *(weights / weights.sum())], atol=1e-3)
    assert known.region_probabilities({}, [], []).shape == (0, 3)
    assert np.isnan(model(3).region_probabilities({}, [region(0)], images(0.5))).all()
    learned = model(2, classifier=classifier(), learns_normal=True)
    np.testing.assert_allclose(
        learned.region_probabilities(parts((1, 0)), [region(0)], images(0.5))[0], [1, 0], atol=1e-3
    )


def calibrated(**more: Any) -> DiscoveryModel:
    binarizer = MEBin()
    binarizer.low_, binarizer.high_ = 0.2, 1.2
    return model(3, classifier=classifier(), binarizer=binarizer, false_alarms=FalseAlarms(LINE, LINE), **more)


def test_the_strongest_region_stands_for_its_image_and_the_others_have_their_own_peak() -> None:
    known = calibrated(settings={"detect": {"false_alarms": 0.03}})
    regions = [region(1, 0, 0.3, 16), region(1, 1, 0.2, 100), region(0, 0, 0.5), region(1, 2, 0.1, 4)]
    found = known.false_alarm_probability({}, regions, images(0.7, 0.55))
    peaks = LINE.probability(0.2 + np.array([0.3, 0.2, 0.5, 0.1]))
    own = LINE.probability([0.55, 0.7])
    expected = [max(own[0], peaks[0]), own[0], own[1], max(own[0], peaks[3])]  # √100 · 0.2 > √16 · 0.3
    np.testing.assert_allclose(found, expected)
    assert found[3] > own[0] and len(set(found.tolist())) == 4
    for other in (model(3, classifier=classifier()), model(3, binarizer=MEBin())):
        assert other.false_alarm_probability({}, regions, images(0.7, 0.55)).tolist() == [0] * 4
    assert known.false_alarm_probability({}, [], []).shape == (0,)


def test_the_rate_is_that_of_the_settings_unless_another_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    known = calibrated(settings={"detect": {"false_alarms": 0.03}})
    assert known.false_alarms is not None
    known.false_alarms = replace(known.false_alarms, looks=SimpleNamespace())  # type: ignore[arg-type]  # or none are asked for
    asked: list[Any] = []
    original = FalseAlarms.of_images
    monkeypatch.setattr(FalseAlarms, "of_images", lambda self, *given: (asked.append(given), original(self, *given))[1])
    regions, features = [region(0), region(1)], parts((1, 0), (0, 1))
    features["image"] = np.arange(8, dtype=np.float16).reshape(2, 2, 1, 2)
    chance = known.false_alarm_probability(features, regions, images(0.7, 0.55))
    found = known.region_probabilities(features, regions, images(0.7, 0.55), rate=0.2)
    assert [given[2] for given in asked] == [0.03, 0.2] and asked[0][0] == [0.7, 0.55]
    np.testing.assert_array_equal(asked[0][1][:], [[[1, 2]], [[5, 6]]])
    plain = np.array([[0, 1, 0], [0, 0, 1]], float)
    np.testing.assert_allclose(found, with_normal(plain, chance, 0.2), atol=1e-3)
    default = known.region_probabilities(features, regions, images(0.7, 0.55))
    np.testing.assert_allclose(default, with_normal(plain, chance, 0.03), atol=1e-3)
    none = calibrated(classes=np.array([1, 2]), settings={"has_normal": False, "n_classes": 2})
    np.testing.assert_allclose(none.region_probabilities(features, regions, images(0.7, 0.55)), plain[:, 1:], atol=1e-3)


def many(seed: int = 0) -> tuple[dict[str, Any], list[Region]]:
    rng = np.random.default_rng(seed)
    rows = [(1 + rng.normal(0, 0.1), rng.normal(0, 0.1)) for _ in range(30)]
    return parts(*rows), [region(index // 2) for index in range(30)]


def test_what_is_unknown_is_fitted_to_regions_that_have_a_class() -> None:
    known = model(3, classifier=classifier())
    features, regions = many()
    is_known = np.arange(30) < 20
    scores = known.fit_unknown(features, regions, is_known)
    blocks, weights = known.classifier.space.blocks(features)  # type: ignore[union-attr]
    expected, own = fit_unknown(blocks[:20], weights, np.arange(20) // 2, known.config.unknown.false_rate, center=False)
    np.testing.assert_allclose(scores[:20], own)
    np.testing.assert_allclose(scores[20:], expected(blocks[20:]))
    assert known.unknown is not None and known.unknown.limit == expected.limit
    everything = known.fit_unknown(features, regions)
    assert everything.shape == (30,) and len(known.unknown.reference) == 30
    assert known.fit_unknown({}, []).shape == (0,) and known.unknown is None
    assert model(3).fit_unknown(features, regions).tolist() == [0] * 30


def test_a_region_far_off_is_of_no_class_unless_it_is_a_false_alarm() -> None:
    known = calibrated(settings={"detect": {"false_alarms": 0.03}})
    features, regions = many()
    known.fit_unknown(features, regions)
    strange = parts((1, 0), (-1, 0.2), (-1, 0.2))
    found, scores, chance = known.recognize(strange, [region(0), region(1), region(2, score=0.1)], images(2, 2, 0.4))
    assert np.isnan(found).any(axis=1).tolist() == [False, True, False]
    assert scores[0] < 0.5 < scores[1] and scores[2] == 0 and chance[2] > 0.03 >= chance[0]
    known.unknown = None
    found, scores, _ = known.recognize(strange, [region(0), region(1), region(2)], images(2, 2, 2))
    assert not np.isnan(found).any() and scores.tolist() == [0, 0, 0]


def test_what_the_product_looks_like() -> None:
    known = model(3)
    rng = np.random.default_rng(0)
    scenes = rng.normal([1, 0, 0, 6, 5], 0.1, (30, 5)).astype(np.float16)
    own = known.fit_product(scenes, np.arange(30) < 25)
    product, expected = fit_product(scenes.astype(np.float32), known.config.unknown.foreign_rate, np.arange(30) < 25)
    np.testing.assert_allclose(own, expected)
    assert known.product is not None and product is not None and known.product.limit == product.limit
    np.testing.assert_allclose(known.foreign(scenes), product(scenes.astype(np.float32)))  # type: ignore[arg-type]
    assert known.foreign(None) is None
    assert known.fit_product(None) is None and known.product is None and known.foreign(scenes) is None


def test_images_come_with_maps_or_masks_or_bare() -> None:
    image, anomaly_map = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8))
    plain, own = model(3), model(3, settings={"detect": {"name": "musc"}})
    with pytest.raises(DataError, match=r"give either maps \(--maps\) or masks \(--masks\)"):
        plain.gather([image])
    assert own.gather([image]).is_bare and not own.gather([image], maps=[anomaly_map]).is_bare
    with pytest.raises(DataError, match="this model was fitted on masks"):
        plain.check_maps(gather([image], [anomaly_map]))
    plain.check_maps(gather([image], masks=[anomaly_map > 0]))
    plain.binarizer = own.binarizer = MEBin()
    plain.check_maps(gather([image], [anomaly_map]))
    with pytest.raises(DataError, match="the maps of this run were made by its own detector, musc"):
        own.check_maps(gather([image], [anomaly_map]))


def whole() -> DiscoveryModel:
    known = calibrated(names={1: "dent"}, highest=7, learns_normal=False)
    features, regions = many()
    known.classifier.space.fit(features, center=False)  # type: ignore[union-attr]
    known.fit_unknown(features, regions)
    known.fit_product(np.random.default_rng(0).normal([1, 0, 6, 5], 0.1, (30, 4)).astype(np.float16))
    return known


def test_a_model_file_says_the_same(tmp_path: Path) -> None:
    known = whole()
    (tmp_path / "model.safetensors").write_bytes(known.pack())
    again = DiscoveryModel.read(tmp_path, device="cpu")
    assert again.classes.tolist() == [0, 1, 2] and again.highest == 7 and again.names[1] == "dent"
    assert again.learns_normal is False and again.config == known.config.model_copy(update={"device": "cpu"})
    new = parts((1, 0.3), (-1, 0.2)), [region(0), region(1)], images(2, 0.5)
    for one, other in zip(known.recognize(*new), again.recognize(*new), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3)
    scenes = np.float16([[1, 0, 6, 5], [0, 1, 6, 5]])
    np.testing.assert_allclose(again.foreign(scenes), known.foreign(scenes), rtol=1e-2)  # type: ignore[arg-type]
    assert again.binarizer is not None and (again.binarizer.low_, again.binarizer.high_) == (0.2, 1.2)
    (tmp_path / "classes.json").write_text('{"1": "scratch", "9": "old"}')
    assert DiscoveryModel.read(tmp_path).names == {0: "normal", 1: "scratch", 2: "class 2"}
    assert DiscoveryModel.read(tmp_path, names=False).names[1] == "dent"
    empty = model(3)
    (tmp_path / "model.safetensors").write_bytes(empty.pack())
    read = DiscoveryModel.read(tmp_path)
    assert read.classifier is read.binarizer is read.unknown is read.product is read.false_alarms is None


def test_a_file_that_is_missing_damaged_or_of_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MissingRunError, match=r"expected a finished run with model\.safetensors, none found"):
        DiscoveryModel.read(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"nonsense")
    with pytest.raises(RunError, match="damaged, or not a model of anomalyncd"):
        DiscoveryModel.read(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("anomalyncd.discovery.model.FORMAT", 1)
        file.write_bytes(whole().pack())
    with pytest.raises(RunError, match=r"written by anomalyncd .*, which this version cannot read"):
        DiscoveryModel.read(tmp_path)


@pytest.mark.parametrize("wrong", ["weights", "classes", "means", "product", "unknown"])
def test_arrays_that_do_not_fit_each_other_are_noticed_when_they_are_read(wrong: str) -> None:
    known = whole()
    known.try_out()
    if wrong == "weights":
        known.classifier.weight = known.classifier.weight[0]  # type: ignore[union-attr]
    elif wrong == "classes":
        known.classifier.weight = known.classifier.weight[:1]  # type: ignore[union-attr]
    elif wrong == "means":
        known.classifier.space.means["patches"] = np.zeros(2, np.float32)  # type: ignore[union-attr]
    elif wrong == "product":
        known.product = SimpleNamespace(__call__=None)  # type: ignore[assignment]
    else:
        known.unknown = known.unknown.__class__(  # type: ignore[union-attr]
            np.zeros((3, 7), np.float32), np.ones(3, np.float32), np.zeros((2, 21), np.float32), np.ones(2), 0.1
        )
    with pytest.raises((ValueError, TypeError, DataError)):
        known.try_out()
    model(3).try_out()


def test_the_extractor_is_the_run_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr("anomalyncd.blocks.shards.make_encoder", lambda *given, **named: seen.append((given, named)))
    known, network = calibrated(), SimpleNamespace()
    extractor = known.extractor(network=network)  # type: ignore[arg-type]
    assert (
        seen == [((network, known.config), {"scenes": True, "seen": None})] and extractor.binarizer is known.binarizer
    )
    off = calibrated(settings={"unknown": {"foreign_rate": 0}})
    off.extractor(network=network)  # type: ignore[arg-type]
    assert seen[1][1] == {"scenes": False, "seen": None}


def test_what_is_unknown_is_fitted_once_to_the_same_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    from anomalyncd.discovery import model as module

    calls: list[int] = []
    plain = module.fit_unknown
    monkeypatch.setattr(module, "fit_unknown", lambda *given, **named: (calls.append(1), plain(*given, **named))[1])
    parts = {"patches": np.random.default_rng(0).normal(size=(6, 1, 1, 4)).astype(np.float16)}
    regions = [region(index) for index in range(6)]
    known = model(3)
    known.classifier = Classifier(FeatureSpace({"patches": 1.0}).fit(parts), np.eye(4, dtype=np.float32)[:2])
    first = known.fit_unknown(parts, regions)
    again = known.fit_unknown(parts, regions)
    assert len(calls) == 1 and np.array_equal(first, again)
    again[:] = 7  # a caller may change what it was given
    assert np.array_equal(known.fit_unknown(parts, regions), first)
    known.fit_unknown(parts, regions, np.array([True] * 5 + [False]))
    known.fit_unknown(dict(parts), regions)
    known.classifier = Classifier(FeatureSpace({"patches": 1.0}).fit(parts), np.eye(4, dtype=np.float32)[:2])
    known.fit_unknown(parts, regions)
    assert len(calls) == 4
