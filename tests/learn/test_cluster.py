import math

import numpy as np
import pytest

from anomalyncd import large
from anomalyncd.assign.alike import copy_groups
from anomalyncd.errors import DataError
from anomalyncd.learn import cluster as module
from anomalyncd.learn.cluster import (
    DEFAULT_TEMPERATURE,
    TEMPERATURES,
    by_size,
    centres,
    check_enough,
    kmeans,
    stable_temperature,
    ward,
    ward_kmeans,
)
from anomalyncd.learn.features import unit


@pytest.fixture
def blobs():
    """Three tight clusters on the sphere with 5, 9 and 2 members, mixed."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat([0, 1, 2], [5, 9, 2]))
    return unit((np.eye(3)[truth] + rng.normal(0, 0.02, (16, 3))).astype(np.float32)), truth


@pytest.mark.parametrize(
    "cluster",
    [lambda x, k: kmeans(x, k, seed=0), ward, lambda x, k: ward_kmeans(x, k, seed=0)],
    ids=["kmeans", "ward", "ward_kmeans"],
)
def test_obvious_clusters_are_found_and_numbered_by_size(blobs, cluster):
    features, truth = blobs
    assert cluster(features, 3).tolist() == np.array([1, 0, 2])[truth].tolist()
    assert cluster(features, 1).tolist() == [0] * 16
    with pytest.raises(DataError, match="found 16 anomalous regions, but 17"):
        cluster(features, 17)


def test_kmeans_is_repeatable(blobs):
    noise = unit(np.random.default_rng(1).standard_normal((40, 5)).astype(np.float32))
    assert np.array_equal(kmeans(noise, 6, seed=3), kmeans(noise, 6, seed=3))


def test_by_size_orders_by_size_then_by_first_member_and_puts_empty_ones_last():
    assert by_size(np.array([3, 3, 0, 0, 1, 1, 1]), 4).tolist() == [1, 1, 2, 2, 0, 0, 0]
    assert by_size(np.array([2, 2, 2]), 3).tolist() == [0, 0, 0]


def test_centres_are_means_and_zero_where_empty():
    features = np.array([[1, 0], [0, 1], [4, 4]], np.float32)
    assert centres(features, np.array([2, 2, 0]), 3).tolist() == [[4, 4], [0, 0], [0.5, 0.5]]


def test_too_few_regions_say_what_to_do():
    check_enough(3, 3)
    with pytest.raises(DataError, match=r"found 1 anomalous region, but 2 defect classes.*fewer classes"):
        check_enough(1, 2)
    with pytest.raises(DataError, match="found 0 anomalous regions"):
        check_enough(0, 2)


def test_ward_kmeans_of_few_or_equal_points():
    assert ward_kmeans(np.float32([[1, 0]]), 1, seed=0).tolist() == [0]
    assert sorted(ward_kmeans(np.eye(3, dtype=np.float32), 3, seed=0).tolist()) == [0, 1, 2]
    equal = ward_kmeans(np.ones((6, 2), np.float32), 3, seed=0)
    assert len(equal) == 6 and set(equal.tolist()) <= {0, 1, 2}
    with pytest.raises(DataError, match="found 2 anomalous regions, but 3"):
        ward_kmeans(np.eye(2, dtype=np.float32), 3, seed=0)


def test_ward_kmeans_of_many_points_makes_its_tree_of_some(blobs, monkeypatch):
    features, truth = blobs
    many, kinds = np.repeat(features, 20, axis=0), np.repeat(truth, 20)
    sizes = []
    monkeypatch.setattr(module, "MOST_IN_TREE", 60)
    plain = module.ward
    monkeypatch.setattr(module, "ward", lambda some, n: sizes.append(len(some)) or plain(some, n))
    assert ward_kmeans(many, 3, seed=0).tolist() == np.array([1, 0, 2])[kinds].tolist()
    assert sizes == [60]
    assert np.array_equal(ward_kmeans(many, 3, seed=5), ward_kmeans(many, 3, seed=5))


def test_ward_kmeans_keeps_a_rare_kind_apart():
    """Two wide large clusters and a small one: k-means alone may halve a large one and join the small one."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], [60, 60, 5])
    points = unit((np.eye(3)[truth] + rng.normal(0, 0.1, (125, 3))).astype(np.float32))
    found = ward_kmeans(points, 3, seed=0)
    assert len(set(zip(truth.tolist(), found.tolist(), strict=True))) == 3


