"""Few regions that lie apart from all others: rare kinds of defect that no class of its own was made for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

Floats = npt.NDArray[np.float32]
LARGEST = 5  # regions of a small group
FAR = 3.0  # robust standard deviations above the median
BLOCK = 1024


def small_groups(features: Floats) -> list[list[int]]:
    """Groups of at most `LARGEST` regions without anything near them, and single outliers.

    A region belongs to one if even the sixth region like it is far off: further than in nearly all other cases, by the
    median and its absolute deviation. Such regions are one group where they are less than half as far from each other.

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
    >>> small_groups((x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32))
    [[40, 41, 42], [43]]
    """
    if len(features) <= 2 * LARGEST:
        return []
    distance = np.concatenate(
        [
            np.partition(1 - features[start : start + BLOCK] @ features.T, LARGEST, axis=1)[:, LARGEST]
            for start in range(0, len(features), BLOCK)
        ]
    )  # to the sixth nearest, itself counted as the first of six
    logs = np.log(np.maximum(distance, 1e-6))
    middle = np.median(logs)
    apart = np.flatnonzero(logs > middle + FAR * 1.4826 * np.median(np.abs(logs - middle)))
    mutual, reach = 1 - features[apart] @ features[apart].T, distance[apart]
    _, linked = connected_components(csr_matrix(mutual < np.minimum(reach[:, None], reach) / 2), directed=False)
    groups = [apart[linked == number].tolist() for number in np.unique(linked)]
    return sorted((group for group in groups if len(group) <= LARGEST), key=lambda group: (-len(group), group[0]))
