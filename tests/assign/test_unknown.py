"""How far off a region lies: against loops, and what the limit promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.assign import unknown as module
from anomalyncd.assign.unknown import UnknownScore, fit_unknown, joined, limit_for

ONE = np.ones(1, np.float32)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def fit(x: np.ndarray, images: np.ndarray, rate: float, *, center: bool = False) -> tuple[UnknownScore, np.ndarray]:
    """Of unit vectors (R, D), one block each."""
    return fit_unknown(x[:, None], ONE, images, rate, center=center)


def score_of(known: UnknownScore, x: np.ndarray) -> np.ndarray:
    return known(x[:, None])


def clusters(seed: int, sizes: list[int], noise: float = 0.1, width: int = 12) -> np.ndarray:
    rng = np.random.default_rng(seed)
    places = np.repeat(np.arange(len(sizes)), sizes)
    return unit(np.eye(width)[places] + rng.normal(0, noise, (len(places), width)))


def slow_cosine(one: np.ndarray, other: np.ndarray, mean: np.ndarray, weights: np.ndarray) -> float:
    """Of two regions (B, C), one block after the other."""
    total = 0.0
    for a, b, m, weight in zip(one, other, mean, weights, strict=True):
        a, b = a - m, b - m
        length = np.linalg.norm(a) * np.linalg.norm(b)
        total += weight * float(a @ b) / length if length > 1e-12 else 0.0
    return total


def geometric(values: list[float]) -> float:
    return math.prod(values) ** (1 / len(values))


def slow_own(blocks: np.ndarray, weights: np.ndarray, images: list[int], *, center: bool) -> list[float]:
    """Distances of regions to those of other images, each with a mean in which its image has no part."""
    nearest = []
    for row, image in enumerate(images):
        others = [place for place, other in enumerate(images) if other != image]
        mean = blocks[others].mean(axis=0) if center else np.zeros(blocks.shape[1:])
        distances = [(1 - slow_cosine(blocks[row], blocks[place], mean, weights), place) for place in others]
        nearest.append(sorted(distances)[:3])
    spread = [geometric([distance for distance, _ in some]) for some in nearest]
    return [geometric([distance / spread[place] ** 0.25 for distance, place in some]) for some in nearest]


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, 3), min_size=4, max_size=12).filter(lambda x: len(set(x)) > 1),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_each_image_is_left_out_in_turn_as_in_loops(seed: int, images: list[int], center: bool) -> None:
    rng = np.random.default_rng(seed)
    blocks, weights = rng.normal(size=(len(images), 2, 5)).astype(np.float64), np.array([0.7, 0.3])
    found, own = fit_unknown(
        blocks.astype(np.float32), weights.astype(np.float32), np.array(images), 0.2, center=center
    )
    distances = np.array(slow_own(blocks, weights, images, center=center))
    np.testing.assert_allclose(own, distances / (distances + found.limit), rtol=2e-3, atol=1e-5)


def test_a_block_of_nothing_is_like_no_other() -> None:
    rng = np.random.default_rng(0)
    blocks, weights, images = rng.normal(size=(6, 2, 5)), np.array([0.7, 0.3]), [0, 0, 1, 2, 3, 3]
    blocks[[0, 3], 1] = 0
    found, own = fit_unknown(blocks.astype(np.float32), weights.astype(np.float32), np.array(images), 0.2, center=False)
    distances = np.array(slow_own(blocks, weights, images, center=False))
    np.testing.assert_allclose(own, distances / (distances + found.limit), rtol=2e-3, atol=1e-5)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(2, 9))
@settings(max_examples=40, deadline=None)
def test_new_regions_are_measured_as_in_loops(seed: int, n_new: int, n_known: int) -> None:
    rng = np.random.default_rng(seed)
    blocks, new = rng.normal(size=(n_known, 2, 5)), rng.normal(size=(n_new, 2, 5))
    weights = np.array([0.7, 0.3])
    known, _ = fit_unknown(blocks.astype(np.float32), weights.astype(np.float32), np.arange(n_known), 0.2)
    expected = []
    for one in new:
        distances = [1 - slow_cosine(one, other, blocks.mean(axis=0), weights) for other in blocks]
        nearest = np.argsort(distances)[:3]
        expected.append(geometric([distances[place] / known.spread[place] ** 0.25 for place in nearest]))
    found = known(new.astype(np.float32))
    np.testing.assert_allclose(found, np.array(expected) / (np.array(expected) + known.limit), rtol=0.01, atol=1e-3)


def test_what_a_model_file_keeps_says_the_same() -> None:
    known, _ = fit(clusters(0, [9, 8]), np.arange(17), 0.1, center=True)
    again = UnknownScore.restore(known.tensors(), known.settings())
    new = clusters(1, [4, 4, 4])
    np.testing.assert_allclose(score_of(again, new), score_of(known, new), rtol=1e-6)
    never, _ = fit(clusters(0, [9]), np.arange(9), 0.0)
    assert UnknownScore.restore(never.tensors(), never.settings()).limit == np.inf


def test_a_twin_in_the_same_image_does_not_make_a_region_known() -> None:
    lonely = unit(np.eye(12)[[5, 5]] + np.random.default_rng(1).normal(0, 1e-3, (2, 12)))
    features = np.concatenate([clusters(0, [40]), lonely])
    _, together = fit(features, np.array([*range(40), 40, 40]), 0.1)
    _, apart = fit(features, np.arange(42), 0.1)
    assert together[-2:].min() > 0.8 and apart[-2:].max() < 0.5


def test_regions_of_one_image_alone_are_measured_against_each_other() -> None:
    x = clusters(0, [6])
    _, one_image = fit(x, np.zeros(6, np.int64), 0.2)
    _, own_images = fit(x, np.arange(6), 0.2)
    np.testing.assert_array_equal(one_image, own_images)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_the_limit_is_exceeded_by_that_share(rate: float) -> None:
    x = clusters(3, [120, 80, 100], noise=0.2)
    _, own = fit(x, np.arange(300), rate)
    assert abs((own > 0.5).mean() - rate) <= 1.5 / 300


@pytest.mark.parametrize("count", [30, 200])
@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_new_regions_of_known_kinds_are_called_unknown_as_often_as_promised(count: int, rate: float) -> None:
    """Over many runs, also small ones, of kinds that differ in how alike their regions are."""

    def kinds(seed: int, each: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        noise = rng.normal(size=(2 * each, 12)) * np.repeat([0.15, 0.4], each)[:, None]
        return unit(np.repeat(np.eye(12)[:2], each, axis=0) + noise)

    shares = []
    for run in range(6000 // count):
        known, _ = fit(kinds(run, count // 2), np.arange(count), rate, center=True)
        shares.append((score_of(known, kinds(10_000 + run, 100)) > 0.5).mean())
    assert abs(np.mean(shares) - rate) < 0.015


@pytest.mark.parametrize("count", [2, 3, 6, 12])
@pytest.mark.parametrize("rate", [0.05, 0.01])
def test_few_distances_call_no_more_unknown_than_promised(count: int, rate: float) -> None:
    rng = np.random.default_rng(count)
    values = np.exp(rng.normal(-2, 0.5, (4000, count + 1)))
    called = np.mean([row[-1] > limit_for(row[:-1], rate, 1e-3) for row in values])
    assert called <= rate + 0.012


@given(st.lists(st.floats(0, 2), min_size=2, max_size=60), st.floats(1e-3, 0.5))
@settings(max_examples=60, deadline=None)
def test_a_limit_is_a_number_no_less_than_noise_and_no_larger_for_a_larger_rate(
    values: list[float], rate: float
) -> None:
    limit = limit_for(values, rate, 1e-3)
    assert 1e-3 <= limit < np.inf
    assert limit_for(values, 0.9, 1e-3) <= limit + 1e-12


def test_where_known_regions_differ_much_a_new_one_may_too() -> None:
    tight, loose = np.eye(12)[0], np.eye(12)[1]
    rng = np.random.default_rng(0)
    x = unit(np.concatenate([tight + rng.normal(0, 0.02, (20, 12)), loose + rng.normal(0, 0.2, (20, 12))]))
    known, _ = fit(x, np.arange(40), 0.05)
    at_once = unit(np.stack([tight + 0.5 * np.eye(12)[5], loose + 0.5 * np.eye(12)[5]]))
    near_tight, near_loose = score_of(known, at_once)
    assert near_tight > near_loose


def test_a_foreign_region_is_unknown_and_regions_of_the_run_never_are() -> None:
    x = clusters(0, [20, 20], noise=0.02, width=300)
    score, _ = fit(x, np.arange(40), 0.05)
    foreign = score_of(score, unit(np.eye(300)[[7, 8, 9]]))
    assert foreign.min() > 0.6 and foreign.max() < 1
    assert score_of(score, x).max() < 0.25, "each finds itself"


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3])
@pytest.mark.parametrize("seed", range(4))
def test_regions_that_are_all_alike_know_each_other(noise: float, seed: int) -> None:
    """Stored in 16 bits, a vector is not quite its own neighbour: that must not make it unknown."""
    rng = np.random.default_rng(seed)
    x = unit(rng.normal(size=(1, 200)) + rng.normal(0, noise, (12, 200)))
    score, _ = fit(x, np.arange(12), 0.05)
    assert score_of(score, x).max() <= 0.5
    assert score_of(score, unit(x + rng.normal(0, 1e-4, x.shape))).max() <= 0.5, "nor what another machine does"
    assert score_of(score, unit(np.eye(200)[:1])).min() > 0.5


def test_scores_rise_with_the_distance_and_do_not_depend_on_company() -> None:
    x = clusters(0, [25], noise=0.1)
    score, _ = fit(x, np.arange(25), 0.05)
    towards = unit(np.outer(1 - np.linspace(0, 1, 9), np.eye(12)[0]) + np.outer(np.linspace(0, 1, 9), np.eye(12)[1]))
    found = score_of(score, towards)
    assert found[0] < 0.5 < found[-1] and (np.diff(found) > -0.02).all()
    alone = np.concatenate([score_of(score, row[None]) for row in towards[::-1]])[::-1]
    np.testing.assert_allclose(alone, found, atol=1e-6)


def test_blocks_of_rows_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x, images = clusters(0, [9, 8]), np.arange(17) // 2
    whole, own = fit(x, images, 0.1, center=True)
    monkeypatch.setattr(module, "BLOCK", 5)
    parts, own_parts = fit(x, images, 0.1, center=True)
    np.testing.assert_allclose(own_parts, own, rtol=1e-4)
    np.testing.assert_allclose(score_of(parts, x[::-1]), score_of(whole, x[::-1]), rtol=1e-4, atol=1e-6)


def test_of_many_regions_a_part_is_kept_from_all_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REFERENCES", 10)
    x = clusters(0, [50, 50], noise=0.05)
    score, own = fit(x, np.arange(100), 0.05)
    assert score.reference.shape == (10, 12) and score.spread.shape == (10,) and own.shape == (100,)
    assert set(score.reference.argmax(axis=1)) == {0, 1}
    assert (score_of(score, clusters(1, [20, 20], noise=0.05)) <= 0.5).mean() > 0.7
    assert score_of(score, unit(np.eye(12)[[6]])).min() > 0.5


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_is_unknown_to_fewer_than_two_regions(count: int) -> None:
    score, own = fit(clusters(0, [3])[:count], np.arange(count), 0.05)
    assert own.tolist() == [0.0] * count
    assert score_of(score, unit(np.eye(12)[:4])).tolist() == [0.0] * 4
    assert score_of(score, np.empty((0, 12), np.float32)).shape == (0,)


def test_two_regions_call_only_what_is_very_far_off_unknown() -> None:
    x = unit(np.eye(300)[[0, 0]] + np.random.default_rng(0).normal(0, 1e-3, (2, 300)))
    score, own = fit(x, np.arange(2), 0.05)
    assert (own <= 0.5).all() and score_of(score, unit(np.eye(300)[[4]]))[0] > 0.5


def test_a_rate_of_0_switches_it_off() -> None:
    score, own = fit(clusters(0, [9]), np.arange(9), 0.0)
    assert own.tolist() == [0.0] * 9 and score_of(score, unit(-np.eye(12))).max() == 0


def test_the_odd_one_of_many_equal_regions_knows_itself() -> None:
    x = np.concatenate([np.tile(np.eye(8, dtype=np.float32)[0], (40, 1)), np.eye(8, dtype=np.float32)[[3]]])
    unknown, own = fit(x, np.arange(41), 0.05)
    assert own.argmax() == 40 and score_of(unknown, x).max() < 0.5


def test_blocks_are_joined_by_their_weights() -> None:
    rng = np.random.default_rng(0)
    blocks, weights = rng.normal(size=(2, 3, 4)).astype(np.float32), np.float32([0.5, 0.3, 0.2])
    vectors = joined(blocks, weights)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    expected = slow_cosine(*blocks.astype(np.float64), np.zeros((3, 4)), weights)
    assert vectors[0] @ vectors[1] == pytest.approx(expected, abs=1e-6)
