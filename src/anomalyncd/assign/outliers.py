"""Outliers: a few regions far from all others, such as a rare kind of defect that got no class of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ..large import Rows, at, near

LARGEST = 5  # regions of a group
FAR = 3.0  # robust standard deviations above the median


def outlier_groups(features: Rows, seed: int = 0) -> list[list[int]]:
    """Groups of 1 to `LARGEST` regions without anything else near them.

    A region is an outlier if even its fifth nearest neighbour is far off: further than for nearly all other regions, by
    the median and its absolute deviation. Outliers that are less than half as far from each other are one group.

    Parameters
    ----------
    features : (R, D) unit vectors; of very many only those near each other are compared, see `large`
    seed : for the choice of these

    Returns
    -------
    Places of the regions of each group, the largest group first.

    Examples
    --------
    >>> noise = np.random.default_rng(0).normal(0, 0.05, (44, 3))
    >>> x = np.eye(3)[[0] * 40 + [1] * 3 + [2]] + noise
    >>> outlier_groups((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    [[40, 41, 42], [43]]
    """
    if len(features) <= 2 * LARGEST:
        return []
    # (R,) to the fifth nearest other region; the nearest of all is the region itself.
    distance = np.empty(len(features), np.float32)
    for rows, others in near(features, features, seed):
        cosines = features[rows] @ features[others].T
        distance[rows] = np.partition(1 - cosines, LARGEST, axis=1)[:, LARGEST]
    logs = np.log(np.maximum(distance, 1e-6))
    middle = np.median(logs)
    apart = np.flatnonzero(logs > middle + FAR * 1.4826 * np.median(np.abs(logs - middle)))
    _, linked = connected_components(_links(at(features, apart), distance[apart], seed), directed=False)
    groups = [apart[linked == number].tolist() for number in np.unique(linked)]
    return sorted((group for group in groups if len(group) <= LARGEST), key=lambda group: (-len(group), group[0]))


def _links(features: Rows, reach: npt.NDArray[np.float32], seed: int) -> csr_matrix:
    """(A, A) which of the outliers are less than half as far from each other as from their fifth nearest."""
    pairs = [np.empty((2, 0), np.int64)]
    for rows, others in near(features, features, seed):
        mutual = 1 - features[rows] @ features[others].T
        found = np.nonzero(mutual < np.minimum(reach[rows][:, None], reach[others]) / 2)
        places = np.arange(len(features))
        pairs.append(np.stack([places[rows][found[0]], places[others][found[1]]]))
    from_, to = np.concatenate(pairs, axis=1)
    return csr_matrix((np.ones(len(from_), bool), (from_, to)), shape=(len(features), len(features)))
