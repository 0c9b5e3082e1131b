"""Points that are so near each other that they are copies, or shots of the same thing: no independent evidence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ..large import near

SAME = 1e-3  # 1 − cosine up to which two points are copies, whatever the others look like
SHARE = 0.1  # of the usual distance to the nearest: so near are shots of the same part


def copy_groups(vectors: npt.NDArray[np.floating], seed: int = 0) -> npt.NDArray[np.int64]:
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
    nearest = np.full(len(points), np.inf)
    for some, _, distances in _distances(points, seed):
        nearest[some] = distances.min(axis=1)
    apart = nearest[nearest > SAME]
    line = max(SAME, SHARE * float(np.median(apart)) if len(apart) else 0.0)
    pairs = []
    for some, others, distances in _distances(points, seed):
        one, other = np.nonzero(distances <= line)
        pairs.append(np.stack([some[one], others[other]]))
    one, other = np.concatenate(pairs, axis=1)
    linked = csr_matrix((np.ones(len(one), bool), (one, other)), shape=(len(points), len(points)))
    _, groups = connected_components(linked, directed=False)
    _, first, place = np.unique(groups, return_index=True, return_inverse=True)
    out: npt.NDArray[np.int64] = np.argsort(np.argsort(first))[place]
    return out


def _distances(
    points: npt.NDArray[np.float64], seed: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Some points, others that are near, and 1 − cosine of each with each; infinite of a point with itself."""
    places = np.arange(len(points))
    for rows, others in near(points, points, seed):
        distances = 1 - points[rows] @ points[others].T
        distances[places[rows][:, None] == places[others]] = np.inf
        yield places[rows], places[others], distances


def _unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return out
