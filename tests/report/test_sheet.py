from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anomalyncd.errors import DataError, SettingsError
from anomalyncd.report import sheet as sheet_module
from anomalyncd.report.sheet import (
    GAP,
    LABEL_WIDTH,
    MARGIN,
    OUTLINE,
    ROW_PADDING,
    THUMB,
    SheetRow,
    class_sheet,
)

LEFT = MARGIN + LABEL_WIDTH + 2 * GAP
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
        SheetRow("a", "", [(plain(GREEN), None)]),
        SheetRow("b", "", [(plain(GREEN), None), (plain(BLUE), None)]),
    ]
    picture = class_sheet(rows, per_class=3)
    assert picture.dtype == np.uint8
    for row, column, colour in [(0, 0, GREEN), (1, 0, GREEN), (1, 1, BLUE)]:
        assert (tile(picture, row, column) == colour).all()
    for row, column in [(0, 1), (0, 2), (1, 2)]:
        assert (tile(picture, row, column) == 255).all()


def test_no_more_than_per_class_and_long_rows_go_on_to_the_next_line():
    crops = [(plain(GREEN), None)] * 40
    one = class_sheet([SheetRow("a", "", crops)], per_class=2)
    assert is_colour(one, GREEN).sum() == 2 * THUMB * THUMB
    many = class_sheet([SheetRow("a", "", crops)], per_class=30)
    assert is_colour(many, GREEN).sum() == 30 * THUMB * THUMB
    assert many.shape[1] <= 2000


@pytest.mark.parametrize("size", [8, 127, 128, 129, 900])
def test_outline_surrounds_the_defect_and_leaves_it_visible(size):
    crop, mask = plain(GREEN, size, size), np.zeros((size, size), bool)
    mask[size // 4 : size // 2, size // 4 : size // 2] = True
    crop[mask] = BLUE
    shown = tile(class_sheet([SheetRow("a", "", [(crop, mask)])], per_class=1), 0, 0)
    outline = is_colour(shown, OUTLINE)
    ys, xs = np.nonzero(outline)
    assert abs(ys.min() - 32) <= 2 and abs(ys.max() - 64) <= 2
    assert abs(xs.min() - 32) <= 2 and abs(xs.max() - 64) <= 2
    assert not outline[38:58, 38:58].any()
    assert is_colour(shown, BLUE)[42:54, 42:54].all()


def test_a_line_of_one_pixel_survives_shrinking():
    mask = np.zeros((1000, 1000), bool)
    mask[500, 100:900] = True
    shown = tile(class_sheet([SheetRow("a", "", [(plain(GREEN, 1000, 1000), mask)])], per_class=1), 0, 0)
    assert is_colour(shown, OUTLINE).sum() > 150


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
    picture = class_sheet([SheetRow("a", "", views)], per_class=4)
    np.testing.assert_array_equal(crop, before)
    assert is_colour(tile(picture, 0, 0), OUTLINE).any()
    assert (tile(picture, 0, 2) == GREEN[::-1]).all()


def test_empty_mask_draws_no_outline():
    picture = class_sheet([SheetRow("a", "", [(plain(GREEN), np.zeros((64, 64), bool))])], per_class=1)
    assert (tile(picture, 0, 0) == GREEN).all()


@pytest.mark.parametrize(("height", "width"), [(30, 90), (90, 30), (1, 1000), (1000, 1), (1, 1)])
def test_crops_that_are_not_square_keep_their_shape(height, width):
    shown = tile(class_sheet([SheetRow("a", "", [(plain(GREEN, height, width), None)])], per_class=1), 0, 0)
    ys, xs = np.nonzero((shown == GREEN).all(axis=-1))
    scale = THUMB / max(height, width)
    assert np.ptp(ys) + 1 == max(1, round(height * scale))
    assert np.ptp(xs) + 1 == max(1, round(width * scale))


@given(st.text(max_size=200), st.text(max_size=400))
@settings(max_examples=30, deadline=None)
def test_no_text_runs_into_the_crops_or_the_next_row(title, subtitle):
    rows = [SheetRow(title, subtitle, [(plain(GREEN), None)]), SheetRow("", "", [(plain(GREEN), None)])]
    picture = class_sheet(rows, per_class=1, title=title)
    blank = class_sheet([SheetRow("", "", [(plain(GREEN), None)])] * 2, per_class=1, title="")
    top = MARGIN + 56
    label = (slice(top + 1, top + THUMB + 2 * ROW_PADDING), slice(0, LEFT - GAP))
    heading = (slice(0, top), slice(0, picture.shape[1] - MARGIN + 2))
    picture[label], blank[label] = 0, 0
    picture[heading], blank[heading] = 0, 0
    np.testing.assert_array_equal(picture, blank)


def test_names_are_really_drawn_and_differ():
    names = ["", "crack", "Riß", "Trou Ø 3 µm"]
    sheets = [class_sheet([SheetRow(name)], per_class=1).tobytes() for name in names]
    assert len(set(sheets)) == len(names)


def test_rows_without_crops_and_sheets_without_rows():
    with_crop = class_sheet([SheetRow("a", "", [(plain(GREEN), None)])], per_class=2)
    assert class_sheet([SheetRow("a", "0 images")], per_class=2).shape == with_crop.shape
    assert (class_sheet([]) < 200).any()


def test_file_holds_the_sheet(tmp_path):
    out = tmp_path / "new folder" / "sheet.png"
    picture = class_sheet([SheetRow("a", "", [(plain(GREEN), None)])], out)
    np.testing.assert_array_equal(np.asarray(Image.open(out)), picture)
    assert list(out.parent.iterdir()) == [out]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    out = tmp_path / "sheet.png"
    out.write_bytes(b"old")

    def fail(self, path, format):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(sheet_module.Image.Image, "save", fail)
    with pytest.raises(OSError, match="disk full"):
        class_sheet([SheetRow("a")], out)
    assert out.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(
    ("crop", "mask"),
    [
        (np.zeros((8, 8), np.uint8), None),
        (np.zeros((8, 8, 4), np.uint8), None),
        (np.zeros((8, 8, 3), np.float32), None),
        (np.zeros((0, 8, 3), np.uint8), None),
        (np.zeros((8, 8, 3), np.uint8), np.zeros((8, 9), bool)),
    ],
)
def test_bad_crops_are_named(crop, mask):
    with pytest.raises(DataError, match=r"^scratch: .*must be"):
        class_sheet([SheetRow("scratch", "", [(crop, mask)])])


def test_per_class_must_be_positive():
    with pytest.raises(SettingsError, match="per_class"):
        class_sheet([], per_class=0)
