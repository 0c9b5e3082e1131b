"""Work of people in words, and its copies, without a run that was learned."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from anomalyncd.progress import Advance, Silent
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.log import RunLog
from anomalyncd.run.work import copy_work, work_of_people


def test_names_are_shown_up_to_three_and_default_ones_are_none(tmp_path: Path) -> None:
    def words(names: Any, told: str = "", *, corrected: bool = False) -> str:
        corrections, known = tmp_path / "corrections.csv", tmp_path / "known.csv"
        corrections.unlink(missing_ok=True)
        if corrected:
            corrections.touch()
        known.write_text(told)
        return work_of_people(names, corrections, tmp_path / "none.sqlite", "", finished=True, told=known)

    assert words({"0": "normal", "1": "class 1", "2": ""}) == words(None) == words([1]) == ""
    assert words({"1": "a", "2": "b", "3": "c"}) == "names of classes (a, b, c)"
    assert words({"1": "a", "2": "b", "3": "c", "4": "d"}) == "names of classes (a, b, c, …)"
    assert words({"one": "a"}) == "names of classes (a)"
    told = "image,region,label,class_name,looks_like\nx,0,1,a,\n"
    assert words({"1": "a", "2": "b"}, told) == "names of classes (b)" and words({"1": "a"}, told) == ""
    assert words({"1": "a"}, corrected=True) == "names of classes (a), classes that were corrected or updated"


def actions(log: Path, rows: list[tuple[int, str, str]], labels: bytes) -> None:
    log.unlink(missing_ok=True)
    with closing(sqlite3.connect(log)) as database, database:
        database.execute("CREATE TABLE actions (id INTEGER, kind TEXT, base TEXT)")
        database.execute("CREATE TABLE bases (digest TEXT, labels BLOB)")
        database.executemany("INSERT INTO actions VALUES (?, ?, ?)", rows)
        database.execute("INSERT INTO bases VALUES ('d', ?)", (labels,))


def test_actions_that_wait_are_counted(tmp_path: Path) -> None:
    log, on = tmp_path / "review.sqlite", zlib.compress(b'{"learned": "k"}')

    def words(
        rows: list[tuple[int, str, str]], learned: str = "k", *, finished: bool = True, labels: bytes = on
    ) -> str:
        actions(log, rows, labels)
        nothing = tmp_path / "nothing"
        return work_of_people({}, nothing, log, learned, finished=finished, told=nothing)

    one = [(1, "name", "d")]
    assert words(one) == words(one, "") == "1 correction not applied yet"
    assert words(one, "other") == words(one, finished=False) == words([]) == ""
    assert words([(1, "name", "d"), (2, "move", "d"), (3, "applied", "d")]) == ""
    assert words([(1, "name", "d"), (2, "applied", "d"), (3, "merge", "d"), (4, "split", "d")]).startswith(
        "2 corrections"
    )
    assert words([(1, "name", "d"), (2, "undo", "d")]) == "" and words([(1, "name", "x")]) == ""
    assert words([(1, "name", "d"), (2, "undo", "d"), (3, "redo", "d")]).startswith("1 correction ")
    assert words(one, labels=b"nonsense").startswith("a review that cannot be read")
    assert words(one, labels=zlib.compress(b"[]")).startswith("a review that cannot be read")


def test_copies_of_work_are_numbered(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").writing() as run:
        run.write_text("a.txt", "1")
        actions(run.path / "review.sqlite", [(1, "name", "d")], b"x")
        (run.path / "kept" / "7").mkdir(parents=True)
        (run.path / "kept" / "notes").mkdir()
        kept = copy_work(run, ["a.txt", "gone.txt"], "review.sqlite")
        assert kept == run.path / "kept" / "8" and sorted(path.name for path in kept.iterdir()) == [
            "a.txt",
            "review.sqlite",
        ]
        with closing(sqlite3.connect(kept / "review.sqlite")) as database:
            assert database.execute("SELECT kind FROM actions").fetchall() == [("name",)]
        (run.path / "review.sqlite").write_bytes(b"damaged" * 200)
        again = copy_work(run, ["a.txt"], "review.sqlite")
        assert again.name == "9" and (again / "review.sqlite").read_bytes() == b"damaged" * 200


def test_the_log_hands_on_what_is_shown(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Shown(Silent):
        @contextmanager
        def task(self, name: str, total: int) -> Iterator[Advance]:
            seen.append((name, total))
            yield lambda steps=1, note="": seen.append(steps)

        def say(self, text: str) -> None:
            seen.append(text)

        def warn(self, text: str) -> None:
            seen.append(f"! {text}")

    log = RunLog(tmp_path / "run.log", Shown())
    with log.task("Work", 7) as advance:
        advance(3)
    log.say("one\ntwo")
    log.warn("three")
    log.note("four")
    assert seen == [("Work", 7), 3, "one\ntwo", "! three"]
    lines = [line.split("  ", 1)[1] for line in (tmp_path / "run.log").read_text().splitlines()]
    assert lines == ["one", "two", "warning: three", "four"]
