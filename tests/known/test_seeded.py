"""Clusters around labelled points, counted with them, and labels that look wrong."""

from __future__ import annotations

from itertools import permutations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from anomalyncd import large
from anomalyncd.errors import DataError
from anomalyncd.known import seeded as module
from anomalyncd.known.seeded import count_with_known, robust_clusters, seeded_clusters, suspects
from anomalyncd.learn.cluster import ward


def blobs(sizes: list[int], spread: float = 0.15, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors around axes, and which axis each belongs to."""
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(len(sizes)), sizes)
    x = np.eye(max(len(sizes), 2) + 4)[kinds] + rng.normal(0, spread, (len(kinds), max(len(sizes), 2) + 4))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), kinds


def slow_ward(x: np.ndarray, known: np.ndarray, n_clusters: int) -> set[frozenset[int]]:
    """Every pair anew after each step."""
    groups = [set(np.flatnonzero(known == k).tolist()) for k in range(known.max() + 1)]
    groups += [{int(place)} for place in np.flatnonzero(known < 0)]
    kinds: list[int] = [*range(known.max() + 1), *([-1] * int((known < 0).sum()))]
    while len(groups) > n_clusters:
        best, pair = np.inf, (0, 0)
        for a in range(len(groups)):
            for b in range(a):
                if kinds[a] >= 0 and kinds[b] >= 0:
                    continue
                n, m = len(groups[a]), len(groups[b])
                gap = x[list(groups[a])].mean(axis=0, dtype=float) - x[list(groups[b])].mean(axis=0, dtype=float)
                if (cost := n * m / (n + m) * (gap**2).sum()) < best:
                    best, pair = cost, (a, b)
        a, b = pair
        groups[b] |= groups[a]
        kinds[b] = max(kinds[a], kinds[b])
        del groups[a], kinds[a]
    return {frozenset(group) for group in groups}


@given(st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_tree_is_wards_with_kinds_that_never_meet(seed: int) -> None:
    from anomalyncd.known.seeded import _seeded_ward

    rng = np.random.default_rng(seed)
    x = rng.normal(size=(14, 3)).astype(np.float32)
    known = np.full(14, -1)
    known[rng.permutation(14)[:5]] = [0, 0, 1, 1, 2]
    labels = _seeded_ward(x, known, 3, 5)
    assert {frozenset(np.flatnonzero(labels == k).tolist()) for k in range(5)} == slow_ward(x, known, 5)
    assert all((labels[known == k] == k).all() for k in range(3))


def test_without_labels_it_is_ward() -> None:
    from anomalyncd.known.seeded import _seeded_ward

    x, _ = blobs([9, 7, 5], spread=0.4)
    ours, theirs = _seeded_ward(x, np.full(21, -1), 0, 4), ward(x, 4)
    assert len(set(zip(ours.tolist(), theirs.tolist(), strict=True))) == 4


def test_labelled_points_stay_and_new_kinds_come_behind_by_size() -> None:
    x, kinds = blobs([8, 6, 4, 10])
    known = np.full(len(x), -1)
    known[[0, 14]] = [1, 0]  # kind 1 is the first blob, kind 0 the third
    found = seeded_clusters(x, known, 4, seed=0)
    assert found.tolist() == np.array([1, 3, 0, 2])[kinds].tolist()
    with pytest.raises(DataError, match="found 2 anomalous regions"):
        seeded_clusters(x[:2], known[:2], 3, seed=0)


def test_many_points_keep_every_label(monkeypatch: pytest.MonkeyPatch) -> None:
    from anomalyncd.known import seeded

    monkeypatch.setattr(seeded, "MOST_IN_TREE", 20)
    x, kinds = blobs([40, 3, 40])
    known = np.full(len(x), -1)
    known[40:42] = 0
    found = seeded_clusters(x, known, 3, seed=0)
    assert (found[40:43] == 0).all() and len(set(zip(found.tolist(), kinds.tolist(), strict=True))) == 3


def test_labels_split_what_looked_like_one_kind() -> None:
    x, kinds = blobs([12, 12, 12], spread=0.03)
    x[kinds == 1] = x[kinds == 0] + 0.35 * x[kinds == 1]  # two kinds that look alike
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    known = np.full(len(x), -1)
    known[:3] = 0
    assert count_with_known(x, known, 2, seed=0) == 3, "all examples lie in one half of the cluster"
    x_few, few = x[[0, 1, 2, *range(12, 36)]], np.where(np.arange(27) == 0, 0, -1)
    assert count_with_known(x_few, few, 2, seed=0) == 2, "one example lies in some half anyway"
    known[[1, 2]], known[[13, 14, 15]] = -1, 0
    assert count_with_known(x, known, 2, seed=0) == 2, "examples in both halves: one kind"
    known[[13, 14, 15]] = 1
    assert count_with_known(x, known, 2, seed=0) == 3, "two known kinds in one cluster"
    assert count_with_known(x, np.where(known == 0, 0, -1), 3, seed=0) == 3


def slow_count(x: np.ndarray, known: np.ndarray, labels: np.ndarray) -> int | None:
    """The rule for clusters, kind by kind, with binomial chances; None where kinds may be at home in several ways."""
    kinds, clusters = range(known.max() + 1), range(labels.max() + 1)
    held = {(k, c): int(((known == k) & (labels == c)).sum()) for k in kinds for c in clusters}
    ways = {way: sum(held[k, c] for k, c in enumerate(way)) for way in permutations(clusters, len(kinds))}
    best = [way for way, sum_ in ways.items() if sum_ == max(ways.values())]
    if len(best) > 1 or any(held[k, c] == 0 for k, c in enumerate(best[0])):
        return None
    count = len(kinds)
    for c in set(clusters) - set(best[0]):
        own = x[labels == c]
        cosines = own @ own.mean(axis=0)
        parts = []
        for k in kinds:
            n, inside = sum(held[k, other] for other in clusters), held[k, c]
            home = (labels == best[0][k]).sum()
            as_part = binom.logpmf(inside, n, len(own) / (len(own) + home))
            told = cosines[known[labels == c] == k]
            chances = np.where(told >= np.median(cosines), 0.03, 0.1)
            as_strays = np.log(chances).sum() + (n - inside) * np.log(0.9) + np.log(comb(n, inside))
            parts.append(inside > 0 and as_part > as_strays)
        count += not any(parts)
    return count


@given(st.integers(0, 100_000))
@settings(max_examples=60, deadline=None)
def test_clusters_with_examples_count_as_by_binomial_chances(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, _ = blobs(rng.integers(3, 12, 4).tolist(), 0.4, seed)
    labels = np.unique(rng.integers(0, 4, len(x)), return_inverse=True)[1]
    known = np.where(rng.random(len(x)) < 0.4, rng.integers(0, 2, len(x)), -1)
    known[rng.permutation(len(x))[:2]] = [0, 1]
    expected = slow_count(x, known, labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "ward_kmeans", lambda *_: labels)
        patch.setattr(module, "_is_half", lambda *_: False)
        found = count_with_known(x, known, 4, 0)
    assert expected in (None, found)


def test_a_kind_that_was_found_twice_is_one_and_a_stray_makes_no_kind_vanish() -> None:
    x, kinds = blobs([30, 20], spread=0.2)
    known = np.full(len(x), -1)
    known[:6] = 0
    assert count_with_known(x, known, 3, seed=0) == 2, "both halves of the larger kind have examples"
    known[1:] = np.where(np.arange(1, 50) < 5, 0, -1)
    middle = x[kinds == 1].mean(axis=0)
    known[30 + (x[kinds == 1] @ middle).argmin()] = 0
    assert count_with_known(x, known, 2, seed=0) == 2, "one of six at the border of the other kind: a stray"


def test_two_kinds_with_most_examples_in_one_cluster_may_be_at_home_in_two() -> None:
    x, _ = blobs([20, 20, 20], spread=0.1)
    known = np.full(len(x), -1)
    known[:3], known[[4, 5, 20]] = 0, 1  # the second kind has two wrong labels and one right
    assert count_with_known(x, known, 3, seed=0) == 3


def test_a_tenth_of_wrong_labels_is_found_and_does_no_harm() -> None:
    x, kinds = blobs([15, 15, 15], spread=0.2)
    known = np.full(len(x), -1)
    known[:10], known[15:25] = 0, 1
    known[[3, 18]] = [1, 0]
    labels, doubtful = robust_clusters(x, known, 3, seed=0)
    assert np.flatnonzero(doubtful >= 0).tolist() == [3, 18] and doubtful[[3, 18]].tolist() == [0, 1]
    assert (labels == kinds).all()


def test_a_kind_of_one_odd_example_is_kept() -> None:
    x, _ = blobs([10, 10])
    known = np.full(len(x), -1)
    known[[0, 1, 2, 10]] = [0, 0, 0, 1]
    x[10] = x[0]
    labels, doubtful = robust_clusters(x, known, 2, seed=0)
    assert labels[10] == 1 and (doubtful == -1).all()


def test_right_labels_are_not_suspect() -> None:
    x, kinds = blobs([6, 6])
    assert (suspects(x, kinds.astype(np.int64), kinds.astype(np.int64)) == -1).all()


def told(sizes: list[int], each: int, wrong: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points, their kinds, and the kinds that were told of the first two: so many of each, of which some are wrong."""
    x, kinds = blobs(sizes, 0.2, seed)
    known = np.full(len(x), -1)
    for kind in (0, 1):
        known[np.flatnonzero(kinds == kind)[:each]] = kind
    known[np.flatnonzero(kinds == 0)[:wrong]] = 1
    return x, kinds, known


@pytest.mark.parametrize("seed", [0, 1])
def test_of_many_points_clusters_count_and_suspects_are_those_of_the_exact_form(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, kinds, known = told([1500, 900, 400, 200], 300, 10, seed)
    exact, doubtful = robust_clusters(x, known, 4, seed)
    count = count_with_known(x, known, 4, seed)
    monkeypatch.setattr(large, "LARGE", 1000)
    monkeypatch.setattr(large, "COMPARED", 300)
    monkeypatch.setattr(large, "OF_A_CELL", 64)
    rows = large.Lazy(lambda some: x[some], x.shape)
    found, doubted = robust_clusters(rows, known, 4, seed)
    assert (found == exact).mean() > 0.99 and len(set(zip(kinds, found, strict=True))) < 12
    one, other = set(np.flatnonzero(doubted >= 0).tolist()), set(np.flatnonzero(doubtful >= 0).tolist())
    assert one & other >= set(range(10)) and len(one ^ other) <= 3, "of 600 labels"
    assert count_with_known(rows, known, 4, seed) == count


def test_a_large_cluster_is_halved_by_some_of_its_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples fill one half of what was found as one kind, so there are two: of a part of it that shows as well."""
    x, kinds = blobs([1000, 1000], 0.1)
    known = np.where((kinds == 0) & (np.arange(2000) % 40 == 0), 0, -1)
    assert count_with_known(x, known, 1, 0) == 2
    monkeypatch.setattr(module, "MOST_IN_TREE", 200)
    seen: list[int] = []
    plain = module.linkage
    monkeypatch.setattr(module, "linkage", lambda some, how: (seen.append(len(some)), plain(some, how))[1])
    assert count_with_known(x, known, 1, 0) == 2
    assert seen and max(seen) <= 200
