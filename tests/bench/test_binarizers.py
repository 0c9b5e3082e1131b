"""MEBin beside its rivals: columns, colours, captions, and the picture of a run."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anomalyncd.bench import binarizers
from anomalyncd.bench.binarizers import (
    FALSE_ALARM,
    FOUND,
    HEAT,
    MISSED,
    MapRow,
    compare_binarizers,
    draw_binarizers,
    fit_binarizers,
)
from anomalyncd.binarize import FixedThreshold, MEBin, Otsu
from anomalyncd.errors import DataError

WITHOUT_TRUTH, WITH_TRUTH = 7, 8  # columns


def square() -> Any:
    mask = np.zeros((80, 80), bool)
    mask[20:40, 20:40] = True
    return mask


def make_map(level: float, background: float = 0.1) -> Any:
    return np.where(square(), level, background)


def row(level: float = 0.6, truth: Any = None, image: Any = None) -> MapRow:
    return MapRow(
        "a.png\nfound: x", np.full((80, 80, 3), 60, np.uint8) if image is None else image, truth, make_map(level)
    )


def grid(sheet: Any, columns: int) -> list[list[Any]]:
    """Panels of the sheet, line by line."""
    return [sheet.axes[start : start + columns] for start in range(0, len(sheet.axes), columns)]


def tile(axis: Any) -> Any:
    """(H, W, 3) uint8"""
    return np.asarray(axis.images[0].get_array())


def share(axis: Any, colour: tuple[int, int, int]) -> float:
    return float((tile(axis) == colour).all(axis=-1).mean())


@pytest.fixture
def sheets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is drawn from now on."""
    drawn: list[Any] = []
    original = binarizers.compare_binarizers
    monkeypatch.setattr(
        binarizers, "compare_binarizers", lambda *given, **rest: drawn.append(original(*given, **rest)) or drawn[-1]
    )
    return drawn


def test_columns_of_the_paper() -> None:
    """A square of 0.6 on maps of 0 … 1: Otsu, 0.3, 0.5 and MEBin find it, 0.7 does not."""
    fitted = fit_binarizers([make_map(0.6), make_map(1.0, 0.0), make_map(0.1)])
    assert list(fitted) == ["Otsu", "fixed 0.3", "fixed 0.5", "fixed 0.7", "MEBin"]
    (line,) = grid(compare_binarizers([row(truth=square())], fitted, low=0, high=1), WITH_TRUTH)
    assert [axis.get_title() for axis in line] == ["image", "truth", "map", *fitted]
    for column in (1, 3, 4, 5):  # truth, Otsu, 0.3, 0.5
        assert share(line[column], FOUND) == pytest.approx(1 / 16, abs=0.005)
    assert share(line[6], MISSED) == pytest.approx(1 / 16, abs=0.005) and share(line[6], FOUND) == 0
    eroded = share(line[7], FOUND)
    assert eroded == pytest.approx((15 / 80) ** 2, abs=0.01)  # 6 × 6 erosion leaves 15 of 20 pixels
    assert share(line[7], MISSED) == pytest.approx(1 / 16 - eroded, abs=0.005)
    assert all(share(axis, FALSE_ALARM) == 0 for axis in line)


def test_false_alarms_are_marked_on_a_normal_image() -> None:
    sheet = compare_binarizers([row(truth=np.zeros((1, 1), bool))], fit_binarizers([make_map(0.6)]), low=0, high=1)
    (line,) = grid(sheet, WITH_TRUTH)
    assert share(line[4], FALSE_ALARM) == pytest.approx(1 / 16, abs=0.005) and share(line[4], FOUND) == 0
    assert line[1].get_xlabel() == "normal"


def test_truth_column_only_where_somebody_knows() -> None:
    fitted = fit_binarizers([make_map(0.6)])
    without = compare_binarizers([row()], fitted, low=0, high=1)
    assert len(without.axes) == WITHOUT_TRUTH and not without.legends
    mixed = compare_binarizers([row(), row(truth=square())], fitted, low=0, high=1)
    (first, second), (legend,) = grid(mixed, WITH_TRUTH), mixed.legends
    assert [text.get_text() for text in legend.get_texts()] == ["found", "false alarm", "missed"]
    assert share(first[4], FOUND) > 0.05 and share(first[4], MISSED) == 0
    assert share(second[1], FOUND) > 0.05 and not first[1].images and first[1].get_xlabel() == "not known"


def test_fitted_as_each_would_be_alone() -> None:
    maps = [make_map(0.6), make_map(0.9, 0.2), make_map(0.3)]
    fitted = fit_binarizers(maps)
    alone = {"Otsu": Otsu(), "fixed 0.3": FixedThreshold(0.3), "fixed 0.7": FixedThreshold(0.7), "MEBin": MEBin()}
    for name, binarizer in alone.items():
        expected, found = binarizer.fit(maps).binarize(maps[1]), fitted[name].binarize(maps[1])
        assert found.threshold == expected.threshold
        np.testing.assert_array_equal(found.mask, expected.mask)
    assert fit_binarizers(maps, MEBin(erosion=0))["MEBin"].binarize(maps[0]).mask.sum() == 400


