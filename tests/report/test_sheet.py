"""Pixels of the sheet of all classes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.report.classes import CROP_OUTLINE, CROPS, GAP, LEFT, MARGIN, ROW_PADDING, THUMB, class_sheet

GREEN, BLUE = (10, 200, 30), (20, 40, 220)


def plain(colour, height=64, width=64):
    return np.full((height, width, 3), colour, np.uint8)


def tile(picture, row, column, row_height=THUMB + 2 * ROW_PADDING):
    top = MARGIN + 56 + row * row_height + ROW_PADDING
    left = LEFT + column * (THUMB + GAP)
    return picture[top : top + THUMB, left : left + THUMB]


def is_colour(picture, colour):
    return (np.abs(picture.astype(int) - colour) < 4).all(axis=-1)


def test_crops_lie_in_their_row_and_column():
    rows = [
        ("a", "", [(plain(GREEN), None)]),
        ("b", "", [(plain(GREEN), None), (plain(BLUE), None)]),
    ]
    picture = class_sheet(rows, "")
    assert picture.dtype == np.uint8
    for row, column, colour in [(0, 0, GREEN), (1, 0, GREEN), (1, 1, BLUE)]:
        assert (tile(picture, row, column) == colour).all()
    for row, column in [(0, 1), (0, 2), (1, 2)]:
        assert (tile(picture, row, column) == 255).all()


def test_no_more_than_ten_crops_and_none_past_the_edge():
    one = class_sheet([("a", "", [(plain(GREEN), None)] * 40)], "")
    assert is_colour(one, GREEN).sum() == CROPS * THUMB * THUMB and CROPS == 10
    assert one.shape[1] <= 2000 and (one[:, 1 - MARGIN :] == 255).all()


def test_a_crop_that_is_gone_is_a_grey_field():
    shown = tile(class_sheet([("a", "", [(None, np.ones((4, 4), bool))])], ""), 0, 0)
    assert (shown == 200).all()


@pytest.mark.parametrize("size", [8, 127, 128, 129, 900])
def test_outline_surrounds_the_defect_and_leaves_it_visible(size):
    crop, mask = plain(GREEN, size, size), np.zeros((size, size), bool)
    mask[size // 4 : size // 2, size // 4 : size // 2] = True
    crop[mask] = BLUE
    shown = tile(class_sheet([("a", "", [(crop, mask)])], ""), 0, 0)
    outline = is_colour(shown, CROP_OUTLINE)
    ys, xs = np.nonzero(outline)
    assert abs(ys.min() - 32) <= 2 and abs(ys.max() - 64) <= 2
    assert abs(xs.min() - 32) <= 2 and abs(xs.max() - 64) <= 2
    assert not outline[38:58, 38:58].any()
    assert is_colour(shown, BLUE)[42:54, 42:54].all()


def test_a_line_of_one_pixel_survives_shrinking():
    mask = np.zeros((1000, 1000), bool)
    mask[500, 100:900] = True
    shown = tile(class_sheet([("a", "", [(plain(GREEN, 1000, 1000), mask)])], ""), 0, 0)
    assert is_colour(shown, CROP_OUTLINE).sum() > 150


def test_crops_are_not_changed_and_may_be_views():
    crop, mask = plain(GREEN, THUMB, THUMB), np.ones((THUMB, THUMB), bool)
    mask[:20] = False
    before = crop.copy()
    crop.flags.writeable = False
    views = [
        (crop, mask),
        (crop[::-1, ::-1], mask[::-1, ::-1]),
        (crop[:, :, ::-1], None),
        (crop[::2, ::3], None),
    ]
    picture = class_sheet([("a", "", views)], "")
    np.testing.assert_array_equal(crop, before)
    assert is_colour(tile(picture, 0, 0), CROP_OUTLINE).any()
    assert (tile(picture, 0, 2) == GREEN[::-1]).all()


def test_empty_mask_draws_no_outline():
    picture = class_sheet([("a", "", [(plain(GREEN), np.zeros((64, 64), bool))])], "")
    assert (tile(picture, 0, 0) == GREEN).all()


@pytest.mark.parametrize(("height", "width"), [(30, 90), (90, 30), (1, 1000), (1000, 1), (1, 1)])
def test_crops_that_are_not_square_keep_their_shape(height, width):
    shown = tile(class_sheet([("a", "", [(plain(GREEN, height, width), None)])], ""), 0, 0)
    ys, xs = np.nonzero((shown == GREEN).all(axis=-1))
    scale = THUMB / max(height, width)
    assert np.ptp(ys) + 1 == max(1, round(height * scale))
    assert np.ptp(xs) + 1 == max(1, round(width * scale))


@given(st.text(max_size=200), st.text(max_size=400))
@settings(max_examples=30, deadline=None)
def test_no_text_runs_into_the_crops_or_the_next_row(title, subtitle):
    rows = [(title, subtitle, [(plain(GREEN), None)]), ("", "", [(plain(GREEN), None)])]
    picture = class_sheet(rows, title)
    blank = class_sheet([("", "", [(plain(GREEN), None)])] * 2, "")
    top = MARGIN + 56
    label = (slice(top + 1, top + THUMB + 2 * ROW_PADDING), slice(0, LEFT - GAP))
    heading = (slice(0, top), slice(0, picture.shape[1] - MARGIN + 2))
    picture[label], blank[label] = 0, 0
    picture[heading], blank[heading] = 0, 0
    np.testing.assert_array_equal(picture, blank)


def test_names_are_really_drawn_and_differ():
    names = ["", "crack", "Riß", "Trou Ø 3 µm"]
    sheets = [class_sheet([(name, "", [])], "").tobytes() for name in names]
    assert len(set(sheets)) == len(names)
