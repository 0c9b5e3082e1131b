"""Images, maps and masks of a finished run, found again by the image's name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from ..config import make_config, read_config
from ..data.dataset import Sample
from ..data.images import read_image
from ..data.maps import StackRow, read_map, read_mask
from ..errors import BadFileError
from ..regions.find import find_regions
from ..run.store import file_stem
from ..run.tables import read_results
from .canvas import Picture

PICTURES = "pictures"  # folder inside a run
S = TypeVar("S")
T = TypeVar("T")


class StoredPictures:
    """What a run was made from and what it made of it. Files move and vanish: what cannot be read is None.

    Parameters
    ----------
    run : folder of a finished run
    items : the images as they were given to the run, their maps if these came from outside, and true masks if there are
        any. Without items an image is looked for where it was when the run was made.

    Attributes
    ----------
    images, manifest : the tables images.csv and manifest.csv
    range : (low, high) that the run's binariser was fitted to, in the maps' units; None where there were no maps
    """

    def __init__(self, run: Path, items: Sequence[Sample] = ()) -> None:
        self.run = run
        self.images, self.manifest = read_results(run)
        self.range = _read_range(run / "range.json")
        self._items = {item.id: item for item in items}
        self._index = {name: index for index, name in enumerate(self.manifest["image"])}
        self._config = make_config(read_config(run / "config.yaml"))

    def image(self, name: str) -> Picture | None:
        """(H, W, 3) uint8 RGB"""
        return _read(read_image, self._items[name].image if name in self._items else self.file(name) or Path(name))

    def file(self, name: str) -> Path | None:
        """Where the image lay when the run was made; None for an array."""
        return self._place(name, "file")

    def size(self, name: str) -> tuple[int, int]:
        """(H, W) of an image, without reading it"""
        row = self.manifest.iloc[self._index[name]]
        return int(row["height"]), int(row["width"])

    def map(self, name: str) -> NDArray[np.float32] | None:
        """(h, w) float32, in the detector's units"""
        given = self._items[name].map if name in self._items else self._place(name, "map")
        if isinstance(given, Path) and name not in self._items:
            given = StackRow.parse(str(given))
        if given is not None:
            inside = isinstance(given, Path) and not given.is_absolute() and name not in self._items
            return _read(read_map, self.run / given if inside and isinstance(given, Path) else given)
        # A run keeps the maps that it made by number, or as the images lie.
        stems = (file_stem(self._index[name], name), PurePosixPath(name).with_suffix(""))
        places = [self.run / "maps" / f"{stem}.npy" for stem in stems]
        return _read(read_map, next((place for place in places if place.exists()), places[0]))

    def mask(self, name: str) -> NDArray[np.bool_] | None:
        """(h, w) bool, as the run used it"""
        return _read(read_mask, self.run / "masks" / f"{file_stem(self._index[name], name)}.png")

    def region_masks(self, name: str) -> list[NDArray[np.bool_]]:
        """(H, W) bool of each region of an image, in the order of its rows in regions.csv, at the image's own size."""
        row, size = self.manifest.iloc[self._index[name]], self.size(name)
        mask = self.mask(name)
        if mask is None or not mask.any():
            return [np.ones(size, bool)] * int(row["n_regions"])
        regions, components = find_regions(mask, size, self._config.crop)
        large = cv2.resize(components.astype(np.float32), size[::-1], interpolation=cv2.INTER_NEAREST)
        masks = [np.isin(large, region.labels) for region in regions[: int(row["n_regions"])]]
        for own, region in zip(masks, regions, strict=False):
            if not own.any():  # thinner than a pixel of the image
                x, y, width, height = region.box
                own[y : y + height, x : x + width] = True
        return masks

    def _place(self, name: str, column: str) -> Path | None:
        place = self.manifest.iloc[self._index[name]].get(column) if name in self._index else None
        return Path(place) if isinstance(place, str) and place else None

    def truth(self, name: str) -> NDArray[np.bool_] | None:
        """(h, w) bool, from the items' masks: an image without one is normal if others have one, else nobody knows."""
        if name not in self._items or all(item.mask is None for item in self._items.values()):
            return None
        mask = self._items[name].mask
        return np.zeros((1, 1), bool) if mask is None else _read(read_mask, mask)


def _read(reader: Callable[[S], T], source: S) -> T | None:
    try:
        return reader(source)
    except BadFileError:
        return None


def _read_range(path: Path) -> tuple[float, float] | None:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        low, high = float(state["low"]), float(state["high"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
