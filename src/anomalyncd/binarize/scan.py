"""The compiled first half of MEBin's sweep: where regions are born and where they may join.

Pixels are ordered by rank, a uint16. Its high byte is the level: how many of the thresholds a pixel exceeds
(after erosion; flat erosion commutes with thresholding). Its low byte is the place between two thresholds: it
changes no result, but the nearer the order is to that of the map's values, the fewer events there are.

Rows are quantised, eroded and classified one by one, so that they never leave the processor's cache.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .jit import jit

Floats = npt.NDArray[np.float32]
Row = npt.NDArray[np.uint16]
Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Indices = npt.NDArray[np.uint32]  # unsigned: numba need not look for negative indices

HIGHEST = 65535  # the rank of what lies outside the map: it erodes nothing

# What is known of a pixel, in one byte. Of a birth: BIRTH + its number among the births of its block. Of any
# other: which neighbour it points to (1 … 8 in raster order), + SADDLE if it is one.
BIRTH, SADDLE = 64, 128
BLOCK = 64
ANY_EVENT = np.uint64(0xC0C0C0C0C0C0C0C0)  # a birth or a saddle among eight pixels read as one word


@jit
def find_events(
    values: Floats, low: np.float32, high: np.float32, thresholds: Floats, erosion: int
) -> tuple[Bytes, bool, Bytes, Ints, Ints, Indices]:
    """Erode a map and find the events of adding its pixels from high to low rank.

    Parameters
    ----------
    values, low, high, thresholds, erosion : see `sweep.count_regions`

    Returns
    -------
    levels : (H, W) uint8, how many of the thresholds a pixel exceeds
    all_finite : whether no value is NaN or infinite
    marks : (H, stride) uint8, see above; meaningless where the level is 0. The stride is W rounded up to whole blocks.
    births_before : (H * stride / BLOCK,) int32, number of births in all blocks before a block that has births; meaningless
        for blocks that have none
    births_of_level : (T + 1,) int32, number of births at each level
    edges : (n_edges, 3) uint32. The regions of two pixels (places in marks.ravel()) join, and the level.
    """
    height, width = values.shape
    if not 0 < high - low < np.inf:
        low = np.float32(np.inf)  # an empty range, or one beyond float32: no pixel reaches it
    size = min(max(erosion, 1), 2 * max(height, width))
    above_center = size // 2
    below_center = size - 1 - above_center
    raw, spare = np.empty(width + size - 1, np.uint16), np.empty(width + size - 1, np.uint16)
    window, running = np.full((size + 1, width), HIGHEST, np.uint16), np.empty(width, np.uint16)
    levels = np.empty((below_center + height, width), np.uint8)  # the first rows belong to the window's start

    n_blocks = (width + BLOCK - 1) // BLOCK
    stride = n_blocks * BLOCK
    ranks = np.zeros((3, stride + 2), np.uint16)  # the last three rows, in a frame of zeros
    marks = np.empty((height, stride), np.uint8)
    words = marks.view(np.uint64)
    births_before = np.empty((height, n_blocks), np.int32)
    births_of_level = np.zeros(len(thresholds) + 1, np.int32)
    lists = np.empty((3, stride + 1), np.uint32)
    edges = np.empty((4 * width, 3), np.uint32)
    n_births = n_edges = 0
    all_finite = True

    for y in range(height + below_center + 1):
        place, newest = y % size, y - below_center
        if y < height:
            raw[:above_center] = HIGHEST
            raw[above_center + width :] = HIGHEST
            inside = raw[above_center : above_center + width]
            all_finite &= _quantise(values[y], low, high, thresholds, inside)
            _erode_along(raw, spare, size, window[place])
        else:
            window[place] = HIGHEST
        if newest < height:
            _erode_across(window, place, running, ranks[newest % 3, 1 : width + 1], levels[y])
        if newest == -1 or newest == height:
            ranks[newest % 3] = 0
        if newest < 1:
            continue
        row = newest - 1
        above, here, below = ranks[(row - 1) % 3], ranks[row % 3], ranks[newest % 3]
        _classify(above, here, below, marks[row])
        n_new, n_saddles = _collect(here, marks[row], words[row], n_births, births_before[row], births_of_level, lists)
        n_births += n_new
        if n_edges + 3 * n_saddles >= len(edges):
            edges = np.concatenate((edges, np.empty((len(edges) + 3 * n_saddles, 3), np.uint32)))
        n_edges = _join(above, here, below, lists[0, :n_saddles], row * stride, stride, edges, n_edges)
    return levels[below_center:], all_finite, marks, births_before.ravel(), births_of_level, edges[:n_edges]


@jit
def _quantise(values: Floats, low: np.float32, high: np.float32, thresholds: Floats, ranks: Row) -> bool:
    """Write the ranks of one row, levels exactly as in float32. Returns whether all values are finite."""
    n_thresholds = len(thresholds)
    lowest, extent = thresholds[-1], high - low
    largest = np.float32(np.finfo(np.float32).max)
    all_finite = True
    for x in range(len(ranks)):
        is_finite = abs(values[x]) <= largest
        all_finite &= is_finite
        scaled = (values[x] - low) / extent * np.float32(255)
        scaled = scaled if (values[x] >= low) & is_finite else np.float32(0)
        # In 256ths of the step between thresholds; a scaled value of 256 exceeds them all already.
        steps = np.int32(np.ceil((min(scaled, np.float32(256)) - lowest) * np.float32(n_thresholds)))
        ranks[x] = np.uint16(steps + 255 if steps > 0 else 0)
    if 256 % n_thresholds != 0:
        _correct_levels(values, low, high, thresholds, ranks)
    return all_finite


@jit
def _correct_levels(values: Floats, low: np.float32, high: np.float32, thresholds: Floats, ranks: Row) -> None:
    """Steps that are no power of two are rounded: let the comparison with the thresholds decide."""
    n_thresholds = len(thresholds)
    for x in range(len(ranks)):
        value, rank = values[x], np.int64(ranks[x])
        if value >= low and value < np.inf:
            scaled = (value - low) / (high - low) * np.float32(255)
            level = rank >> 8
            while level < n_thresholds and scaled > thresholds[n_thresholds - level - 1]:
                level += 1
            while level > 0 and not scaled > thresholds[n_thresholds - level]:
                level -= 1
            ranks[x] = (level << 8) + (rank & 255) if level > 0 else 0


@jit
def _erode_along(row: Row, spare: Row, size: int, out: Row) -> None:
    """out[x] = min(row[x : x + size]), by windows of doubling width. Overwrites row and spare."""
    width = 1
    while 2 * width <= size:
        _minimum(row[:-width], row[width:], spare[:-width])
        row, spare = spare, row
        width *= 2
    rest = size - width
    _minimum(row[: len(out)], row[rest : rest + len(out)], out)


@jit
def _minimum(first: Row, second: Row, out: Row) -> None:
    for x in range(len(out)):
        out[x] = min(first[x], second[x])


@jit
def _erode_across(window: Row, place: int, running: Row, out: Row, levels: Bytes) -> None:
    """Minimum of the last S rows, in three comparisons a pixel whatever S is (van Herk, 1992).

    Rows come in groups of S. The last S rows are the end of the previous group, whose minima from any row to
    its end are known, and the beginning of this group, whose minimum is kept as rows come in.

    Parameters
    ----------
    window : (S + 1, W) uint16: up to `place` the rows of this group; behind, minima of the previous one; the last row is
        always HIGHEST
    running : (W,) uint16, the minimum of this group so far; updated
    out, levels : (W,), written: the minimum, and its high byte
    """
    newest, previous = window[place], window[place + 1]
    if place == 0:
        running[:] = HIGHEST
    for x in range(len(out)):
        running[x] = min(running[x], newest[x])
        out[x] = min(running[x], previous[x])
        levels[x] = out[x] >> 8
    if place + 2 == len(window):
        for i in range(place - 1, -1, -1):
            row, later = window[i], window[i + 1]
            for x in range(len(row)):
                row[x] = min(row[x], later[x])


@jit
def _classify(above: Row, here: Row, below: Row, marks: Bytes) -> None:
    """Three (stride + 2,) rows of ranks → (stride,) marks. Pixels of rank 0 are never births."""
    byte, one = np.uint8, np.uint8(1)  # vector instructions work best on bytes
    for x in range(len(marks)):
        rank = here[x + 1]
        # Which neighbours are earlier: of equal pixels the ones above and to the left.
        nw, n, ne = byte(above[x] >= rank), byte(above[x + 1] >= rank), byte(above[x + 2] >= rank)
        w, e = byte(here[x] >= rank), byte(here[x + 2] > rank)
        sw, s, se = byte(below[x] > rank), byte(below[x + 1] > rank), byte(below[x + 2] > rank)

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
        marks[x] = byte(mark | byte(SADDLE)) if n_groups > one else mark


@jit
def _collect(
    here: Row,
    marks: Bytes,
    words: npt.NDArray[np.uint64],
    n_births: int,
    births_before: Ints,
    births_of_level: Ints,
    lists: Indices,
) -> tuple[int, int]:
    """Number the births of one row and list its saddles in lists[0]. Returns the number of both.

    Parameters
    ----------
    words : (stride / 8,), the marks read eight at a time
    n_births : number of births in all rows before
    lists : (3, stride + 1), overwritten
    """
    saddles, births, places = lists[0], lists[1], lists[2]
    # Lists are filled without branches: nobody can predict where the events are.
    n_places = n_saddles = n_new = 0
    for place in range(len(words)):
        places[n_places] = place
        n_places += (words[place] & ANY_EVENT) != 0
    for place in places[:n_places]:
        for x in range(8 * place, 8 * place + 8):
            saddles[n_saddles] = births[n_new] = x
            n_saddles += marks[x] >> 7
            n_new += marks[x] >> 6 & 1
    block = first = -1
    for i in range(n_new):
        x = births[i]
        if x // BLOCK != block:
            block, first = x // BLOCK, i
            births_before[block] = n_births + i
        marks[x] = BIRTH + i - first
        births_of_level[here[x + 1] >> 8] += 1
    return n_new, n_saddles


@jit
def _join(
    above: Row, here: Row, below: Row, saddles: Indices, first: int, stride: int, edges: Indices, n_edges: int
) -> int:
    """Write an edge from each group of earlier neighbours of a saddle to the next. Returns their number by now."""
    for x in saddles:
        rank = here[x + 1]
        if rank == 0:
            continue
        nw, n, ne, w = above[x] >= rank, above[x + 1] >= rank, above[x + 2] >= rank, here[x] >= rank
        e, sw, s, se = here[x + 2] > rank, below[x] > rank, below[x + 1] > rank, below[x + 2] > rank
        north, south = first + x - stride, first + x + stride
        last = -1
        # One neighbour of each group suffices.
        for neighbour, is_needed in (
            (north, n),
            (first + x + 1, e & (not n)),
            (south, s & (not e)),
            (first + x - 1, w & (not s) & (not n)),
            (north + 1, ne & (not n) & (not e)),
            (south + 1, se & (not s) & (not e)),
            (south - 1, sw & (not s) & (not w)),
            (north - 1, nw & (not n) & (not w)),
        ):
            edges[n_edges, 0] = last
            edges[n_edges, 1] = neighbour
            edges[n_edges, 2] = rank >> 8
            n_edges += is_needed & (last >= 0)
            last = neighbour if is_needed else last
    return n_edges
