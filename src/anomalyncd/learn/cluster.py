"""Clusters of frozen features: where the heads start, and the baseline that training has to beat."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from sklearn.cluster import AgglomerativeClustering, KMeans
from threadpoolctl import threadpool_limits

from ..errors import DataError

RESTARTS = 20


def kmeans(features: npt.NDArray[np.float32], n_clusters: int, seed: int) -> npt.NDArray[np.int64]:
    """k-means of unit vectors, best of many restarts, the largest cluster first.

    Parameters
    ----------
    features : (R, D) unit vectors

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
        labels = KMeans(n_clusters, n_init=RESTARTS, random_state=seed).fit_predict(features)
    return by_size(labels, n_clusters)


def ward(features: npt.NDArray[np.float32], n_clusters: int) -> npt.NDArray[np.int64]:
    """Ward's agglomerative clusters, the largest first; as `kmeans`."""
    check_enough(len(features), n_clusters)
    return by_size(AgglomerativeClustering(n_clusters, linkage="ward").fit_predict(features), n_clusters)


def centres(features: npt.NDArray[np.float32], labels: npt.NDArray[np.int64], n: int) -> npt.NDArray[np.float32]:
    """Mean of each cluster (n, D); an empty one gets zeros."""
    sums = np.zeros((n, features.shape[1]), dtype=np.float32)
    np.add.at(sums, labels, features)
    sizes = np.maximum(np.bincount(labels, minlength=n), 1).astype(np.float32)
    return np.divide(sums, sizes[:, None], dtype=np.float32)


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
