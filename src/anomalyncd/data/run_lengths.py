"""Masks as COCO stores them: lengths of runs of 0, 1, 0, … down the columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def run_lengths(mask: npt.NDArray[np.bool_]) -> list[int]:
    """Lengths of the runs of 0, 1, 0, … of a mask (H, W), column by column; the first may be 0.

    Examples
    --------
    >>> run_lengths(np.array([[False, True], [False, True], [True, True]]))
    [2, 4]
    >>> run_lengths(np.array([[True, False]]))
    [0, 1, 1]
    """
    pixels = mask.ravel(order="F")
    starts = np.flatnonzero(pixels[1:] != pixels[:-1]) + 1
    lengths: list[int] = np.diff(starts, prepend=0, append=len(pixels)).tolist()
    return [0, *lengths] if pixels[0] else lengths
