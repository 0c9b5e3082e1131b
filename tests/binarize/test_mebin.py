"""MEBin against the obvious way: threshold, erode and label at every threshold.

Covers base, prepare, sweep, jit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anomalyncd.binarize import MEBin
from anomalyncd.binarize.mebin import Run, choose_run
from anomalyncd.binarize.sweep import count_regions
from anomalyncd.errors import DataError, SettingsError


def slow_masks(binarizer: MEBin, anomaly_map: np.ndarray) -> list[np.ndarray]:
    """The eroded mask at every threshold, by the pinned formulas and nothing else."""
    values = np.asarray(anomaly_map).astype(np.float32)
    values = np.where(np.isnan(values), np.float32(-np.inf), values)
    low, high = np.float32(binarizer.low_), np.float32(binarizer.high_)
    if low == high:  # only what is infinite is above an empty range
        v = np.where(values == np.inf, np.float32(np.inf), np.float32(0))
    else:
        v = np.where(values < low, np.float32(0), (np.maximum(values, low) - low) / (high - low) * np.float32(255))
    masks = []
    for j in range(binarizer.n_thresholds):
        mask = (v > np.float32(255 - j * 256 / binarizer.n_thresholds)).astype(np.uint8)
        if binarizer.erosion:
            mask = cv2.erode(mask, np.ones((binarizer.erosion, binarizer.erosion), np.uint8))
        masks.append(mask.astype(bool))
    return masks


def n_components(mask: np.ndarray) -> int:
    return int(cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)[0]) - 1


def assert_same_as_slow_way(binarizer: MEBin, anomaly_map: np.ndarray) -> None:
    result = binarizer.binarize(anomaly_map)
    masks = slow_masks(binarizer, anomaly_map)
    assert result.counts.tolist() == [n_components(mask) for mask in masks]
    assert result.mask.shape == np.shape(anomaly_map) and result.mask.dtype == bool
    assert n_components(result.mask) == result.n_regions
    run = choose_run(result.counts, binarizer.min_interval, binarizer.rule)
    if run is None:
        assert result.n_regions == 0 and not result.mask.any() and np.isnan(result.threshold)
    else:
        assert result.n_regions == run.count
        np.testing.assert_array_equal(result.mask, masks[run.last])


def blobs(seed: int, shape: tuple[int, int], n_blobs: int = 6) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[: shape[0], : shape[1]]
    noise = cv2.GaussianBlur(rng.standard_normal(shape), (0, 0), max(shape) / 64)
    total = 0.05 * noise / noise.std()
    for _ in range(n_blobs):
        cy, cx, width = (
            rng.uniform(0, shape[0]),
            rng.uniform(0, shape[1]),
            rng.uniform(0.02, 0.1) * max(shape),
        )
        total += rng.uniform(0.2, 1) * np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / (2 * width**2))
    return total


@pytest.mark.parametrize("shape", [(224, 224), (256, 200), (301, 512), (1024, 1024)])
@pytest.mark.parametrize("has_normal", [True, False])
def test_blob_like_maps(shape: tuple[int, int], has_normal: bool) -> None:
    maps = [blobs(seed, shape, n_blobs) for seed, n_blobs in enumerate((0, 3, 8))]
    binarizer = MEBin(has_normal=has_normal).fit(maps)
    for anomaly_map in maps:
        assert_same_as_slow_way(binarizer, anomaly_map)
    assert binarizer.binarize(maps[1]).n_regions > 0


@pytest.mark.parametrize("erosion", range(8))
@pytest.mark.parametrize("n_thresholds", [1, 7, 64, 100, 255])
def test_random_and_quantised_maps(erosion: int, n_thresholds: int) -> None:
    rng = np.random.default_rng(erosion)
    smooth = cv2.GaussianBlur(rng.random((61, 83)), (0, 0), 3)
    maps = [
        rng.random((64, 64)),
        smooth,
        np.round(smooth * 20),
        rng.integers(0, 256, (40, 40)).astype(np.uint8),
    ]
    for anomaly_map in maps:
        binarizer = MEBin(n_thresholds, 2, erosion, has_normal=False).fit([anomaly_map])
        assert_same_as_slow_way(binarizer, anomaly_map)


@pytest.mark.parametrize("width", [1, 2, 63, 64, 65, 128, 130])
@pytest.mark.parametrize("erosion", [0, 8, 9, 33, 300])
def test_widths_around_a_block_and_erosion_beyond_the_map(width: int, erosion: int) -> None:
    rng = np.random.default_rng(width)
    for anomaly_map in (rng.random((70, width)), rng.random((70, width)) + 20 * np.eye(70, width)):
        assert_same_as_slow_way(MEBin(erosion=erosion).fit([anomaly_map]), anomaly_map)


@pytest.mark.parametrize("kind", ["corridors", "spiral", "plateaus"])
def test_long_ways_to_a_birth(kind: str) -> None:
    """Regions that join late, rising ridges that wind through the whole map, and large equal areas."""
    ridge = np.zeros((65, 193))
    if kind == "corridors":
        ridge[::2] = 1
        ridge[1::4, -1] = ridge[3::4, 0] = 1
    elif kind == "spiral":
        for k in range(0, 32, 2):
            ridge[k, k : 193 - k] = ridge[64 - k, k : 193 - k] = 1
            ridge[k : 65 - k, k] = ridge[k : 65 - k, 192 - k] = 1
    else:
        ridge = np.kron(np.random.default_rng(0).integers(0, 4, (13, 33)), np.ones((5, 6)))[:65, :193]
    slopes = np.linspace(0.2, 1, ridge.size).reshape(ridge.shape)
    for anomaly_map in (ridge, ridge * slopes, ridge * slopes[::-1, ::-1], ridge * slopes[:, ::-1]):
        for erosion in (0, 2):
            assert_same_as_slow_way(MEBin(erosion=erosion).fit([anomaly_map]), anomaly_map)


@settings(max_examples=300, deadline=None)
@given(
    anomaly_map=st.one_of(
        hnp.arrays(np.int8, hnp.array_shapes(min_dims=2, max_dims=2, max_side=14), elements=st.integers(0, 5)),
        hnp.arrays(
            np.float32,
            hnp.array_shapes(min_dims=2, max_dims=2, max_side=10),
            elements=st.floats(-3, 3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf, 1.5, 2.5]),
        ),
    ),
    erosion=st.integers(0, 7),
    n_thresholds=st.sampled_from([1, 5, 64, 200]),
    rule=st.sampled_from(["longest_run", "most_frequent"]),
    high=st.sampled_from([2.5, 0.0]),
)
def test_small_wild_maps(anomaly_map: np.ndarray, erosion: int, n_thresholds: int, rule: str, high: float) -> None:
    binarizer = MEBin(n_thresholds=n_thresholds, erosion=erosion, rule=rule).set_state({"low": 0.0, "high": high})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert_same_as_slow_way(binarizer, anomaly_map)


def test_thresholds_are_strict_at_the_exact_values() -> None:
    # On a range of 0 … 255 the scaled value is the value: 255, 251 … exceed only lower thresholds.
    edges = (255 - 4 * np.arange(64)).astype(np.float32)
    values = np.concatenate([edges, np.nextafter(edges, np.float32(1e9)), np.nextafter(edges, np.float32(-1e9))])
    checkerboard = np.zeros((1, 2 * len(values)), np.float32)
    checkerboard[0, ::2] = values
    binarizer = MEBin(erosion=0).set_state({"low": 0.0, "high": 255.0})
    counts = binarizer.binarize(checkerboard).counts
    assert counts.tolist() == [int((values > edge).sum()) for edge in edges]


def test_range_is_taken_from_the_maxima() -> None:
    maps = [np.array([[0.0, 3.0]]), np.array([[-1.0, 9.0]]), np.array([[2.0, 5.0]])]
    assert MEBin().fit(iter(maps)).get_state() == {"low": 3.0, "high": 9.0}
    assert MEBin(has_normal=False).fit(maps).get_state() == {"low": -1.0, "high": 9.0}
    assert MEBin().fit(maps[:1]).get_state() == {"low": 0.0, "high": 3.0}
    alike = [np.array([[1.0, 3.0]]), np.array([[0.5, 3.0]])]
    assert MEBin().fit(alike).get_state() == {"low": 0.5, "high": 3.0}


def test_normalize_scales_the_range_and_clips() -> None:
    binarizer = MEBin().set_state({"low": 2.0, "high": 4.0})
    scaled = binarizer.normalize([[1, 2, 3, 4, 9]])
    assert scaled.dtype == np.float32 and scaled.tolist() == [[0, 0, 0.5, 1, 1]]


def test_new_maps_may_exceed_the_fitted_range() -> None:
    binarizer = MEBin(erosion=0).fit([np.zeros((8, 8)), np.eye(8)])
    hot = np.zeros((8, 8))
    hot[2:4, 2:4] = 50
    result = binarizer.binarize(hot)
    assert result.counts.tolist() == [1] * 64 and result.mask.sum() == 4
    assert result.threshold == pytest.approx(3 / 255)


def test_constant_maps_have_no_regions() -> None:
    binarizer = MEBin().fit([np.full((20, 20), 7.0)] * 3)
    result = binarizer.binarize(np.full((20, 20), 7.0))
    assert result.n_regions == 0 and not result.mask.any() and not result.counts.any()
    assert binarizer.normalize(np.full((2, 2), 9.0)).tolist() == [[0, 0], [0, 0]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the slow way
def test_range_beyond_float32_has_no_regions() -> None:
    anomaly_map = np.array([[-3e38, 3e38], [0, 1]])
    assert_same_as_slow_way(MEBin(erosion=0).fit([anomaly_map]), anomaly_map)


def test_one_pixel_and_other_memory_layouts() -> None:
    assert MEBin().fit([np.zeros((1, 1)), np.ones((1, 1))]).binarize(np.ones((1, 1))).n_regions == 1
    anomaly_map = blobs(5, (90, 120))
    binarizer = MEBin().fit([anomaly_map])
    expected = binarizer.binarize(anomaly_map)
    wide = np.repeat(anomaly_map, 2, axis=1)[:, ::2]
    for same in (np.asfortranarray(anomaly_map), wide, anomaly_map.astype(np.float32)):
        result = binarizer.binarize(same)
        assert result.counts.tolist() == expected.counts.tolist()
        np.testing.assert_array_equal(result.mask, expected.mask)


def test_nan_is_never_foreground_and_infinity_always() -> None:
    anomaly_map = blobs(1, (64, 64))
    binarizer = MEBin(erosion=0).fit([np.zeros((64, 64)), anomaly_map])
    anomaly_map[:10] = np.nan
    anomaly_map[10:20] = -np.inf
    anomaly_map[20:30, :30] = np.inf
    with pytest.warns(UserWarning, match="640 of 4096 pixels of the anomaly map are NaN"):
        result = binarizer.binarize(anomaly_map)
    assert not result.mask[:20].any() and result.mask[20:30, :30].all()
    with pytest.warns(UserWarning, match="NaN"):
        assert binarizer.binarize(np.full((9, 9), np.nan)).n_regions == 0
    with pytest.warns(UserWarning, match="NaN"):
        assert binarizer.normalize(np.array([[np.nan, np.inf, -np.inf, 1e300]])).tolist() == [[0, 1, 0, 1]]


@pytest.mark.parametrize("erosion", [0, 6])
def test_a_map_of_nothing_but_infinity(erosion: int) -> None:
    binarizer = MEBin(erosion=erosion).fit([np.zeros((9, 9)), np.eye(9)])
    everything, nothing = (binarizer.binarize(np.full((20, 20), value)) for value in (np.inf, -np.inf))
    assert everything.mask.all() and everything.n_regions == 1 and set(everything.counts.tolist()) == {1}
    assert not nothing.mask.any() and nothing.n_regions == 0
    constant = MEBin(erosion=erosion).fit([np.ones((9, 9))])  # an empty range: only infinity is above it
    assert constant.binarize(np.full((20, 20), np.inf)).mask.all()
    assert not constant.binarize(np.full((20, 20), 2.0)).mask.any()


def test_one_infinite_pixel_among_finite_ones() -> None:
    anomaly_map = np.zeros((20, 20))
    binarizer = MEBin(erosion=0).fit([anomaly_map, np.ones((20, 20))])
    anomaly_map[7, 9] = np.inf
    result = binarizer.binarize(anomaly_map)
    assert np.argwhere(result.mask).tolist() == [[7, 9]] and result.counts.tolist() == [1] * 64


def test_the_range_is_that_of_finite_pixels() -> None:
    maps = [np.array([[np.nan, 1.0, 2.0]]), np.array([[np.inf, 0.0, 5.0]]), np.full((1, 3), np.nan)]
    with pytest.warns(UserWarning, match="5 pixels of 3 of 3"):
        binarizer = MEBin().fit(maps)
    assert binarizer.get_state() == {"low": 2.0, "high": 5.0}
    with pytest.raises(DataError, match="finite"):
        MEBin().fit([np.full((2, 2), np.nan)])
    with pytest.raises(DataError, match="finite"):
        MEBin().fit([np.full((2, 2), np.inf)])


def test_a_map_that_reaches_infinity_is_not_the_one_with_the_lowest_maximum() -> None:
    many = [np.array([[0.0, 2.0 + n]]) for n in range(5)]
    with pytest.warns(UserWarning, match="1 pixels of 1 of 6"):
        binarizer = MEBin().fit([*many, np.array([[0.5, 1.0, np.inf]])])
    assert binarizer.get_state() == MEBin().fit(many).get_state() == {"low": 2.0, "high": 6.0}
    with pytest.warns(UserWarning, match="6 of 6"):  # where all do, the range is that of all finite values
        binarizer = MEBin().fit([np.append(values, [[np.inf]], axis=1) for values in [*many, np.array([[0.5, 1.0]])]])
    assert binarizer.get_state() == {"low": 0.0, "high": 6.0}
    with pytest.warns(UserWarning, match="1 of 6"):  # −infinity is merely low
        binarizer = MEBin().fit([*many, np.array([[-np.inf, 1.0]])])
    assert binarizer.get_state() == {"low": 1.0, "high": 6.0}


@pytest.mark.parametrize("bad", [np.zeros((0, 4)), np.zeros(4), np.zeros((2, 2, 3)), np.array([["a"]])])
def test_bad_maps_are_named(bad: np.ndarray) -> None:
    with pytest.raises(DataError, match="anomaly map 1"):
        MEBin().fit([np.ones((2, 2)), bad])
    with pytest.raises(DataError, match="anomaly map"):
        MEBin().fit([np.ones((2, 2))]).binarize(bad)


def test_misuse() -> None:
    with pytest.raises(DataError, match="fit"):
        MEBin().binarize(np.ones((2, 2)))
    with pytest.raises(DataError, match="at least one"):
        MEBin().fit([])
    for bad in (
        {"n_thresholds": 0},
        {"n_thresholds": 256},
        {"min_interval": 0},
        {"erosion": -1},
        {"rule": "best"},
    ):
        with pytest.raises(SettingsError, match=next(iter(bad))):
            MEBin(**bad)


@pytest.mark.parametrize(
    ("counts", "longest_run", "most_frequent"),
    [
        ([0, 0, 0, 0], None, None),
        ([1, 1, 1], None, None),  # shorter than four
        ([0, 1, 1, 1, 1], Run(1, 1, 4), Run(1, 1, 4)),
        ([2, 2, 2, 2, 2, 1, 1, 1, 1, 0, 1, 1, 1, 1], Run(2, 0, 4), Run(1, 10, 13)),
        ([3, 1, 3, 1, 3, 3, 2, 2, 2, 2, 3], Run(2, 6, 9), None),  # 3 is frequent, but never stable
        ([2, 2, 2, 2, 1, 1, 1, 1], Run(2, 0, 3), Run(1, 4, 7)),  # equal runs; equal frequencies
        ([1, 1, 1, 1, 0, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1], Run(1, 10, 14), Run(1, 10, 14)),  # 1 was stable first
    ],
)
def test_rules(counts: list[int], longest_run: Run | None, most_frequent: Run | None) -> None:
    assert choose_run(counts, 4) == longest_run
    assert choose_run(counts, 4, "most_frequent") == most_frequent


def test_state_survives_storing() -> None:
    anomaly_map = blobs(3, (80, 80))
    fitted = MEBin(erosion=2).fit([anomaly_map, anomaly_map * 0.3])
    again = MEBin(erosion=2).set_state(fitted.get_state())
    np.testing.assert_array_equal(fitted.binarize(anomaly_map).counts, again.binarize(anomaly_map).counts)


def test_works_where_nothing_can_be_cached(tmp_path: Path) -> None:
    script = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"  # as on a machine without any writable folder
        "import numba\n"
        "try:\n"
        "    numba.njit(lambda x: x, cache=True)\n"
        "except RuntimeError:\n"
        "    pass\n"
        "else:\n"
        "    raise SystemExit('numba caches all the same: this test tests nothing')\n"
        "from anomalyncd.binarize.jit import jit\n"
        "assert jit(lambda x: x + 1)(1) == 2\n"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-c", script], check=True, cwd=tmp_path, env=environment)


@pytest.mark.parametrize("n_thresholds", [3, 48, 64, 100])
def test_levels_are_right_on_both_sides_of_every_threshold(n_thresholds: int) -> None:
    low, high = np.float32(0.1), np.float32(0.7)
    thresholds = (255 - np.arange(n_thresholds) * 256 / n_thresholds).astype(np.float32)
    near = low + (high - low) * thresholds / np.float32(255)
    values = np.concatenate([np.nextafter(near, np.float32(s) * 9) for s in (-1, 1)] + [near])[None].astype(np.float32)
    scaled = (np.maximum(values, low) - low) / (high - low) * np.float32(255)
    wanted = (scaled[..., None] > thresholds).sum(axis=-1)
    assert (count_regions(values, float(low), float(high), thresholds, 0)[1] == wanted).all()


@pytest.mark.parametrize(
    "settings", [{"rule": np.array([["a", "b"]])}, {"has_normal": np.zeros((2, 2))}, {"has_normal": "yes"}]
)
def test_settings_of_a_wrong_kind_are_told(settings: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="must be"):
        MEBin(**settings)
