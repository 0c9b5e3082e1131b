"""Masks of regions in the forms in which the service sends them."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import cv2
import numpy as np
import numpy.typing as npt
from fastapi import HTTPException

from ..config import CropConfig
from ..data.run_lengths import run_lengths
from ..regions.find import find_regions

Mask = npt.NDArray[np.bool_]


def region_masks(mask: Mask | None, image_size: tuple[int, int], crop: CropConfig, count: int) -> Iterator[Mask]:
    """The mask of each region inside its box, (height, width) of the box in image pixels, in the order of the regions.

    Parameters
    ----------
    mask : (h, w) at map resolution; None or empty where the whole image is the region
    count : regions that were kept
    """
    if mask is None or not mask.any():
        yield from (np.ones(image_size, bool) for _ in range(count))
        return
    regions, components = find_regions(mask, image_size, crop)
    for region in regions[:count]:
        x, y, width, height = region.box
        rows = np.arange(y, y + height) * mask.shape[0] // image_size[0]
        columns = np.arange(x, x + width) * mask.shape[1] // image_size[1]
        own = np.isin(components[np.ix_(rows, columns)], region.labels)
        yield own if own.any() else np.ones_like(own)  # thinner than a pixel of the image


def image_run_lengths(shape: Mask, corner: tuple[int, int], image_size: tuple[int, int], most: int) -> list[int]:
    """COCO's run lengths of the whole image for a shape (h, w) whose upper left pixel is at `corner` (x, y).

    Examples
    --------
    >>> image_run_lengths(np.array([[True], [True]]), (1, 0), (2, 3), most=10)
    [2, 2, 2]
    >>> image_run_lengths(np.array([[True, True]]), (0, 1), (3, 2), most=10)
    [1, 1, 2, 1, 1]
    """
    (x, y), (height, width) = corner, image_size
    columns = np.zeros((height, shape.shape[1]), bool, order="F")  # of the image, only those that the shape is in
    columns[y : y + len(shape)] = shape
    pixels = columns.ravel(order="F")
    if np.count_nonzero(pixels[1:] != pixels[:-1]) + 1 + int(pixels[0]) + int(pixels[-1]) > most:
        raise HTTPException(422, "The masks are too ragged for run lengths: ask with ?masks=png, or with ?masks=none.")
    lengths, after = run_lengths(columns), (width - x - shape.shape[1]) * height
    lengths[0] += x * height
    if not pixels[-1]:
        lengths[-1] += after
    elif after:
        lengths.append(after)
    return lengths


def to_png(shape: Mask) -> str:
    """A grey PNG in base64, 255 where the region is."""
    data: bytes = cv2.imencode(".png", shape.astype(np.uint8) * 255)[1].tobytes()
    return base64.b64encode(data).decode("ascii")
