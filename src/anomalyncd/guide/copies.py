"""Images that are copies of each other, or shots of the same part: no independent evidence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components

SAME = 1e-3  # 1 − cosine up to which two images are copies, whatever the others look like
SHARE = 0.1  # of the usual distance to the nearest: so near are shots of the same part
MOST = 5000  # images that are compared with each other


def copies(scenes: npt.NDArray[np.floating]) -> list[list[int]]:
    """Groups of places of images that are nearly the same, the largest first; images without a copy are in none.

    Two images are, where 1 − cosine of their centred mean patch tokens is at most a tenth of what is usual between an image
    and its nearest, or 0.001. Groups are chains: a copy of a copy is one too.

    Parameters
    ----------
    scenes : (N, C + 2), mean patch token, light and contrast, as a run stores them; rows of NaN are left out, and so are
        images behind the first 5,000

    Examples
    --------
    >>> turn = np.linspace(0, 1, 6)
    >>> x = np.stack([np.cos(turn), np.sin(turn), np.zeros(6), np.zeros(6)], axis=1)
    >>> copies(np.concatenate([x, x[:1]]))
    [[0, 6]]
    """
    rows = np.flatnonzero(np.isfinite(scenes).all(axis=1))[:MOST]
    tokens = scenes[rows, :-2].astype(np.float64)
    if len(rows) < 2:
        return []
    tokens = _unit(tokens)
    tokens = _unit(tokens - tokens.mean(axis=0))  # what all images have in common says nothing
    distances = 1 - tokens @ tokens.T
    np.fill_diagonal(distances, np.inf)
    nearest = distances.min(axis=1)
    apart = nearest[nearest > SAME]
    line = max(SAME, SHARE * float(np.median(apart)) if len(apart) else 0.0)
    _, groups = connected_components(distances <= line, directed=False)
    found = [rows[groups == group].tolist() for group in np.flatnonzero(np.bincount(groups) > 1)]
    return sorted(found, key=lambda group: (-len(group), group[0]))


def _unit(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    out: npt.NDArray[np.float64] = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
    return out
