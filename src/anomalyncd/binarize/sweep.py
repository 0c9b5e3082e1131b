"""How many regions a map has at every threshold, in one sweep.

Add the pixels in a fixed order: high → low rank, equal ones in raster order. A pixel changes the number of regions
only if its earlier neighbours, those added before it, form no group (a birth: a new region) or several groups that
do not touch (a saddle: regions may join). All others merely point to an earlier neighbour, so that a walk along the
pointers from any pixel ends at a birth of its region. Whether a pixel is a birth, a saddle or neither depends on its
3 × 3 neighbourhood alone, which compiles to vector instructions; what is left to unite are the births, at the saddles: a
few in a thousand pixels.

The high byte of a rank, a uint16, is the level: how many of the thresholds a pixel exceeds. Its low byte is the place
between two thresholds: it changes no result, but the nearer the order is to that of the map's values, the fewer births
and saddles there are.
"""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from .jit import jit

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Ranks = npt.NDArray[np.uint16]

# What is known of a pixel, in one byte: which neighbour it points to (1 … 8 in raster order), or that it is a birth;
# + SADDLE if it is one.
BIRTH, SADDLE = 64, 128


def count_regions(
    values: Floats, low: float, high: float, thresholds: Floats, erosion: int
) -> tuple[Ints, Bytes, bool]:
    """Number of 8-connected regions of a map, thresholded and eroded, at every threshold.

    Parameters
    ----------
    values : (H, W) float32, C-contiguous; NaN exceeds no threshold, +infinity every one
    low, high : the values scaled to 0 and 255; where they are equal, no finite pixel exceeds any threshold
    thresholds : (T,) float32, from 255 down in steps of 256 / T; foreground is above
    erosion : side of the square that erodes, 0 = off. Pixels outside the map don't count.

    Returns
    -------
    (T,) int32, number of regions at every threshold; (H, W) uint8, how many of the thresholds each pixel exceeds after
    erosion, so that `levels >= T - j` are the regions of threshold j; and whether a value is NaN.

    Examples
    --------
    >>> values = np.array([[9, 0, 6], [0, 0, 0], [5, 5, 5]], np.float32)
    >>> counts, levels, has_holes = count_regions(values, 0, 9, np.array([255, 127], np.float32), 0)
    >>> counts.tolist(), levels.tolist()
    ([0, 3], [[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    """
    ranks, has_holes = _quantise(values, np.float32(low), np.float32(high), thresholds)
    if erosion > 1:  # flat erosion commutes with thresholding
        side = min(erosion, 2 * max(values.shape))
        ranks = np.asarray(cv2.erode(ranks, np.ones((side, side), np.uint8)), np.uint16)
    levels = (ranks >> 8).astype(np.uint8)
    ranks = np.pad(ranks, 1)
    marks = _classify(ranks)
    events = np.flatnonzero(marks >= BIRTH)
    events = events[np.argsort(~ranks.ravel()[events], kind="stable")]
    return _unite(ranks, marks, events, len(thresholds)), levels, has_holes


@jit
def _quantise(values: Floats, low: np.float32, high: np.float32, thresholds: Floats) -> tuple[Ranks, bool]:
    """Ranks (H, W), the level exactly as in float32; and whether a value is NaN."""
    n_thresholds, lowest, extent = len(thresholds), thresholds[-1], high - low
    infinity, largest = np.float32(np.inf), np.float32(np.finfo(np.float32).max)
    if not 0 < extent < np.inf:
        low = infinity  # an empty range, or one beyond float32: no finite pixel reaches it
    ranks = np.empty(values.size, np.uint16)
    flat = values.ravel()
    has_holes = False
    for i in range(len(flat)):
        has_holes |= flat[i] != flat[i]
        scaled = (flat[i] - low) / extent * np.float32(255)
        scaled = scaled if flat[i] >= low else np.float32(0)
        scaled = scaled if flat[i] != infinity else infinity
        # In 256ths of the step between thresholds; a scaled value of 256 exceeds them all already.
        steps = np.int32(np.ceil((min(scaled, np.float32(256)) - lowest) * np.float32(n_thresholds)))
        ranks[i] = np.uint16(steps + 255 if steps > 0 else 0)
    if (
        256 % n_thresholds != 0
    ):  # steps that are no power of two are rounded: let the comparison with the thresholds decide
        for i in range(len(flat)):
            level = np.int64(ranks[i] >> 8)
            scaled = (flat[i] - low) / extent * np.float32(255)
            if flat[i] >= low and flat[i] <= largest:
                while level < n_thresholds and scaled > thresholds[n_thresholds - level - 1]:
                    level += 1
                while level > 0 and not scaled > thresholds[n_thresholds - level]:
                    level -= 1
                ranks[i] = (level << 8) + (ranks[i] & 255) if level > 0 else 0
    return ranks.reshape(values.shape), has_holes


