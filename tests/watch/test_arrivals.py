"""Which files have come whole."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

from anomalyncd.watch.arrivals import Arrivals, marks_of, read_settled


def test_a_file_is_ready_when_it_has_not_changed_for_long_enough(tmp_path: Path) -> None:
    now = 100.0
    arrivals = Arrivals(tmp_path, {}, settle=2.0, clock=lambda: now)
    (tmp_path / "a.png").write_bytes(b"1")
    (tmp_path / ".hidden.png").write_bytes(b"1")
    (tmp_path / "a.txt").write_bytes(b"1")
    assert arrivals.look() == ([], [])
    now = 101.5
    (tmp_path / "a.png").write_bytes(b"12")
    assert arrivals.look() == ([], [])
    now = 103.4
    assert arrivals.look() == ([], [])
    now = 103.6
    ((one,), _) = arrivals.look()
    assert (one.name, one.n_bytes) == ("a.png", 2) and one.seconds > 2
    arrivals.done([(one.name, one.marks)])
    assert arrivals.look() == ([], []) and not arrivals.waiting
    os.utime(tmp_path / "a.png", ns=(5, 5))
    arrivals.look()
    assert list(arrivals.waiting) == ["a.png"]
    (tmp_path / "a.png").unlink()
    assert arrivals.look() == ([], ["a.png"]) and not arrivals.known


def test_the_oldest_comes_first_and_what_could_not_be_taken_is_tried_less_and_less_often(tmp_path: Path) -> None:
    now = 0.0
    arrivals = Arrivals(tmp_path, {}, settle=0.0, clock=lambda: now)
    for name, when in (("b.png", 1), ("a.png", 2), ("c.png", 0)):
        (tmp_path / name).write_bytes(b"x")
        os.utime(tmp_path / name, (when, when))
    assert [one.name for one in arrivals.look()[0]] == ["c.png", "b.png", "a.png"]
    tries = []
    for _ in range(200):
        now += 0.1
        ready = [one.name for one in arrivals.look()[0]]
        if "b.png" in ready:
            tries.append(now)
            arrivals.later(["b.png"])
    rests = [round(after - before, 1) for before, after in pairwise(tries)]
    assert rests[:3] == [0.5, 1.0, 2.0] and max(rests) <= 5.1
    assert arrivals.stuck(10) == ["b.png"]


def test_a_file_is_read_only_as_it_was_marked(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(b"old")
    marks = marks_of(path)
    assert read_settled(path, marks) == b"old"
    path.write_bytes(b"new")
    os.utime(path, ns=(1, 1))
    assert read_settled(path, marks) is None
    path.unlink()
    assert read_settled(path, marks) is None and marks_of(path) is None
    path.write_bytes(b"")
    assert read_settled(path, marks_of(path)) == b""
    path.unlink()
    path.mkdir()
    assert marks_of(path) is None


def test_names_that_are_no_text_are_left_alone_and_kept_in_mind(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.png")).write_bytes(b"x")
    except OSError:  # a file system that takes text only
        return
    arrivals = Arrivals(tmp_path, {}, settle=0.0)
    assert arrivals.look() == ([], []) and len(arrivals.nameless) == 1