def test_captions_tell_the_threshold_on_the_common_scale() -> None:
    maps = [10 + 10 * make_map(0.6), 10 + 10 * make_map(1.0, 0.0), 10 + 10 * make_map(0.1)]
    fitted = fit_binarizers(maps)
    (line,) = grid(compare_binarizers([replace(row(), anomaly_map=maps[0])], fitted, low=10, high=20), WITHOUT_TRUTH)
    threshold = (fitted["MEBin"].binarize(maps[0]).threshold - 10) / 10
    captions = [axis.get_xlabel() for axis in line]
    assert captions[1] == "highest 0.60"
    assert captions[3:] == [
        "at 0.30 · 1 region", "at 0.50 · 1 region", "nothing found", f"at {threshold:.2f} · 1 region",
    ]  # fmt: skip


def test_holes_constant_maps_lost_images_and_odd_shapes() -> None:
    holed = make_map(0.6)
    holed[:40] = np.nan
    rows = [
        replace(row(), anomaly_map=holed),
        replace(row(), anomaly_map=np.full((5, 9), np.nan)),
        replace(row(), anomaly_map=np.full((1, 1), 0.4), title="n" * 400 + "\n" + "w " * 300),
        MapRow("gone", None, square(), make_map(0.6)),
        replace(row(), image=np.full((3, 400, 3), 80, np.uint8), truth=np.eye(7, dtype=bool)),
    ]
    fitted = fit_binarizers([make_map(0.6), make_map(0.2)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sheet = compare_binarizers(rows, fitted, low=0, high=1)
        picture = binarizers.to_png(sheet)
    assert picture.startswith(b"\x89PNG")
    lines = grid(sheet, WITH_TRUTH)
    assert (tile(lines[0][2])[:40] == 0).all() and (tile(lines[0][2])[40:] != 0).any()
    assert (tile(lines[1][2]) == 0).all() and lines[1][2].get_xlabel() == "no value"
    assert lines[3][0].get_xlabel() == "not found" and share(lines[3][1], FOUND) > 0.05
    for line in lines:  # no word of a label leaves the sheet or runs into the first column
        label, first = line[0].yaxis.label.get_window_extent(), line[0].get_window_extent()
        assert label.x0 >= 0 and label.x1 <= first.x0


def test_no_row_is_said() -> None:
    with pytest.raises(DataError, match="at least one image"):
        compare_binarizers([], fit_binarizers([make_map(1)]), low=0, high=1)


@pytest.mark.parametrize("maps", ["own", "listed", "given"])
def test_picture_of_a_run(make_run: Any, sheets: list[Any], maps: str) -> None:
    run, samples = make_run(maps=maps)
    draw_binarizers(run, samples, n_images=4)
    assert len(sheets[0].axes) == 4 * WITHOUT_TRUTH
    known = [replace(s, mask=np.ones((4, 4), bool) if i % 5 < 2 else None) for i, s in enumerate(samples)]
    path = draw_binarizers(run, known, n_images=4)
    assert path is not None and path == run / "pictures/binarizers.png" and not list(run.rglob("*.partial"))
    assert np.asarray(Image.open(path)).std() > 0
    # Of 20 images numbers 2, 7, 12 and 17: normal ones, so nothing is true of them.
    lines = grid(sheets[1], WITH_TRUTH)
    assert [int(tile(line[0])[9, 9, 0]) for line in lines] == [102, 107, 112, 117]
    assert all(share(line[1], FOUND) == 0 for line in lines)


def test_rows_are_spread_over_all_images(make_run: Any, sheets: list[Any]) -> None:
    run, samples = make_run(n_images=5)
    draw_binarizers(run, samples, n_images=50)
    lines = grid(sheets[0], WITHOUT_TRUTH)
    assert [int(tile(line[0])[9, 9, 0]) for line in lines] == [100, 101, 102, 103, 104]
    assert share(lines[0][5], FOUND) > 0.05 and share(lines[3][5], FOUND) == 0
    # The set's smallest value, 0.1, begins the colours.
    np.testing.assert_array_equal(tile(lines[0][1])[-1, -1], HEAT(0.0, bytes=True)[:3])


def test_maps_that_cannot_be_used_are_left_out_and_a_run_without_maps_has_no_picture(
    make_run: Any, sheets: list[Any]
) -> None:
    run, samples = make_run(n_images=5)
    np.save(run / "maps/folder/000.npy", np.full((4, 4), np.nan))
    (run / "maps/folder/001.npy").write_bytes(b"damaged")
    draw_binarizers(run, samples)
    assert len(sheets[0].axes) == 3 * WITHOUT_TRUTH
    bare, samples = make_run(n_images=5, maps="none")
    assert draw_binarizers(bare, samples) is None