def clusters(noise):
    """Points (90, 12) around three axes, and the directions of their means (3, 12)."""
    rng = np.random.default_rng(0)
    truth = np.repeat([0, 1, 2], 30)
    points = unit((np.eye(12)[truth] + rng.normal(0, noise, (90, 12))).astype(np.float32))
    return points, unit(centres(points, ward_kmeans(points, 3, seed=0), 3))


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def test_probabilities_of_clear_clusters_are_near_one_and_of_overlapping_ones_lower():
    points, weight = clusters(0.02)
    clear = stable_temperature(points, weight, seed=0)
    assert clear == pytest.approx(TEMPERATURES[0])
    assert softmax(points @ weight.T / clear).max(axis=1).min() > 0.999
    points, weight = clusters(0.6)
    mixed = stable_temperature(points, weight, seed=0)
    assert mixed > 3 * clear
    best = np.sort(softmax(points @ weight.T / mixed).max(axis=1))
    assert best[:9].mean() < 0.7 and best[-9:].mean() > 0.99  # between clusters, and within one
    assert mixed == stable_temperature(points, weight, seed=0)


def test_the_temperature_where_there_is_too_little_to_measure():
    points, weight = clusters(0.1)
    assert stable_temperature(points, weight[:1], seed=0) == DEFAULT_TEMPERATURE
    assert stable_temperature(points[:5], weight, seed=0) == DEFAULT_TEMPERATURE
    assert stable_temperature(np.ones((20, 12), np.float32) / math.sqrt(12), weight, seed=0) in TEMPERATURES
    assert stable_temperature(points[:0], weight, seed=0) == DEFAULT_TEMPERATURE


def test_the_temperature_of_many_points_is_measured_on_some(monkeypatch):
    points, weight = clusters(0.02)
    monkeypatch.setattr(module, "MOST_RESAMPLED", 30)
    assert stable_temperature(points, weight, seed=0) == pytest.approx(TEMPERATURES[0])


def test_copies_count_once_in_the_temperature():
    points, weight = clusters(0.6)
    rng = np.random.default_rng(1)
    again = unit((points[::3] + rng.normal(0, 1e-4, (30, 12))).astype(np.float32))
    assert stable_temperature(np.concatenate([points, *[again] * 5]), weight, seed=0) == stable_temperature(
        points, weight, seed=0
    )
    assert len(set(copy_groups(points).tolist())) == len(points)  # and where there are none, all count


def kinds_of_many(seed, count=4000):
    """Points of six kinds of unequal sizes, and which kind each is of."""
    rng = np.random.default_rng(seed)
    truth = rng.choice(6, count, p=[0.4, 0.25, 0.15, 0.1, 0.07, 0.03])
    middles = rng.normal(size=(6, 30))
    return unit((middles[truth] + rng.normal(0, 0.5, (count, 30))).astype(np.float32)), truth


@pytest.mark.parametrize("cluster", [kmeans, ward_kmeans])
@pytest.mark.parametrize("seed", [0, 1])
def test_clusters_of_very_many_points_are_those_of_all_of_them(cluster, seed, monkeypatch):
    points, _ = kinds_of_many(seed)
    exact = cluster(points, 6, seed)
    monkeypatch.setattr(large, "LARGE", 500)
    found = cluster(large.Lazy(lambda rows: points[rows], points.shape), 6, seed)
    assert (found == exact).mean() > 0.98, "same numbers too, because these are by size"
    assert np.array_equal(found, cluster(points, 6, seed))


def test_of_very_many_points_few_are_made_at_a_time_and_all_only_a_few_times(monkeypatch):
    points, _ = kinds_of_many(0)
    monkeypatch.setattr(large, "LARGE", 500)
    monkeypatch.setattr(module, "MOST_IN_TREE", 300)
    asked = []

    def make(rows):
        asked.append(len(points[rows]))
        return points[rows]

    ward_kmeans(large.Lazy(make, points.shape), 6, seed=0)
    assert max(asked) <= large.BLOCK and sum(asked) <= 300 + 500 + 3 * len(points)


def test_centres_of_very_many_points_are_their_means(monkeypatch):
    points, truth = kinds_of_many(0)
    expected = centres(points, truth, 7)
    monkeypatch.setattr(large, "LARGE", 500)
    np.testing.assert_allclose(centres(points, truth, 7), expected, atol=1e-5)
    assert not centres(points, truth, 7)[6].any()
