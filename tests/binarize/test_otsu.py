"""Otsu, fixed thresholds, and the choice of a binarizer by name.

Covers fixed.
"""

from __future__ import annotations

from fractions import Fraction

import cv2
import numpy as np
import pytest

from anomalyncd.binarize import Binarizer, FixedThreshold, MEBin, Otsu
from anomalyncd.binarize.otsu import otsu_split
from anomalyncd.binarize.prepare import binarizer_for
from anomalyncd.config import make_config
from anomalyncd.errors import DataError, SettingsError


@pytest.mark.parametrize("seed", range(5))
def test_otsu_agrees_with_opencv(seed: int) -> None:
    rng = np.random.default_rng(seed)
    grey = np.where(rng.random((50, 60)) < 0.2, rng.normal(180, 20, (50, 60)), rng.normal(70, 25, (50, 60)))
    grey = np.clip(grey, 0, 255).astype(np.uint8)
    threshold, mask = cv2.threshold(grey, 0, 1, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    # Grey value g lies in the middle of bin g of the range 0 … 256.
    binarizer = Otsu().set_state({"low": 0.0, "high": 256.0})
    result = binarizer.binarize(grey + 0.5)
    np.testing.assert_array_equal(result.mask, mask.astype(bool))
    assert result.threshold == threshold + 1
    assert result.counts.tolist() == [result.n_regions]
    assert result.n_regions == cv2.connectedComponents(mask)[0] - 1


@pytest.mark.parametrize("surplus", [0, 6, 18, 36])
def test_splits_that_differ_by_no_more_than_rounding_are_one(surplus: int) -> None:
    """The variance of a split, in whole numbers: (sum below · all − number below · sum of all)² / (below · above)."""
    count = 4 * 10**12
    histogram = [count, count, count + surplus]
    everything, moment = sum(histogram), sum(place * n for place, n in enumerate(histogram))
    first, second = (
        Fraction((below_moment * everything - below * moment) ** 2, below * (everything - below))
        for below, below_moment in ((count, 0), (2 * count, count))
    )
    lost = float(1 - first / second)
    assert lost == 0 or not 9e-13 < lost < 1.1e-12, "too near to the limit of a part in 10¹² to tell"
    assert otsu_split(np.array(histogram)) == (0 if lost < 1e-12 else 1)


def test_otsu_uses_the_range_of_all_maps() -> None:
    maps = [np.array([[0.0, 1.0, 100.0]]), np.array([[-50.0, 50.0]])]
    assert Otsu().fit(maps).get_state() == {"low": -50.0, "high": 100.0}


def test_constant_map_has_no_region() -> None:
    for binarizer in (Otsu(), FixedThreshold()):
        result = binarizer.fit([np.ones((4, 4))]).binarize(np.ones((4, 4)))
        assert result.n_regions == 0 and not result.mask.any() and np.isnan(result.threshold)
    assert Otsu().fit([np.eye(4)]).binarize(np.full((4, 4), 0.3)).n_regions == 0


def test_fixed_threshold_in_the_maps_units() -> None:
    anomaly_map = np.full((20, 20), 10.0)
    anomaly_map[2:10, 2:10] = 30
    anomaly_map[15, 15] = 30
    anomaly_map[0, 0] = 25  # exactly at the threshold: not above
    plain = FixedThreshold(0.75).fit([anomaly_map]).binarize(anomaly_map)
    assert (plain.n_regions, plain.threshold, plain.mask.sum()) == (2, 25.0, 65)


def test_nan_is_background_and_infinity_foreground() -> None:
    anomaly_map = np.array([[0.0, 1.0, np.inf, np.nan, -np.inf]])
    for binarizer in (Otsu(), FixedThreshold()):
        with pytest.warns(UserWarning, match="3 pixels"):
            binarizer.fit([anomaly_map])
        with pytest.warns(UserWarning, match="1 of 5"):
            assert binarizer.binarize(anomaly_map).mask.tolist() == [[False, True, True, False, False]]
        assert not binarizer.binarize(np.full((3, 3), -np.inf)).mask.any()
        assert binarizer.normalize(np.full((3, 3), np.inf)).all()
    one = np.zeros((9, 9))
    one[4, 4] = np.inf
    for binarizer in (Otsu(), FixedThreshold()):
        binarizer.fit([np.eye(9)])
        assert np.argwhere(binarizer.binarize(one).mask).tolist() == [[4, 4]]


def test_the_configured_binarizer_has_its_settings() -> None:
    def configured(**settings: object) -> Binarizer:
        return binarizer_for(make_config({"binarize": settings}).binarize, has_normal=False)

    mebin = configured(n_thresholds=32, min_interval=3, erosion=2, rule="most_frequent")
    assert isinstance(mebin, MEBin) and vars(mebin) == vars(MEBin(32, 3, 2, rule="most_frequent", has_normal=False))
    assert isinstance(configured(method="otsu"), Otsu)
    fixed = configured(method="fixed", fixed_threshold=0.7)
    assert isinstance(fixed, FixedThreshold) and fixed.threshold == 0.7
    with pytest.raises(SettingsError, match="'mebin', 'otsu' or 'fixed'"):
        configured(method="magic")
    with pytest.raises(SettingsError, match="threshold"):
        FixedThreshold(threshold=1.5)


def test_holes_have_no_say_in_otsus_threshold() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(0.5, 0.02, (32, 64)).astype(np.float32)
    half[8:16, 8:16] = 0.7
    holes = np.concatenate([half, np.full_like(half, np.nan)])
    binarizer = Otsu().set_state({"low": 0.0, "high": 1.0})
    expected = binarizer.binarize(half)
    with pytest.warns(UserWarning, match="count as not anomalous"):
        found = binarizer.binarize(holes)
    assert found.threshold == expected.threshold and not found.mask[32:].any()
    np.testing.assert_array_equal(found.mask[:32], expected.mask)
    with pytest.warns(UserWarning, match="count as not anomalous"):
        assert not binarizer.binarize(np.full((4, 4), np.nan)).mask.any()


@pytest.mark.parametrize("kind", [FixedThreshold, Otsu, MEBin])
def test_a_range_comes_first(kind: type) -> None:
    with pytest.raises(DataError, match=r"Call fit\(maps\) first"):
        kind().binarize(np.eye(8))
