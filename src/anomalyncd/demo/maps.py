"""Anomaly maps as an imperfect patch detector would give them, made from the truth."""

from __future__ import annotations

import cv2
import numpy as np
import numpy.typing as npt

from .textures import Array, Shape, smoothstep, value_noise

_GRID = 72  # patches along the longer side, fewer on small images: no patch is under 3 px
_FALSE_ALARM_RATE = 0.06
_PARTIAL_MISS_RATE = 0.04


def imperfect_map(mask: npt.NDArray[np.bool_], change: Array, rng: np.random.Generator) -> Array:
    """Score a defect per patch: blurred, noisy, by contrast, with rare false alarms and partial misses.

    Parameters
    ----------
    mask : (H, W) bool, the true defect
    change : (H, W) float32 in 0..1, how much the defect changed each pixel

    Returns
    -------
    (H // 2, W // 2) float32 in 0..1

    Examples
    --------
    >>> mask = np.zeros((64, 96), bool)
    >>> mask[20:40, 30:50] = True
    >>> scores = imperfect_map(mask, mask * np.float32(0.4), np.random.default_rng(0))
    >>> scores.shape, bool(scores[12:18, 18:23].mean() > 2 * scores[:6].mean())
    ((32, 48), True)
    """
    height, width = mask.shape
    cells = min(_GRID / max(height, width), 1 / 3)
    grid: Shape = (max(round(height * cells), 4), max(round(width * cells), 4))
    coverage = _shrink(mask.astype(np.float32), grid)
    contrast = _shrink(change * mask, grid) / np.maximum(coverage, 1e-3)
    response = np.sqrt(np.clip(coverage * 1.6, 0, 1)) * (1 - np.exp(-contrast / 0.13))
    if rng.random() < _PARTIAL_MISS_RATE:
        response = response * _half_hidden(coverage, rng)
    response = 1.12 * cv2.GaussianBlur(response, (0, 0), 0.85) + 0.1 * cv2.GaussianBlur(response, (0, 0), 3)
    response = response * np.exp(0.10 * value_noise(rng, grid, (3, 3)))
    if rng.random() < _FALSE_ALARM_RATE:
        response = np.maximum(response, _weak_blob(grid, rng))
    floor = 0.08 + rng.uniform(0, 0.05) + 0.020 * value_noise(rng, grid, (9, 9))
    floor += 0.016 * value_noise(rng, grid, (1.5, 1.5))
    scores = np.clip(floor + 0.86 * response, 0, 1).astype(np.float32)
    return np.asarray(cv2.resize(scores, (width // 2, height // 2), interpolation=cv2.INTER_LINEAR))


def _shrink(field: Array, grid: Shape) -> Array:
    return cv2.resize(field, grid[::-1], interpolation=cv2.INTER_AREA)


def _half_hidden(coverage: Array, rng: np.random.Generator) -> Array:
    """Weights (h, w) that suppress the defect on one side of a line through its middle."""
    y, x = np.mgrid[: coverage.shape[0], : coverage.shape[1]].astype(np.float32)
    weight = coverage + 1e-9
    angle = rng.uniform(0, 2 * np.pi)
    side = (x - np.average(x, weights=weight)) * np.cos(angle) + (y - np.average(y, weights=weight)) * np.sin(angle)
    return 0.15 + 0.85 * smoothstep(-1.5, 1.5, side.astype(np.float32))


def _weak_blob(grid: Shape, rng: np.random.Generator) -> Array:
    y, x = np.mgrid[: grid[0], : grid[1]].astype(np.float32)
    centre_y, centre_x = rng.uniform(0.1, 0.9, 2) * grid
    spread = rng.uniform(1.5, 3.0)
    distance = ((y - centre_y) ** 2 + (x - centre_x) ** 2) / (2 * spread**2)
    return np.asarray(rng.uniform(0.2, 0.5) * np.exp(-distance))
