"""Which kind of region is no defect: the one that scores like images in which nothing was found."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

LEAST_IMAGES = 5  # without a region, and of a kind: fewer tell nothing
MOST_ABOVE = 0.95  # chance that an image of the kind outscores one without a region: a defect hardly ever fails to


def normal_kind(
    kinds: npt.NDArray[np.int64], scores: npt.NDArray[np.floating], quiet: npt.NDArray[np.floating]
) -> int | None:
    """The kind that false alarms make up, where scores alone show no line between normal and defective; None for no such.

    A detector is never quite silent on normal images. What it finds there looks alike, and scores little more than the
    images in which nothing stable was found: the chance that an image of the kind outscores one of these is the smallest of
    all kinds (Mann and Whitney's statistic), and clearly below 1.

    Parameters
    ----------
    kinds : (R,) int, cluster of the strongest region of each image; scores : (R,) of these images
    quiet : (M,) scores of the images without a region

    Examples
    --------
    >>> kinds, quiet = np.repeat([0, 1], 6), np.linspace(0.1, 0.3, 6)
    >>> normal_kind(kinds, np.r_[np.linspace(0.6, 0.9, 6), np.linspace(0.2, 0.4, 6)], quiet)
    1
    >>> normal_kind(kinds, np.linspace(0.6, 0.9, 12), quiet) is None
    True
    """
    if len(quiet) < LEAST_IMAGES:
        return None
    ordered = np.sort(quiet)
    above = {}
    for kind in np.unique(kinds).tolist():
        own = scores[kinds == kind]
        if len(own) >= LEAST_IMAGES:
            # Half of each tie counts, so that two samples of the same scores give a half.
            below = np.searchsorted(ordered, own, "left") + np.searchsorted(ordered, own, "right")
            above[kind] = float(below.mean()) / (2 * len(quiet))
    lowest = min(above, key=above.__getitem__, default=None)
    return lowest if lowest is not None and above[lowest] < MOST_ABOVE else None
