"""One threshold for all maps: the rival of MEBin in the paper's Table 3."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..errors import SettingsError
from .base import Binarizer, BinarizeResult


class FixedThreshold(Binarizer):
    """Binarize all maps at one threshold.

    Parameters
    ----------
    threshold : 0 … 1 on maps scaled by the smallest and largest value of all fitting maps; exclusive

    Attributes
    ----------
    low_, high_ : smallest and largest value of the fitting maps

    Examples
    --------
    >>> binarizer = FixedThreshold(0.5).fit([np.array([[0.0, 10.0]])])
    >>> result = binarizer.binarize(np.array([[4.0, 6.0, 4.0, 8.0]]))
    >>> result.mask.tolist(), result.threshold, result.n_regions
    ([[False, True, False, True]], 5.0, 2)
    """

    def __init__(self, threshold: float = 0.5) -> None:
        if not isinstance(threshold, (int, float, np.number)) or not 0 <= threshold <= 1:
            raise SettingsError(f"threshold must be a number in 0 … 1, but got {threshold!r}.")
        self.threshold = threshold

    def binarize(self, anomaly_map: npt.ArrayLike) -> BinarizeResult:
        """(H, W) map of any real dtype → mask."""
        return self.cut(self.normalize(anomaly_map), self.threshold)
