"""Small groups apart from all others: found whole, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd import large
from anomalyncd.assign.outliers import LARGEST, outlier_groups

WIDTH = 16


def points(*sizes: int, noise: float = 0.05, seed: int = 0) -> np.ndarray:
    """Unit vectors in groups of these sizes, each along an axis of its own."""
    rng = np.random.default_rng(seed)
    x = np.eye(WIDTH)[np.repeat(np.arange(len(sizes)), sizes)] + rng.normal(0, noise, (sum(sizes), WIDTH))
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_small_group_is_found_whole(size: int, seed: int) -> None:
    assert outlier_groups(points(30, 25, size, seed=seed)) == [list(range(55, 55 + size))]


def test_several_groups_the_largest_first() -> None:
    assert outlier_groups(points(40, 1, 3, 40, 5)) == [[84, 85, 86, 87, 88], [41, 42, 43], [40]]


@pytest.mark.parametrize("seed", range(5))
def test_a_class_of_more_is_no_small_group(seed: int) -> None:
    found = outlier_groups(points(30, 25, LARGEST + 5, seed=seed))
    assert all(len(group) == 1 for group in found) and len(found) < 2, "but one of it may be odd"


def test_order_does_not_matter() -> None:
    x = points(40, 3, 1)
    order = np.random.default_rng(1).permutation(44)
    found = outlier_groups(x[order])
    assert [sorted(order[group].tolist()) for group in found] == [[40, 41, 42], [43]]


@pytest.mark.parametrize("count", range(2 * LARGEST + 1))
def test_of_ten_or_fewer_nothing_can_be_said(count: int) -> None:
    assert outlier_groups(points(count, seed=count) if count else np.empty((0, WIDTH), np.float32)) == []


def test_eleven_are_enough() -> None:
    assert [10] in outlier_groups(points(10, 1))


def test_regions_that_are_all_the_same() -> None:
    x = points(1).repeat(30, axis=0)
    assert outlier_groups(x) == []
    assert outlier_groups(np.concatenate([x, points(1, 2)[1:]])) == [[30, 31]]


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x = points(40, 3, 1)
    monkeypatch.setattr(large, "BLOCK", 7)
    assert outlier_groups(x) == [[40, 41, 42], [43]]


def slow_groups(x: np.ndarray) -> list[list[int]]:
    """In loops, by the words of the docstring."""
    points = x.astype(np.float64)
    count = len(points)
    distance = [sorted(1 - float(points[i] @ points[j]) for j in range(count))[5] for i in range(count)]
    logs = [float(np.log(max(d, 1e-6))) for d in distance]
    middle = float(np.median(logs))
    deviation = 1.4826 * float(np.median([abs(value - middle) for value in logs]))
    apart = [i for i in range(count) if logs[i] > middle + 3 * deviation]
    groups: list[set[int]] = []
    for i in apart:
        near = {j for j in apart if 1 - float(points[i] @ points[j]) < min(distance[i], distance[j]) / 2} | {i}
        touched = [group for group in groups if group & near]
        groups = [group for group in groups if not group & near] + [near.union(*touched)]
    return sorted((sorted(g) for g in groups if len(g) <= 5), key=lambda group: (-len(group), group[0]))


@pytest.mark.parametrize("seed", range(12))
def test_groups_are_those_of_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [20, *rng.integers(1, 8, 4).tolist()]
    x = points(*sizes, noise=float(rng.uniform(0.03, 0.2)), seed=seed)
    assert outlier_groups(x) == slow_groups(x)
