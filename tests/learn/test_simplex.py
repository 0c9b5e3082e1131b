"""Simplex noise against Perlin's own words, one point at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anomalyncd.learn.simplex import GRADIENTS, OCTAVES, PERSISTENCE, SPACING, octaves, simplex

TABLE = np.random.default_rng(5).permutation(256)


def slow(x: float, y: float, z: float) -> float:
    skew = (x + y + z) / 3
    i, j, k = math.floor(x + skew), math.floor(y + skew), math.floor(z + skew)
    back = (i + j + k) / 6
    here = [x - i + back, y - j + back, z - k + back]
    corner, total = [0, 0, 0], 0.0
    for axis in [None, *sorted(range(3), key=lambda axis: -here[axis])]:
        if axis is not None:
            corner[axis] = 1
        offset = [value - step + sum(corner) / 6 for value, step in zip(here, corner, strict=True)]
        a = TABLE[(k + corner[2]) % 256]
        b = TABLE[(j + corner[1] + a) % 256]
        slope = GRADIENTS[TABLE[(i + corner[0] + b) % 256] % 12]
        reach = 0.6 - sum(value * value for value in offset)
        if reach > 0:
            total += reach**4 * sum(a * b for a, b in zip(slope, offset, strict=True))
    return 32 * total


def test_every_point_as_the_slow_form() -> None:
    points = np.random.default_rng(0).uniform(-9, 9, (300, 3))
    assert simplex(points, TABLE) == pytest.approx([slow(*point) for point in points], abs=1e-12)


def test_slopes_are_the_edges_of_a_cube() -> None:
    assert len({tuple(slope) for slope in GRADIENTS}) == 12
    assert (np.sort(np.abs(GRADIENTS), axis=1) == [0, 1, 1]).all()


def test_noise_is_smooth_of_mean_zero_and_fills_its_range() -> None:
    line = np.linspace(0, 40, 8001)
    values = simplex(np.stack([line, 0.7 * line, 0.3 * line], axis=1), TABLE)
    assert np.abs(np.diff(values)).max() < 0.05
    assert abs(values.mean()) < 0.05 and 0.5 < np.abs(values).max() <= 1.0


def test_octaves_add_up() -> None:
    found = octaves((3, 4, 5), np.random.default_rng(1))
    table = np.random.default_rng(1).permutation(256)
    assert found.shape == (3, 4, 5)
    point = np.array([2.0, 3.0, 1.0])
    expected = sum(PERSISTENCE**k * simplex(point / SPACING * 2**k, table) for k in range(OCTAVES))
    assert found[2, 3, 1] == pytest.approx(expected)
