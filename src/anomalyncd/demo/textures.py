"""Flawless product surfaces: functions (rng, (H, W), scale) → (H, W, 3) float32 RGB, about 0..1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]  # float32
Shape = tuple[int, int]


def value_noise(rng: np.random.Generator, shape: Shape, cell: tuple[float, float]) -> Array:
    """Smooth random field with zero mean and unit variance.

    Parameters
    ----------
    shape : (H, W) in pixels
    cell : height and width of one grain in pixels; unequal values give streaks

    Examples
    --------
    >>> value_noise(np.random.default_rng(0), (20, 30), (4, 8)).shape
    (20, 30)
    """
    (height, width), (cell_y, cell_x) = shape, (max(cell[0], 1.0), max(cell[1], 1.0))
    rows, columns = int(np.ceil(height / cell_y)) + 5, int(np.ceil(width / cell_x)) + 5
    grid = rng.standard_normal((rows, columns), dtype=np.float32)
    y = np.arange(height, dtype=np.float32) / cell_y + 1 + rng.random(dtype=np.float32)
    x = np.arange(width, dtype=np.float32) / cell_x + 1 + rng.random(dtype=np.float32)
    field = np.ascontiguousarray(_cubic(np.ascontiguousarray(_cubic(grid, y).T), x).T)
    field -= field.mean()
    return field / max(float(field.std()), 1e-6)


def _cubic(grid: Array, positions: Array) -> Array:
    """Catmull–Rom interpolation of the rows of grid (n, w) at positions (m,), each in 1..n-2; (m, w)."""
    start = np.floor(positions).astype(int)
    t = (positions - start)[:, None]
    weights = (
        ((2 - t) * t - 1) * t / 2,
        ((3 * t - 5) * t * t + 2) / 2,
        ((4 - 3 * t) * t + 1) * t / 2,
        (t - 1) * t * t / 2,
    )
    # Four sums rather than one matrix product: BLAS may add in another order with another number of threads.
    return np.asarray(sum(weight * grid[start - 1 + k] for k, weight in enumerate(weights)))


def smoothstep(low: float, high: float, x: Array) -> Array:
    """0 below low, 1 above high (or the reverse where low > high), smooth between; float32 like x."""
    t = np.clip((x - low) / (high - low), 0, 1)
    return t * t * (3 - 2 * t)


def _tinted(grey: Array, colour: tuple[float, float, float]) -> Array:
    return grey[..., None] * np.asarray(colour, np.float32)


def brushed_metal(rng: np.random.Generator, shape: Shape, scale: float) -> Array:
    """Steel sheet, brushed along x, with slow bands of reflection."""
    grey = 0.54 + 0.030 * value_noise(rng, shape, (1.2 * scale, 90 * scale))
    grey += 0.022 * value_noise(rng, shape, (2.5 * scale, 260 * scale))
    grey += 0.020 * value_noise(rng, shape, (1.0 * scale, 14 * scale))
    grey += 0.018 * value_noise(rng, shape, (40 * scale, 600 * scale))
    grey += 0.010 * value_noise(rng, shape, (1, 1))
    return _tinted(grey, (0.985, 1.0, 1.025))


def woven_fabric(rng: np.random.Generator, shape: Shape, scale: float) -> Array:
    """Blue-grey twill: round yarns with fibres along them and uneven dye from yarn to yarn."""
    period = 8.0 * scale
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    u = x / period + 0.09 * value_noise(rng, shape, (40 * scale, 16 * scale))
    v = y / period + 0.09 * value_noise(rng, shape, (16 * scale, 40 * scale))
    i, j = np.floor(u).astype(int), np.floor(v).astype(int)
    warp_on_top = (i + j) % 4 < 2
    across = np.where(warp_on_top, u - i, v - j) * 2 - 1
    roundness = np.sqrt(np.clip(1 - 0.92 * across**2, 0, None))
    dye = rng.normal(0, 0.022, (2, i.max() + j.max() + 9))
    yarn = np.where(warp_on_top, dye[0][i + 4], dye[1][j + 4])
    fibres = np.where(
        warp_on_top,
        value_noise(rng, shape, (7 * scale, 1.1 * scale)),
        value_noise(rng, shape, (1.1 * scale, 7 * scale)),
    )
    grey = (0.36 + yarn + 0.045 * fibres + 0.05 * warp_on_top) * (0.5 + 0.62 * roundness)
    return _tinted(grey.astype(np.float32), (0.90, 1.0, 1.16))


def terrazzo(rng: np.random.Generator, shape: Shape, scale: float) -> Array:
    """Polished cement with angular stone chips of many sizes."""
    palette = np.array([[0.75, 0.73, 0.69], [0.50, 0.48, 0.46], [0.62, 0.54, 0.45], [0.42, 0.43, 0.44]])
    height, width = shape
    surface: Array = np.empty((height, width, 3), np.float32)
    surface[:] = (0.64, 0.625, 0.60)
    for _ in range(int(height * width / (110 * scale**2))):
        radius = scale * min(1.1 * (1 - rng.random()) ** -0.6, 8.0)
        angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(5, 9)))
        stretch = np.array([1.0, rng.uniform(0.5, 1.0)])
        corners = np.stack([np.cos(angles), np.sin(angles)], 1) * stretch * radius * rng.uniform(0.8, 1.2)
        corners += rng.uniform((0, 0), (width, height))
        colour = palette[rng.integers(len(palette))] + rng.normal(0, 0.025)
        cv2.fillPoly(surface, [np.round(corners * 8).astype(np.int32)], colour.tolist(), cv2.LINE_8, 3)
    surface = cv2.GaussianBlur(surface, (0, 0), 0.55 * max(scale, 1))
    grain = 0.012 * value_noise(rng, shape, (1.2, 1.2)) + 0.012 * value_noise(rng, shape, (5 * scale, 5 * scale))
    return surface + grain[..., None]


def wood_grain(rng: np.random.Generator, shape: Shape, scale: float) -> Array:
    """Oak veneer: wavy year rings along y, dark pores and fine fibres."""
    x = np.arange(shape[1], dtype=np.float32)[None]
    ring = x / (21 * scale) + 0.55 * value_noise(rng, shape, (150 * scale, 45 * scale))
    ring += 0.06 * value_noise(rng, shape, (40 * scale, 8 * scale))
    phase = ring - np.floor(ring)
    late_wood = smoothstep(0.15, 0.92, phase) * smoothstep(1.0, 0.93, phase)
    pores = smoothstep(1.5, 2.4, value_noise(rng, shape, (14 * scale, 1.2 * scale)))
    fibres = value_noise(rng, shape, (30 * scale, 1.1 * scale))
    darkness = np.clip(0.62 * late_wood + 0.055 * fibres, -0.2, 1)[..., None]
    light, dark = np.array([[0.74, 0.58, 0.41], [0.55, 0.375, 0.225]], np.float32)
    surface = light * (1 - darkness) + dark * darkness
    surface *= 1 - 0.30 * pores[..., None]
    return np.asarray(surface + 0.02 * value_noise(rng, shape, (80 * scale, 40 * scale))[..., None])


TEXTURES: dict[str, Callable[[np.random.Generator, Shape, float], Array]] = {
    "brushed_metal": brushed_metal,
    "woven_fabric": woven_fabric,
    "terrazzo": terrazzo,
    "wood_grain": wood_grain,
}
