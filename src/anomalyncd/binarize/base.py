"""What all binarizers share: the result, the checks of a map, and the value range fitted on a set of maps."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

from ..errors import DataError, SettingsError, WrongTypeError

if TYPE_CHECKING:
    from typing import Self


@dataclass(frozen=True, eq=False)
class BinarizeResult:
    """A binarized anomaly map.

    mask : (H, W) bool, True on anomalous regions
    threshold : the threshold used, in the map's own units; nan when there is no region
    n_regions : number of 8-connected regions of `mask`
    counts : (n_thresholds,) int32, number of regions at every threshold tried, high → low threshold
    """

    mask: npt.NDArray[np.bool_]
    threshold: float
    n_regions: int
    counts: npt.NDArray[np.int32]


class Binarizer(ABC):
    """Anomaly maps → masks. `fit` learns the value range of a set of maps; later maps are treated alike.

    Attributes
    ----------
    low_, high_ : the fitted range, in the maps' own units
    """

    low_: float
    high_: float

    @abstractmethod
    def binarize(self, anomaly_map: npt.ArrayLike) -> BinarizeResult:
        """(H, W) map of any real dtype → mask, threshold and number of regions."""

    def _range(self, smallest: float, smallest_maximum: float, largest: float) -> tuple[float, float]:
        """The range for maps with this smallest value, smallest of the maps' maxima, and largest value."""
        return smallest, largest

    def fit(self, maps: Iterable[npt.ArrayLike]) -> Self:
        """Learn the range in one pass. maps: (H, W) arrays of any real dtype and size, or a generator."""
        try:
            given = iter(maps)
        except TypeError:
            raise WrongTypeError(f"maps: expected arrays (H, W), but got {type(maps).__name__}.") from None
        self.low_, self.high_ = self._range(*_collect_statistics(given))
        return self

    def normalize(self, anomaly_map: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """(H, W) map → (H, W) float32 in 0 … 1: low_ becomes 0 and high_ becomes 1, clipped; NaN becomes 0."""
        self._check_fitted()
        values = as_float_map(anomaly_map)
        holes = np.isnan(values)
        if holes.any():
            warn_of_holes(values, stacklevel=3)
            values = np.where(holes, -np.float32(np.inf), values)
        if not self.low_ < self.high_:
            return np.isposinf(values).astype(np.float32)
        # The range of two float32 may exceed float32.
        scaled = (values.astype(np.float64) - self.low_) / (self.high_ - self.low_)
        return np.clip(scaled, 0, 1).astype(np.float32)

    def cut(self, scaled: npt.NDArray[np.float32], level: float) -> BinarizeResult:
        """The result of one threshold for a normalized map (H, W): foreground is above `level`, 0 … 1."""
        mask = scaled > level
        n_regions = cv2.connectedComponents(mask.view(np.uint8), connectivity=8)[0] - 1
        threshold = self.low_ + level * (self.high_ - self.low_) if n_regions else math.nan
        return BinarizeResult(mask, threshold, n_regions, np.array([n_regions], np.int32))

    def get_state(self) -> dict[str, float]:
        """What `fit` learned, as plain numbers for storing with a model."""
        self._check_fitted()
        return {"low": self.low_, "high": self.high_}

    def set_state(self, state: Mapping[str, float]) -> Self:
        """Take what `get_state` gave in the place of `fit`."""
        self.low_, self.high_ = float(state["low"]), float(state["high"])
        return self

    def _check_fitted(self) -> None:
        if not hasattr(self, "high_"):
            raise DataError(f"{type(self).__name__} has no value range yet. Call fit(maps) first.")


def as_float_map(anomaly_map: npt.ArrayLike, name: str = "anomaly map") -> npt.NDArray[np.float32]:
    """Any real 2-D, non-empty array → C-contiguous (H, W) float32; values beyond float32 become infinite.

    Examples
    --------
    >>> as_float_map([[0, 1], [2, 3]]).dtype
    dtype('float32')
    """
    try:
        array = np.asarray(anomaly_map)
    except (TypeError, ValueError) as error:  # as rows of different lengths
        raise DataError(f"{name}: expected a 2-D array (H, W) ({error}).") from error
    if array.ndim != 2 or array.size == 0:
        raise DataError(f"{name}: expected a non-empty 2-D array (H, W), but got shape {array.shape}.")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{name}: expected real numbers, but got dtype {array.dtype}.")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def warn_of_holes(values: npt.NDArray[np.float32], stacklevel: int) -> None:
    """Tell the user how much of a map is unusable."""
    n_holes = np.count_nonzero(np.isnan(values))
    warnings.warn(
        f"{n_holes} of {values.size} pixels of the anomaly map are NaN; they count as not anomalous.",
        stacklevel=stacklevel,
    )


def check_whole_number(name: str, value: object, smallest: int, largest: int | None = None) -> None:
    """Raise `SettingsError` unless value is an integer in smallest … largest."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < smallest or (largest is not None and value > largest):  # type: ignore[operator]
        expected = f"at least {smallest}" if largest is None else f"in {smallest} … {largest}"
        raise SettingsError(f"{name} must be a whole number {expected}, but got {value!r}.")


def _collect_statistics(maps: Iterable[npt.ArrayLike]) -> tuple[float, float, float]:
    """Smallest value, smallest of the maps' maxima, and largest value, of finite pixels.

    A map that reaches +infinity has no maximum among the finite: it is none of those that normal images have.
    """
    smallest, smallest_maximum, largest = math.inf, math.inf, -math.inf
    n_maps = n_bad_maps = n_bad_pixels = 0
    for n_maps, anomaly_map in enumerate(maps, start=1):
        values = as_float_map(anomaly_map, f"anomaly map {n_maps - 1}")
        low, high = float(values.min()), float(values.max())
        maximum = high
        if not (math.isfinite(low) and math.isfinite(high)):
            finite = values[np.isfinite(values)]
            n_bad_maps, n_bad_pixels = n_bad_maps + 1, n_bad_pixels + values.size - finite.size
            if finite.size == 0:
                continue
            low, high = float(finite.min()), float(finite.max())
            maximum = math.inf if (values == np.inf).any() else high
        smallest = min(smallest, low)
        smallest_maximum = min(smallest_maximum, maximum)
        largest = max(largest, high)
    if n_maps == 0:
        raise DataError("Expected at least one anomaly map to fit the value range, but got none.")
    if largest == -math.inf:
        raise DataError(f"None of the {n_maps} anomaly maps has a finite value. Check the detector's output.")
    if n_bad_maps:
        warnings.warn(
            f"{n_bad_pixels} pixels of {n_bad_maps} of {n_maps} anomaly maps are NaN or infinite; "
            "they are left out of the value range.",
            stacklevel=4,
        )
    return smallest, min(smallest_maximum, largest), largest
