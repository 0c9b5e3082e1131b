"""One threshold for all maps: the rival of MEBin in the paper's Table 3."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..errors import SettingsError
from .base import Binarizer, BinarizeResult, check_whole_number, threshold_once


class FixedThreshold(Binarizer):
    """Binarize all maps at one threshold.

    Parameters
    ----------
    threshold : 0 … 1 on maps scaled by the smallest and largest value of all fitting maps; exclusive
    erosion : side in map pixels of the square that erodes the mask, 0 = off

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

    def __init__(self, threshold: float = 0.5, erosion: int = 0) -> None:
        if not isinstance(threshold, (int, float, np.number)) or not 0 <= threshold <= 1:
            raise SettingsError(f"threshold must be a number in 0 … 1, but got {threshold!r}.")
        check_whole_number("erosion", erosion, 0)
        self.threshold = threshold
        self.erosion = erosion

    def binarize(self, anomaly_map: npt.ArrayLike) -> BinarizeResult:
        """(H, W) map of any real dtype → mask."""
        scaled = self.normalize(anomaly_map)
        return threshold_once(
            scaled, self.threshold, self.low_ + self.threshold * (self.high_ - self.low_), self.erosion
        )
