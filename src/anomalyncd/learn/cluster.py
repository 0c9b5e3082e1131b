"""Clusters of frozen features: where the heads start, and the baseline that training has to beat."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import AgglomerativeClustering, KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from .. import large
from ..assign.alike import copy_groups
from ..errors import DataError
from ..large import Rows, blocks, is_large, sample, sums_by

Floats = npt.NDArray[np.float32]
RESTARTS = 20
MOST_STEPS = 200
MOST_IN_TREE = 3000  # points that Ward's method joins: its room grows with their square
RESAMPLES = 20  # by which an assignment's stability is measured
MOST_RESAMPLED = 1000
TEMPERATURES = np.geomspace(0.02, 1.0, 40)
DEFAULT_TEMPERATURE = 0.1  # the student's, where there is too little to measure
EACH = 20  # points for each cluster, of which k-means of very many points settles on some


def kmeans(features: Rows, n_clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """k-means of unit vectors, best of many restarts, the largest cluster first.

    Parameters
    ----------
    features : (R, D) unit vectors; of very many (`large`) a random sample finds the centres, which the others go to

    Returns
    -------
    (R,) int, 0 … n_clusters − 1

    Examples
    --------
    >>> kmeans(np.float32([[1, 0], [1, 0], [0, 1]]), 2, seed=0).tolist()
    [0, 0, 1]
    """
    check_enough(len(features), n_clusters)
    with threadpool_limits(1, user_api="openmp"):  # more threads add up in the order in which they end
        found = KMeans(n_clusters, n_init=RESTARTS, random_state=seed)
        labels = _settled(found, features, n_clusters, seed) if is_large(features) else found.fit_predict(features[:])
    return by_size(labels, n_clusters)


def squared_distances(points: Floats, centres: Floats) -> Floats:
    """(N, d) and (K, d) → (N, K), never below 0."""
    squared = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * points @ centres.T
    out: Floats = np.maximum(squared, 0)
    return out


def ward(features: npt.NDArray[np.float32], n_clusters: int) -> npt.NDArray[np.int64]:
    """Ward's agglomerative clusters, the largest first; as `kmeans`."""
    check_enough(len(features), n_clusters)
    if len(features) == 1:  # which scikit-learn refuses
        return np.zeros(1, np.int64)
    return by_size(AgglomerativeClustering(n_clusters, linkage="ward").fit_predict(features), n_clusters)


