"""Made-up defects: noise against a slow form, masks and pictures within their bounds."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from anomalyncd.learn import synthetic
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


class Chance:
    """A generator that answers what it is told, in turn, and notes what it was asked."""

    def __init__(self, *answers: object) -> None:
        self.answers, self.asked = list(answers), []

    def _next(self, *asked: object) -> object:
        self.asked.append(asked)
        return self.answers.pop(0)

    def uniform(self, low: float, high: float, size: object = None) -> object:
        return self._next("uniform", round(low, 4), round(high, 4), size)

    def integers(self, high: int) -> object:
        return self._next("integers", int(high))

    def random(self, *given: object, dtype: object = None) -> object:
        return self._next("random", *given)


COLOURS = np.array([[10.0, 20, 30], [110, 220, 130]])


@pytest.mark.parametrize("kind", [0, 1])
def test_octaves_of_noise_are_cut_off_or_made_stripes(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = {n: np.random.default_rng(n).uniform(-1, 1, (5, 6)).astype(np.float32) for n in (4, 8, 16, 32)}
    monkeypatch.setattr(
        synthetic, "perlin", lambda shape, cells, rng: noise[cells[0]] if cells[0] == cells[1] else None
    )
    rng = Chance(kind, *([12.0] if kind else []), COLOURS)
    found = texture((5, 6), rng)  # type: ignore[arg-type]
    total = noise[4] + noise[8] / 2 + noise[16] / 3 + noise[32] / 4
    mix = 0.5 + 0.5 * (np.sin(12 * total) if kind else np.clip(total, -1, 1))
    np.testing.assert_allclose(found, COLOURS[0] + mix[..., None] * (COLOURS[1] - COLOURS[0]), rtol=1e-4)
    assert rng.asked == [("integers", 3), *([("uniform", 8, 25, None)] if kind else []), ("uniform", 0, 255, (2, 3))]


def test_grains_fill_the_range_between_two_colours() -> None:
    grains = np.random.default_rng(0).random((9, 9), dtype=np.float32)
    rng = Chance(2, grains, 1.5, COLOURS)
    mix = cv2.GaussianBlur(grains, (0, 0), 1.5)
    mix = (mix - mix.min()) / (mix.max() - mix.min())
    np.testing.assert_allclose(texture((9, 9), rng), COLOURS[0] + mix[..., None] * (COLOURS[1] - COLOURS[0]), rtol=1e-4)  # type: ignore[arg-type]
    assert rng.asked[2] == ("uniform", 0.5, 3, None)
    assert np.isfinite(texture((2, 2), Chance(2, np.ones((2, 2), np.float32), 1.0, COLOURS))).all()  # type: ignore[arg-type]


@pytest.mark.parametrize("moved", [False, True])
def test_a_defect_by_hand(moved: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of 2^3 and 2^2.5 cells; a window from 10 − 6 to 10 + 12 rows and from 8 − 4 to 8 + 9 columns."""
    image = np.random.default_rng(1).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    noise = np.random.default_rng(2).uniform(-1, 1, (40, 30)).astype(np.float32)
    paint = np.full((40, 30, 3), 200, np.float32)
    cells: list[object] = []
    monkeypatch.setattr(synthetic, "perlin", lambda shape, given, rng: (cells.append(given), noise)[1])
    monkeypatch.setattr(synthetic, "texture", lambda shape, rng: paint)
    rng = Chance(3.0, 2.5, 10, 8, 0.3, 0.3, 0.29 if moved else 0.31, 0.6)
    made, mask = with_defect(image, rng)  # type: ignore[arg-type]
    window = np.zeros((40, 30), bool)
    window[4:22, 4:17] = True
    np.testing.assert_array_equal(mask, (noise > 0.5) & window)
    assert cells == [(8, 5)]
    if moved:
        paint = np.roll(image, (13, 10), axis=(0, 1)).astype(np.float32)
    soft = cv2.GaussianBlur(mask.astype(np.float32), (0, 0), 1.0)[..., None] * 0.6
    np.testing.assert_allclose(made, np.round(image * (1 - soft) + paint * soft), atol=1)
    assert rng.asked == [
        ("uniform", 1, 5, None), ("uniform", 1, 5, None), ("integers", 40), ("integers", 30), ("uniform", 0.1, 0.5, None),
        ("uniform", 0.1, 0.5, None), ("random",), ("uniform", 0.3, 1.0, None),
    ]  # fmt: skip


def test_where_noise_makes_no_defect_it_is_tried_again_and_then_the_window_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []

    def noise(shape: tuple[int, int], cells: object, rng: object) -> np.ndarray:
        tried.append(1)
        found = np.zeros(shape, np.float32)
        found[0, : int(len(tried) == 3) * 2] = 1  # the third try has two pixels of a thousand, which is enough
        return found

    monkeypatch.setattr(synthetic, "perlin", noise)
    monkeypatch.setattr(synthetic, "texture", lambda shape, rng: np.zeros((*shape, 3), np.float32))
    image = np.zeros((20, 50, 3), np.uint8)
    _, mask = with_defect(image, Chance(*[3.0, 3.0, 0, 0, 0.5, 0.5] * 3, 0.5, 0.5))  # type: ignore[arg-type]
    assert len(tried) == 3 and mask.sum() == 2
    _, mask = with_defect(image, Chance(*[3.0, 3.0, 10, 10, 0.1, 0.1] * 20, 0.5, 0.5))  # type: ignore[arg-type]
    assert len(tried) == 23 and mask[9:12, 8:15].all() and mask.sum() == 3 * 7
