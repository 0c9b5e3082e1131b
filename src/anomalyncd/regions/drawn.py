"""What a person draws on an image: boxes and strokes of a brush, in shares of its sides, and the mask that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

LARGEST_SIDE = 2048  # of a mask; larger images are drawn on in this size
FINE = 4  # bits behind the point of a pixel


@dataclass(frozen=True)
class Stroke:
    """A line of a brush, or an area.

    points : (x, y) each, in shares of the image's width and height
    width : of the brush, in shares of the image's longer side; 0: the area that the points enclose, as of a box
    """

    points: tuple[tuple[float, float], ...]
    width: float = 0.0


@dataclass(frozen=True)
class Drawn:
    """A defect that a person drew.

    image : id; region : number that it has in its image
    """

    image: str
    region: int
    strokes: tuple[Stroke, ...]


def as_drawn(content: Mapping[str, Any]) -> Drawn:
    """A drawing that was stored as JSON, see `dataclasses.asdict`."""
    strokes = [Stroke(tuple((x, y) for x, y in one["points"]), one["width"]) for one in content["strokes"]]
    return Drawn(content["image"], content["region"], tuple(strokes))


def painted(strokes: Sequence[Stroke], size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """(h, w) bool of what was drawn on an image of that size (H, W), at most 2048 pixels wide and high, never empty.

    Examples
    --------
    >>> painted([Stroke(((0.25, 0), (0.5, 0), (0.5, 1), (0.25, 1)))], (2, 8)).astype(int).tolist()
    [[0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0]]
    """
    scale = min(1.0, LARGEST_SIDE / max(size))
    height, width = (max(1, round(side * scale)) for side in size)
    mask = np.zeros((height, width), np.uint8)
    for stroke in strokes:
        # Edges of pixels, not their centres, are at whole numbers.
        points = np.array(stroke.points, np.float64) * (width, height) - 0.5
        if stroke.width:
            fixed = np.round(points * 2**FINE).astype(np.int32)
            thick = max(1, round(stroke.width * max(width, height)))
            cv2.polylines(mask, [fixed], False, 1, thick, shift=FINE)
            for point in fixed.tolist():
                cv2.circle(mask, point, thick * 2**FINE // 2, 1, -1, shift=FINE)
        else:
            inside = np.ceil(points).astype(np.int32)
            inside[:, 0] = np.where(points[:, 0] > points[:, 0].min(), np.floor(points[:, 0]), inside[:, 0])
            inside[:, 1] = np.where(points[:, 1] > points[:, 1].min(), np.floor(points[:, 1]), inside[:, 1])
            cv2.fillPoly(mask, [inside], 1)
    if not mask.any():  # less than a pixel
        x, y = strokes[0].points[0]
        mask[min(int(y * height), height - 1), min(int(x * width), width - 1)] = 1
    return mask > 0
