"""Made-up defects: noise against a slow form, masks and pictures within their bounds."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from anomalyncd.learn.synthetic import LEAST, perlin, texture, with_defect


def slow_perlin(shape: tuple[int, int], cells: tuple[int, int], seed: int) -> np.ndarray:
    angles = np.random.default_rng(seed).uniform(0, 2 * math.pi, (cells[0] + 1, cells[1] + 1))
    out = np.zeros(shape)
    for i in range(shape[0]):
        for j in range(shape[1]):
            y, x = (i + 0.5) * cells[0] / shape[0], (j + 0.5) * cells[1] / shape[1]
            row, column = int(y), int(x)

            def ramp(r: int, c: int, y: float = y, x: float = x) -> float:
                return math.sin(angles[r, c]) * (y - r) + math.cos(angles[r, c]) * (x - c)

            def mix(a: float, b: float, t: float) -> float:
                return a + (6 * t**5 - 15 * t**4 + 10 * t**3) * (b - a)

            top = mix(ramp(row, column), ramp(row, column + 1), x - column)
            bottom = mix(ramp(row + 1, column), ramp(row + 1, column + 1), x - column)
            out[i, j] = mix(top, bottom, y - row)
    return out / np.abs(out).max()


@pytest.mark.parametrize(("shape", "cells"), [((12, 9), (3, 2)), ((8, 8), (8, 8)), ((5, 7), (1, 1))])
def test_perlin_noise(shape: tuple[int, int], cells: tuple[int, int]) -> None:
    found = perlin(shape, cells, np.random.default_rng(4))
    np.testing.assert_allclose(found, slow_perlin(shape, cells, 4), atol=1e-5)


def test_textures_differ_and_stay_in_range() -> None:
    made = [texture((32, 48), np.random.default_rng(seed)) for seed in range(12)]
    assert all(one.shape == (32, 48, 3) and one.min() >= -1e-3 and one.max() <= 255.001 for one in made)
    assert len({float(one.std()) for one in made}) == 12


@pytest.mark.parametrize("shape", [(96, 96), (20, 200), (14, 14), (1, 5)])
def test_a_defect_is_where_its_mask_is(shape: tuple[int, int]) -> None:
    image = np.full((*shape, 3), 120, np.uint8)
    covered = []
    for seed in range(10):
        made, mask = with_defect(image, np.random.default_rng(seed))
        assert made.shape == image.shape and made.dtype == np.uint8 and mask.shape == shape and mask.any()
        far = np.pad(mask, 6)  # the edge is soft
        near = np.max([np.roll(far, (y, x), (0, 1)) for y in range(-5, 6) for x in range(-5, 6)], axis=0)[6:-6, 6:-6]
        assert (made[~near.astype(bool)] == 120).all()
        covered.append(mask.mean())
    assert max(covered) <= 0.8 or min(shape) < 14
    assert np.median(covered) >= LEAST
    again, _ = with_defect(image, np.random.default_rng(9))
    np.testing.assert_array_equal(again, made)


def test_some_defects_are_parts_of_the_image_a_third_farther_on() -> None:
    image = np.full((120, 210, 3), 30, np.uint8)
    image[..., 0], image[..., 1] = np.arange(120)[:, None] * 2, np.arange(210)  # the colour tells the place
    third = image[(np.arange(120) - 40) % 120][:, (np.arange(210) - 70) % 210].astype(float)
    found = 0
    for seed in range(60):
        made, mask = with_defect(image, np.random.default_rng(seed))
        inner = cv2.erode(mask.astype(np.uint8), np.ones((9, 9), np.uint8)).astype(bool)  # where its edge is not soft
        if not inner.any() or (made[inner][:, 2] != 30).any():  # a texture has colours of its own
            continue
        found += 1
        shift = (third - image)[inner][:, :2]
        change = made[inner][:, :2].astype(float) - image[inner][:, :2]
        opacity = (change * shift).sum() / (shift**2).sum()
        assert 0.29 <= opacity <= 1.01
        np.testing.assert_allclose(change, opacity * shift, atol=2)
    assert found >= 3


def test_a_defect_is_within_a_window() -> None:
    image = np.full((100, 160, 3), 120, np.uint8)
    for seed in range(60):
        _, mask = with_defect(image, np.random.default_rng(seed))
        rows, columns = np.nonzero(mask)
        assert np.ptp(rows) < 75 and np.ptp(columns) < 120  # half of a side, and a half of that before it
