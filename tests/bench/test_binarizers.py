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
    CAPTION,
    FALSE_ALARM,
    FOUND,
    GAP,
    HEADER,
    LABEL_WIDTH,
    MARGIN,
    MISSED,
    ROW_PADDING,
    SIDE,
    MapRow,
    compare_binarizers,
    draw_binarizers,
    fit_binarizers,
)
from anomalyncd.binarize import FixedThreshold, MEBin, Otsu
from anomalyncd.errors import DataError
from anomalyncd.report.overlay import heat

LEFT = MARGIN + LABEL_WIDTH + 2 * GAP


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


def tile(sheet: Any, column: int, line: int = 0) -> Any:
    top = HEADER + line * (SIDE + CAPTION + 2 * ROW_PADDING) + ROW_PADDING
    left = LEFT + column * (SIDE + GAP)
    return sheet[top : top + SIDE, left : left + SIDE]


def share(picture: Any, colour: tuple[int, int, int]) -> float:
    return float((picture == colour).all(axis=-1).mean())


def test_columns_of_the_paper() -> None:
    """A square of 0.6 on maps of 0 … 1: Otsu, 0.3, 0.5 and MEBin find it, 0.7 does not."""
    binarizers = fit_binarizers([make_map(0.6), make_map(1.0, 0.0), make_map(0.1)])
    assert list(binarizers) == ["Otsu", "fixed 0.3", "fixed 0.5", "fixed 0.7", "MEBin"]
    sheet = compare_binarizers([row(truth=square())], binarizers, low=0, high=1)
    assert sheet.shape[1] == LEFT + 8 * (SIDE + GAP) - GAP + MARGIN < 3000
    for column in (1, 3, 4, 5):  # truth, Otsu, 0.3, 0.5
        assert share(tile(sheet, column), FOUND) == pytest.approx(1 / 16, abs=0.005)
    assert share(tile(sheet, 6), MISSED) == pytest.approx(1 / 16, abs=0.005) and share(tile(sheet, 6), FOUND) == 0
    eroded = share(tile(sheet, 7), FOUND)
    assert eroded == pytest.approx((15 / 80) ** 2, abs=0.01)  # 6 × 6 erosion leaves 15 of 20 pixels
    assert share(tile(sheet, 7), MISSED) == pytest.approx(1 / 16 - eroded, abs=0.005)
    assert all(share(tile(sheet, column), FALSE_ALARM) == 0 for column in range(8))


def test_false_alarms_are_marked_on_a_normal_image() -> None:
    sheet = compare_binarizers([row(truth=np.zeros((1, 1), bool))], fit_binarizers([make_map(0.6)]), low=0, high=1)
    assert share(tile(sheet, 4), FALSE_ALARM) == pytest.approx(1 / 16, abs=0.005) and share(tile(sheet, 4), FOUND) == 0


def test_truth_column_only_where_somebody_knows() -> None:
    binarizers = fit_binarizers([make_map(0.6)])
    without = compare_binarizers([row()], binarizers, low=0, high=1)
    mixed = compare_binarizers([row(), row(truth=square())], binarizers, low=0, high=1)
    assert mixed.shape[1] - without.shape[1] == SIDE + GAP
    assert mixed.shape[0] - without.shape[0] == SIDE + CAPTION + 2 * ROW_PADDING
    assert share(tile(mixed, 4), FOUND) > 0.05 and share(tile(mixed, 4), MISSED) == 0
    assert share(tile(mixed, 1, line=1), FOUND) > 0.05 and share(tile(mixed, 1), FOUND) == 0


def test_fitted_as_each_would_be_alone() -> None:
    maps = [make_map(0.6), make_map(0.9, 0.2), make_map(0.3)]
    fitted = fit_binarizers(maps)
    alone = {"Otsu": Otsu(), "fixed 0.3": FixedThreshold(0.3), "fixed 0.7": FixedThreshold(0.7), "MEBin": MEBin()}
    for name, binarizer in alone.items():
        expected, found = binarizer.fit(maps).binarize(maps[1]), fitted[name].binarize(maps[1])
        assert found.threshold == expected.threshold
        np.testing.assert_array_equal(found.mask, expected.mask)
    assert fit_binarizers(maps, MEBin(erosion=0))["MEBin"].binarize(maps[0]).mask.sum() == 400


