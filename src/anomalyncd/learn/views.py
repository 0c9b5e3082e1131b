"""Augmented views of a crop and its mask: the family that the paper's training uses, geometry applied to both alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image as Pillow
from PIL import ImageEnhance

Image = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
Pixel = TypeVar("Pixel", bound=np.generic)


@dataclass(frozen=True)
class ViewRange:
    """How far each random change may go."""

    brightness: tuple[float, float] = (0.6, 1.4)
    contrast: tuple[float, float] = (0.6, 1.4)
    saturation: tuple[float, float] = (0.6, 1.8)
    sharpness: tuple[float, float] = (0.2, 2.0)
    blur_kernels: tuple[int, ...] = (9, 13, 17, 21, 25, 29, 33)
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    posterize_bits: tuple[int, int] = (5, 8)


def centre(pictures: npt.NDArray[Pixel], size: int) -> npt.NDArray[Pixel]:
    """The view without chance: centre squares (B, size, size, …) of pictures or masks (B, S, S, …), size at most S.

    Examples
    --------
    >>> centre(np.arange(16).reshape(1, 4, 4), 2).tolist()
    [[[5, 6], [9, 10]]]
    """
    start = (pictures.shape[1] - size) // 2
    window = slice(start, start + size)
    return pictures[:, window, window]


def dihedral(pictures: npt.NDArray[Pixel], index: int) -> npt.NDArray[Pixel]:
    """One of the eight flips and quarter turns of pictures or masks (B, H, W, …); index 0 … 7, 0 changes nothing.

    Examples
    --------
    >>> dihedral(np.array([[[1, 2], [3, 4]]]), 1).tolist()
    [[[2, 4], [1, 3]]]
    """
    turned = np.rot90(pictures, index % 4, axes=(1, 2))
    return turned[:, :, ::-1] if index >= 4 else turned


def random_view(
    crop: Image, mask: Mask, size: int, rng: np.random.Generator, ranges: ViewRange = ViewRange()
) -> tuple[Image, Mask]:
    """A random view: square of `size` from the crop, flips, quarter turns, colour, sharpness, blur, posterisation.

    Parameters
    ----------
    crop : (S, S, 3) uint8; mask : (S, S) bool; size : side of the view, at most S

    Returns
    -------
    (size, size, 3) uint8 and (size, size) bool
    """
    top, left = rng.integers(0, crop.shape[0] - size + 1, size=2)
    window = (slice(top, top + size), slice(left, left + size))
    index = int(rng.integers(8))
    image, mask = (np.ascontiguousarray(dihedral(picture[window][None], index)[0]) for picture in (crop, mask))
    image = _enhanced(image, rng, ranges)
    kernel = int(rng.choice(ranges.blur_kernels))
    sigma = float(rng.uniform(*ranges.blur_sigma))
    image = cv2.GaussianBlur(image, (kernel, kernel), sigmaX=sigma).astype(np.uint8, copy=False)
    bits = int(rng.integers(ranges.posterize_bits[0], ranges.posterize_bits[1] + 1))
    return image & np.uint8(256 - (1 << (8 - bits))), mask


def _enhanced(image: Image, rng: np.random.Generator, ranges: ViewRange) -> Image:
    """Brightness, contrast and saturation in random order, then sharpness; each step ends in whole values from 0 to 255."""
    colours = [
        (ImageEnhance.Brightness, ranges.brightness),
        (ImageEnhance.Contrast, ranges.contrast),
        (ImageEnhance.Color, ranges.saturation),
    ]
    picture = Pillow.fromarray(image)
    for enhance, span in [*(colours[step] for step in rng.permutation(3)), (ImageEnhance.Sharpness, ranges.sharpness)]:
        picture = enhance(picture).enhance(float(rng.uniform(*span)))
    return np.array(picture)
