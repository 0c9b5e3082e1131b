"""Shapes in which nothing is looked for: pixel by pixel, and what a file of them may hold."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from anomalyncd.binarize.ignore import ignored, read_ignored, without
from anomalyncd.errors import DataError


def test_pixels_that_a_shape_touches_and_one_more(tmp_path: Path) -> None:
    """A rectangle from 2 to 4 of 10 pixels across, and from 5 to 6 of 8 down: its outline is drawn too."""
    shape = [[[(0.2, 0.625), (0.4, 0.625), (0.4, 0.75), (0.2, 0.75)]]]
    expected = np.zeros((8, 10), bool)
    expected[3:8, 1:6] = True  # 2 … 4 and 4 … 6 (to the even one of two halves), and one more on each side
    np.testing.assert_array_equal(ignored(shape, (8, 10)), expected)
    assert ignored([[[]]], (3, 3)).sum() == 0


def test_the_rest_of_a_map_says_how_low_it_gets() -> None:
    values = np.float32([[5, 5, 5, 3, np.nan, 9], [5, 5, 5, 2, -np.inf, 9]])
    half = [[[(0, 0), (0.2, 0), (0.2, 1), (0, 1)]]]  # and one pixel more
    found = without(values, half)
    assert found[:, :3].tolist() == [[2] * 3] * 2 and found[:, 3].tolist() == [3, 2] and np.isnan(found[0, 4])
    everything = [[[(0, 0), (1, 0), (1, 1), (0, 1)]]]
    assert without(values, everything).tolist() == [[0] * 6] * 2


@pytest.mark.parametrize(("point", "right"), [(-0.01, True), (-0.011, False), (1.01, True), (1.011, False)])
def test_points_lie_inside_the_picture_or_nearly_so(point: float, right: bool, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([[[0, 0], [point, 0.5], [1, 1]]]))
    if right:
        assert read_ignored(tmp_path / "a.json") == [[[(0, 0), (point, 0.5), (1, 1)]]]
    else:
        with pytest.raises(DataError, match="some lie outside"):
            read_ignored(tmp_path / "a.json")


@pytest.mark.parametrize(("count", "right"), [(20_000, True), (20_001, False)])
def test_at_most_so_many_points(count: int, right: bool, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([[[0.5, 0.5]] * count]))
    if right:
        assert len(read_ignored(tmp_path / "a.json")[0][0]) == count
    else:
        with pytest.raises(DataError, match="at most 20,000 points, but got 20,001"):
            read_ignored(tmp_path / "a.json")


def test_sizes_of_the_reference_image_divide(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"width": 50, "height": 20, "polygons": [[[10, 10], [50, 0], [25, 20]]]}')
    assert read_ignored(tmp_path / "a.json") == [[[(0.2, 0.5), (1, 0), (0.5, 1)]]]
    for size in ('"width": -1, "height": 5', '"width": 5, "height": 0'):
        (tmp_path / "a.json").write_text(f'{{{size}, "polygons": []}}')
        with pytest.raises(DataError, match="above 0"):
            read_ignored(tmp_path / "a.json")


def test_a_mask_is_what_is_brighter_than_half(tmp_path: Path) -> None:
    picture = np.zeros((40, 40, 3), np.uint8)
    picture[5:15, 5:15, 1], picture[25:35, 25:35] = 128, 127
    cv2.imwrite(str(tmp_path / "mask.png"), picture)
    (shape,) = read_ignored(tmp_path / "mask.png")
    points = np.array([point for ring in shape for point in ring])
    np.testing.assert_allclose([points.min(), points.max()], [5.5 / 40, 14.5 / 40])
    cv2.imwrite(str(tmp_path / "mask.png"), np.zeros((9, 9), np.uint8))
    with pytest.raises(DataError, match="nothing is drawn"):
        read_ignored(tmp_path / "mask.png")
