"""Parts of the picture in which nothing is looked for: a clamp, a time stamp, the edge of the belt. No torch here."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ..data.images import read_image
from ..errors import BadFileError, DataError
from ..places.plain import open_plain

Ring = Sequence[tuple[float, float]]
Shapes = Sequence[Sequence[Ring]]
MOST_POINTS = 20_000  # of all shapes
MOST_BYTES = 10_000_000  # of a JSON file, that these take by far
SMOOTH = 0.001  # of the longer side: corners that the outline of a mask may lose


def ignored(shapes: Shapes, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
    """(H, W) bool, the pixels of a picture of that size that are ignored, each one that a shape touches and one more.

    shapes : each of rings of points (x, y), in shares of the picture's width and height; a ring in a ring is a hole

    Examples
    --------
    >>> ignored([[[(0, 0), (0.5, 0), (0.5, 1), (0, 1)]]], (4, 8)).astype(int)[0].tolist()
    [1, 1, 1, 1, 1, 1, 0, 0]
    """
    return _drawn(
        tuple(tuple(tuple((float(x), float(y)) for x, y in ring) for ring in shape) for shape in shapes), size
    )


def without(values: npt.NDArray[np.float32], shapes: Shapes) -> npt.NDArray[np.float32]:
    """A map that is nowhere lower than in its ignored parts; the same map where nothing is ignored."""
    if not shapes:
        return values
    inside = ignored(shapes, values.shape[:2])
    rest = values[~inside & np.isfinite(values)]
    return np.where(inside, rest.min() if rest.size else np.float32(0), values)


def read_ignored(path: Path) -> list[list[list[tuple[float, float]]]]:
    """Shapes that somebody drew on a reference image.

    path : a mask of it, a picture that is white where nothing is to be looked for; or JSON, {"width": W, "height": H,
        "polygons": [[[x, y], …], …]} in pixels of the reference image, or a list of polygons in shares of its sides
    """
    if path.suffix.lower() == ".json":
        return _of_json(path)
    try:
        picture = read_image(path)
    except BadFileError as error:
        raise DataError(f"{error}. --ignore takes a mask of a reference image, or JSON with polygons.") from error
    mask = (picture.max(axis=2) > 127).astype(np.uint8)
    height, width = mask.shape
    found, _ = cv2.findContours(mask, cv2.RETR_CCOMP, cv2.CHAIN_APPROX_SIMPLE)
    outlines = [cv2.approxPolyDP(ring, SMOOTH * max(mask.shape), True)[:, 0] for ring in found]
    shape = [[(float((x + 0.5) / width), float((y + 0.5) / height)) for x, y in ring] for ring in outlines]
    return _checked([shape] if shape else [], path)


def _of_json(path: Path) -> list[list[list[tuple[float, float]]]]:
    expected = (
        f'{path}: expected {{"width": W, "height": H, "polygons": [[[x, y], …], …]}}, or a list of polygons in shares'
    )
    try:
        with open_plain(path) as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
        given: Any = json.loads(content)
        width, height, polygons = 1.0, 1.0, given
        if isinstance(given, dict):
            width, height, polygons = float(given["width"]), float(given["height"]), given["polygons"]
        if not (width > 0 and height > 0):
            raise ValueError("width and height must be above 0")
        shapes = [[[(float(x) / width, float(y) / height) for x, y in polygon]] for polygon in polygons]
    except (OSError, ValueError, OverflowError, TypeError, KeyError, RecursionError) as error:
        raise DataError(f"{expected}, but it cannot be read as such ({error}).") from error
    return _checked(shapes, path)


def _checked(shapes: list[list[list[tuple[float, float]]]], path: Path) -> list[list[list[tuple[float, float]]]]:
    points = [point for shape in shapes for ring in shape for point in ring]
    if not points:
        raise DataError(f"{path}: expected something to ignore (--ignore), but nothing is drawn.")
    if not all(-0.01 <= value <= 1.01 for point in points for value in point):
        raise DataError(
            f"{path}: expected points inside the picture, but some lie outside. Are width and height right?"
        )
    if len(points) > MOST_POINTS:
        raise DataError(
            f"{path}: expected at most {MOST_POINTS:,} points, but got {len(points):,}. Draw it more simply."
        )
    return shapes


@lru_cache(maxsize=16)
def _drawn(
    shapes: tuple[tuple[tuple[tuple[float, float], ...], ...], ...], size: tuple[int, int]
) -> npt.NDArray[np.bool_]:
    height, width = size
    drawn = np.zeros(size, np.uint8)
    for shape in shapes:
        own = np.zeros(size, np.uint8)
        rings = [
            np.rint([(x * width - 0.5, y * height - 0.5) for x, y in ring]).astype(np.int32) for ring in shape if ring
        ]
        cv2.fillPoly(own, rings, 1)
        drawn |= own
    return cv2.dilate(drawn, np.ones((3, 3), np.uint8)) > 0
