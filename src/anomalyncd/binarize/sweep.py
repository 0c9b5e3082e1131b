"""How many regions a map has at every threshold, in one sweep.

Add the pixels in a fixed order: high → low, equal ones in raster order. A pixel changes the
number of regions only if its earlier neighbours, those added before it, form no group (a birth: a new
region) or several groups that do not touch (a saddle: regions may join). All others are passed over: they
merely point to an earlier neighbour, so that a walk along the pointers from any pixel ends at a birth
of its region. Whether a pixel is a birth, a saddle or neither depends on its 3 × 3 neighbourhood alone,
which compiles to vector instructions (`scan.py`); what is left to unite are the births, at the saddles: a few
in a thousand pixels.
"""

from __future__ import annotations

import numpy as np

from .jit import jit
from .scan import BIRTH, BLOCK, SADDLE, Bytes, Floats, Indices, Ints, find_events


def count_regions(
    values: Floats, low: float, high: float, thresholds: Floats, erosion: int
) -> tuple[Ints, Bytes, bool]:
    """Number of 8-connected regions of a map, thresholded and eroded, at every threshold.

    Parameters
    ----------
    values : (H, W) float32, C-contiguous; NaN and infinite pixels exceed no threshold
    low, high : the values scaled to 0 and 255; where they are equal, no pixel exceeds any threshold
    thresholds : (T,) float32, from 255 down in steps of 256 / T; foreground is above
    erosion : side of the square that erodes, 0 = off. Pixels outside the map don't count.

    Returns
    -------
    (T,) int32, number of regions at every threshold; (H, W) uint8, how many of the thresholds each pixel exceeds after
    erosion, so that `levels >= T - j` are the regions of threshold j; and whether all values are finite.

    Examples
    --------
    >>> values = np.array([[9, 0, 6], [0, 0, 0], [5, 5, 5]], np.float32)
    >>> counts, levels, all_finite = count_regions(values, 0, 9, np.array([255, 127], np.float32), 0)
    >>> counts.tolist(), levels.tolist()
    ([0, 3], [[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    """
    levels, all_finite, marks, births_before, births_of_level, edges = find_events(
        values, np.float32(low), np.float32(high), thresholds, erosion
    )
    return _unite(marks, births_before, births_of_level, edges), levels, all_finite


@jit
def _unite(marks: Bytes, births_before: Ints, births_of_level: Ints, edges: Indices) -> Ints:
    """Births minus unions, high → low level: (n_thresholds,) int32. See `find_events` for the arguments."""
    n_thresholds = len(births_of_level) - 1
    _walk_to_births(marks.ravel(), marks.shape[1], births_before, edges)
    edges, ends = _sort_by_level(edges, n_thresholds)
    parents = np.arange(births_of_level.sum()).astype(np.uint32)
    counts = np.empty(n_thresholds, np.int32)
    n_regions = 0
    for j in range(n_thresholds):
        n_regions += births_of_level[n_thresholds - j]
        for i in range(ends[j], ends[j + 1]):
            one, other = _root(parents, edges[i, 0]), _root(parents, edges[i, 1])
            parents[one] = other
            n_regions -= one != other
        counts[j] = n_regions
    return counts


@jit
def _walk_to_births(marks: Bytes, stride: int, births_before: Ints, edges: Indices) -> None:
    """Replace the pixels of each edge by the numbers of the births that their pointers lead to."""
    steps = np.zeros(256, np.int64)  # by mark; a birth stays where it is
    steps[1:9] = [-stride - 1, -stride, -stride + 1, -1, 1, stride - 1, stride, stride + 1]
    steps[SADDLE + 1 : SADDLE + 9] = steps[1:9]
    unsigned_steps = steps.view(np.uint64)
    for i in range(len(edges)):
        one, other = np.uint64(edges[i, 0]), np.uint64(edges[i, 1])
        # Both at once: the processor waits for memory, not for arithmetic.
        while not marks[one] & marks[other] & BIRTH:
            one += unsigned_steps[marks[one]]
            other += unsigned_steps[marks[other]]
        edges[i, 0] = births_before[one // BLOCK] + marks[one] - BIRTH
        edges[i, 1] = births_before[other // BLOCK] + marks[other] - BIRTH


@jit
def _sort_by_level(edges: Indices, n_thresholds: int) -> tuple[Indices, Ints]:
    """The edges from high to low level, and where they end: those of level T - j are ends[j] … ends[j + 1]."""
    ends = np.zeros(n_thresholds + 1, np.int32)
    for i in range(len(edges)):
        ends[n_thresholds - edges[i, 2]] += 1
    ends = np.cumsum(ends).astype(np.int32)
    ordered = np.empty((len(edges), 2), np.uint32)
    for i in range(len(edges)):
        j = n_thresholds - edges[i, 2]
        ends[j] -= 1
        ordered[ends[j], 0] = edges[i, 0]
        ordered[ends[j], 1] = edges[i, 1]
    return ordered, ends


@jit
def _root(parents: Indices, birth: np.uint32) -> np.uint32:
    """The birth that stands for the region of `birth`; halves the way there."""
    while parents[birth] != birth:
        parents[birth] = parents[parents[birth]]
        birth = parents[birth]
    return birth
