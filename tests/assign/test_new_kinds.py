"""Which new regions become classes: those that are far off and alike, whole kinds of them, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage

from anomalyncd import large
from anomalyncd.assign import new_kinds
from anomalyncd.assign.new_kinds import MOST, _is_nearer, average_linkage, open_classes

WIDTH = 60
ONE = np.ones(1, np.float32)


def regions(seed: int, kinds: list[int], noise: float = 0.08) -> np.ndarray:
    """Blocks (R, 1, C), a direction for each kind."""
    rng = np.random.default_rng(seed)
    return (np.eye(WIDTH)[kinds] + rng.normal(0, noise, (len(kinds), WIDTH)))[:, None].astype(np.float32)


def opened(old: list[int], new: list[int], *, labels: list[int] | None = None, **options: Any) -> list[int]:
    """Classes of the new regions; old regions have their kinds as classes, and new ones what they are likest to."""
    blocks = np.concatenate([regions(0, old, **options), regions(1, new, **options)])
    given = [*old, *(labels or [kind if kind in old else 1 for kind in new])]
    silent = np.zeros(len(given), bool)
    found = open_classes(blocks, ONE, np.arange(len(given)), np.array(given), len(old), silent, 3, max(old))
    assert found[: len(old)].tolist() == old
    return found[len(old) :].tolist()


def opens(members: np.ndarray, known: np.ndarray, widest: float) -> bool:
    """Whether a group is a kind of its own."""
    own, features = np.arange(len(members)), np.concatenate([members, known])
    nearer = _is_nearer(features, own, np.ones(len(own), int), np.arange(len(own), len(features)), widest, seed=0)
    return bool(nearer.mean() >= MOST)


OLD = [1] * 10 + [2] * 10 + [3] * 10


def test_a_new_kind_is_one_class_and_known_kinds_stay() -> None:
    new = [1, 7, 2, 7, 3, 7, 7, 1, 2]
    assert opened(OLD, new) == [4 if kind == 7 else kind for kind in new]


def test_two_new_kinds_are_two_classes_the_larger_first() -> None:
    new = [7] * 4 + [8] * 6 + [1]
    assert opened(OLD, new) == [5] * 4 + [4] * 6 + [1]


def test_too_few_alike_open_nothing() -> None:
    assert opened(OLD, [7, 7, 1]) == [1, 1, 1]
    assert opened(OLD, [7, 8, 9, 10]) == [1] * 4, "none is like another"


def test_known_kinds_alone_open_nothing() -> None:
    new = [1, 2, 3] * 8
    assert opened(OLD, new) == new


@pytest.mark.parametrize("noise", [0.05, 0.15])
def test_members_that_were_not_suspicious_are_drawn_in(noise: float) -> None:
    """A kind between two known ones: half of it seems known at first."""
    rng = np.random.default_rng(3)
    middle = np.eye(WIDTH)[1] * 0.5 + np.eye(WIDTH)[9] * 0.8
    between = (middle + rng.normal(0, noise, (12, WIDTH)))[:, None].astype(np.float32)
    blocks = np.concatenate([regions(0, OLD, noise), between])
    labels = np.array([*OLD, *[1] * 12])
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, len(OLD), np.zeros(len(labels), bool), 3, 3)
    assert found[len(OLD) :].tolist() == [4] * 12 and found[: len(OLD)].tolist() == OLD


def test_unknown_ones_of_before_and_new_ones_make_a_class_together() -> None:
    blocks = np.concatenate([regions(0, OLD), regions(1, [7, 7]), regions(2, [7, 2])])
    labels = np.array([*OLD, -1, -1, -1, 2])
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, 32, np.zeros(len(labels), bool), 3, 9)
    assert found[30:].tolist() == [10, 10, 10, 2], "above every number that was ever used"


def test_false_alarms_and_other_products_open_nothing_and_keep_their_labels() -> None:
    blocks = np.concatenate([regions(0, OLD), regions(1, [7] * 5)])
    labels = np.array([*OLD, *[-1] * 5])
    silent = np.arange(len(labels)) >= len(OLD)
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, len(OLD), silent, 3, 3)
    np.testing.assert_array_equal(found, labels)
    silent[-4:] = False
    found = open_classes(blocks, ONE, np.arange(len(labels)), labels, len(OLD), silent, 3, 3)
    assert found[len(OLD) :].tolist() == [-1, 4, 4, 4, 4]


def test_a_run_in_which_nothing_is_known() -> None:
    blocks, labels = regions(0, [1, 1, 1, 2, 2, 2]), np.full(6, -1)
    found = open_classes(blocks, ONE, np.arange(6), labels, 0, np.zeros(6, bool), 3, 0)
    assert sorted(found.tolist()) == [1, 1, 1, 2, 2, 2] or set(found.tolist()) == {1}


@pytest.mark.parametrize(("alike", "is_kind"), [(4, True), (3, True), (2, False)])
def test_three_of_four_must_be_more_like_each_other_than_like_anything_known(alike: int, is_kind: bool) -> None:
    known = np.eye(WIDTH, dtype=np.float32)[:1]
    far, near = np.eye(WIDTH)[1], np.eye(WIDTH)[0]
    members = np.stack([far + 0.1 * np.eye(WIDTH)[5 + i] if i < alike else near for i in range(4)]).astype(np.float32)
    members /= np.linalg.norm(members, axis=1, keepdims=True)
    assert opens(members, known, widest=0.5) is is_kind


def test_new_ones_are_suspects_from_where_a_fifth_of_the_known_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    suspects: list[int] = []

    def counted(rows: np.ndarray, *given: Any, **named: Any) -> np.ndarray:
        suspects.append(len(rows))
        return linkage(rows, *given, **named)

    monkeypatch.setattr(new_kinds, "linkage", counted)
    opened([0] * 400, [0] * 400)
    assert suspects[0] / 400 == pytest.approx(0.2, abs=0.06)


def slow_settled(features: np.ndarray, before: list[int], labels: list[int], free: list[bool], least: int) -> list[int]:
    """In loops: the nearest centre of all classes, where it is a new one; else what a region was before."""
    newest = max(before)
    for _ in range(20):
        classes = sorted({k for k in labels if k >= 0})
        if not any(k > newest for k in classes):
            return labels
        centres = {k: features[[i for i, own in enumerate(labels) if own == k]].mean(axis=0) for k in classes}
        moved = []
        for i, own in enumerate(labels):
            likeness = {k: float(features[i] @ c / max(np.linalg.norm(c), 1e-12)) for k, c in centres.items()}
            nearest = max(classes, key=lambda k: likeness[k])
            moved.append(own if not free[i] else nearest if nearest > newest else before[i])
        for k in (k for k in classes if k > newest and moved.count(k) < least):
            moved = [before[i] if own == k else own for i, own in enumerate(moved)]
        if moved == labels:
            return labels
        labels = moved
    return labels


@pytest.mark.parametrize("seed", range(25))
def test_regions_settle_as_in_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(6, 14))
    features = rng.normal(size=(count, 3)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    before = rng.integers(-1, 3, count)
    before[0] = 2  # the highest known class, so that 3 and 4 are new
    labels = np.where(rng.random(count) < 0.5, rng.integers(3, 5, count), before)
    labels[0], free, least = 2, rng.random(count) < 0.8, int(rng.integers(1, 4))
    found = new_kinds._settled(features, before, labels.copy(), free, least)
    assert found.tolist() == slow_settled(features, before.tolist(), labels.tolist(), free.tolist(), least)


def test_a_new_class_that_becomes_too_small_is_gone() -> None:
    features = np.float32([[1, 0], [1, 0], [0.9, 0.1], [0, 1], [0, 1], [0, 1]])
    before, labels = np.array([1, 1, 1, -1, -1, -1]), np.array([1, 1, 2, 2, 2, 2])
    free = np.array([False, False, True, True, True, True])
    assert new_kinds._settled(features, before, labels.copy(), free, 3).tolist() == [1, 1, 1, 2, 2, 2]
    assert new_kinds._settled(features, before, labels.copy(), free, 4).tolist() == before.tolist()


def test_a_group_no_wider_than_known_regions_are_is_a_kind() -> None:
    """Members at a cosine of 0.5 of each other, 0 of what is known."""
    members = np.zeros((4, WIDTH), np.float32)
    members[:, 1] = members[np.arange(4), 5 + np.arange(4)] = 0.5**0.5
    known = np.eye(WIDTH, dtype=np.float32)[:1]
    assert opens(members, known, widest=0.51) and not opens(members, known, widest=0.49)
    assert opens(members, known[:0], widest=0.0), "nothing is known to be compared with"
    near = known * 0.6 + 0.8 * np.eye(WIDTH, dtype=np.float32)[1]  # at 0.57 of each member
    assert not opens(members, near, widest=0.51)


@pytest.mark.parametrize(("count", "step"), [(3, 1), (4, 1), (5, 2), (8, 2), (9, 3)])
def test_of_many_known_regions_some_tell_how_alike_they_are(
    count: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_kinds, "MOST_KNOWN", 4)
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(new_kinds, "limit_for", lambda *given: (seen.append(given), 0.5)[1])
    blocks = np.concatenate([regions(0, [1] * count), regions(1, [7] * 4)])
    labels, images = np.array([1] * count + [-1] * 4), np.arange(count + 4) // 2
    open_classes(blocks, ONE, images, labels, count, np.zeros(len(labels), bool), 3, 1)
    (distances, odd, least), chosen = seen[0], list(range(0, count, step))
    centred = blocks[:, 0] - blocks[:, 0].mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    expected = []
    for i in chosen:
        others = [float(unit[i] @ unit[j]) for j in chosen if images[i] != images[j]]
        expected.append(1 - max(others, default=-1))
    np.testing.assert_allclose(distances, expected, atol=1e-5)
    assert (odd, least) == (0.01, 1e-3)


def test_the_largest_group_gets_the_lowest_number_above_all_that_were_ever_used() -> None:
    blocks = np.concatenate([regions(0, OLD), regions(1, [7] * 3 + [8] * 5)])
    labels = np.array([*OLD, *[-1] * 8])
    for above, first in ((0, 4), (3, 4), (9, 10)):
        found = open_classes(blocks, ONE, np.arange(38), labels, 30, np.zeros(38, bool), 3, above)
        assert found[30:].tolist() == [first + 1] * 3 + [first] * 5
    for least, numbers in ((5, {4}), (6, {-1})):  # with 5, those of the smaller kind go to the only new class there is
        found = open_classes(blocks, ONE, np.arange(38), labels, 30, np.zeros(38, bool), least, 0)
        assert set(found[30:].tolist()) == numbers


def test_regions_of_before_stay_normal_ones_too() -> None:
    """The first new region seems to be of class 1; a region of the run that is normal looks like the new kind."""
    blocks = np.concatenate([regions(0, [*OLD, 7]), regions(1, [7] * 4)])
    labels = np.array([*OLD, 0, 1, -1, -1, -1])
    found = open_classes(blocks, ONE, np.arange(35), labels, 31, np.zeros(35, bool), 3, 3)
    assert found.tolist() == [*OLD, 0, 4, 4, 4, 4]


def kinds_that_came(seed: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """2,000 regions of five kinds, 900 more with two new, opposite kinds among them: blocks, labels and kinds."""
    rng = np.random.default_rng(seed)
    truth = np.concatenate([rng.choice([1, 2, 3, 4, 5], 2000), rng.choice([1, 2, 3, 4, 5, 7, 8], 900)])
    blocks = regions(seed, np.where(truth == 8, 7, truth).tolist(), noise=0.1)
    blocks[truth == 8] *= -1
    return blocks, np.where(truth > 5, 1, truth), truth.tolist()


@pytest.mark.parametrize("seed", [0, 1])
def test_of_many_regions_the_same_classes_open(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, labels, truth = kinds_that_came(seed)
    silent, images = np.zeros(len(labels), bool), np.arange(len(labels)) // 2

    def found(rows: Any) -> np.ndarray:
        return open_classes(rows, ONE, images, labels, 2000, silent, 3, 5, seed=seed)

    exact = found(blocks)
    monkeypatch.setattr(large, "LARGE", 500)
    monkeypatch.setattr(large, "COMPARED", 256)
    monkeypatch.setattr(new_kinds, "MOST_IN_TREE", 200)
    approximate = found(large.Lazy(lambda rows: blocks[rows], blocks.shape))
    assert set(exact.tolist()) == set(approximate.tolist()) == {1, 2, 3, 4, 5, 6, 7}
    assert (exact == approximate).mean() > 0.99
    assert len(set(zip(truth, approximate.tolist(), strict=True))) <= 9, "a class for each kind"


def test_average_linkage_of_single_regions_is_that_of_scipy() -> None:
    x = np.random.default_rng(0).normal(size=(40, 6))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    expected = linkage(x, "average", metric="cosine")
    found = average_linkage(x, np.ones(40))
    np.testing.assert_allclose(np.sort(found[:, 2]), expected[:, 2], atol=1e-9)
    for limit in (0.3, 0.7, 1.0):
        one, other = (fcluster(tree, limit, "distance") for tree in (found, expected))
        assert len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))
