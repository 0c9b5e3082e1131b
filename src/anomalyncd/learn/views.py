"""Augmented views of a crop and its mask: the family that the paper's training uses, geometry applied to both alike."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]
_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)


@dataclass(frozen=True)
class ViewRange:
    """How far each random change may go."""

    brightness: tuple[float, float] = (0.6, 1.4)
    contrast: tuple[float, float] = (0.6, 1.4)
    saturation: tuple[float, float] = (0.6, 1.8)
    sharpness: tuple[float, float] = (0.2, 2.0)
    blur_kernels: tuple[int, int] = (9, 33)
    posterize_bits: tuple[int, int] = (5, 8)


def test_view(crop: Image, mask: Mask, size: int) -> tuple[Image, Mask]:
    """The view without chance: the centre square of the crop, or all of it where the crop has the input's size.

    Parameters
    ----------
    crop : (S, S, 3) uint8; mask : (S, S) bool; size : side of the view, at most S

    Examples
    --------
    >>> view, mask = test_view(np.zeros((256, 256, 3), np.uint8), np.ones((256, 256), bool), 224)
    >>> view.shape, mask.shape
    ((224, 224, 3), (224, 224))
    """
    start = (crop.shape[0] - size) // 2
    window = slice(start, start + size)
    return crop[window, window], mask[window, window]


def dihedral(array: npt.NDArray[np.generic], index: int) -> npt.NDArray[np.generic]:
    """One of the eight flips and quarter turns of the first two axes; index 0 … 7, 0 leaves it as it is."""
    turned = np.rot90(array, index % 4, axes=(0, 1))
    return turned[:, ::-1] if index >= 4 else turned


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
    image = np.ascontiguousarray(dihedral(crop[window], index))
    mask = np.ascontiguousarray(dihedral(mask[window], index)).astype(bool)
    image = _colour(image, rng, ranges)
    image = _sharpen(image, rng.uniform(*ranges.sharpness))
    first, last = ranges.blur_kernels
    kernel = int(rng.integers(first // 2, last // 2 + 1)) * 2 + 1
    image = cv2.GaussianBlur(image, (kernel, kernel), sigmaX=float(rng.uniform(0.1, 2.0))).astype(np.uint8, copy=False)
    bits = int(rng.integers(ranges.posterize_bits[0], ranges.posterize_bits[1] + 1))
    return image & np.uint8(256 - (1 << (8 - bits))), mask


def _colour(image: Image, rng: np.random.Generator, ranges: ViewRange) -> Image:
    brightness, contrast = rng.uniform(*ranges.brightness), rng.uniform(*ranges.contrast)
    saturation = rng.uniform(*ranges.saturation)
    x = image.astype(np.float32) * np.float32(brightness)
    grey = x @ _GREY  # (H, W)
    x = (x - grey.mean()) * np.float32(contrast) + grey.mean()
    grey = (x @ _GREY)[..., None]
    x = (x - grey) * np.float32(saturation) + grey
    out: Image = np.clip(np.rint(x), 0, 255).astype(np.uint8)
    return out


def _sharpen(image: Image, factor: float) -> Image:
    """Blend with a slightly smoothed copy: factor < 1 softens, > 1 sharpens, 1 changes nothing."""
    smooth = cv2.blur(image, (3, 3)).astype(np.float32)
    return np.clip(np.rint(smooth + np.float32(factor) * (image - smooth)), 0, 255).astype(np.uint8)
