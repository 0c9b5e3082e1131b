"""The way from regions to classes, step by step, without a run: with and without kinds that are known beforehand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from anomalyncd.assign.count import CountEstimate
from anomalyncd.config import make_config
from anomalyncd.discovery import learning as module
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.known.seeded import Marked, robust_clusters
from anomalyncd.progress import Silent

FOUND = CountEstimate(3, 2, 4, 4, "agreed", {"silhouette": 3}, 9.0, 12, 10)


def regions(kinds: list[int], seed: int = 0) -> SimpleNamespace:
    """Of an image each, along the axis of its kind; ordered by content as they are."""
    rng = np.random.default_rng(seed)
    features = (np.eye(6)[kinds] + rng.normal(0, 0.05, (len(kinds), 6))).astype(np.float16)[:, None, None]
    some = [SimpleNamespace(index=k, score=0.5, area=4.0, digest=f"{k:03d}") for k in range(len(kinds))]
    records = [SimpleNamespace(score=0.5, error="", n_regions=1) for _ in kinds]
    return SimpleNamespace(regions=some, images=records, parts={"patches": features, "image": features})


def model(n_classes: int | str = 4, **settings: Any) -> DiscoveryModel:
    return DiscoveryModel(make_config({"learn": {"epochs": 0}}, {"n_classes": n_classes, **settings}))


def marked(names: list[str], kinds: list[int], normal: list[bool] | None = None) -> Marked:
    return Marked(names, np.array(kinds), np.array(normal or [False] * len(kinds)))


KINDS = [0] * 4 + [1] * 4 + [2] * 4
TOLD = [0, -1, -1, -1, 1, -1, -1, -1, -1, -1, -1, -1]


def learn(
    known: Marked, of: DiscoveryModel, novel: SimpleNamespace | None = None, used: list[int] | None = None
) -> Any:
    novel = novel or regions(KINDS)
    rows = np.arange(len(novel.regions)) if used is None else np.array(used)
    return module._learn_known(of, novel, rows, known, Silent())  # type: ignore[arg-type]


def test_known_kinds_come_first_and_in_the_order_of_their_names() -> None:
    of, known = model(4), marked(["bend", "dent"], TOLD)
    assert learn(known, of) is None and of.classifier is not None
    assert of.names == {0: "normal", 1: "bend", 2: "dent", 3: "class 3"} and of.classifier.n_base == 0
    cosines = of.classifier.cosines(regions(KINDS).parts)
    assert cosines.argmax(axis=1).tolist() == KINDS and cosines.shape == (12, 3)
    np.testing.assert_allclose(np.linalg.norm(of.classifier.weight, axis=1), 1, rtol=1e-5)
    assert known.suspects == {} and not of.learns_normal


def test_the_number_of_classes_is_at_least_that_of_the_known_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        module, "count_classes", lambda parts, used, config, progress: (asked.append(used.tolist()), FOUND)[1]
    )
    for total, low, high in ((3, 2, 4), (1, 1, 4), (5, 2, 5)):
        monkeypatch.setattr(module, "count_with_known", lambda features, kinds, count, seed, total=total: total)
        of = model("auto")
        names = ["bend", "dent"][: min(total, 2)]
        told = TOLD if total > 1 else [0] + [-1] * 11
        count = learn(marked(names, told), of)
        assert (count["count"], count["low"], count["high"], count["known"], count["normal"]) == (
            total,
            low,
            high,
            len(names),
            1,
        )
        assert count["verdict"] == "agreed" and of.classes.tolist() == list(range(total + 1))
    without = model("auto", has_normal=False)
    assert learn(marked(["bend", "dent"], TOLD), without)["normal"] == 0 and without.classes.tolist() == [1, 2, 3, 4, 5]
    assert asked[0] == list(range(12))


def test_regions_that_are_known_to_be_normal_are_no_witnesses(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def clusters(features: Any, kinds: Any, n: int, seed: int) -> Any:
        seen.append((len(features), kinds.tolist(), n))
        return robust_clusters(features, kinds, n, seed)

    monkeypatch.setattr(module, "robust_clusters", clusters)
    normal = [False] * 8 + [True] * 4
    of = model(3)
    learn(marked(["bend", "dent"], TOLD, normal), of, used=[k for k in range(12) if k != 0])
    # Region 0 was no witness, but its kind is known; those that are normal are none.
    assert seen == [(8, [0, -1, -1, -1, 1, -1, -1, -1], 2)] and not of.learns_normal
    unclear = model(3)
    unclear.binarizer = object()  # type: ignore[assignment]
    learn(marked(["bend", "dent"], TOLD, normal), unclear)
    assert unclear.learns_normal and seen[1] == (12, [1, -1, -1, -1, 2, -1, -1, -1, 0, 0, 0, 0], 3)
    assert unclear.names == {0: "normal", 1: "bend", 2: "dent"}
    assert unclear.classifier is not None
    assert unclear.classifier.cosines(regions(KINDS).parts).argmax(axis=1).tolist() == [1] * 4 + [2] * 4 + [0] * 4


def test_labels_that_look_wrong_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    doubtful = np.full(12, -1)
    doubtful[3], doubtful[7] = 0, 2
    monkeypatch.setattr(module, "robust_clusters", lambda features, kinds, n, seed: (np.array(KINDS), doubtful))
    known = marked(["bend", "dent"], TOLD)
    learn(known, model(4))
    assert known.suspects == {3: 0, 7: 2}


def test_more_clusters_than_kinds_of_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "robust_clusters", lambda *given: (np.zeros(12, np.int64), np.full(12, -1)))
    of = model(4)
    learn(marked(["bend"], [0] + [-1] * 11), of, regions([0] * 12))
    assert of.classifier is not None
    np.testing.assert_allclose(np.linalg.norm(of.classifier.weight, axis=1), 1, rtol=1e-4)
    features = of.classifier.space.transform(regions([0] * 12).parts)
    np.testing.assert_allclose(of.classifier.weight[1:], -features[[0, 0]], atol=1e-6)


@pytest.mark.parametrize(
    "settings", [{"learn": {"epochs": 1}}, {"learn": {"train_last_block": True}, "features": {"class_token": 1.0}}]
)
def test_known_kinds_go_with_frozen_features_only(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=r"known kinds \(--known\) go with classes that are clusters"):
        learn(marked(["bend"], [0] + [-1] * 11), model(4, **settings))
    of = model(4)
    of.learns_normal = True
    with pytest.raises(SettingsError, match="known kinds"):
        learn(marked(["bend"], [0] + [-1] * 11), of)


def test_too_few_classes_or_regions_for_what_is_known() -> None:
    with pytest.raises(SettingsError, match="at least 3 for bend, dent, but got 2"):
        learn(marked(["bend", "dent"], TOLD), model(2))
    learn(marked(["bend", "dent"], TOLD), model(3))
    with pytest.raises(DataError, match="found 2 anomalous regions, but 3 defect classes were asked"):
        learn(marked(["bend"], [0, -1]), model(4), regions([0, 1]))


class Steps:
    """What `learn_classes` calls, noted, and answered by what is said here."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, unclear: bool = False, kind: int | None = None) -> None:
        self.told: list[Any] = []
        answers = {
            "_add_looks": None, "_witnesses": np.arange(12), "_is_unclear": unclear, "count_classes": FOUND,
            "_normal_kind": kind, "_train": None, "_put_normal_first": None, "_number_by_size": None,
            "_encode_again": {"class_token": 1}, "_learn_known": {"count": 9}, "ward_kmeans": "kinds",
        }  # fmt: skip
        for name, answer in answers.items():
            monkeypatch.setattr(module, name, self.noting(name, answer))

    def noting(self, name: str, answer: Any) -> Any:
        return lambda *given, **named: (self.told.append((name, given, named)), answer)[1]

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.told]

    def of(self, name: str) -> Any:
        return next((given, named) for own, given, named in self.told if own == name)


