"""Simplex noise (Perlin, 2001): clouds without the straight lines that noise on a square grid has."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
OCTAVES, PERSISTENCE, SPACING = 6, 0.6, 64.0  # spacing of the widest octave in pixels
# The middles of the edges of a cube.
GRADIENTS = np.array([p for p in np.ndindex(3, 3, 3) if p.count(1) == 1]) - 1


def octaves(shape: tuple[int, int, int], rng: np.random.Generator) -> Floats:
    """Simplex noise of ever finer grain and lower height, on the points of a grid (C, h, w)."""
    table = rng.permutation(256)
    places = np.stack(np.meshgrid(*(np.arange(side, dtype=np.float64) for side in shape), indexing="ij"), axis=-1)
    return sum(PERSISTENCE**k * simplex(places / (SPACING / 2**k), table) for k in range(OCTAVES))  # type: ignore[return-value]


def simplex(points: Floats, table: npt.NDArray[np.int64]) -> Floats:
    """Perlin's simplex noise in three dimensions, about −1 … 1.

    Space is cut into tetrahedra by a skewed grid of cubes. Each corner of the one that a point lies in adds its slope, which
    the table picks, times a bell that ends before the next tetrahedron.

    Parameters
    ----------
    points : (…, 3); table : permutation of 0 … 255
    """
    cell = np.floor(points + points.sum(axis=-1, keepdims=True) / 3).astype(np.int64)
    inside = points - (cell - cell.sum(axis=-1, keepdims=True) / 6)  # from the cell's corner, not skewed
    rank = np.argsort(
        np.argsort(-inside, axis=-1, kind="stable"), axis=-1, kind="stable"
    )  # 0 for the largest coordinate
    total = np.zeros(points.shape[:-1])
    for corner in range(4):  # from the cell's corner to the opposite one, along the largest coordinate first
        step = (rank < corner).astype(np.int64)
        offset = inside - step + corner / 6
        picked = 0
        for axis in (2, 1, 0):
            picked = table[(cell[..., axis] + step[..., axis] + picked) % 256]
        bell = (0.6 - (offset**2).sum(axis=-1)).clip(0) ** 4
        total += bell * (GRADIENTS[picked % 12] * offset).sum(axis=-1)
    return 32 * total
