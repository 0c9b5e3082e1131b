"""Fewer classes or more: Ward's criterion by hand, and what cannot be divided."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd.assign import tree as module
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


@pytest.mark.parametrize("seed", range(6))
def test_each_merge_is_the_one_that_costs_least(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(1, 6, 30))
    x = unit(np.eye(7)[labels] + rng.normal(0, 0.5, (30, 7)))
    groups = [[int(label)] for label in np.unique(labels)]
    own = {label: x[labels == label].astype(np.float64) for group in groups for label in group}
    total = spread(x.astype(np.float64))

    def members(group: list[int]) -> np.ndarray:
        return np.concatenate([own[label] for label in group])

    def cost(one: list[int], other: list[int]) -> float:
        return spread(members(one + other)) - spread(members(one)) - spread(members(other))

    for merge in class_tree(x, labels, keys(30))["merges"]:
        costs = {(a, b): cost(groups[a], groups[b]) for a in range(len(groups)) for b in range(a + 1, len(groups))}
        a, b = min(costs, key=costs.__getitem__)
        assert merge["classes"] == [groups[a], groups[b]]
        assert merge["share"] == pytest.approx(costs[a, b] / total, abs=1e-4)
        groups = [*(group for place, group in enumerate(groups) if place not in (a, b)), groups[a] + groups[b]]
    assert len(groups) == 1


def test_a_large_class_is_divided_by_a_part_of_its_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    x = unit(np.eye(4)[np.repeat([0, 1, 2], [30, 10, 5])] + rng.normal(0, 0.02, (45, 4)))
    labels = np.repeat([1, 1, 2], [30, 10, 5])
    whole = class_tree(x, labels, keys(45))["splits"][0]
    assert [part["n_regions"] for part in whole["parts"]] == [30, 10]
    monkeypatch.setattr(module, "MOST_OF_A_CLASS", 8)
    some = class_tree(x, labels, keys(45))["splits"][0]
    assert some["class"] == 1 and [part["n_regions"] for part in some["parts"]] == [30, 10]  # 6 and 2 of 8
    assert some["share"] == pytest.approx(whole["share"], rel=0.05)
    chosen = np.linspace(0, 39, 8).astype(int)
    names = {name for part in some["parts"] for name, _ in part["examples"]}
    assert names <= {f"{place:03d}.png" for place in chosen}


def test_examples_are_the_nearest_to_the_middle_of_their_part() -> None:
    rng = np.random.default_rng(3)
    x = unit(np.eye(4)[np.repeat([0, 1], [12, 9])] + rng.normal(0, 0.1, (21, 4)))
    (split,) = class_tree(x, np.ones(21, np.int64), keys(21))["splits"]
    for part, rows in zip(split["parts"], (range(12), range(12, 21)), strict=True):
        own = x[list(rows)].astype(np.float64)
        far = ((own - own.mean(axis=0)) ** 2).sum(axis=1)
        expected = [f"{rows[place]:03d}.png" for place in np.argsort(far)[:6]]
        assert [name for name, _ in part["examples"]] == expected and part["n_regions"] == len(rows)
    assert split["class"] == 1 and class_tree(x[:1], np.array([1]), keys(1))["splits"] == []
