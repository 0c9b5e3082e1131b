"""Many rows: what is compared is near, grows no faster than the rows, and below the limit nothing is left out."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd import large
from anomalyncd.assign.outliers import outlier_groups
from anomalyncd.assign.tree import class_tree
from anomalyncd.assign.unknown import fit_unknown, mean_of
from anomalyncd.large import COMPARED, LARGE, Lazy, at, blocks, near, sample, sums_by

WIDTH = 96


def points(count: int, kinds: int = 8, noise: float = 0.4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of kinds of unequal sizes, each spread along a few axes of its own; and their kinds."""
    rng = np.random.default_rng(seed)
    sizes = 1 / np.arange(1, kinds + 1)
    truth = rng.choice(kinds, count, p=sizes / sizes.sum())
    middles, axes = rng.normal(size=(kinds, WIDTH)), rng.normal(size=(kinds, 6, WIDTH)) * noise
    x = middles[truth] + np.einsum("ra,rad->rd", rng.normal(size=(count, 6)), axes[truth])
    x += rng.normal(0, 0.1, x.shape)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32), truth


def products(queries: np.ndarray, references: np.ndarray) -> int:
    places = np.arange(max(len(queries), len(references)))
    return sum(len(places[rows]) * len(places[: len(references)][others]) for rows, others in near(queries, references))


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mid-sized data is large."""
    monkeypatch.setattr(large, "LARGE", 1000)
    monkeypatch.setattr(large, "COMPARED", 512)
    monkeypatch.setattr(large, "OF_A_CELL", 64)


def test_up_to_the_limit_each_is_compared_with_each_and_above_with_so_many() -> None:
    few = np.eye(2, dtype=np.float32)[np.zeros(LARGE, int)]
    assert products(few, few) == LARGE**2
    many, _ = points(4 * LARGE)
    assert products(many, many) <= 2 * COMPARED * len(many)


def test_what_is_compared_grows_as_the_rows_do(small_limit: None) -> None:
    counts = [products(x, x) / len(x) for x in (points(2000)[0], points(4000)[0], points(16_000)[0])]
    assert max(counts) <= 1.3 * min(counts) and max(counts) <= 1.5 * large.COMPARED


def test_rows_that_are_all_the_same_are_no_exception(small_limit: None) -> None:
    same = np.eye(WIDTH, dtype=np.float32)[np.zeros(8000, int)]
    assert products(same, same) <= 2 * large.COMPARED * len(same)
    assert outlier_groups(same) == []


def test_every_query_has_one_turn(small_limit: None) -> None:
    x, _ = points(3000)
    for queries in (x, x[:700]):
        turns = np.concatenate([np.arange(len(queries))[rows] for rows, _ in near(queries, x)])
        assert np.array_equal(np.sort(turns), np.arange(len(queries)))


def test_the_nearest_is_among_those_compared_or_one_as_near(small_limit: None) -> None:
    x, _ = points(4000)
    exact = x @ x.T
    np.fill_diagonal(exact, -1)
    found = np.full(len(x), -1.0)
    for rows, others in near(x, x):
        cosines = x[rows] @ x[others].T
        cosines[rows[:, None] == others] = -1
        found[rows] = cosines.max(axis=1)
    best = exact.max(axis=1)
    assert (found >= best - 1e-6).mean() > 0.9
    assert ((1 - found) / (1 - best) < 1.5).mean() > 0.98


def test_the_choice_follows_the_seed(small_limit: None) -> None:
    x, _ = points(2000)

    def chosen(seed: int) -> list[list[int]]:
        return [np.sort(others).tolist() for _, others in near(x, x, seed)]

    assert chosen(3) == chosen(3) != chosen(4)
    assert sample(100, 10, 3).tolist() == sample(100, 10, 3).tolist() != sample(100, 10, 4).tolist()


def test_outliers_of_many_are_those_of_the_exact_form(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = points(3000, noise=0.1)
    rng = np.random.default_rng(5)
    rare = rng.normal(size=(4, WIDTH)).repeat([1, 2, 4, 5], axis=0) + rng.normal(0, 0.01, (12, WIDTH))
    x[[7, 300, 301, 900, 901, 902, 903, 2000, 2001, 2002, 2003, 2004]] = rare / np.linalg.norm(
        rare, axis=1, keepdims=True
    )
    exact = {tuple(group) for group in outlier_groups(x)}
    planted = {(7,), (300, 301), (900, 901, 902, 903), (2000, 2001, 2002, 2003, 2004)}
    assert planted <= exact
    monkeypatch.setattr(large, "LARGE", 1000)
    monkeypatch.setattr(large, "COMPARED", 512)
    found = {tuple(group) for group in outlier_groups(x)}
    assert planted <= found
    assert len(found & exact) >= 0.9 * len(exact) and len(found) <= 1.2 * len(exact)


def test_unknown_scores_of_many_are_those_of_the_exact_form(monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = points(3000)
    blocks_, weights, images = x.reshape(3000, 2, -1), np.float32([0.6, 0.4]), np.arange(3000) // 2
    exact, own = fit_unknown(blocks_, weights, images, 0.05)
    monkeypatch.setattr(large, "LARGE", 1000)
    found, approximate = fit_unknown(Lazy(lambda rows: blocks_[rows], blocks_.shape), weights, images, 0.05)
    assert abs(found.limit / exact.limit - 1) < 0.05
    assert np.median(np.abs(approximate - own)) < 0.01 and np.quantile(np.abs(approximate - own), 0.95) < 0.05
    assert ((approximate > 0.5) == (own > 0.5)).mean() > 0.98
    new = points(500, seed=0)[0].reshape(500, 2, -1)
    assert ((found(new) > 0.5) == (exact(new) > 0.5)).mean() > 0.98


def test_the_tree_of_many_is_that_of_the_exact_form(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = points(3000)
    keys = [(str(n), 0) for n in range(3000)]
    exact = class_tree(x, truth, keys)  # 0 is no class
    monkeypatch.setattr(large, "LARGE", 1000)
    found = class_tree(Lazy(lambda rows: x[rows], x.shape), truth, keys)
    assert [merge["classes"] for merge in found["merges"]] == [merge["classes"] for merge in exact["merges"]]
    for one, other in zip(found["merges"], exact["merges"], strict=True):
        assert one["share"] == pytest.approx(other["share"], abs=2e-4)


def test_sums_and_means_of_blocks_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x, truth = points(2500)
    expected = np.stack([x[truth == kind].sum(axis=0, dtype=np.float64) for kind in range(8)])
    np.testing.assert_allclose(sums_by(x, truth, 8), expected, rtol=1e-4, atol=1e-4)
    whole = mean_of(x[:, None])
    monkeypatch.setattr(large, "LARGE", 1000)
    np.testing.assert_allclose(mean_of(x[:, None]), whole, atol=1e-6)


def test_rows_are_made_when_asked_for_and_never_all_at_once() -> None:
    asked: list[int] = []

    def make(rows: np.ndarray) -> np.ndarray:
        found = np.arange(10_000)[rows, None].astype(np.float32)
        asked.append(len(found))
        return found

    rows = Lazy(make, (10_000, 1))
    some = at(rows, np.arange(10_000) % 2 == 1)
    assert isinstance(some, Lazy) and len(some) == 5000 and not asked
    assert at(some, np.array([2, 0]))[:].ravel().tolist() == [5, 1]
    sums_by(rows, np.zeros(10_000, np.int64), 1)
    assert max(asked) <= large.BLOCK and len(list(blocks(10_000))) == 10
