"""Which detections are false alarms: a threshold on image scores, found without labels, where the scores show one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Share of the variance that the best split explains: 2/π ≈ 0.64 for a bell curve and 0.75 for a flat one. For N flat
# scores it is more than 0.75 + 0.5/√N in one draw of twenty (simulated for N = 50, 110 and 580), so only above that do
# the scores speak of two kinds of images.
FLAT, SPREAD = 0.75, 0.5


def false_alarm_threshold(scores: npt.ArrayLike) -> float:
    """Otsu's threshold between normal and defective image scores, or 0 where the scores do not fall into two groups.

    Parameters
    ----------
    scores : (N,) float 0 … 1, the largest value of each image's anomaly map on the fitted range

    Examples
    --------
    >>> false_alarm_threshold([0.1, 0.12, 0.11, 0.9, 0.85]) > 0.12
    True
    >>> false_alarm_threshold(np.linspace(0, 1, 50))
    0.0
    """
    ordered = np.sort(np.asarray(scores, dtype=np.float64))
    ordered = ordered[np.isfinite(ordered)]
    halves = ordered / 2  # the spread of two floats may be more than a float holds
    if len(ordered) < 4 or halves[0] == halves[-1]:
        return 0.0
    scaled = (halves - halves[0]) / (halves[-1] - halves[0])
    below = np.arange(1, len(scaled))  # sizes of the lower group
    above = len(scaled) - below
    sums = np.cumsum(scaled)[:-1]
    gap = (scaled.sum() - sums) / above - sums / below
    explained = below * above * gap**2 / len(scaled) ** 2 / scaled.var()
    best = int(np.argmax(explained))
    if explained[best] <= FLAT + SPREAD / len(ordered) ** 0.5:
        return 0.0
    return float(halves[best] + halves[best + 1])
