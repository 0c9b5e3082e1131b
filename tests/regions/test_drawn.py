"""Drawings as masks."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest

from anomalyncd.regions.drawn import LARGEST_SIDE, Drawn, Stroke, as_drawn, painted


def box(x0: float, y0: float, x1: float, y1: float) -> Stroke:
    return Stroke(((x0, y0), (x1, y0), (x1, y1), (x0, y1)))


def test_a_box_covers_its_pixels_and_no_others() -> None:
    mask = painted([box(0.1, 0.2, 0.5, 0.6)], (50, 100))
    expected = np.zeros((50, 100), bool)
    expected[10:30, 10:50] = True
    assert (mask == expected).all()


def test_a_box_drawn_from_any_corner_is_the_same() -> None:
    assert (painted([box(0.5, 0.6, 0.1, 0.2)], (50, 100)) == painted([box(0.1, 0.2, 0.5, 0.6)], (50, 100))).all()


def test_a_brush_is_as_wide_as_it_says_and_round_at_its_ends() -> None:
    mask = painted([Stroke(((0.2, 0.5), (0.8, 0.5)), width=0.1)], (100, 100))
    assert abs(mask[:, 50].sum() - 10) <= 1
    across = np.flatnonzero(mask.any(axis=0))
    assert abs(across[0] - 15) <= 1 and abs(across[-1] - 84) <= 1


def test_a_single_point_is_a_dot() -> None:
    mask = painted([Stroke(((0.5, 0.5),), width=0.2)], (100, 100))
    assert 250 < mask.sum() < 400 and mask[50, 50]


@pytest.mark.parametrize("at", [(0.0, 0.0), (1.0, 1.0), (0.503, 0.497)])
def test_what_is_smaller_than_a_pixel_is_one(at: tuple[float, float]) -> None:
    assert painted([Stroke((at, at))], (10, 10)).sum() >= 1


def test_a_huge_image_is_drawn_on_in_a_smaller_size() -> None:
    assert painted([box(0, 0, 0.5, 1)], (10_000, 20_000)).shape == (LARGEST_SIDE // 2, LARGEST_SIDE)


def test_several_strokes_are_one_mask() -> None:
    first, second = box(0, 0, 0.1, 0.1), box(0.8, 0.8, 0.9, 0.9)
    assert (painted([first, second], (50, 50)) == (painted([first], (50, 50)) | painted([second], (50, 50)))).all()


def test_a_drawing_survives_json() -> None:
    drawn = Drawn("a/1.png", 2, (box(0, 0, 0.5, 0.25), Stroke(((0.1, 0.2),), 0.05)))
    assert as_drawn(json.loads(json.dumps(asdict(drawn)))) == drawn
