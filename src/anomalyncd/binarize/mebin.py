"""Main Element Binarization (Section 3.2 of the paper): threshold where the number of regions is most stable.

The authors' code erodes and labels 64 masks. Here all 64 counts come from one sweep: flat erosion
commutes with thresholding, so the map, quantised to the thresholds, is eroded once as a grey image; then
its pixels are added from the highest threshold to the lowest, and the regions are counted on the way (`sweep.py`).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ..errors import SettingsError
from .base import Binarizer, BinarizeResult, as_float_map, check_whole_number, warn_of_holes
from .sweep import count_regions

Rule = Literal["longest_run", "most_frequent"]


class MEBin(Binarizer):
    """Binarize every map at the lowest threshold of its most stable range of thresholds.

    Parameters
    ----------
    n_thresholds : thresholds tried between the ends of the fitted range, 1 … 255 (the paper's T)
    min_interval : a range of fewer thresholds than this is not stable: no region (the paper's τ)
    erosion : side in map pixels of the square that erodes the mask, 0 = off
    rule : "longest_run" (the authors' code): the number of regions that owns the longest run of thresholds;
        "most_frequent" (the paper): the most frequent number of regions, at its longest run
    has_normal : the fitting set holds normal images, so the least of the maps' maxima is that of a normal one

    Attributes
    ----------
    low_, high_ : the range of thresholds in the maps' own units, the smallest and the largest of the maps' maxima. Where
        these are equal, or with `has_normal=False`, low_ is the smallest value of all maps.

    Examples
    --------
    >>> normal, defect = np.full((64, 64), 0.1), np.full((64, 64), 0.1)
    >>> defect[10:30, 10:40] = 0.9
    >>> result = MEBin().fit([normal, defect]).binarize(defect)
    >>> result.n_regions, int(result.mask.sum()), round(result.threshold, 3)
    (1, 375, 0.109)
    """

    def __init__(
        self,
        n_thresholds: int = 64,
        min_interval: int = 4,
        erosion: int = 6,
        *,
        rule: Rule = "longest_run",
        has_normal: bool = True,
    ) -> None:
        check_whole_number("n_thresholds", n_thresholds, 1, 255)
        check_whole_number("min_interval", min_interval, 1)
        check_whole_number("erosion", erosion, 0)
        if not isinstance(rule, str) or rule not in get_args(Rule):
            raise SettingsError(f"rule must be one of {', '.join(get_args(Rule))}, but got {rule!r}.")
        if not isinstance(has_normal, bool | np.bool_):
            raise SettingsError(f"has_normal must be true or false, but got {has_normal!r}.")
        self.n_thresholds = n_thresholds
        self.min_interval = min_interval
        self.erosion = erosion
        self.rule: Rule = rule
        self.has_normal = has_normal

    def binarize(self, anomaly_map: npt.ArrayLike) -> BinarizeResult:
        """Find the main regions of one map.

        Parameters
        ----------
        anomaly_map : (H, W) of any real dtype. NaN is never foreground; +infinity exceeds every threshold.

        Returns
        -------
        The eroded mask at the chosen threshold, with exactly `n_regions` regions, and the number of regions at every
        threshold. Empty mask and threshold nan when no range of thresholds is stable.
        """
        self._check_fitted()
        values = as_float_map(anomaly_map)
        scaled_thresholds = thresholds(self.n_thresholds)
        counts, levels, has_holes = count_regions(values, self.low_, self.high_, scaled_thresholds, self.erosion)
        if has_holes:
            warn_of_holes(values, stacklevel=3)
        run = choose_run(counts, self.min_interval, self.rule)
        if run is None:
            return BinarizeResult(np.zeros(values.shape, dtype=bool), math.nan, 0, counts)
        threshold = self.low_ + float(scaled_thresholds[run.last]) / 255 * (self.high_ - self.low_)
        # In place: to touch new memory costs more than to compare.
        mask = np.greater_equal(levels, self.n_thresholds - run.last, out=levels.view(np.bool_))
        return BinarizeResult(mask, threshold, run.count, counts)

    def _range(self, smallest: float, smallest_maximum: float, largest: float) -> tuple[float, float]:
        is_range = self.has_normal and smallest_maximum != largest
        return smallest_maximum if is_range else smallest, largest


@dataclass(frozen=True)
class Run:
    """A longest possible stretch of thresholds, first … last inclusive, with one number of regions."""

    count: int
    first: int
    last: int

    @property
    def length(self) -> int:
        return self.last - self.first + 1


def thresholds(n_thresholds: int) -> npt.NDArray[np.float32]:
    """(n_thresholds,) float32 thresholds, high → low, on maps whose fitted range is scaled to 0 … 255.

    Examples
    --------
    >>> thresholds(64)[[0, 1, 63]].tolist()
    [255.0, 251.0, 3.0]
    """
    return (255 - np.arange(n_thresholds) * (256 / n_thresholds)).astype(np.float32)


def choose_run(counts: npt.ArrayLike, min_interval: int, rule: Rule = "longest_run") -> Run | None:
    """The stable run of thresholds, or None if there is none of min_interval thresholds or more.

    Ties are settled as in the authors' code. Of two counts whose longest runs are equal, the one that was
    stable first (at a higher threshold) wins; of two equally long runs of one count, the one at lower
    thresholds. With rule "most_frequent" the smaller of two equally frequent counts wins.

    Parameters
    ----------
    counts : (n_thresholds,) numbers of regions, high → low threshold

    Examples
    --------
    >>> choose_run([0, 1, 1, 2, 2, 2, 1, 1], min_interval=3)
    Run(count=2, first=3, last=5)
    >>> choose_run([0, 1, 1, 2, 2, 2, 1, 1], min_interval=2, rule="most_frequent")
    Run(count=1, first=6, last=7)
    """
    numbers: list[int] = np.asarray(counts).tolist()
    candidates = set(numbers) - {0}
    if rule == "most_frequent" and candidates:
        candidates = {max(sorted(candidates), key=numbers.count)}
    longest: dict[int, Run] = {}
    last = -1
    for number, stretch in itertools.groupby(numbers):
        first, last = last + 1, last + len(list(stretch))
        long_enough = longest[number].length if number in longest else min_interval
        if number in candidates and last - first + 1 >= long_enough:
            longest[number] = Run(number, first, last)
    # max takes the first of equals, and a dict keeps the place of a key whose value is replaced.
    return max(longest.values(), key=lambda run: run.length, default=None)
