"""k-means with labelled points, against loops."""

import math

import numpy as np
import pytest

from anomalyncd.bench.rivals.semi_supervised import semi_supervised_kmeans
from anomalyncd.learn.cluster import squared_distances


def slow_distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def slow_semi_supervised(features, known, labels, start):
    """Lloyd's steps by loops from given centres; returns centres and the sum of squared distances."""
    centres = [list(c) for c in start]
    for _ in range(200):
        groups = [[] for _ in centres]
        for point, label in zip(known, labels, strict=True):
            groups[label].append(point)
        for point in features:
            groups[min(range(len(centres)), key=lambda k: slow_distance(point, centres[k]))].append(point)
        moved = [
            [sum(x) / len(g) for x in zip(*g, strict=True)] if g else c for g, c in zip(groups, centres, strict=True)
        ]
        done = max(slow_distance(a, b) for a, b in zip(moved, centres, strict=True)) < 1e-6
        centres = moved
        if done:
            break
    loss = sum(min(slow_distance(p, c) ** 2 for c in centres) for p in features)
    return centres, loss + sum(slow_distance(p, centres[y]) ** 2 for p, y in zip(known, labels, strict=True))


@pytest.mark.parametrize("seed", range(12))
def test_semi_supervised_kmeans_ends_where_slow_steps_end(seed):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(9, 2)).astype(np.float32)
    known = rng.normal(size=(4, 2)).astype(np.float32)
    labels = np.array([0, 0, 1, 1])
    found = semi_supervised_kmeans(features, known, labels, 1, seed=seed)
    means = [known[:2].mean(axis=0), known[2:].mean(axis=0)]
    losses = [slow_semi_supervised(features, known, labels, [*means, point])[1] for point in features]
    loss = squared_distances(features, found).min(axis=1).sum() + ((known - found[labels]) ** 2).sum()
    farthest = squared_distances(features, np.stack(means)).min(axis=1).argmax()  # a start that k-means++ surely tried
    assert min(abs(loss - other) for other in losses) < 1e-3
    assert loss <= losses[farthest] + 1e-3


def test_labelled_points_stay_in_their_cluster_even_if_another_is_nearer():
    features = np.float32([[0.0], [0.2], [30.0], [30.2]])
    known = np.float32([[0.1], [20.0]])  # the first lies in the middle of what becomes a new cluster
    centres = semi_supervised_kmeans(features, known, np.array([0, 0]), 2, seed=0)
    assert centres[0, 0] == pytest.approx(10.05)
    assert sorted(centres[1:, 0].tolist()) == pytest.approx([0.1, 30.1])


def test_kmeans_without_labelled_points_is_plain_kmeans():
    rng = np.random.default_rng(0)
    features = np.concatenate([rng.normal(c, 0.1, (20, 2)) for c in (0, 5, 9)]).astype(np.float32)
    centres = semi_supervised_kmeans(features, np.empty((0, 2), np.float32), np.empty(0, np.int64), 3, seed=0)
    expected = [features[start : start + 20].mean(axis=0) for start in (0, 20, 40)]
    np.testing.assert_allclose(centres[np.argsort(centres[:, 0])], expected, atol=1e-4)
    alike = np.ones((4, 2), np.float32)
    assert np.isfinite(semi_supervised_kmeans(alike, alike[:0], np.empty(0, np.int64), 3, seed=0)).all()
