"""`n_classes="auto"`: the number is estimated from the regions, kept, and said; small groups are listed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.discovery import learning as module
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.relearn import relearn
from anomalyncd.errors import RunError
from anomalyncd.progress import Silent
from anomalyncd.run.tables import read_csv
from scenes import GOOD, KINDS, TINY, content, fit, images, regions, scene, write_scenes


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("line"), KINDS, seed=0)


def estimate(run: Path) -> dict[str, object]:
    return dict(json.loads((run / "count.json").read_text()))


@pytest.mark.parametrize("given", ["masks", "maps"])
def test_the_number_is_found_kept_and_not_estimated_again(
    given: str, line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    model = fit(line, run, given, "auto", most_classes=6)
    found = estimate(run)
    assert found["normal"] == 1 and model.classes_.tolist() == list(range(int(found["count"]) + 1))  # type: ignore[call-overload]
    assert len(found["answers"]) == 4 and model.model_.n_region_classes >= 2  # type: ignore[arg-type]
    assert (model.labels_[: KINDS.count(GOOD)] == 0).all() and (model.labels_[KINDS.count(GOOD) :] > 0).all()
    before = content(run)
    monkeypatch.setattr(module, "estimate_count", lambda *_, **__: pytest.fail("estimated again"))
    again = fit(line, run, given, "auto", most_classes=6)
    assert again.labels_.tolist() == model.labels_.tolist() and content(run) == before
    loaded = AnomalyNCD.load(run)
    assert loaded.n_classes == "auto" and loaded.classes_.tolist() == model.classes_.tolist()


def test_names_and_order_of_files_have_no_say(line: Path, tmp_path: Path) -> None:
    order = np.random.default_rng(3).permutation(len(KINDS))
    for new, old in enumerate(order):
        for part, ending in (("images", "png"), ("masks", "png")):
            (tmp_path / part).mkdir(exist_ok=True)
            source = line / part / f"{old:03d}.{ending}"
            if source.exists():
                shutil.copy(source, tmp_path / part / f"{new:03d}.{ending}")
    one, other = (
        fit(line, tmp_path / "one", "masks", "auto", most_classes=5),
        fit(tmp_path, tmp_path / "two", "masks", "auto", most_classes=5),
    )
    assert estimate(tmp_path / "one") == estimate(tmp_path / "two")
    assert other.labels_.tolist() == one.labels_[order].tolist()


@pytest.mark.parametrize("n_defects", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("has_normal", [True, False])
def test_few_regions(n_defects: int, has_normal: bool) -> None:
    rng = np.random.default_rng(0)
    scenes = [scene(kind, rng) for kind in [0] * n_defects + ([GOOD] * 2 if has_normal or not n_defects else [])]
    model = AnomalyNCD("auto", has_normal=has_normal, **TINY).fit([s[0] for s in scenes], masks=[s[1] for s in scenes])
    if has_normal:
        assert model.labels_.tolist() == [1] * n_defects + [0] * 2
    else:
        assert set(model.labels_.tolist()) == {1}


def test_a_number_that_is_given_is_not_estimated(line: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(line, run, "masks", "auto", most_classes=3)
    fit(line, run, "masks", 4)
    assert not (run / "count.json").exists() and DiscoveryModel.read(run).classes.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("n_images", [2])
def test_the_preset_paper_with_hardly_any_region(n_images: int) -> None:
    rng = np.random.default_rng(0)
    scenes = [scene(kind, rng) for kind in [0] * n_images + [GOOD] * 3]
    settings = {
        **TINY,
        "preset": "paper",
        "crop": {"size": 224},
        "learn": {"epochs": 1, "bank_views": 2},
        "features": {},
    }
    model = AnomalyNCD("auto", **settings).fit([s[0] for s in scenes], maps=[s[2] for s in scenes])
    assert len(model.labels_) == n_images + 3


def test_a_rare_kind_is_listed(tmp_path: Path) -> None:
    """Two regions of a kind that no class was made for."""
    folder = write_scenes(tmp_path / "line", [GOOD] * 2 + [0] * 12 + [1] * 12 + [3] * 2, seed=0)
    run = tmp_path / "run"
    fit(folder, run, "masks", 3)
    groups = read_csv(run / "groups.csv")
    assert list(groups.columns) == ["group", "image", "region", "label", "class_name"]
    rare = groups[groups["image"].isin(["026.png", "027.png"])]
    assert len(rare) == 2 and len(set(rare["group"])) == 1
    table = regions(run).set_index(["image", "region"])
    for row in groups.itertuples():
        assert table.loc[(row.image, row.region), "label"] == row.label


def test_none_is_listed_where_there_is_none(line: Path, tmp_path: Path) -> None:
    fit(write_scenes(tmp_path / "few", [GOOD, 0, 0, 1], seed=0), tmp_path / "run", "masks", 2)
    groups = read_csv(tmp_path / "run" / "groups.csv")
    assert len(groups) == 0 and "group" in groups


def test_corrections_outlive_the_same_call(line: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(line, run, "masks", "auto", most_classes=4)
    row = next(r for r in regions(run).itertuples() if r.label == 1)
    key = (row.image, row.region)
    relearn(run, {key: 9}, [key], {9: "odd"})
    fit(line, run, "masks", "auto", most_classes=4)
    assert images(run).set_index("image").loc[row.image, "class_name"] == "odd"
    with pytest.raises(RunError, match=r"names of classes \(odd\), classes that were corrected"):
        fit(line, run, "masks", "auto", most_classes=5)


def test_the_weakest_kind_is_normal_however_many_regions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_normal_kind", lambda *given: None)
    kinds = np.array([0, 1, 1, 1, 1, 1, 2])
    renumbered: list[list[int]] = []
    classifier = SimpleNamespace(
        cosines=lambda parts: np.eye(3)[kinds], n_base=0, renumber=lambda order: renumbered.append(order.tolist())
    )
    strength = np.where(kinds == 1, 0.3, 0.9)  # together more than one of the others
    novel = SimpleNamespace(parts={}, regions=[SimpleNamespace(score=score) for score in strength])
    model = SimpleNamespace(classifier=classifier, n_region_classes=3)
    module._put_normal_first(model, novel, np.arange(7))  # type: ignore[arg-type]
    assert renumbered == [[1, 0, 2]]


def pretend(scores: list[float], areas: list[float], owners: list[int], *, quiet: int = 0) -> SimpleNamespace:
    """Regions of images, with digests that turn their order round; images of no region come last."""
    regions = [
        SimpleNamespace(index=owner, score=score, area=area, digest=f"{99 - place:02d}")
        for place, (score, area, owner) in enumerate(zip(scores, areas, owners, strict=True))
    ]
    images = [SimpleNamespace(score=0.5 + owner / 100, error="", n_regions=1) for owner in range(max(owners) + 1)]
    images += [SimpleNamespace(score=0.1 * number, error="", n_regions=0) for number in range(quiet)]
    return SimpleNamespace(regions=regions, images=images, parts={})


def the_model(**more: object) -> SimpleNamespace:
    given = {"binarizer": object(), "learns_normal": False, "n_region_classes": 1, "false_alarms": None}
    return SimpleNamespace(**{**given, **more})


class Heard(Silent):
    def __init__(self) -> None:
        self.warned: list[str] = []

    def warn(self, text: str) -> None:
        self.warned.append(text)


def test_the_strongest_region_of_each_image_is_learned_from() -> None:
    # √area times score: 0.5 · 4 < 0.9 · 3, and equal ones by content, which is the later one here.
    novel = pretend([0.5, 0.9, 0.8, 0.4, 0.4, 0.7], [16, 9, 1, 4, 4, 4], [0, 0, 1, 2, 2, 3])
    chance = np.zeros(6)
    asked: list[float] = []
    model = the_model(false_alarm_probability=lambda *given, rate: (asked.append(rate), chance)[1])
    assert module._witnesses(model, novel, Silent()).tolist() == [5, 4, 2, 1] and asked == [0.02]
    chance[[1, 5]] = [0.02, 0.021]
    assert module._witnesses(model, novel, Silent()).tolist() == [4, 2, 1]
    for other in ({"binarizer": None}, {"learns_normal": True}):
        assert module._witnesses(the_model(**other), novel, Silent()).tolist() == [5, 4, 3, 2, 1, 0]


@pytest.mark.parametrize(
    ("clear", "wanted", "n_used"), [(2, 2, 2), (2, 3, 4), (2, 4, 4), (2, 5, 2), (0, 0, 4), (1, 0, 1)]
)
def test_where_too_few_images_are_clear_all_with_a_region_are_learned_from(
    clear: int, wanted: int, n_used: int
) -> None:
    novel = pretend([0.5] * 4, [1] * 4, [0, 1, 2, 3])
    chance = np.where(np.arange(4) < clear, 0.0, 1.0)
    heard = Heard()
    model = the_model(n_region_classes=wanted, false_alarm_probability=lambda *given, rate: chance)
    assert len(module._witnesses(model, novel, heard)) == n_used
    assert len(heard.warned) == (n_used > clear)
    if heard.warned:
        assert f"only {clear} images score clearly higher" in heard.warned[0]


def test_it_is_unclear_only_where_maps_tell_nothing() -> None:
    config = SimpleNamespace(has_normal=True, learn=SimpleNamespace(normal="calibrated"))
    assert module._is_unclear(the_model(config=config)) is True
    for other in ({"binarizer": None}, {"false_alarms": object()}, {"learns_normal": True}):
        assert module._is_unclear(the_model(config=config, **other)) is False
    for change in ({"has_normal": False}, {"learn": SimpleNamespace(normal="class")}):
        assert module._is_unclear(the_model(config=SimpleNamespace(**{**vars(config), **change}))) is False


def test_kinds_are_told_by_the_scores_of_their_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[list[float]]] = []
    monkeypatch.setattr(module, "normal_kind", lambda *given: seen.append([array.tolist() for array in given]))
    novel = pretend([0.9, 0.8, 0.7], [1, 1, 1], [0, 1, 2], quiet=3)
    novel.images[-1].error = "damaged"
    module._normal_kind(novel, np.array([2, 0]), np.array([1, 0]))
    assert seen == [[[1, 0], [0.52, 0.5], [0.0, 0.1]]]


@pytest.mark.parametrize(("found", "expected"), [(2, [2, 1, 0]), (0, [0, 1, 2]), (1, [1, 0, 2])])
def test_the_normal_kind_changes_places_with_the_first(
    found: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[list[int]] = []
    monkeypatch.setattr(module, "_normal_kind", lambda novel, used, own: (kinds.append(own.tolist()), found)[1])
    orders: list[list[int]] = []
    cosines = np.array([[9, 0.1, 0.2, 0.3], [9, 0.5, 0.2, 0.3], [9, 0.1, 0.6, 0.3]])  # the first is of the base set
    classifier = SimpleNamespace(
        cosines=lambda parts: cosines[parts["p"]], n_base=1, renumber=lambda order: orders.append(order.tolist())
    )
    novel = SimpleNamespace(parts={"p": np.arange(3)})
    module._put_normal_first(the_model(classifier=classifier, n_region_classes=3), novel, np.array([2, 0]))
    assert orders == [expected] and kinds == [[1, 2]]


@pytest.mark.parametrize("has_normal", [True, False])
def test_classes_are_numbered_from_the_largest(has_normal: bool) -> None:
    """Best classes of the regions, by content 3, 2, 2, 1, 3, 3: three of kind 3, two of kind 2, one of kind 1."""
    classes = np.arange(4) if has_normal else np.arange(1, 4)
    best = np.array([3, 3, 1, 2, 2, 3, 0][: 7 if has_normal else 6]) - (0 if has_normal else 1)
    probabilities = np.eye(len(classes))[best] * 0.5
    novel = pretend([1] * len(best), [1] * len(best), list(range(len(best))))
    orders: list[list[int]] = []
    asked: list[float] = []
    model = SimpleNamespace(
        classifier=SimpleNamespace(renumber=lambda order: orders.append(order.tolist())), classes=classes,
        n_region_classes=3, region_probabilities=lambda *given, rate: (asked.append(rate), probabilities)[1],
    )  # fmt: skip
    module._number_by_size(model, {}, novel)
    assert orders == [[2, 1, 0]] and asked == [0.02]


def test_the_normal_class_stays_in_front_and_equal_classes_in_the_order_of_their_content() -> None:
    novel = pretend([1] * 4, [1] * 4, [0, 1, 2, 3])  # by content: 3, 2, 1, 0
    orders: list[list[int]] = []
    model = SimpleNamespace(
        classifier=SimpleNamespace(renumber=lambda order: orders.append(order.tolist())), classes=np.arange(4),
        n_region_classes=4, region_probabilities=lambda *given, rate: np.eye(4)[[2, 1, 1, 2]],
    )  # fmt: skip
    module._number_by_size(model, {}, novel)  # normal is learned like the others, so it has a place of its own
    assert orders == [[0, 2, 1, 3]]


def test_looks_are_those_of_the_first_region_of_each_image(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, ...]] = []
    monkeypatch.setattr(module, "add_looks", lambda *given: (seen.append(given), "with looks")[1])
    novel = pretend([1] * 3, [1] * 3, [0, 0, 1])
    novel.parts = {"image": np.arange(12, dtype=np.float16).reshape(3, 2, 1, 2)}
    normal = (np.zeros(2), np.zeros((2, 1, 2)))
    for known, given in ((None, normal), ("line", None)):
        model = the_model(false_alarms=known)
        module._add_looks(model, novel, given)
        assert model.false_alarms == known and not seen
    model = the_model(false_alarms="line")
    module._add_looks(model, novel, normal)
    assert model.false_alarms == "with looks"
    ((line, scores, looks, *others),) = seen
    assert line == "line" and others[0] is normal[0] and others[1] is normal[1]
    np.testing.assert_array_equal(scores, [0.5, 0.51])  # type: ignore[arg-type]
    np.testing.assert_array_equal(looks, [[[1, 2]], [[9, 10]]])  # type: ignore[arg-type]
