"""Pictures for the review page: crops and whole images with the outline of a region. Asked for by number only."""

from __future__ import annotations

from functools import lru_cache

import cv2
import numpy as np
import numpy.typing as npt

from ..errors import RunError
from ..report.canvas import Picture, fitted, overlay
from .uncorrected import UncorrectedClasses

CROP_SIDE = 160  # pixels: sharp at the size that the page shows, and an outline of one pixel still shows
WHOLE_SIDES = (800, 1400)  # smaller images are enlarged so that their outline is fine, larger ones would be slow
QUALITY = 88


class Pictures:
    """Pictures of one state of a run's tables. None is a file that is gone or cannot be read.

    Only files of the run folder are read, and the images and maps that its manifest lists.
    """

    def __init__(self, classes: UncorrectedClasses) -> None:
        self.classes, self._run = classes, classes.run
        self._whole = lru_cache(8)(self._read_whole)

    def crop(self, region: int) -> bytes | None:
        """JPEG of a region's crop with its outline."""
        try:
            picture, mask = self._run.crop(region)
        except RunError:  # a table that somebody else made may name a file outside the run
            return None
        if picture is None:
            return None
        small = fitted(picture, CROP_SIDE)
        return to_jpeg(small if mask is None or mask.all() else overlay(small, None, mask, low=0, high=0))

    def image(self, image: int, region: int | None = None, *, with_map: bool = False) -> bytes | None:
        """JPEG of a whole image with the outline of one of its regions, or of all, and on request with its map."""
        picture, name = self._whole(image), self.classes.images[image]
        if picture is None:
            return None
        if region is None:
            mask = self._run.mask(name)
        else:
            masks = self._run.region_masks(name)
            place = int(np.count_nonzero(self.classes.image_of[:region] == image))
            mask = masks[place] if place < len(masks) else self._box(region, self._run.size(name))
        scale = self._run.range if with_map else None
        low, high = scale or (0.0, 0.0)
        values = self._run.map(name) if scale else None
        return to_jpeg(overlay(picture, values, None if mask is None or mask.all() else mask, low=low, high=high))

    def _read_whole(self, image: int) -> Picture | None:
        picture = self._run.image(self.classes.images[image])
        if picture is None:
            return None
        return fitted(picture, int(np.clip(max(picture.shape[:2]), *WHOLE_SIDES)))

    def _box(self, region: int, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
        x, y, width, height = self.classes.regions[["x", "y", "width", "height"]].iloc[region].astype(int)
        mask = np.zeros(size, bool)
        mask[y : y + height, x : x + width] = True
        return mask


def to_jpeg(picture: Picture) -> bytes:
    """(H, W, 3) uint8 RGB as the content of a JPEG file."""
    _, data = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return data.tobytes()
