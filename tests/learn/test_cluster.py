import numpy as np
import pytest

from anomalyncd.errors import DataError
from anomalyncd.learn.cluster import by_size, centres, check_enough, kmeans, ward
from anomalyncd.learn.features import unit


@pytest.fixture
def blobs():
    """Three tight clusters on the sphere with 5, 9 and 2 members, mixed."""
    rng = np.random.default_rng(0)
    truth = rng.permutation(np.repeat([0, 1, 2], [5, 9, 2]))
    return unit((np.eye(3)[truth] + rng.normal(0, 0.02, (16, 3))).astype(np.float32)), truth


@pytest.mark.parametrize("cluster", [lambda x, k: kmeans(x, k, seed=0), ward], ids=["kmeans", "ward"])
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
