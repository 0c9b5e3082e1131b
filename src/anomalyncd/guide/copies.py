"""Images that are copies of each other, or shots of the same part: no independent evidence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..assign.alike import copy_groups


def copies(scenes: npt.NDArray[np.floating], seed: int = 0) -> list[list[int]]:
    """Groups of places of images that are nearly the same, see `copy_groups`, the largest first; others are in none.

    Parameters
    ----------
    scenes : (N, C + 2), mean patch token, light and contrast, as a run stores them; rows of NaN are left out. Of very many
        only those near each other are compared, see `large`
    seed : for the choice of these

    Examples
    --------
    >>> turn = np.linspace(0, 1, 6)
    >>> x = np.stack([np.cos(turn), np.sin(turn), np.zeros(6), np.zeros(6)], axis=1)
    >>> copies(np.concatenate([x, x[:1]]))
    [[0, 6]]
    """
    rows = np.flatnonzero(np.isfinite(scenes).all(axis=1))
    groups = copy_groups(scenes[rows, :-2], seed)
    found = [rows[groups == group].tolist() for group in np.flatnonzero(np.bincount(groups) > 1)]
    return sorted(found, key=lambda group: (-len(group), group[0]))
