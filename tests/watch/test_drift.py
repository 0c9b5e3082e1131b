"""Drift: the promised rate of false alarms, and what must be seen."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import mannwhitneyu

from anomalyncd.watch.drift import BLOCK, RATE, REFERENCE, STREAMS, WINDOW, DriftMonitor, rank_test, wider

FIRST, LATEST = BLOCK * REFERENCE, BLOCK * WINDOW
Figures = st.lists(st.floats(-1e6, 1e6).map(lambda x: round(x, 1)), min_size=2, max_size=40)


@settings(max_examples=50, deadline=None)
@given(Figures, Figures)
def test_the_rank_test_is_that_of_scipy(first: list[float], second: list[float]) -> None:
    one, other = np.array(first), np.array(second)
    expected = 1.0 if len({*first, *second}) == 1 else mannwhitneyu(one, other, method="asymptotic").pvalue
    assert np.isclose(rank_test(one, other), expected)


def test_a_stable_line_is_reported_as_often_as_promised() -> None:
    rng = np.random.default_rng(0)
    reported, windows = 0, 0
    for _ in range(100):
        blocks = np.exp(rng.normal(size=(len(STREAMS), REFERENCE + 20 * WINDOW)))
        for start in range(REFERENCE, blocks.shape[1], WINDOW):
            chances = [rank_test(stream[:REFERENCE], stream[start : start + WINDOW]) for stream in blocks]
            reported += min(chances) < RATE / len(STREAMS)
            windows += 1
    assert RATE / 2 < reported / windows < 2 * RATE


@pytest.mark.parametrize(("alike", "streams"), [(0.0, 1), (0.5, 2), (0.8, 1), (0.8, 4)])
def test_it_is_as_often_with_few_streams_and_where_images_are_like_the_one_before(alike: float, streams: int) -> None:
    rng, reported, windows = np.random.default_rng(1), 0, 0
    for _ in range(60):
        monitor = DriftMonitor()
        noise = rng.normal(size=(FIRST + 20 * LATEST, streams))
        for number, values in enumerate(lfilter([1], [1, -alike], noise, axis=0).tolist(), start=1):
            found = monitor.add(dict(zip(STREAMS, values, strict=False)))
            windows += number > FIRST and not number % LATEST
            reported += bool(found)
    assert RATE / 2 <= reported / windows <= 2 * RATE


def test_windows_are_what_the_test_sees() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(50, 3, FIRST + 3 * LATEST)
    values[FIRST + LATEST :] += 3
    monitor = DriftMonitor()
    found = [(k, shift) for k, value in enumerate(values, 1) for shift in monitor.add({"brightness": value})]
    assert [k for k, _ in found] == [FIRST + 2 * LATEST, FIRST + 3 * LATEST]
    blocks = values.reshape(-1, BLOCK).mean(axis=1)
    second = blocks[REFERENCE + WINDOW : REFERENCE + 2 * WINDOW]
    reference = blocks[:REFERENCE]
    assert np.isclose(found[0][1].chance, rank_test(reference, second, wider=wider(reference)))
    assert monitor.shifted.keys() == {"brightness"} and "went up, from 49.73 to 53.18" in found[0][1].words


def test_light_that_grows_by_a_tenth_is_seen_within_a_third_of_it() -> None:
    rng, monitor = np.random.default_rng(5), DriftMonitor()
    for _ in range(FIRST + 2 * LATEST):
        assert not monitor.add({"brightness": 120 * rng.normal(1, 0.04)})
    seen = next(k for k in range(2000) if monitor.add({"brightness": 120 * rng.normal(1, 0.04) * (1 + 0.1 * k / 2000)}))
    assert seen < 700


@pytest.mark.parametrize("noise", [0.005, 0.02, 0.06])
def test_light_that_grows_from_the_first_image_on_is_seen(noise: float) -> None:
    rng, monitor = np.random.default_rng(6), DriftMonitor()
    light = (120 * rng.normal(1, noise) * (1 + 0.1 * min(1, k / 2000)) for k in range(2000))
    assert any(monitor.add({"brightness": value}) for value in light)


def test_a_stream_that_returns_is_no_more_reported_and_gaps_do_not_count() -> None:
    rng, monitor = np.random.default_rng(3), DriftMonitor()
    levels = [1.0] * FIRST + [2.0] * LATEST + [1.0] * LATEST
    for level in levels:
        monitor.add({"score": level + rng.normal(0, 0.1)})
        monitor.add({"score": None, "contrast": float("nan")})
    assert monitor.shifted == {}


def test_a_monitor_goes_on_where_it_was() -> None:
    rng = np.random.default_rng(4)
    values = np.concatenate([rng.normal(0, 1, FIRST + 57), rng.normal(2, 1, 2 * LATEST)])
    whole, broken = DriftMonitor(), DriftMonitor()
    for k, value in enumerate(values):
        if not k % 37:
            broken = DriftMonitor.restore(json.dumps(broken.state()))
        assert whole.add({"foreign": value}) == broken.add({"foreign": value})
    assert whole.shifted == broken.shifted != {}
