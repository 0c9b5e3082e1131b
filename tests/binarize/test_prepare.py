"""Maps before they are binarised: read, enlarged, without holes, and the range of many."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from anomalyncd.binarize import FixedThreshold, MEBin, Otsu
from anomalyncd.binarize.base import as_float_map
from anomalyncd.binarize.prepare import (
    binarize_map,
    binarizer_for,
    filled,
    fit_binarizer,
    map_figures,
    note_on_map,
    prepare_map,
    restore_binarizer,
)
from anomalyncd.config import BinarizeConfig, make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.errors import BadFileError, DataError, WrongTypeError

HALF = [[[(0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)]]]


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).random(shape).astype(np.float32)


@pytest.mark.parametrize(
    ("shape", "least", "size"),
    [((8, 4), 8, (8, 4)), ((8, 4), 7, (8, 4)), ((8, 4), 9, (9, 4)), ((3, 10), 20, (6, 20)), ((1, 90), 100, (1, 100))],
)
def test_small_maps_are_enlarged_to_the_least_longer_side(
    shape: tuple[int, int], least: int, size: tuple[int, int]
) -> None:
    values = noise(*shape)
    found = prepare_map(values, least)
    assert found.shape == size and found.dtype == np.float32
    expected = values if size == shape else cv2.resize(values, size[::-1], interpolation=cv2.INTER_LINEAR)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_holes_and_infinity_stay_where_they_are_and_do_not_bleed() -> None:
    values = noise(4, 4)
    values[0, 0], values[3, 3], values[0, 3] = np.nan, np.inf, -np.inf
    found = prepare_map(values, 8)
    assert np.isnan(found[:2, :2]).all() and (found[6:, 6:] == np.inf).all() and (found[:2, 6:] == -np.inf).all()
    assert np.isfinite(found).sum() == 64 - 12
    finite = values[np.isfinite(values)]
    assert finite.min() <= found[np.isfinite(found)].min() and found[np.isfinite(found)].max() <= finite.max()


def test_a_map_of_nothing_is_no_map(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="map array: expected an anomaly map, but every pixel is NaN"):
        prepare_map(np.full((2, 2), np.nan, np.float32), 4)
    np.save(tmp_path / "a.npy", np.full((2, 2), np.nan, np.float32))
    with pytest.raises(BadFileError, match=r"a\.npy: expected an anomaly map"):
        prepare_map(tmp_path / "a.npy", 4)
    one = np.full((2, 2), np.nan, np.float32)
    one[0, 0] = 1
    assert np.nanmax(prepare_map(one, 0)) == 1


def test_what_is_ignored_is_as_low_as_the_rest_gets() -> None:
    values = noise(8, 8)
    values[:, :4] = 9
    for least in (0, 16):
        found = prepare_map(values, least, HALF)
        middle = found.shape[1] // 2
        assert (found[:, :middle] == found.min()).all() and found.max() <= 1


def test_holes_are_filled_with_the_lowest_and_highest_values() -> None:
    values = np.float32([[1, 2, np.nan], [np.inf, -np.inf, 3]])
    assert filled(values).tolist() == [[1, 2, 1], [3, 1, 3]]
    assert filled(values, high=2).tolist() == [[1, 2, 1], [3, 1, 3]] and filled(values, high=7)[1, 0] == 7
    whole = noise(2, 2)
    assert filled(whole) is whole
    assert filled(np.float32([[np.nan, np.inf]]), high=5).tolist() == [[0, 5]]


def test_what_the_manifest_says_of_a_map() -> None:
    values = noise(4, 4)
    assert note_on_map(values) == ""
    values[0, 0] = np.nan
    assert note_on_map(values) == "6.25% of its map is NaN and counts as not anomalous"
    values[1, :2] = np.inf
    assert note_on_map(values).endswith("; 12.50% of its map is infinite and counts as most anomalous")
    values[0, 0] = -np.inf
    assert note_on_map(values) == "12.50% of its map is infinite and counts as most anomalous"


def test_binarisers_by_their_settings() -> None:
    swept = binarizer_for(
        BinarizeConfig(n_thresholds=9, min_interval=3, erosion=2, rule="most_frequent"), has_normal=False
    )
    assert isinstance(swept, MEBin)
    assert (swept.n_thresholds, swept.min_interval, swept.erosion, swept.rule, swept.has_normal) == (
        9, 3, 2, "most_frequent", False,
    )  # fmt: skip
    assert isinstance(binarizer_for(BinarizeConfig(method="otsu"), has_normal=True), Otsu)
    fixed = binarizer_for(BinarizeConfig(method="fixed", fixed_threshold=0.3), has_normal=True)
    assert isinstance(fixed, FixedThreshold) and fixed.threshold == 0.3
    again = restore_binarizer(make_config({"has_normal": False, "n_classes": 2}), {"low": 1, "high": 3})
    assert isinstance(again, MEBin) and (again.low_, again.high_, again.has_normal) == (1, 3, False)


def test_mask_and_map_on_the_fitted_range_without_warnings(recwarn: pytest.WarningsRecorder) -> None:
    binarizer = FixedThreshold(0.5).set_state({"low": 0.0, "high": 2.0})
    values = np.float32([[0.2, 1.8], [np.nan, 1.4]])
    result, scaled = binarize_map(binarizer, values)
    assert result.mask.tolist() == [[False, True], [False, True]]
    np.testing.assert_allclose(scaled, [[0.1, 0.9], [0, 0.7]], rtol=1e-6)
    assert not recwarn.list


def items(tmp_path: Path) -> list[Sample]:
    (tmp_path / "bad.npy").write_bytes(b"nonsense")
    high, endless = np.full((10, 10), 0.5, np.float32), np.full((10, 10), 0.5, np.float32)
    high[0, 0] = 3
    endless[0, 0] = np.inf
    image = np.zeros((10, 10, 3), np.uint8)
    return [
        Sample("a", image, high), Sample("b", image, tmp_path / "bad.npy"), Sample("c", image),
        Sample("d", image, endless),
    ]  # fmt: skip


def test_score_and_peak_of_each_map_that_can_be_read(tmp_path: Path) -> None:
    assert map_figures(items(tmp_path), 0) == [(3.0, 3.0), (None, None)]  # the highest of 100 pixels
    assert map_figures(items(tmp_path)[:1], 0, HALF) == [(0.5, 0.5)]


def test_the_range_is_fitted_to_all_maps_that_can_be_read(tmp_path: Path) -> None:
    seen: list[int] = []
    figures: list[tuple[float | None, float | None]] = []
    fitted = fit_binarizer(Otsu(), items(tmp_path), 0, lambda: seen.append(1), figures)
    assert (fitted.low_, fitted.high_) == (0.5, 3) and len(seen) == 4 and figures == [(3.0, 3.0), (None, None)]
    hidden = fit_binarizer(Otsu(), items(tmp_path), 0, ignore=HALF)
    assert (hidden.low_, hidden.high_) == (0.5, 0.5)
    with pytest.raises(DataError, match=r"none of the 1 anomaly maps could be read, the first because: .*bad\.npy"):
        fit_binarizer(Otsu(), items(tmp_path)[1:2], 0)
    endless = [Sample("a", np.zeros((4, 4, 3), np.uint8), np.full((4, 4), np.inf, np.float32))]
    with pytest.raises(DataError, match="None of the 1 anomaly maps has a finite value"):
        fit_binarizer(Otsu(), endless, 0)


def test_what_is_no_map_is_said() -> None:
    with pytest.raises(WrongTypeError, match=r"maps: expected arrays \(H, W\), but got int"):
        Otsu().fit(3)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="Expected at least one anomaly map"):
        Otsu().fit([])
    for wrong, words in (
        ([[1, 2], [3]], "expected a 2-D array"), (np.zeros((0, 3)), "non-empty"), (np.zeros(3), "non-empty"),
        ([["a"]], "expected real numbers"), (np.zeros((2, 2), complex), "expected real numbers"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=words):
            as_float_map(wrong)
    assert as_float_map(np.array([[1e300, -1e300]])).tolist() == [[np.inf, -np.inf]]
    assert as_float_map(np.array([[True, False]])).tolist() == [[1, 0]]


def test_a_single_finite_pixel_is_a_range() -> None:
    one = np.full((2, 2), np.nan, np.float32)
    one[0, 0] = 4
    with pytest.warns(UserWarning, match="3 pixels of 1 of 2 anomaly maps are NaN or infinite"):
        fitted = Otsu().fit([one, np.ones((2, 2))])
    assert (fitted.low_, fitted.high_) == (1, 4)
    none = np.full((2, 2), np.nan, np.float32)
    with pytest.warns(UserWarning, match="4 pixels of 1 of 2"):
        assert Otsu().fit([none, np.eye(2)]).high_ == 1
