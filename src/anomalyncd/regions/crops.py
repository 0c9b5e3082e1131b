"""Pictures of regions that a run has stored: crops with their masks, and masks that people drew."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ..data.maps import read_mask
from ..errors import BadFileError

LARGEST_PICTURE = 100_000_000  # bytes of a crop, which has at most 2048 × 2048 pixels
Mask = npt.NDArray[np.bool_]


def read_crop(path: Path) -> tuple[npt.NDArray[np.uint8] | None, npt.NDArray[np.bool_] | None]:
    """A stored crop (S, S, 3) uint8 RGB and its mask (S, S) bool; None for what is missing or damaged."""
    crop = _read_png(path, cv2.IMREAD_COLOR)
    mask = _read_png(path.with_name(path.stem + "_mask.png"), cv2.IMREAD_GRAYSCALE)
    return None if crop is None else np.ascontiguousarray(crop[..., ::-1]), None if mask is None else mask > 127


def _read_png(path: Path, flags: int) -> npt.NDArray[Any] | None:
    """As cv2.imread, which cannot open every name on every system; a link or a pipe is no picture of a run."""
    try:
        status = path.lstat()
        is_picture = stat.S_ISREG(status.st_mode) and status.st_size <= LARGEST_PICTURE
        data = np.frombuffer(path.read_bytes() if is_picture else b"", np.uint8)
    except OSError:
        return None
    return cv2.imdecode(data, flags) if len(data) else None


def drawn_masks(place: Callable[[int], Path], count: int) -> list[Mask]:
    """Masks (h, w) of the regions of an image that people drew, the last ones; place : region → file of its mask."""
    found: list[Mask] = []
    for region in reversed(range(count)):
        try:
            found.insert(0, read_mask(place(region)))
        except BadFileError:  # there is none
            break
    return found


def resized(mask: Mask, size: tuple[int, ...]) -> Mask:
    """A mask at another size (h, w); where it becomes smaller, no part of it is lost.

    Examples
    --------
    >>> resized(np.eye(4, dtype=bool)[:1], (1, 2)).tolist()
    [[True, False]]
    """
    how = cv2.INTER_AREA if mask.size > size[0] * size[1] else cv2.INTER_NEAREST
    return np.asarray(cv2.resize(mask.astype(np.float32), size[1::-1], interpolation=how) > 0)
