"""The threshold between false alarms and defects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.assign.false_alarms import _otsu_split, false_alarm_threshold

fewer = settings(max_examples=30, deadline=None)  # each fits nine mixtures
scores = st.lists(st.floats(0, 1, allow_subnormal=False), max_size=40)


def bell(x: np.ndarray, mean: float, spread: float) -> np.ndarray:
    return np.exp(-((x - mean) ** 2) / (2 * spread**2)) / spread


@pytest.mark.parametrize("share", [0.15, 0.5, 0.85])
@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_is_where_two_bells_cross(share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n_normal = round(400 * share)
    values = np.concatenate([rng.normal(0.2, 0.03, n_normal), rng.normal(0.6, 0.12, 400 - n_normal)])
    grid = np.linspace(0.2, 0.6, 4001)
    crossing = grid[np.argmax((1 - share) * bell(grid, 0.6, 0.12) > share * bell(grid, 0.2, 0.03))]
    assert false_alarm_threshold(values) == pytest.approx(crossing, abs=0.03)


def test_a_narrow_group_of_few_normal_images_is_found_beside_wide_defects() -> None:
    rng = np.random.default_rng(0)
    normal, defective = rng.uniform(0, 0.06, 24), rng.uniform(0.15, 1, 96)
    assert normal.max() < false_alarm_threshold([*normal, *defective]) < 0.2


@pytest.mark.parametrize(
    "values",
    [[], [0.5], [0.1, 0.9], [0.1, 0.1, 0.9], [0.1] * 4 + [0.9] * 3, [0.3] * 20, [np.nan] * 9, [0.0] * 8],
    ids=["none", "one", "two", "three", "too few", "equal", "nan", "zero"],
)
def test_no_threshold_without_two_groups(values: list[float]) -> None:
    assert false_alarm_threshold(values) == 0.0


def test_a_bell_curve_is_one_group() -> None:
    rng = np.random.default_rng(0)
    assert false_alarm_threshold(np.clip(rng.normal(0.5, 0.1, 500), 0, 1)) == 0.0


def test_what_is_not_finite_does_not_count() -> None:
    values = [0.1, 0.12, 0.11, 0.13, 0.1, 0.9, 0.85, 0.88, 0.8]
    assert false_alarm_threshold(values) > 0
    assert false_alarm_threshold([*values, np.nan, np.inf, -np.inf]) == false_alarm_threshold(values)


def test_bell_curves_rarely_look_like_two_groups() -> None:
    rng = np.random.default_rng(1)
    for size in (10, 50, 200):
        gated = [false_alarm_threshold(rng.normal(0.5, 0.1, size)) > 0 for _ in range(40)]
        assert np.mean(gated) <= 0.1


@fewer
@given(scores, st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert false_alarm_threshold(shuffled) == false_alarm_threshold(values)


@fewer
@given(scores, st.integers(-8, 8))
def test_scales_with_the_scores(values: list[float], power: int) -> None:
    factor = 2.0**power  # exact in floating point
    assert false_alarm_threshold(np.array(values) * factor) == false_alarm_threshold(values) * factor


@fewer
@given(st.lists(st.floats(), max_size=30))
def test_never_nan_and_never_a_warning(values: list[float]) -> None:
    assert np.isfinite(false_alarm_threshold(values))


@pytest.mark.parametrize("seed", range(3))
def test_a_tail_of_extreme_images_does_not_make_most_defects_normal(seed):
    """The two curves alone part 12 extreme images from all others, and lose 9 of 10 defects."""
    rng = np.random.default_rng(seed)
    normal = rng.normal(0.4, 0.06, 100)
    defective = np.concatenate([rng.normal(0.55, 0.08, 100), rng.normal(0.85, 0.03, 12)])
    threshold = false_alarm_threshold([*normal, *defective])
    assert (defective < threshold).mean() < 0.5 and (normal > threshold).mean() < 0.1


@pytest.mark.parametrize("seed", range(5))
def test_otsus_split_against_every_cut(seed):
    values = np.sort(np.random.default_rng(seed).random(30))
    slow = min(
        (np.var(left) * len(left) + np.var(right) * len(right), (left[-1] + right[0]) / 2)
        for cut in range(1, 30)
        for left, right in [np.split(values, [cut])]
    )[1]
    split, explained = _otsu_split(values)
    assert split == pytest.approx(slow)
    below, above = values[values < split], values[values > split]
    within = (below.var() * len(below) + above.var() * len(above)) / len(values)
    assert explained == pytest.approx(1 - within / values.var())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("n_normal", "n_defects"), [(198, 2), (500, 5), (190, 10)])
def test_rare_defects_do_not_cut_the_normal_images_in_half(seed, n_normal, n_defects):
    rng = np.random.default_rng(seed)
    normal, defective = rng.normal(0.2, 0.05, n_normal), rng.uniform(0.5, 0.7, n_defects)
    threshold = false_alarm_threshold([*normal, *defective])
    assert (normal > threshold).sum() <= 3 and threshold < defective.min()
