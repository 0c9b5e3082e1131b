"""Outliers: a few regions far from all others, such as a rare kind of defect that got no class of its own."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

Floats = npt.NDArray[np.float32]
LARGEST = 5  # regions of a group
FAR = 3.0  # robust standard deviations above the median
BLOCK = 1024


def outlier_groups(features: Floats) -> list[list[int]]:
    """Groups of 1 to `LARGEST` regions without anything else near them.

    A region is an outlier if even its fifth nearest neighbour is far off: further than for nearly all other regions, by
    the median and its absolute deviation. Outliers that are less than half as far from each other are one group.

    Parameters
    ----------
    features : (R, D) unit vectors

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
    blocks = (features[start : start + BLOCK] for start in range(0, len(features), BLOCK))
    # (R,) to the fifth nearest other region; the nearest of all is the region itself.
    distance = np.concatenate([np.partition(1 - rows @ features.T, LARGEST, axis=1)[:, LARGEST] for rows in blocks])
    logs = np.log(np.maximum(distance, 1e-6))
    middle = np.median(logs)
    apart = np.flatnonzero(logs > middle + FAR * 1.4826 * np.median(np.abs(logs - middle)))
    mutual, reach = 1 - features[apart] @ features[apart].T, distance[apart]
    _, linked = connected_components(csr_matrix(mutual < np.minimum(reach[:, None], reach) / 2), directed=False)
    groups = [apart[linked == number].tolist() for number in np.unique(linked)]
    return sorted((group for group in groups if len(group) <= LARGEST), key=lambda group: (-len(group), group[0]))
