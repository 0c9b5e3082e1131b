"""Points that are so near each other that they are copies, or shots of the same thing: no independent evidence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

SAME = 1e-3  # 1 − cosine up to which two points are copies, whatever the others look like
SHARE = 0.1  # of the usual distance to the nearest: so near are shots of the same part


def copy_groups(vectors: npt.NDArray[np.floating]) -> npt.NDArray[np.int64]:
    """The group of each point (N,), numbered in the order of their first points; a point without a copy is alone in its own.

    Two points are copies where 1 − cosine of their centred directions is at most a tenth of what is usual between a point
    and its nearest, or 0.001. Groups are chains: a copy of a copy is one too.

    Parameters
    ----------
    vectors : (N, D)

    Examples
    --------
    >>> turn = np.linspace(0, 1, 6)
    >>> x = np.stack([np.cos(turn), np.sin(turn)], axis=1)
    >>> copy_groups(np.concatenate([x, x[:1]])).tolist()
    [0, 1, 2, 3, 4, 5, 0]
    """
    if len(vectors) < 2:
        return np.zeros(len(vectors), np.int64)
    points = _unit(vectors.astype(np.float64))
    points = _unit(points - points.mean(axis=0))  # what all have in common says nothing
    distances = 1 - points @ points.T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.min(axis=1)
    apart = nearest[nearest > SAME]
    line = max(SAME, SHARE * float(np.median(apart)) if len(apart) else 0.0)
    _, groups = connected_components(distances <= line, directed=False)
    _, first, place = np.unique(groups, return_index=True, return_inverse=True)
    out: npt.NDArray[np.int64] = np.argsort(np.argsort(first))[place]
    return out


def _unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return out
