"""Fewer classes or more: Ward's criterion by hand, and what cannot be divided."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd.assign.tree import EXAMPLES, class_tree


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def keys(n: int) -> list[tuple[str, int]]:
    return [(f"{place:03d}.png", 0) for place in range(n)]


def spread(points: np.ndarray) -> float:
    return float(((points - points.mean(axis=0)) ** 2).sum())


def test_shares_are_those_of_wards_criterion() -> None:
    """What a merge loses is the spread of the two together without their own; all merges lose the spread between classes."""
    rng = np.random.default_rng(0)
    labels = np.repeat([1, 2, 3, 4], [9, 5, 7, 4])
    x = unit(np.eye(6)[labels] + rng.normal(0, 0.3, (25, 6)))
    tree, total = class_tree(x, labels, keys(25)), spread(x.astype(np.float64))
    own = {label: x[labels == label].astype(np.float64) for label in (1, 2, 3, 4)}
    first = tree["merges"][0]
    costs = {
        (a, b): spread(np.concatenate([own[a], own[b]])) - spread(own[a]) - spread(own[b])
        for a in own for b in own if a < b
    }  # fmt: skip
    assert tuple(sorted(label for group in first["classes"] for label in group)) == min(costs, key=costs.__getitem__)
    assert first["share"] == pytest.approx(min(costs.values()) / total, abs=1e-4)
    lost = sum(merge["share"] for merge in tree["merges"])
    assert lost == pytest.approx(1 - sum(map(spread, own.values())) / total, abs=1e-3)


def test_the_class_of_two_kinds_would_split_first_and_into_these() -> None:
    rng = np.random.default_rng(1)
    kinds, labels = np.repeat([0, 1, 2], [10, 8, 6]), np.repeat([1, 2], [10, 14])  # class 2 holds two kinds
    x = unit(np.eye(5)[kinds] + rng.normal(0, 0.05, (24, 5)))
    first = class_tree(x, labels, keys(24))["splits"][0]
    assert first["class"] == 2 and [part["n_regions"] for part in first["parts"]] == [8, 6]
    points = x.astype(np.float64)
    gained = spread(points[10:]) - spread(points[10:18]) - spread(points[18:])
    assert first["share"] == pytest.approx(gained / spread(points), abs=1e-4)
    found = [{int(name[:3]) for name, _ in part["examples"]} for part in first["parts"]]
    assert found[0] <= set(range(10, 18)) and found[1] == set(range(18, 24)) and len(found[0]) == EXAMPLES


@pytest.mark.parametrize("labels", [[], [0, 0], [-1, 0]])
def test_without_defect_classes_there_is_no_tree(labels: list[int]) -> None:
    x = unit(np.ones((len(labels), 3)))
    assert class_tree(x, np.array(labels, np.int64), keys(len(labels))) == {"merges": [], "splits": []}


def test_what_is_all_the_same_does_not_split() -> None:
    x = unit(np.ones((6, 3)))
    tree = class_tree(x, np.array([1, 1, 1, 2, 2, 2]), keys(6))
    assert tree["splits"] == [] and tree["merges"][0]["share"] == pytest.approx(0, abs=1e-6)


def test_a_class_whose_merges_all_cost_the_same_is_divided_too() -> None:
    """Three regions as far from each other as can be: no height of the tree cuts it into two."""
    tree = class_tree(np.eye(4, dtype=np.float32), np.array([1, 1, 1, 2]), keys(4))
    assert [[part["n_regions"] for part in split["parts"]] for split in tree["splits"]] == [[2, 1]]
