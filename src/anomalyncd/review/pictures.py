"""Pictures for the review page: crops and whole images with the outline of a region. Asked for by number only."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from ..report.canvas import Picture, fitted
from ..report.overlay import overlay
from ..report.stored import StoredPictures
from ..run.store import read_crop
from .uncorrected import UncorrectedClasses

CROP_SIDE = 160  # pixels: sharp at the size that the page shows, and an outline of one pixel still shows
WHOLE_SIDES = (800, 1400)  # smaller images are enlarged so that their outline is fine, larger ones would be slow
QUALITY = 88


class Pictures:
    """Pictures of one state of a run's tables. None is a file that is gone or cannot be read.

    Only files of the run folder are read, and the images that its manifest lists.
    """

    def __init__(self, run: Path, classes: UncorrectedClasses) -> None:
        self.run = run
        self.classes = classes
        self._stored: StoredPictures | None = None
        self._whole = lru_cache(8)(self._read_whole)

    def crop(self, region: int) -> bytes | None:
        """JPEG of a region's crop with its outline."""
        path = (self.run / str(self.classes.regions["crop"].iloc[region])).resolve()
        if not path.is_relative_to(self.run.resolve()):  # a table that somebody else made may say anything
            return None
        picture, mask = read_crop(path)
        if picture is None:
            return None
        small = fitted(picture, CROP_SIDE)
        return to_jpeg(small if mask is None or mask.all() else overlay(small, None, mask, low=0, high=0))

    def image(self, image: int, region: int | None = None, *, with_map: bool = False) -> bytes | None:
        """JPEG of a whole image with the outline of one of its regions, or of all, and on request with its map."""
        picture = self._whole(image)
        if picture is None:
            return None
        stored, name = self._pictures(), self.classes.images[image]
        mask: npt.NDArray[np.bool_] | None
        if region is None:
            mask = stored.mask(name)
        else:
            rows = np.flatnonzero(self.classes.image_of == image)
            masks = stored.region_masks(name)
            place = rows.tolist().index(region)
            mask = masks[place] if place < len(masks) else self._box(region, stored.size(name))
        low, high = stored.range or (0.0, 0.0)
        values = stored.map(name) if with_map and stored.range else None
        return to_jpeg(overlay(picture, values, None if mask is None or mask.all() else mask, low=low, high=high))

    def _read_whole(self, image: int) -> Picture | None:
        picture = self._pictures().image(self.classes.images[image])
        if picture is None:
            return None
        return fitted(picture, int(np.clip(max(picture.shape[:2]), *WHOLE_SIDES)))

    def _pictures(self) -> StoredPictures:
        if self._stored is None:
            self._stored = StoredPictures(self.run)
        return self._stored

    def _box(self, region: int, size: tuple[int, int]) -> npt.NDArray[np.bool_]:
        x, y, width, height = (int(self.classes.regions[name].iloc[region]) for name in ("x", "y", "width", "height"))
        mask = np.zeros(size, bool)
        mask[y : y + height, x : x + width] = True
        return mask


def to_jpeg(picture: Picture) -> bytes:
    """(H, W, 3) uint8 RGB as the content of a JPEG file."""
    _, data = cv2.imencode(".jpg", picture[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
    return data.tobytes()