def test_captions_tell_the_threshold_on_the_common_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    captions: list[str] = []
    caption = binarizers._caption

    def keep(*given: Any) -> str:
        captions.append(caption(*given))
        return captions[-1]

    monkeypatch.setattr(binarizers, "_caption", keep)
    maps = [10 + 10 * make_map(0.6), 10 + 10 * make_map(1.0, 0.0), 10 + 10 * make_map(0.1)]
    fitted = fit_binarizers(maps)
    compare_binarizers([replace(row(), anomaly_map=maps[0])], fitted, low=10, high=20)
    threshold = (fitted["MEBin"].binarize(maps[0]).threshold - 10) / 10
    assert captions[1:] == [
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
    assert (tile(sheet, 2)[: SIDE // 2 - 2] == 0).all() and (tile(sheet, 2)[SIDE // 2 + 2 :] != 0).any()
    assert (tile(sheet, 2, line=1)[SIDE // 2] == 0).all()
    assert (tile(sheet, 0, line=3) < 160).any() and share(tile(sheet, 1, line=3), FOUND) > 0.05
    label = sheet[HEADER + 1 :, MARGIN + LABEL_WIDTH + 2 : LEFT]
    assert (label == label[:, :1]).all()  # no word runs from the label into the first column


def test_no_row_is_said() -> None:
    with pytest.raises(DataError, match="at least one image"):
        compare_binarizers([], fit_binarizers([make_map(1)]), low=0, high=1)


@pytest.mark.parametrize("maps", ["own", "mirrored", "given"])
def test_picture_of_a_run(make_run: Any, maps: str) -> None:
    run, items = make_run(maps=maps)
    without = np.asarray(Image.open(draw_binarizers(run, items, n_images=4) or ""))
    assert without.shape[0] == HEADER + 4 * (SIDE + CAPTION + 2 * ROW_PADDING) + MARGIN - ROW_PADDING
    mask = run / "masks/000/000000_folder_000.png"
    known = [replace(item, mask=mask if index % 5 < 2 else None) for index, item in enumerate(items)]
    path = draw_binarizers(run, known, n_images=4)
    assert path is not None and path == run / "pictures/binarizers.png" and not list(run.rglob("*.partial"))
    sheet = np.asarray(Image.open(path))
    assert sheet.shape[1] == without.shape[1] + SIDE + GAP
    # Of 20 images numbers 2, 7, 12 and 17: normal ones, so nothing is true of them.
    assert all((tile(sheet, 0, line)[SIDE // 2] == 102 + 5 * line).all() for line in range(4))
    assert all(share(tile(sheet, 1, line), FOUND) == 0 for line in range(4))


def test_rows_are_spread_over_all_images(make_run: Any) -> None:
    run, items = make_run(n_images=5)
    sheet = np.asarray(Image.open(draw_binarizers(run, items, n_images=50) or ""))
    assert [int(tile(sheet, 0, line)[SIDE // 2, 5, 0]) for line in range(5)] == [100, 101, 102, 103, 104]
    assert share(tile(sheet, 5, 0), FOUND) > 0.05 and share(tile(sheet, 5, 3), FOUND) == 0
    coldest = heat(np.zeros((1, 1)), (1, 1), low=0, high=1)[1][
        0, 0
    ]  # the set's smallest value, 0.1, begins the colours
    np.testing.assert_array_equal(tile(sheet, 1, 0)[SIDE // 2, -3], coldest)


def test_maps_that_cannot_be_used_are_left_out_and_a_run_without_maps_has_no_picture(make_run: Any) -> None:
    run, items = make_run(n_images=5)
    np.save(run / "maps/000/000000_folder_000.npy", np.full((4, 4), np.nan))
    (run / "maps/000/000001_folder_001.npy").write_bytes(b"damaged")
    sheet = np.asarray(Image.open(draw_binarizers(run, items) or ""))
    assert sheet.shape[0] == HEADER + 3 * (SIDE + CAPTION + 2 * ROW_PADDING) + MARGIN - ROW_PADDING
    bare, items = make_run(n_images=5, maps="none")
    for file in (bare / "maps/000").iterdir():
        file.unlink()
    assert draw_binarizers(bare, items) is None
