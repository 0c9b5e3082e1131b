"""Masks of regions, small enough to send."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from ..config import CropConfig
from ..regions.find import find_regions

Mask = npt.NDArray[np.bool_]


class TooManyRunsError(Exception):
    """Masks that are too ragged for run lengths."""


@dataclass
class RunBudget:
    """How many runs an answer may still have."""

    left: int

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooManyRunsError(
                "The masks are too ragged for run lengths: ask with ?masks=png, or with ?masks=none."
            )


def region_shapes(mask: Mask | None, image_size: tuple[int, int], crop: CropConfig, count: int) -> Iterator[Mask]:
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


def run_lengths(
    shape: Mask, corner: tuple[int, int], image_size: tuple[int, int], budget: RunBudget | None = None
) -> list[int]:
    """COCO's run lengths of the whole image for a shape (h, w) whose upper left pixel is at `corner` (x, y).

    Examples
    --------
    >>> run_lengths(np.array([[True], [True]]), (1, 0), (2, 3))
    [2, 2, 2]
    >>> run_lengths(np.array([[True, True]]), (0, 1), (3, 2))
    [1, 1, 2, 1, 1]
    """
    (x, y), (height, width) = corner, image_size
    steps = np.diff(shape.T.astype(np.int8), axis=1, prepend=0, append=0)  # (w, h + 1), +1 where a run starts
    if budget is not None:  # before anything is made for each run
        joined = np.count_nonzero(shape[-1, :-1] & shape[0, 1:]) if len(shape) == height else 0
        budget.take(2 * int(np.count_nonzero(steps == 1) - joined) + 1)
    (first, top), (last, bottom) = np.nonzero(steps == 1), np.nonzero(steps == -1)
    starts, ends = (x + first) * height + y + top, (x + last) * height + y + bottom
    apart = ends[:-1] != starts[1:]  # false where a run goes on in the next column
    starts, ends = starts[np.r_[True, apart]], ends[np.r_[apart, True]]
    edges = np.stack([starts, ends], axis=1).ravel()
    lengths: list[int] = np.diff(edges, prepend=0, append=height * width).tolist()
    return lengths[:-1] if lengths[-1] == 0 else lengths


def png(shape: Mask) -> str:
    """A grey PNG in base64, 255 where the region is."""
    data: bytes = cv2.imencode(".png", shape.astype(np.uint8) * 255)[1].tobytes()
    return base64.b64encode(data).decode("ascii")
