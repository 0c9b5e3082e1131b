"""Heads trained again: what a person placed is obeyed, what looks like it follows, all else stays."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd import large
from anomalyncd.learn import refine as module
from anomalyncd.learn.refine import _level, _sampled, _weights, refine

WIDTH = 16


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


def clusters(*sizes: int, noise: float = 0.05, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    labels = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(seed)
    return unit(np.eye(WIDTH)[labels] + rng.normal(0, noise, (len(labels), WIDTH))), labels


def found(x: np.ndarray, heads: np.ndarray) -> np.ndarray:
    return (x @ heads.T).argmax(axis=1)


def learn(x: np.ndarray, targets: np.ndarray, fixed: np.ndarray, start: np.ndarray) -> np.ndarray:
    heads = refine(x, targets, fixed, start, temperature=0.1)
    np.testing.assert_allclose(np.linalg.norm(heads, axis=1), 1, atol=1e-5)
    assert heads.shape == start.shape and heads.dtype == np.float32
    return heads


@pytest.mark.parametrize("sizes", [(8, 8), (20, 3, 9), (1, 1)])
def test_with_nothing_fixed_classes_that_lie_apart_stay(sizes: tuple[int, ...]) -> None:
    x, labels = clusters(*sizes)
    start = np.eye(WIDTH, dtype=np.float32)[: len(sizes)]
    once = learn(x, labels, np.zeros(len(x), bool), start)
    assert found(x, once).tolist() == labels.tolist()
    twice = learn(x, labels, np.zeros(len(x), bool), once)
    assert found(x, twice).tolist() == labels.tolist()


def test_one_correction_in_many_is_heard_and_its_neighbours_follow() -> None:
    """Class 0 holds two kinds. One region of the second is placed in class 1: the others of its kind go along."""
    x, kinds = clusters(20, 6, 10)
    targets, fixed = np.where(kinds == 2, 1, 0), kinds < 0
    start = unit(np.stack([x[targets == k].mean(axis=0) for k in (0, 1)]))
    assert (found(x, start)[kinds == 1] == 0).all(), "so they begin"
    targets[20], fixed[20] = 1, True
    heads = learn(x, targets, fixed, start)
    after = found(x, heads)
    assert after[20] == 1
    assert (after[kinds == 0] == 0).all() and (after[kinds == 2] == 1).all()
    assert (after[kinds == 1] == 1).mean() >= 0.8


def test_a_correction_against_all_looks_moves_its_region_only() -> None:
    x, kinds = clusters(15, 15)
    fixed = np.zeros(30, bool)
    targets = kinds.copy()
    targets[3], fixed[3] = 1, True
    heads = learn(x, targets, fixed, np.eye(WIDTH, dtype=np.float32)[:2])
    after = found(x, heads)
    assert (np.delete(after, 3) == np.delete(kinds, 3)).mean() >= 0.9


def test_a_new_class_of_fixed_regions() -> None:
    x, kinds = clusters(12, 4, 10)
    targets = kinds.copy()
    start = unit(np.stack([x[kinds == k].mean(axis=0) for k in range(3)]))
    heads = learn(x, targets, kinds == 1, start)
    assert found(x, heads).tolist() == kinds.tolist()


def test_a_head_without_regions_stays_out_of_the_way() -> None:
    x, kinds = clusters(6, 6)
    start = np.eye(WIDTH, dtype=np.float32)[[0, 1, 9]]
    heads = learn(x, kinds, np.zeros(12, bool), start)
    assert found(x, heads).tolist() == kinds.tolist()


def test_nothing_to_learn_from() -> None:
    start = np.eye(3, dtype=np.float32)
    none = np.empty((0, 3), np.float32)
    assert refine(none, np.empty(0, int), np.empty(0, bool), start, temperature=0.1) is start


def test_what_comes_in_is_not_changed_and_chance_has_no_say() -> None:
    x, kinds = clusters(6, 6, noise=0.3)
    start = np.eye(WIDTH, dtype=np.float32)[:2]
    copies = x.copy(), kinds.copy(), start.copy()
    fixed = kinds == 5
    once, again = learn(x, kinds, fixed, start), learn(x, kinds, fixed, start)
    np.testing.assert_array_equal(once, again)
    for before, after in zip(copies, (x, kinds, start), strict=True):
        np.testing.assert_array_equal(before, after)


def test_order_does_not_matter() -> None:
    x, kinds = clusters(6, 9, noise=0.2)
    fixed = np.arange(15) % 7 == 0
    order = np.random.default_rng(0).permutation(15)
    start = np.eye(WIDTH, dtype=np.float32)[:2]
    one, other = learn(x, kinds, fixed, start), learn(x[order], kinds[order], fixed[order], start)
    np.testing.assert_allclose(one, other, atol=1e-3)


def test_weights_by_hand() -> None:
    """Class 0: four, of which one is fixed and weighs three. Class 1: fixed ones are more than the others, one each."""
    targets = np.array([0, 0, 0, 0, 1, 1, 1, 2])
    fixed = np.array([True, False, False, False, True, True, False, False])
    expected = np.array([3, 1, 1, 1, 1, 1, 1, 1]) / 10
    np.testing.assert_allclose(_weights(targets, fixed), expected, rtol=1e-6)


def test_of_many_regions_some_stand_for_all_and_the_heads_come_out_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    x, parts = clusters(2000, 700, 300, 500, noise=0.1)
    labels = np.where(parts == 3, 0, parts)  # one class holds two kinds, and a person moves some of one of them
    fixed = (parts == 3) & (np.arange(len(x)) % 10 == 0)
    labels[fixed] = 2
    start = np.eye(WIDTH, dtype=np.float32)[:3]
    exact = refine(x, labels, fixed, start, temperature=0.1)
    monkeypatch.setattr(module, "MOST", 1000)
    asked: list[int] = []
    rows = large.Lazy(lambda some: (asked.append(len(x[some])), x[some])[1], x.shape)
    heads = refine(rows, labels, fixed, start, temperature=0.1, seed=2)
    assert sum(asked) <= 1000
    assert (found(x, heads)[fixed] == 2).all()
    assert (found(x, heads) == found(x, exact)).mean() > 0.98
    assert (heads * exact).sum(axis=1).min() > 0.95


def test_what_is_drawn_stands_for_all_of_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    targets, fixed = np.repeat([0, 1], [3000, 50]), np.arange(3050) % 10 == 0
    monkeypatch.setattr(module, "MOST", 400)
    chosen, standing_for = _sampled(targets, fixed, seed=0)
    assert len(set(chosen.tolist())) == len(chosen) and 395 <= len(chosen) <= 400
    for label in (0, 1):
        for held in (True, False):
            own = (targets[chosen] == label) & (fixed[chosen] == held)
            assert standing_for[own].sum() == pytest.approx(((targets == label) & (fixed == held)).sum())


@pytest.mark.parametrize(("most", "level"), [(2000, 1000), (100, 68), (62, 30), (6, 2), (2, 1)])
def test_small_groups_are_whole(most: int, level: int) -> None:
    assert _level(np.array([1000, 2, 30]), most) == level
