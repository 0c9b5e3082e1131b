"""Images that are copies of each other, or shots of the same part: no independent evidence."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from ..assign.large import near

SAME = 1e-3  # 1 − cosine up to which two images are copies, whatever the others look like
SHARE = 0.1  # of the usual distance to the nearest: so near are shots of the same part


def copies(scenes: npt.NDArray[np.floating], seed: int = 0) -> list[list[int]]:
    """Groups of places of images that are nearly the same, the largest first; images without a copy are in none.

    Two images are, where 1 − cosine of their centred mean patch tokens is at most a tenth of what is usual between an image
    and its nearest, or 0.001. Groups are chains: a copy of a copy is one too.

    Parameters
    ----------
    scenes : (N, C + 2), mean patch token, light and contrast, as a run stores them; rows of NaN are left out. Of very many
        only those near each other are compared, see `assign.large`
    seed : for the choice of these

    Examples
    --------
    >>> turn = np.linspace(0, 1, 6)
    >>> x = np.stack([np.cos(turn), np.sin(turn), np.zeros(6), np.zeros(6)], axis=1)
    >>> copies(np.concatenate([x, x[:1]]))
    [[0, 6]]
    """
    rows = np.flatnonzero(np.isfinite(scenes).all(axis=1))
    tokens = scenes[rows, :-2].astype(np.float64)
    if len(rows) < 2:
        return []
    tokens = _unit(tokens)
    tokens = _unit(tokens - tokens.mean(axis=0))  # what all images have in common says nothing
    nearest = np.full(len(rows), np.inf)
    for some, _, distances in _distances(tokens, seed):
        nearest[some] = distances.min(axis=1)
    apart = nearest[nearest > SAME]
    line = max(SAME, SHARE * float(np.median(apart)) if len(apart) else 0.0)
    pairs = []
    for some, others, distances in _distances(tokens, seed):
        one, other = np.nonzero(distances <= line)
        pairs.append(np.stack([some[one], others[other]]))
    one, other = np.concatenate(pairs, axis=1)
    linked = csr_matrix((np.ones(len(one), bool), (one, other)), shape=(len(rows), len(rows)))
    _, groups = connected_components(linked, directed=False)
    found = [rows[groups == group].tolist() for group in np.flatnonzero(np.bincount(groups) > 1)]
    return sorted(found, key=lambda group: (-len(group), group[0]))


def _distances(
    tokens: npt.NDArray[np.float64], seed: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
    """Some images, others that are near, and 1 − cosine of each with each; infinite of an image with itself."""
    places = np.arange(len(tokens))
    for rows, others in near(tokens, tokens, seed):
        distances = 1 - tokens[rows] @ tokens[others].T
        distances[places[rows][:, None] == places[others]] = np.inf
        yield places[rows], places[others], distances


def _unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return out
