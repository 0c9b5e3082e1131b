from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.errors import DataError, SettingsError
from anomalyncd.metrics import expected_calibration_error

answers = st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=40)


def slow_ece(confidence, correct, n_bins):
    """Bin by bin, as the formula reads."""
    total = 0.0
    for k in range(n_bins):
        inside = [
            (c, right)
            for c, right in zip(confidence, correct, strict=True)
            if k <= c * n_bins < k + 1 or (k == n_bins - 1 and c == 1)
        ]
        if inside:
            mean = sum(c for c, _ in inside) / len(inside)
            share = sum(right for _, right in inside) / len(inside)
            total += len(inside) / len(confidence) * abs(mean - share)
    return total


@given(answers, st.integers(1, 20))
@settings(max_examples=150, deadline=None)
def test_equals_the_slow_implementation_and_stays_within_0_and_1(rows, n_bins):
    confidence, correct = map(list, zip(*rows, strict=True))
    found = expected_calibration_error(confidence, correct, n_bins)
    assert found == pytest.approx(slow_ece(confidence, correct, n_bins), abs=1e-12)
    assert 0 <= found <= 1


@given(answers, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_order_does_not_matter(rows, random):
    shuffled = random.sample(rows, len(rows))
    one, other = (expected_calibration_error(*zip(*each, strict=True)) for each in (rows, shuffled))
    assert one == pytest.approx(other, abs=1e-12)


@given(st.lists(st.tuples(st.integers(0, 10), st.integers(1, 4)), min_size=1, max_size=8))
def test_perfect_where_each_claim_is_as_often_right_as_it_says(claims):
    """Claims k / 10, ten times n answers each, of which k times n are right."""
    confidence = np.concatenate([np.full(10 * n, k / 10) for k, n in claims])
    correct = np.concatenate([np.arange(10 * n) < k * n for k, n in claims])
    assert expected_calibration_error(confidence, correct) == pytest.approx(0, abs=1e-12)


def test_the_ends():
    assert expected_calibration_error([1, 1], [False, False]) == 1
    assert expected_calibration_error([0, 0], [True, True]) == 1
    assert expected_calibration_error([1, 0], [True, False]) == 0
    assert expected_calibration_error([], []) is None


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([0.5], [True, False], "one probability"),
        ([[0.5]], [[True]], "one probability"),
        ([0.5, -0.1], [True, True], "position 1 is -0.1"),
        ([float("nan")], [True], "position 0 is nan"),
    ],
)
def test_bad_input_is_a_clear_error(confidence, correct, message):
    with pytest.raises(DataError, match=message):
        expected_calibration_error(confidence, correct)


def test_bad_setting():
    with pytest.raises(SettingsError, match="n_bins must be at least 1"):
        expected_calibration_error([0.5], [True], 0)
