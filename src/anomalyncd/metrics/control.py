"""Control limits of a share: which groups of images have more, or fewer, of something than chance explains (p-chart)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SIGMAS = 3.0
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ControlChart:
    """Shares of groups and where they should lie.

    shares, low, high : (G,), of each group; NaN where it has no image
    centre : share of all groups together
    """

    shares: Floats
    centre: float
    low: Floats
    high: Floats

    @property
    def outside(self) -> npt.NDArray[np.bool_]:
        """(G,) groups beyond the limits."""
        with np.errstate(invalid="ignore"):
            beyond: npt.NDArray[np.bool_] = (self.shares < self.low) | (self.shares > self.high)
        return beyond


def control_chart(counts: npt.ArrayLike, sizes: npt.ArrayLike) -> ControlChart:
    """The p-chart of groups of any sizes: centre Σd / Σn, limits three deviations √(p (1 − p) / n) off it, within 0 … 1.

    counts : (G,) images with the property, d; sizes : (G,) images, n

    Examples
    --------
    >>> chart = control_chart([2, 3, 30], [50, 60, 100])
    >>> round(chart.centre, 4), chart.high.round(4).tolist(), chart.outside.tolist()
    (0.1667, [0.3248, 0.311, 0.2785], [False, False, True])
    """
    found, total = np.asarray(counts, np.float64), np.asarray(sizes, np.float64)
    shares = np.divide(found, total, out=np.full(len(total), np.nan), where=total > 0)
    centre = float(found.sum() / total.sum()) if total.sum() else 0.0
    variance = np.divide(centre * (1 - centre), total, out=np.full(len(total), np.nan), where=total > 0)
    width = SIGMAS * np.sqrt(variance)
    return ControlChart(shares, centre, np.clip(centre - width, 0, 1), np.clip(centre + width, 0, 1))
