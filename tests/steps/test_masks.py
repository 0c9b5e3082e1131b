"""Anomaly maps on their way to masks, and `binarize` on a folder.

Covers detect, with tests/cli/test_detect.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from anomalyncd.binarize.prepare import (
    binarize_map,
    binarizer_for,
    filled,
    fit_binarizer,
    map_figures,
    note_on_map,
    prepare_map,
)
from anomalyncd.config import make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.errors import BadFileError, DataError, RunError, SettingsError
from anomalyncd.progress import Silent
from anomalyncd.steps.masks import binarize_folder


def spot(size: int = 64, peak: float = 1.0) -> np.ndarray:
    y, x = np.mgrid[:size, :size]
    return (peak * np.exp(-((x - size / 3) ** 2 + (y - size / 2) ** 2) / (size / 8) ** 2)).astype(np.float32)


def test_small_maps_are_enlarged_and_large_ones_stay() -> None:
    assert prepare_map(spot(64), 256).shape == (256, 256)
    assert prepare_map(np.zeros((300, 100), np.float32), 256).shape == (300, 100)
    assert prepare_map(np.zeros((1, 1), np.float32), 256).shape == (256, 256)
    assert prepare_map(np.zeros((1000, 1), np.float32), 256).shape == (1000, 1)
    assert prepare_map(np.zeros((1, 100), np.float32), 256).shape == (3, 256)


@pytest.mark.parametrize("size", [32, 300])
@pytest.mark.parametrize("hole", [np.nan, -np.inf])
def test_holes_stay_holes_and_are_never_anomalous(size: int, hole: float) -> None:
    values = np.full((size, size), 0.9, np.float32)
    values[: size // 2] = hole
    prepared = prepare_map(values, 256)
    np.testing.assert_array_equal(prepared[: len(prepared) // 2], np.float32(hole))
    assert (prepared[len(prepared) // 2 :] == np.float32(0.9)).all()
    assert note_on_map(prepared) == ("50.00% of its map is NaN and counts as not anomalous" if np.isnan(hole) else "")
    binarizer = binarizer_for(make_config().binarize, has_normal=True).fit([np.zeros((9, 9)), np.ones((9, 9))])
    result, scores = binarize_map(binarizer, prepared)
    assert not result.mask[: len(prepared) // 2].any() and result.mask[3 * len(prepared) // 4].any()
    assert (scores[: len(prepared) // 2] == 0).all()


@pytest.mark.parametrize("size", [32, 300])
def test_infinity_is_the_most_anomalous_value(size: int) -> None:
    values = np.full((size, size), 0.01, np.float32)
    values[: size // 2] = np.inf
    prepared = prepare_map(values, 256)
    upper, lower = prepared[: len(prepared) // 2], prepared[len(prepared) // 2 :]
    assert (upper == np.inf).all() and (lower == np.float32(0.01)).all()
    assert note_on_map(prepared) == "50.00% of its map is infinite and counts as most anomalous"
    binarizer = binarizer_for(make_config().binarize, has_normal=True).fit([np.zeros((9, 9)), np.ones((9, 9))])
    result, scores = binarize_map(binarizer, prepared)
    assert result.mask[len(prepared) // 4].all() and not result.mask[3 * len(prepared) // 4].any()
    assert (scores[: len(prepared) // 2] == 1).all()
    np.testing.assert_array_equal(filled(prepared, 5.0)[: len(prepared) // 2], np.float32(5))
    assert map_figures([Sample("a", values, map=values)], 256) == [(None, None)]


def test_figures_are_of_the_maps_that_can_be_read(tmp_path: Path) -> None:
    image, values = np.zeros((8, 8, 3), np.uint8), np.full((8, 8), 0.5, np.float32)
    items = [Sample("a", image), Sample("b", image, map=tmp_path / "none.npy"), Sample("c", image, map=values)]
    assert map_figures(items, 8) == [(0.5, 0.5)]


def test_maps_of_nothing_but_infinity() -> None:
    for value, label in ((np.inf, 1.0), (-np.inf, 0.0)):
        prepared = prepare_map(np.full((8, 8), value), 64)
        assert (prepared == value).all() and prepared.shape == (64, 64)
        assert np.isfinite(filled(prepared)).all() and np.isfinite(filled(prepared, 3.0)).all()
        binarizer = binarizer_for(make_config().binarize, has_normal=True).fit([np.zeros((9, 9)), np.ones((9, 9))])
        assert binarize_map(binarizer, prepared)[0].mask.mean() == label


def test_a_map_without_a_number_is_a_bad_file(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.full((8, 8), np.nan))
    with pytest.raises(BadFileError, match=r"0\.npy: .*every pixel is NaN"):
        prepare_map(tmp_path / "0.npy", 256)
    assert note_on_map(spot()) == ""


def test_the_range_is_fitted_on_the_readable_maps(tmp_path: Path) -> None:
    (tmp_path / "bad.npy").write_text("no map")
    np.save(tmp_path / "ok.npy", spot(peak=3))
    items = [Sample(name, tmp_path / name, map=tmp_path / name) for name in ("bad.npy", "ok.npy")]
    steps = []
    binarizer = fit_binarizer(binarizer_for(make_config().binarize, has_normal=True), items, 0, lambda: steps.append(1))
    assert binarizer.high_ == spot(peak=3).max() and len(steps) == 2
    with pytest.raises(DataError, match=r"none of the 1 anomaly maps could be read.*bad\.npy"):
        fit_binarizer(binarizer, items[:1], 0)


def test_a_folder_of_maps(tmp_path: Path) -> None:
    for name, values in {"a/0": spot(), "a/1": spot(peak=0.1), "b 1/ü": np.pad(spot(32), 16)}.items():
        (tmp_path / "maps" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "maps" / f"{name}.npy", values)
    (tmp_path / "maps/b 1/broken.npy").write_text("no map")
    config = make_config({"binarize": {"method": "fixed", "fixed_threshold": 0.5, "min_map_size": 0}})
    table = binarize_folder(tmp_path / "maps", tmp_path / "masks", config, Silent())
    assert table["map"].tolist() == ["a/0.npy", "a/1.npy", "b 1/broken.npy", "b 1/ü.npy"]
    assert table["n_regions"].tolist() == [1, 0, 0, 1] and "broken.npy" in table["message"][2]
    mask = cv2.imdecode(np.fromfile(tmp_path / "masks/b 1/ü.png", np.uint8), cv2.IMREAD_UNCHANGED)
    assert np.array_equal(mask > 0, np.pad(spot(32), 16) > 0.5 * spot().max())
    assert set(np.unique(mask)) == {0, 255}
    assert (tmp_path / "masks/masks.csv").exists() and not (tmp_path / "masks/b 1/broken.png").exists()
    before = (tmp_path / "masks/masks.csv").read_bytes()
    binarize_folder(tmp_path / "maps", tmp_path / "masks", config, Silent())
    assert (tmp_path / "masks/masks.csv").read_bytes() == before


def test_masks_never_overwrite_maps(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "0.png"), (spot() * 255).astype(np.uint8))
    before = (tmp_path / "0.png").read_bytes()
    for out in (tmp_path, tmp_path / "masks"):
        with pytest.raises(SettingsError, match="among the maps"):
            binarize_folder(tmp_path, out, make_config(), Silent())
    assert (tmp_path / "0.png").read_bytes() == before


def test_what_a_folder_of_maps_may_lack(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    with pytest.raises(DataError, match="none found"):
        binarize_folder(tmp_path / "maps", tmp_path / "masks", make_config(), Silent())
    with pytest.raises(DataError, match="expected a folder"):
        binarize_folder(tmp_path / "nowhere", tmp_path / "masks", make_config(), Silent())
    np.save(tmp_path / "maps/0.npy", spot())
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="this is a file"):
        binarize_folder(tmp_path / "maps", tmp_path / "file", make_config(), Silent())
    cv2.imwrite(str(tmp_path / "maps/0.png"), np.zeros((8, 8), np.uint8))
    with pytest.raises(DataError, match=r"two maps would become the mask 0\.png"):
        binarize_folder(tmp_path / "maps", tmp_path / "masks", make_config(), Silent())


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such names")
def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "maps").mkdir()
    np.save(tmp_path / "maps/0.npy", spot())
    (tmp_path / "maps/0.npy").rename(tmp_path / "maps" / "\udc80.npy")
    with pytest.raises(DataError, match="not valid UTF-8"):
        binarize_folder(tmp_path / "maps", tmp_path / "masks", make_config(), Silent())