def ward_kmeans(features: Rows, n_clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """k-means that starts from Ward's clusters: as `kmeans`, steadier where classes differ in size, and without restarts.

    Of many points a random sample makes Ward's tree, and of very many (`large`) a larger one finds the centres.

    Examples
    --------
    >>> ward_kmeans(np.float32([[1, 0], [1, 0.1], [0, 1]]), 2, seed=0).tolist()
    [0, 0, 1]
    """
    check_enough(len(features), n_clusters)
    every: Any = slice(None)
    if len(features) > MOST_IN_TREE:
        every = np.random.default_rng(seed).choice(len(features), MOST_IN_TREE, replace=False)
    some = features[every]
    start = centres(some, ward(some, n_clusters), n_clusters)
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        found = KMeans(n_clusters, init=start, n_init=1, random_state=seed)
        labels = _settled(found, features, n_clusters, seed) if is_large(features) else found.fit_predict(features[:])
    return by_size(labels, n_clusters)


def _settled(found: KMeans, features: Rows, n_clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """Clusters (R,) of very many points: centres settle on some of them, and move once more with all."""
    some = sample(len(features), max(large.LARGE, EACH * n_clusters), seed)
    middles = found.fit(features[some]).cluster_centers_
    labels = nearest_centre(features, middles)
    sizes = np.bincount(labels, minlength=n_clusters)[:, None]
    moved = np.where(sizes, sums_by(features, labels, n_clusters) / np.maximum(sizes, 1), middles)
    return nearest_centre(features, moved.astype(np.float32))


def nearest_centre(features: Rows, middles: Floats) -> npt.NDArray[np.int64]:
    """Which of the centres (K, D) each of the points (R, D) is nearest to, block by block.

    Examples
    --------
    >>> nearest_centre(np.float32([[1, 0], [0, 1]]), np.float32([[0, 1], [0.9, 0]])).tolist()
    [1, 0]
    """
    half = (middles**2).sum(axis=1) / 2
    return np.concatenate([(features[rows] @ middles.T - half).argmax(axis=1) for rows in blocks(len(features))])


def stable_temperature(features: Rows, weight: Floats, seed: int) -> float:
    """The temperature at which softmax(cosine / temperature) says how stable the assignment of a point is.

    Halves of the points are clustered anew, and all points are given to the clusters of each half, which are matched with
    the classes. The share of halves that put a point into a class is what its probability should be; of a range of
    temperatures the one with the smallest cross-entropy is taken. Of points that are copies of each other only the first
    counts: in two halves they would vouch for each other.

    Parameters
    ----------
    features : (R, D) and weight : (K, D) unit vectors
    """
    n_classes, rng = len(weight), np.random.default_rng(seed)
    if len(features) > MOST_RESAMPLED:
        features = features[np.sort(rng.choice(len(features), MOST_RESAMPLED, replace=False))]
    features = np.asarray(features[:])
    features = features[np.unique(copy_groups(features), return_index=True)[1]]
    half = len(features) // 2
    if n_classes < 2 or half < n_classes:
        return DEFAULT_TEMPERATURE
    cosines = features @ weight.T  # (R, K)
    own = cosines.argmax(axis=1)
    shares = np.zeros(cosines.shape)
    for _ in range(RESAMPLES):
        rows = rng.permutation(len(features))[:half]
        means = centres(features[rows], ward_kmeans(features[rows], n_classes, seed), n_classes)
        means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), 1e-12)
        found = (features @ means.T).argmax(axis=1)
        agree = np.zeros((n_classes, n_classes))
        np.add.at(agree, (found, own), 1)
        _, matched = linear_sum_assignment(agree, maximize=True)
        shares[np.arange(len(features)), matched[found]] += 1 / RESAMPLES
    losses = [-(shares * _log_softmax(cosines / value)).sum() for value in TEMPERATURES]
    return float(TEMPERATURES[int(np.argmin(losses))])


def _log_softmax(logits: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    out: npt.NDArray[np.floating] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return out


def centres(features: Rows, labels: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.float32]:
    """Mean of each cluster (n, D); an empty one gets zeros."""
    if is_large(features):
        sizes = np.maximum(np.bincount(labels, minlength=n), 1)
        return np.asarray(sums_by(features, labels, n) / sizes[:, None], np.float32)
    sums = np.zeros((n, features.shape[1]), dtype=np.float32)
    np.add.at(sums, labels, features[:])
    return np.divide(
        sums, np.maximum(np.bincount(labels, minlength=n), 1).astype(np.float32)[:, None], dtype=np.float32
    )


def by_size(labels: npt.NDArray[np.integer], n: int) -> npt.NDArray[np.int64]:
    """Number the clusters from the largest to the smallest, equal ones in order of their first member."""
    sizes = np.bincount(labels, minlength=n)
    first = np.array([np.argmax(labels == k) if sizes[k] else len(labels) for k in range(n)])
    rank = np.empty(n, dtype=np.int64)
    rank[np.lexsort((first, -sizes))] = np.arange(n)
    out: npt.NDArray[np.int64] = rank[labels]
    return out


def check_enough(n_regions: int, n_classes: int) -> None:
    """Fail early, and say what to do, when there is less to sort than there are classes."""
    if n_regions < n_classes:
        raise DataError(
            f"found {n_regions} anomalous region{'s' * (n_regions != 1)}, but {n_classes} defect classes were asked "
            "for: give more images, ask for fewer classes, or check that the maps or masks show the defects."
        )
