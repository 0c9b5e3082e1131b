"""How far off a region lies: against loops, and what the limit promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.assign import unknown as module
from anomalyncd.assign.unknown import UnknownScore, fit_unknown, neighbour_distance


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def slow_distance(features: np.ndarray, reference: np.ndarray, apart: list[int] | None = None) -> list[float]:
    """One pair at a time, in plain Python."""
    out = []
    for row, one in enumerate(features.astype(np.float64)):
        distances = []
        for column, other in enumerate(reference.astype(np.float64)):
            if apart is None or apart[row] != apart[column]:
                distances.append(max(1 - sum(a * b for a, b in zip(one, other, strict=True)), 1e-7))
        nearest = sorted(distances)[:3]
        out.append(math.prod(nearest) ** (1 / len(nearest)))
    return out


def clusters(seed: int, sizes: list[int], noise: float = 0.1, width: int = 12) -> np.ndarray:
    rng = np.random.default_rng(seed)
    places = np.repeat(np.arange(len(sizes)), sizes)
    return unit(np.eye(width)[places] + rng.normal(0, noise, (len(places), width)))


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 9))
@settings(max_examples=40, deadline=None)
def test_distances_are_those_of_loops(seed: int, n_features: int, n_references: int) -> None:
    rng = np.random.default_rng(seed)
    features, reference = (unit(rng.normal(size=(n, 5))) for n in (n_features, n_references))
    np.testing.assert_allclose(
        neighbour_distance(features, reference), slow_distance(features, reference), rtol=1e-3, atol=1e-6
    )


@given(st.integers(0, 10**6), st.lists(st.integers(0, 3), min_size=2, max_size=12).filter(lambda x: len(set(x)) > 1))
@settings(max_examples=40, deadline=None)
def test_regions_of_the_same_image_do_not_count(seed: int, images: list[int]) -> None:
    features = unit(np.random.default_rng(seed).normal(size=(len(images), 5)))
    found, own = fit_unknown(features, np.array(images), 0.2)
    distances = np.array(slow_distance(features, features, images))
    np.testing.assert_allclose(own, distances / (distances + found.limit), rtol=1e-3, atol=1e-6)


def test_a_twin_in_the_same_image_does_not_make_a_region_known() -> None:
    lonely = unit(np.eye(12)[[5, 5]] + np.random.default_rng(1).normal(0, 1e-3, (2, 12)))
    features = np.concatenate([clusters(0, [40]), lonely])
    _, together = fit_unknown(features, np.array([*range(40), 40, 40]), 0.1)
    _, apart = fit_unknown(features, np.arange(42), 0.1)
    assert together[-2:].min() > 0.8 and apart[-2:].max() < 0.5


def test_regions_of_one_image_alone_are_measured_against_each_other() -> None:
    x = clusters(0, [6])
    _, one_image = fit_unknown(x, np.zeros(6, np.int64), 0.2)
    _, own_images = fit_unknown(x, np.arange(6), 0.2)
    np.testing.assert_array_equal(one_image, own_images)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_the_limit_is_exceeded_by_that_share(rate: float) -> None:
    x = clusters(3, [120, 80, 100], noise=0.2)
    _, own = fit_unknown(x, np.arange(300), rate)
    assert abs((own > 0.5).mean() - rate) <= 1 / 300


def test_new_regions_of_known_kinds_are_called_unknown_about_as_often_as_promised() -> None:
    score, _ = fit_unknown(clusters(0, [200, 200], noise=0.2), np.arange(400), 0.1)
    new = score(clusters(1, [300, 300], noise=0.2))
    assert 0.05 < (new > 0.5).mean() < 0.17


def test_a_foreign_region_is_unknown_and_regions_of_the_run_never_are() -> None:
    x = clusters(0, [20, 20], noise=0.02, width=300)
    score, _ = fit_unknown(x, np.arange(40), 0.05)
    foreign = score(unit(np.eye(300)[[7, 8, 9]]))
    assert foreign.min() > 0.6 and foreign.max() < 1
    assert score(x).max() < 0.25, "each finds itself"


@pytest.mark.parametrize("noise", [0.0, 1e-4, 1e-3])
@pytest.mark.parametrize("seed", range(4))
def test_regions_that_are_all_alike_know_each_other(noise: float, seed: int) -> None:
    """Stored in 16 bits, a vector is not quite its own neighbour: that must not make it unknown."""
    rng = np.random.default_rng(seed)
    x = unit(rng.normal(size=(1, 200)) + rng.normal(0, noise, (12, 200)))
    score, _ = fit_unknown(x, np.arange(12), 0.05)
    assert score(x).max() <= 0.5
    assert score(unit(x + rng.normal(0, 1e-4, x.shape))).max() <= 0.5, "nor what rounding on another machine does"
    assert score(unit(np.eye(200)[:1])).min() > 0.5


def test_more_references_or_nearer_ones_never_raise_the_score() -> None:
    x, new = clusters(0, [8, 8], noise=0.3), clusters(5, [4, 4], noise=0.3)
    few, many = UnknownScore(x[::2], 0.2)(new), UnknownScore(x, 0.2)(new)
    assert (many <= few + 1e-9).all() and (many < few).any()


def test_scores_rise_with_the_distance_and_do_not_depend_on_company() -> None:
    x = clusters(0, [15], noise=0.1)
    score, _ = fit_unknown(x, np.arange(15), 0.05)
    towards = unit(np.outer(1 - np.linspace(0, 1, 9), np.eye(12)[0]) + np.outer(np.linspace(0, 1, 9), np.eye(12)[1]))
    found = score(towards)
    assert (np.diff(found) > 0).all() and found[0] < 0.5 < found[-1]
    alone = np.concatenate([score(row[None]) for row in towards[::-1]])[::-1]
    np.testing.assert_allclose(alone, found, atol=1e-6)


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    x, images = clusters(0, [9, 8]), np.arange(17) // 2
    whole, own = fit_unknown(x, images, 0.1)
    monkeypatch.setattr(module, "BLOCK", 5)
    parts, own_parts = fit_unknown(x, images, 0.1)
    np.testing.assert_allclose(own_parts, own, rtol=1e-4)
    np.testing.assert_allclose(parts(x[::-1]), whole(x[::-1]), rtol=1e-4, atol=1e-6)


def test_of_many_regions_a_part_is_kept_from_all_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REFERENCES", 10)
    x = clusters(0, [50, 50], noise=0.05)
    score, own = fit_unknown(x, np.arange(100), 0.05)
    assert score.reference.shape == (10, 12) and own.shape == (100,)
    assert set(score.reference.argmax(axis=1)) == {0, 1}
    assert (score(clusters(1, [20, 20], noise=0.05)) <= 0.5).mean() > 0.7
    assert score(unit(np.eye(12)[[6]])).min() > 0.5


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_is_unknown_to_fewer_than_two_regions(count: int) -> None:
    score, own = fit_unknown(clusters(0, [3])[:count], np.arange(count), 0.05)
    assert own.tolist() == [0.0] * count
    assert score(unit(np.eye(12)[:4])).tolist() == [0.0] * 4
    assert score(np.empty((0, 12), np.float32)).shape == (0,)


def test_two_regions_are_enough() -> None:
    x = clusters(0, [2])
    score, own = fit_unknown(x, np.arange(2), 0.05)
    assert (own <= 0.5 + 1e-9).all() and score(unit(np.eye(12)[[4]]))[0] > 0.5


def test_a_rate_of_0_switches_it_off() -> None:
    score, own = fit_unknown(clusters(0, [9]), np.arange(9), 0.0)
    assert own.tolist() == [0.0] * 9 and score(unit(-np.eye(12))).max() == 0


def test_the_odd_one_of_many_equal_regions_knows_itself() -> None:
    x = np.concatenate([np.tile(np.eye(8, dtype=np.float32)[0], (40, 1)), np.eye(8, dtype=np.float32)[[3]]])
    unknown, own = fit_unknown(x, np.arange(41), false_rate=0.05)
    assert own.argmax() == 40 and unknown(x).max() < 0.5
