"""What classes are learned from and how they are numbered, one function at a time, without a run."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from anomalyncd.discovery import learning as module
from anomalyncd.progress import Silent


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