def test_the_steps_to_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, of, novel = Steps(monkeypatch), model(4), regions(KINDS)
    features, count = module.learn_classes(of, novel, None, None, Silent())  # type: ignore[arg-type]
    assert features is novel.parts and count is None and not of.learns_normal
    assert steps.names == ["_add_looks", "_witnesses", "_is_unclear", "_train", "_number_by_size"]
    assert steps.of("_train")[1] == {"normal": None}


@pytest.mark.parametrize(
    ("has_normal", "no_region", "how", "with_maps", "learns"),
    [
        (True, "gate", "calibrated", True, False), (True, "learned", "calibrated", False, True),
        (False, "learned", "calibrated", True, False), (True, "gate", "class", True, True),
        (True, "gate", "class", False, False), (False, "gate", "class", True, False),
    ],
)  # fmt: skip
def test_when_normal_is_learned_like_the_others(
    has_normal: bool, no_region: str, how: str, with_maps: bool, learns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    of = model(4, has_normal=has_normal, crop={"no_region": no_region}, learn={"normal": how, "epochs": 0})
    of.binarizer = object() if with_maps else None  # type: ignore[assignment]
    module.learn_classes(of, regions(KINDS), None, None, Silent())  # type: ignore[arg-type]
    assert of.learns_normal is learns and steps.of("_train")[1] == {"normal": 0 if learns else None}


@pytest.mark.parametrize(("has_normal", "classes", "on_top"), [(True, [0, 1, 2, 3], 1), (False, [1, 2, 3], 0)])
def test_classes_that_are_counted(
    has_normal: bool, classes: list[int], on_top: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    Steps(monkeypatch)
    of = model("auto", has_normal=has_normal)
    _, count = module.learn_classes(of, regions(KINDS), None, None, Silent())  # type: ignore[arg-type]
    assert of.classes.tolist() == classes and count is not None and count["normal"] == on_top and count["count"] == 3


@pytest.mark.parametrize("kind", [None, 2])
def test_where_it_is_unclear_a_kind_may_be_normal(kind: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, of = Steps(monkeypatch, unclear=True, kind=kind), model("auto")
    _, count = module.learn_classes(of, regions(KINDS), None, None, Silent())  # type: ignore[arg-type]
    assert of.learns_normal is (kind is not None) and count is not None
    assert count["normal"] == (0 if kind is not None else 1) and len(of.classes) == 3 + (kind is None)
    assert ("_put_normal_first" in steps.names) is (kind is not None)
    assert steps.of("_train")[1] == {"normal": None} and steps.of("ward_kmeans")[0][1] == 3
    given = model(3)
    steps = Steps(monkeypatch, unclear=True)
    module.learn_classes(given, regions(KINDS), None, None, Silent())  # type: ignore[arg-type]
    assert steps.of("ward_kmeans")[0][1] == 3 and "count_classes" not in steps.names


def test_what_is_known_goes_its_own_way_and_trained_features_are_computed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, novel = Steps(monkeypatch), regions(KINDS)
    nothing = marked([], [-1] * 12)
    for known, own_way in (
        (nothing, False),
        (marked(["bend"], TOLD), True),
        (marked([], [-1] * 12, [True] + [False] * 11), True),
    ):
        steps.told.clear()
        features, count = module.learn_classes(model(4), novel, None, None, Silent(), known)  # type: ignore[arg-type]
        assert ("_learn_known" in steps.names) is own_way and (count == {"count": 9}) is own_way
        assert features is novel.parts
    trained = model(4, learn={"train_last_block": True}, features={"class_token": 1.0})
    assert module.learn_classes(trained, novel, None, None, Silent())[0] == {"class_token": 1}  # type: ignore[arg-type]
    with pytest.raises(DataError, match="found 12 anomalous regions, but 13 defect classes"):
        module.learn_classes(model(14), novel, None, None, Silent())  # type: ignore[arg-type]


def test_features_of_the_used_regions_make_their_own_space() -> None:
    config = make_config({"features": {"patches": 1.0, "image": 0, "class_token": 0}})
    novel, used = regions(KINDS), np.array([0, 5, 9])
    found = module._features(novel.parts, used, config)
    rows = novel.parts["patches"][used][:, 0, 0].astype(np.float32)
    centred = rows - rows.mean(axis=0)
    np.testing.assert_allclose(found, centred / np.linalg.norm(centred, axis=1, keepdims=True), atol=1e-4)
    plain = module._features(
        novel.parts, used, config.model_copy(update={"features": config.features.model_copy(update={"center": False})})
    )
    np.testing.assert_allclose(plain, rows / np.linalg.norm(rows, axis=1, keepdims=True), atol=1e-4)
