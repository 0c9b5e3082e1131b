"""Made-up defects on images of normal products: procedural textures within masks of Perlin noise."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from ..grid import Flags, Picture, Values

FINEST, COARSEST = 32, 2  # cells of the noise along the longer side, drawn between
THRESHOLD = 0.5  # of the noise, whose values are within −1 … 1: what is above is the defect
LEAST = 0.002  # share of an image that a defect covers
TRIES = 20


def perlin(shape: tuple[int, int], cells: tuple[int, int], rng: np.random.Generator) -> Values:
    """Gradient noise (Perlin, 1985), scaled so that its largest magnitude is 1.

    Each corner of a cell has a random direction; a pixel's value is the product of the directions of its four corners with
    the ways from these to it, mixed by 6t⁵ − 15t⁴ + 10t³.

    Parameters
    ----------
    shape : (height, width) in pixels; cells : in rows and columns

    Examples
    --------
    >>> perlin((8, 6), (2, 2), np.random.default_rng(0)).shape
    (8, 6)
    """
    angles = rng.uniform(0, 2 * np.pi, (cells[0] + 1, cells[1] + 1))
    y, x = ((np.arange(side) + 0.5) * n / side for side, n in zip(shape, cells, strict=True))
    row, column = np.minimum(y.astype(int), cells[0] - 1), np.minimum(x.astype(int), cells[1] - 1)
    dy, dx = (y - row)[:, None], (x - column)[None]
    fade_y, fade_x = (t**3 * (t * (6 * t - 15) + 10) for t in (dy, dx))

    def corner(down: int, right: int) -> npt.NDArray[np.float64]:
        angle = angles[row + down][:, column + right]
        ramp: npt.NDArray[np.float64] = np.sin(angle) * (dy - down) + np.cos(angle) * (dx - right)
        return ramp

    top = corner(0, 0) * (1 - fade_x) + corner(0, 1) * fade_x
    bottom = corner(1, 0) * (1 - fade_x) + corner(1, 1) * fade_x
    noise = top * (1 - fade_y) + bottom * fade_y
    scaled: Values = (noise / max(np.abs(noise).max(), 1e-12)).astype(np.float32)
    return scaled


def texture(shape: tuple[int, int], rng: np.random.Generator) -> Values:
    """Two random colours, mixed by noise of several octaves, by stripes of it, or by grains: (H, W, 3) float32, 0 … 255."""
    kind = rng.integers(3)
    if kind == 2:
        mix = rng.random(shape, dtype=np.float32)
        mix = cv2.GaussianBlur(mix, (0, 0), rng.uniform(0.5, 3)).astype(np.float32)
        mix = (mix - mix.min()) / max(float(np.ptp(mix)), 1e-6)
    else:
        octaves = [perlin(shape, (n, n), rng) / k for k, n in enumerate((4, 8, 16, 32), start=1)]
        noise = np.sum(octaves, axis=0, dtype=np.float32)
        waves = np.sin(rng.uniform(8, 25) * noise) if kind else np.clip(noise, -1, 1)
        mix = (0.5 + 0.5 * waves).astype(np.float32)
    one, other = rng.uniform(0, 255, (2, 3)).astype(np.float32)
    blended: Values = one + mix[..., None] * (other - one)
    return blended


def with_defect(image: Picture, rng: np.random.Generator) -> tuple[Picture, Flags]:
    """The image with a texture in a mask of noise, more or less transparent; and the mask, which is never empty.

    Parameters
    ----------
    image : (H, W, 3) uint8

    Returns
    -------
    (H, W, 3) uint8 and (H, W) bool
    """
    shape = (image.shape[0], image.shape[1])
    for _ in range(TRIES):
        cells = tuple(int(2 ** rng.uniform(np.log2(COARSEST), np.log2(FINEST))) for _ in range(2))
        noise = perlin(shape, cells, rng)  # type: ignore[arg-type]
        mask = noise > THRESHOLD
        # Many small spots all over: only those within a random window, so that most of the image stays normal.
        top, left = (int(rng.integers(side)) for side in shape)
        window = np.zeros(shape, bool)
        high, wide = (max(1, int(side * rng.uniform(0.1, 0.5))) for side in shape)
        window[max(0, top - high // 2) : top + high, max(0, left - wide // 2) : left + wide] = True
        mask = mask & window
        if mask.mean() >= LEAST:
            break
    if not mask.any():
        mask = window
    paint = texture(shape, rng)
    if rng.random() < 0.3:  # parts of the image itself in the wrong place
        paint = np.roll(image, (shape[0] // 3, shape[1] // 3), axis=(0, 1)).astype(np.float32)
    opacity = rng.uniform(0.3, 1.0)
    soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 1.0)[..., None] * np.float32(opacity)
    mixed = image * (1 - soft) + paint * soft
    return np.clip(mixed, 0, 255).round().astype(np.uint8), mask
