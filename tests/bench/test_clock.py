"""How long the rest will take: costs that are known beforehand, and what was measured in their place."""

from __future__ import annotations

from pathlib import Path

import pytest

from anomalyncd.bench.clock import Clock, Part, duration

MAPS, MORE_MAPS, LEARNING = Part("maps", "m1", 100), Part("maps", "m2", 50), Part("learning", "l", 10)


def test_shared_parts_count_once_and_for_the_first_stage(tmp_path: Path):
    clock = Clock(tmp_path, unit=2.0)
    clock.plan("first", {"a": [MAPS]})
    clock.plan("second", {"a": [MAPS], "b": [MAPS, LEARNING]})
    assert (clock.expected("first"), clock.expected("second"), clock.expected()) == (200.0, 20.0, 220.0)


def test_what_was_measured_takes_the_place_of_what_was_foretold(tmp_path: Path):
    clock = Clock(tmp_path, unit=2.0)
    clock.plan("first", {"a": [MAPS], "b": [MORE_MAPS], "c": [LEARNING]})
    clock.measured("a", 300.0)
    assert clock.expected() == pytest.approx(50 * 3 + 10 * 3)  # others of its kind, and what is unknown by all
    clock.measured("c", 10.0)
    assert clock.expected() == pytest.approx(150) and clock.left() == "about 2 min left"
    clock.failed("b")
    assert clock.expected() == 0 and clock.took("first") == 310.0


def test_another_call_knows_what_the_first_one_measured(tmp_path: Path):
    first = Clock(tmp_path, unit=2.0, network="tiny")
    first.plan("first", {"a": [MAPS]})
    first.measured("a", 300.0)
    again = Clock(tmp_path, unit=2.0, network="tiny")
    again.plan("second", {"b": [MAPS, MORE_MAPS]})
    assert again.expected() == pytest.approx(150) and again.took("first") == 300.0
    other = Clock(tmp_path, unit=2.0, network="large")
    other.plan("second", {"b": [MAPS, MORE_MAPS]})
    assert other.expected() == 300.0


def test_a_damaged_file_is_no_trouble(tmp_path: Path):
    (tmp_path / "costs.json").write_text('{"network": ""')
    assert Clock(tmp_path, unit=1.0).expected() == 0


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "1 s"), (89, "89 s"), (90, "2 min"), (5340, "89 min"), (5400, "1 h 30 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text
