"""Covers canvas.py: pixels of an overlay, one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from anomalyncd.report.canvas import OUTLINE, OUTLINE_EDGE, heat, overlay, resized_mask


def grey(height: int = 40, width: int = 50, value: int = 90) -> Any:
    return np.full((height, width, 3), value, np.uint8)


def where(picture: Any, colour: tuple[int, int, int]) -> Any:
    return (picture == colour).all(axis=-1)


def test_nothing_to_lay_over_leaves_the_image_and_never_changes_it() -> None:
    image = grey()
    kept = image.copy()
    shown = overlay(image, None, None, low=0, high=1)
    np.testing.assert_array_equal(shown, kept)
    overlay(image, np.ones((4, 5)), np.ones((4, 5), bool), low=0, high=1)
    np.testing.assert_array_equal(image, kept)
    assert shown is not image


def test_the_line_surrounds_the_mask_and_a_dark_one_surrounds_the_line() -> None:
    mask = np.zeros((40, 50), bool)
    mask[10:20, 15:30] = True
    shown = overlay(grey(), None, mask, low=0, high=1)
    line = np.zeros_like(mask)
    line[9:21, 14:31] = True
    edge = np.zeros_like(mask)
    edge[8:22, 13:32] = True
    np.testing.assert_array_equal(where(shown, OUTLINE), line & ~mask)
    np.testing.assert_array_equal(where(shown, OUTLINE_EDGE), edge & ~line)
    assert (shown[mask] == 90).all() and (shown[~edge] == 90).all()


def test_a_hole_in_a_mask_has_its_line_too() -> None:
    mask = np.ones((40, 50), bool)
    mask[10:25, 10:25] = False
    line = where(overlay(grey(), None, mask, low=0, high=1), OUTLINE)
    assert line[10, 10:25].all() and line[24, 10:25].all() and not line[12:23, 12:23].any()


def test_a_mask_of_the_whole_image_is_outlined_along_the_border() -> None:
    line = where(overlay(grey(), None, np.ones((7, 9), bool), low=0, high=1), OUTLINE)
    expected = np.ones((40, 50), bool)
    expected[1:-1, 1:-1] = False
    np.testing.assert_array_equal(line, expected)


def test_an_empty_mask_draws_nothing() -> None:
    assert (overlay(grey(), None, np.zeros((3, 3), bool), low=0, high=1) == 90).all()


def test_the_line_of_a_large_image_is_thick_enough_to_see() -> None:
    mask = np.zeros((1000, 2000), bool)
    mask[400:600, 400:600] = True
    line = where(overlay(grey(1000, 2000), None, mask, low=0, high=1), OUTLINE)
    assert line[500, :400].sum() == 5


def test_brighter_and_more_opaque_with_the_value() -> None:
    ramp = np.linspace(0, 1, 50)[None].repeat(40, axis=0)
    for ground in (0, 60):
        brightness = overlay(grey(value=ground), ramp, None, low=0, high=1)[20].sum(axis=1).astype(int)
        assert (np.diff(brightness) >= 0).all() and brightness[-1] > brightness[0] + 300
    stripes = grey(value=0)
    stripes[::2] = 200
    contrast = np.ptp(overlay(stripes, ramp, None, low=0, high=1).astype(int), axis=0).sum(axis=1)
    assert (np.diff(contrast) <= 3).all() and 0 < contrast[-1] < contrast[0] / 4


def test_values_at_low_and_below_are_not_painted_and_high_is_the_end() -> None:
    values = np.array([[-5.0, 2.0, 3.0, 4.0, 99.0]])
    shown = overlay(grey(1, 5), values, None, low=2, high=4)[0]
    assert (shown[:2] == 90).all() and (shown[2] != 90).any()
    np.testing.assert_array_equal(shown[3], shown[4])


def test_infinity_is_painted_as_the_highest_value() -> None:
    shown = overlay(grey(1, 3), np.array([[1.0, np.inf, -np.inf]]), None, low=0, high=1)[0]
    np.testing.assert_array_equal(shown[0], shown[1])
    assert (shown[2] == 90).all()


@pytest.mark.parametrize("times", [1, 5])
def test_holes_are_not_painted(times: int) -> None:
    values = np.ones((8, 10))
    values[2:4, 3:6] = np.nan
    shown = overlay(grey(8 * times, 10 * times), values, None, low=0, high=1)
    unpainted = (shown == 90).all(axis=-1)
    expected = np.kron(~np.isfinite(values), np.ones((times, times), bool))
    np.testing.assert_array_equal(unpainted, expected)


def test_a_map_without_any_value_or_range_paints_nothing() -> None:
    assert (overlay(grey(), np.full((4, 4), np.nan), None, low=0, high=1) == 90).all()
    assert (overlay(grey(), np.full((4, 4), 7.0), None, low=7, high=7) == 90).all()
    assert len(np.unique(overlay(grey(), np.full((4, 4), 7.0), None, low=0, high=10).reshape(-1, 3), axis=0)) == 1


def test_a_small_map_lies_where_it_should() -> None:
    values = np.zeros((4, 5))
    values[1, 3] = 1  # rows 10 … 19, columns 30 … 39 of the image
    share = heat(values, (40, 50), low=0, high=1)
    assert np.unravel_index(share.argmax(), share.shape)[0] in range(12, 18)
    assert share[15, 35] > 0.9 and share[15, 25] < 0.2 and share[:5].max() == 0


@given(
    mask=arrays.arrays(bool, arrays.array_shapes(min_dims=2, max_dims=2, max_side=12)),
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
)
@settings(deadline=None)
def test_resizing_a_mask_loses_no_part_and_invents_none(mask: Any, size: tuple[int, int]) -> None:
    """Pixel (y, x) of the result is set exactly if it overlaps a set pixel when both lie on the same square."""
    found = resized_mask(mask, size)
    if all(small % large == 0 or large % small == 0 for small, large in zip(mask.shape, size, strict=True)):
        tall, wide = (max(a, b) for a, b in zip(mask.shape, size, strict=True))
        fine = mask.repeat(tall // mask.shape[0], axis=0).repeat(wide // mask.shape[1], axis=1)
        blocks = fine.reshape(size[0], tall // size[0], size[1], wide // size[1])
        np.testing.assert_array_equal(found, blocks.any(axis=(1, 3)))
    assert found.shape == size and found.any() == mask.any()
    if mask.all():
        assert found.all()


@given(
    image=arrays.arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
    values=arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=9)),
    mask=arrays.arrays(bool, arrays.array_shapes(min_dims=2, max_dims=2, max_side=9)),
    ends=st.tuples(st.floats(-1e30, 1e30), st.floats(-1e30, 1e30)),
)
@settings(deadline=None)
def test_any_sizes_and_values(image: Any, values: Any, mask: Any, ends: tuple[float, float]) -> None:
    shown = overlay(image, values, mask, low=min(ends), high=max(ends))
    assert shown.shape == image.shape and shown.dtype == np.uint8
