"""Otsu's threshold (1979), one per map: the rival of MEBin in the paper's Table 3."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import Binarizer, BinarizeResult

N_BINS = 256


class Otsu(Binarizer):
    """Binarize every map where its histogram splits best into two classes.

    Attributes
    ----------
    low_, high_ : smallest and largest value of the fitting maps, the ends of the histogram of 256 bins

    Examples
    --------
    >>> result = Otsu().fit([np.eye(8)]).binarize(np.eye(8))
    >>> result.n_regions, int(result.mask.sum())
    (1, 8)
    """

    def binarize(self, anomaly_map: npt.ArrayLike) -> BinarizeResult:
        """(H, W) map of any real dtype → mask at its own threshold; a constant map has no region."""
        scaled = self.normalize(anomaly_map)
        numbers = ~np.isnan(np.asarray(anomaly_map, dtype=np.float64))  # holes have no say in the threshold
        # Bin b holds b/256 < value <= (b + 1)/256, so that "above bin b" is a strict threshold.
        bins = np.clip(np.ceil(scaled * N_BINS) - 1, 0, N_BINS - 1).astype(np.int64)
        return self.cut(scaled, (otsu_split(np.bincount(bins[numbers], minlength=N_BINS)) + 1) / N_BINS)


def otsu_split(histogram: npt.NDArray[np.int64]) -> int:
    """The last bin of the lower class where the variance between classes is largest; the last of all if one bin is used.

    Parameters
    ----------
    histogram : (n_bins,) numbers of pixels

    Examples
    --------
    >>> otsu_split(np.array([5, 4, 0, 0, 3, 2]))
    1
    """
    is_split = (np.cumsum(histogram) > 0) & (np.cumsum(histogram) < histogram.sum())
    if not is_split.any():
        return len(histogram) - 1
    weights = histogram / histogram.sum()
    below = np.cumsum(weights)
    moment = np.cumsum(weights * np.arange(len(weights)))
    variance = np.zeros(len(weights))
    np.divide((moment[-1] * below - moment) ** 2, below * (1 - below), out=variance, where=is_split)
    # Bins without pixels repeat the value before them up to rounding; take the first of them.
    return int(np.flatnonzero(variance >= variance.max() * (1 - 1e-12))[0])