@jit
def _classify(ranks: Ranks) -> Bytes:
    """Ranks in a frame of zeros → marks of the same shape, 0 in the frame. Pixels of rank 0 are never births."""
    byte, one = np.uint8, np.uint8(1)  # vector instructions work best on bytes
    marks = np.zeros(ranks.shape, np.uint8)
    for y in range(1, len(ranks) - 1):
        above, here, below, out = ranks[y - 1], ranks[y], ranks[y + 1], marks[y]
        for x in range(1, len(here) - 1):
            rank = here[x]
            # Which neighbours are earlier: of equal pixels the ones above and to the left.
            nw, n, ne = byte(above[x - 1] >= rank), byte(above[x] >= rank), byte(above[x + 1] >= rank)
            w, e = byte(here[x - 1] >= rank), byte(here[x + 1] > rank)
            sw, s, se = byte(below[x - 1] > rank), byte(below[x] > rank), byte(below[x + 1] > rank)

            # A group of them, walked clockwise, begins behind one side that is not earlier. (A corner that is not
            # earlier does not part the sides that it lies between: they touch.)
            n_groups = byte((n ^ one) & (ne | e)) + byte((e ^ one) & (se | s))
            n_groups = byte(n_groups + byte((s ^ one) & (sw | w)) + byte((w ^ one) & (nw | n)))

            # Point to any earlier neighbour; a corner where possible, it is farther away.
            mark = byte(BIRTH)
            mark = byte(4) if w else mark
            mark = byte(5) if e else mark
            mark = byte(2) if n else mark
            mark = byte(7) if s else mark
            mark = byte(1) if nw else mark
            mark = byte(3) if ne else mark
            mark = byte(6) if sw else mark
            mark = byte(8) if se else mark
            out[x] = byte(mark | byte(SADDLE)) if n_groups > one else mark
    return marks


@jit
def _unite(ranks: Ranks, marks: Bytes, events: npt.NDArray[np.int64], n_thresholds: int) -> Ints:
    """Births minus unions at saddles, (n_thresholds,) int32; events : places of both, in the order of adding."""
    stride, flat, pointers = ranks.shape[1], ranks.ravel(), marks.ravel()
    clockwise = np.array([-stride, 1 - stride, 1, stride + 1, stride, stride - 1, -1, -stride - 1])  # from the north
    steps = np.array([0, -stride - 1, -stride, 1 - stride, -1, 1, stride - 1, stride, stride + 1])  # by mark
    parents = np.empty(len(flat), np.int32)  # of births
    counts = np.zeros(n_thresholds + 1, np.int32)  # by level; first what each level adds
    for here in events:
        rank = flat[here]
        if rank == 0:
            break
        if pointers[here] & BIRTH:
            parents[here] = here
            counts[rank >> 8] += 1
            continue
        earlier = [(flat[here + step] > rank) | ((flat[here + step] == rank) & (step < 0)) for step in clockwise]
        last = -1
        for k in range(8):  # one neighbour of each group suffices: one that touches none before it
            if earlier[k] and not earlier[k - 1] and (k % 2 == 1 or not earlier[k - 2]):
                root = here + clockwise[k]
                while not pointers[root] & BIRTH:
                    root += steps[pointers[root] & 15]
                while parents[root] != root:
                    parents[root] = parents[parents[root]]  # halves the way
                    root = parents[root]
                if last >= 0 and root != last:
                    parents[last] = root
                    counts[rank >> 8] -= 1
                last = root
    return np.cumsum(counts[:0:-1]).astype(np.int32)
