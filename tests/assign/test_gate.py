"""The threshold between false alarms and defects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.assign.gate import false_alarm_threshold

scores = st.lists(st.floats(0, 1, allow_subnormal=False), max_size=40)


def split_by_hand(values: list[float]) -> tuple[float, float]:
    """Best share of the variance that any split into two explains, and the middle of that split: the slow obvious way."""
    ordered = sorted(values)
    best, middle = 0.0, 0.0
    total = np.sum((np.array(ordered) - np.mean(ordered)) ** 2)
    for cut in range(1, len(ordered)):
        low, high = np.array(ordered[:cut]), np.array(ordered[cut:])
        within = np.sum((low - low.mean()) ** 2) + np.sum((high - high.mean()) ** 2)
        if 1 - within / total > best:
            best, middle = 1 - within / total, (low[-1] + high[0]) / 2
    return best, middle


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([0.1, 0.12, 0.11, 0.9, 0.85], 0.12, 0.85),
        ([0, 0, 0, 0, 1], 0, 1),
        ([0.2, 0.2, 0.8, 0.8, 0.8], 0.2, 0.8),
    ],
)
def test_two_groups_are_parted_in_the_middle_of_the_gap(values: list[float], low: float, high: float) -> None:
    assert false_alarm_threshold(values) == pytest.approx((low + high) / 2)


@pytest.mark.parametrize(
    "values",
    [[], [0.5], [0.1, 0.9], [0.1, 0.1, 0.9], [0.3] * 20, np.linspace(0, 1, 50), [np.nan] * 6, [0.0] * 8],
    ids=["none", "one", "two", "three", "equal", "flat", "nan", "zero"],
)
def test_no_threshold_without_two_groups(values: list[float]) -> None:
    assert false_alarm_threshold(values) == 0.0


def test_a_bell_curve_is_one_group() -> None:
    rng = np.random.default_rng(0)
    assert false_alarm_threshold(np.clip(rng.normal(0.5, 0.1, 500), 0, 1)) == 0.0


def test_what_is_not_finite_does_not_count() -> None:
    values = [0.1, 0.12, 0.11, 0.9, 0.85]
    assert false_alarm_threshold([*values, np.nan, np.inf, -np.inf]) == false_alarm_threshold(values)


@given(scores)
def test_agrees_with_the_slow_way(values: list[float]) -> None:
    found = false_alarm_threshold(values)
    if len(values) < 4 or len(set(values)) == 1 or max(values) - min(values) < 1e-6:
        return
    explained, middle = split_by_hand(values)
    least = 0.75 + 0.5 / len(values) ** 0.5
    if explained > least + 1e-9:
        assert found == pytest.approx(middle)
    elif explained < least - 1e-9:
        assert found == 0.0


def test_flat_scores_rarely_look_like_two_groups() -> None:
    rng = np.random.default_rng(1)
    for size in (10, 50, 200):
        gated = [false_alarm_threshold(rng.random(size)) > 0 for _ in range(200)]
        assert np.mean(gated) <= 0.1


@given(scores, st.randoms(use_true_random=False))
def test_order_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert false_alarm_threshold(shuffled) == false_alarm_threshold(values)


@given(scores, st.integers(-8, 8))
def test_scales_with_the_scores(values: list[float], power: int) -> None:
    factor = 2.0**power  # exact in floating point
    assert false_alarm_threshold(np.array(values) * factor) == false_alarm_threshold(values) * factor


@given(st.lists(st.floats(), max_size=30))
def test_never_nan_and_never_a_warning(values: list[float]) -> None:
    assert np.isfinite(false_alarm_threshold(values))
