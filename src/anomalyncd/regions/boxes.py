"""Boxes that are near each other become one: few pair by pair, millions in linear time. And squares, as the paper's code
does it."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..binarize.jit import jit

Boxes = npt.NDArray[np.int64]  # (N, 4) x0, y0, x1, y1 in image pixels, ends excluded
Squares = npt.NDArray[np.int64]  # (N, 3) x, y, side in image pixels
MANY_BOXES = 1000


def merge_boxes(boxes: Boxes, distance: float) -> npt.NDArray[np.int64]:
    """Group boxes until the bounding boxes of any two groups are at least `distance` apart.

    A group takes part with its bounding box, so it may reach boxes that none of its members reaches.
    Growing a box only brings it nearer to others: the result is the same in whatever order boxes are
    merged.

    Parameters
    ----------
    boxes : (N, 4) int64 x0, y0, x1, y1, ends excluded
    distance : in pixels between the nearest points of two boxes, 0 where they overlap

    Returns
    -------
    (N,) int64 group of each box, numbered from 0 without gaps.

    Examples
    --------
    >>> merge_boxes(np.array([[0, 0, 5, 5], [20, 0, 25, 5], [7, 0, 9, 5]]), distance=3).tolist()
    [0, 1, 0]
    """
    group, boxes = _join_cells(boxes, distance) if len(boxes) > MANY_BOXES else (np.arange(len(boxes)), boxes)
    while True:
        order = np.argsort(boxes[:, 0], kind="stable")
        joined = np.empty(len(boxes), dtype=np.int64)
        joined[order] = _join_near(np.ascontiguousarray(boxes[order]), distance)
        _, joined = np.unique(joined, return_inverse=True)
        group = joined[group]
        n_groups = int(joined.max()) + 1
        if n_groups == len(boxes):
            return group
        boxes = _around(boxes, joined, n_groups)


def merge_squares(squares: Squares, distance: float) -> list[tuple[npt.NDArray[np.int64], tuple[int, int, int]]]:
    """Group squares as the paper's code does: each with all that overlap it or are nearer than `distance`, groups within
    others left out.

    Squares of a chain may so belong to two groups, and merged squares may overlap: nothing is merged twice. A group's
    square grows with its members from left to right, each time to the square in the middle of which the new bounding box
    lies.

    Parameters
    ----------
    squares : (N, 3) int64 x, y, side, few enough for N × N numbers
    distance : in pixels between the nearest points of two squares

    Returns
    -------
    For each group the positions of its members, ascending, and its square.

    Examples
    --------
    >>> squares = np.array([[0, 0, 10], [11, 4, 10], [40, 0, 10]])
    >>> [(members.tolist(), square) for members, square in merge_squares(squares, distance=2)]
    [([2], (40, 0, 10)), ([0, 1], (0, -4, 22))]
    """
    starts, stops = squares[:, None, :2], (squares[:, :2] + squares[:, 2:])[:, None]
    gaps = np.maximum(
        starts - stops.swapaxes(0, 1), starts.swapaxes(0, 1) - stops
    )  # (N, N, 2), negative where they overlap
    near = (gaps < 0).all(axis=2) | ((np.maximum(gaps, 0) ** 2).sum(axis=2) < distance**2)
    groups = np.unique(near, axis=0).astype(np.float32)
    sizes, shared = groups.sum(axis=1), groups @ groups.T
    within = (shared == sizes[:, None]) & (sizes[:, None] < sizes)
    order = np.lexsort(squares.T[::-1])  # by x, then y, then side
    return [
        (np.flatnonzero(members), _grown(squares[order[members[order] > 0]].tolist()))
        for members in groups[~within.any(axis=1)]
    ]


def _grown(squares: list[list[int]]) -> tuple[int, int, int]:
    """The square (x, y, side) that squares grow to, one after the other, in whole pixels."""
    x, y, side = map(float, squares[0])
    for left, top, own in squares[1:]:
        x0, y0, x1, y1 = min(x, left), min(y, top), max(x + side, left + own), max(y + side, top + own)
        side = max(x1 - x0, y1 - y0)
        x, y = (x0 + x1 - side) / 2, (y0 + y1 - side) / 2
    corner = math.floor(x), math.floor(y)
    return *corner, math.ceil(max(x - corner[0], y - corner[1]) + side)


def _join_cells(boxes: Boxes, distance: float) -> tuple[npt.NDArray[np.int64], Boxes]:
    """Groups of boxes whose corners share a cell, and their bounding boxes.

    Points in one cell are nearer than `distance`, so this only does what `merge_boxes` would do anyway, but in linear
    time: the millions of spots of a noisy map would take hours pair by pair.
    """
    side = distance / 2**0.5
    if side < 1:
        return np.arange(len(boxes)), boxes
    cells = (boxes[:, :2] // side).astype(np.int64)
    _, group = np.unique(cells[:, 0] * 2**32 + cells[:, 1], return_inverse=True)
    return group, _around(boxes, group, int(group.max()) + 1)


def _around(boxes: Boxes, group: npt.NDArray[np.int64], n_groups: int) -> Boxes:
    """The bounding box of each group: (N, 4), (N,) → (n_groups, 4)."""
    merged = np.empty((n_groups, 4), dtype=np.int64)
    merged[group] = boxes  # any member to start with
    np.minimum.at(merged[:, :2], group, boxes[:, :2])
    np.maximum.at(merged[:, 2:], group, boxes[:, 2:])
    return merged


@jit
def _join_near(boxes: Boxes, distance: float) -> npt.NDArray[np.int64]:
    """Boxes sorted by x0 → for each the first box to which a chain of near boxes leads."""
    n_boxes = len(boxes)
    parent = np.arange(n_boxes)
    for i in range(n_boxes):
        for j in range(i + 1, n_boxes):
            gap_x = boxes[j, 0] - boxes[i, 2]
            if gap_x >= distance:
                break
            gap_x = max(gap_x, 0)
            gap_y = max(boxes[j, 1] - boxes[i, 3], boxes[i, 1] - boxes[j, 3], 0)
            if gap_x * gap_x + gap_y * gap_y < distance * distance:
                a, b = i, j
                while parent[a] != a:
                    parent[a] = parent[parent[a]]
                    a = parent[a]
                while parent[b] != b:
                    parent[b] = parent[parent[b]]
                    b = parent[b]
                parent[max(a, b)] = min(a, b)
    for i in range(n_boxes):
        parent[i] = parent[parent[i]]  # a parent is never behind its child, so its own is final already
    return parent
