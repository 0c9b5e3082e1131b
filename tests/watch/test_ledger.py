"""The ledger: all of an image or nothing of it, and days that only go on."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from anomalyncd.errors import RunError
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.ledger import Ledger, content_id


def entry(name: str, time: str = "2026-11-18T10:00:00.000+01:00") -> Entry:
    return Entry(
        {"id": content_id(name, "00"), "time": time, "image": name}, f"1 {name}", [{"image": name, "region": 0}]
    )


def test_an_image_is_committed_with_all_that_is_to_be_done_about_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.watch", tables=False)
    one, two = entry("a.png"), entry("b.png")
    assert ledger.commit([one, two], targets=["webhook", "mqtt"], places={two.id: ("b.png", "k/b.png")}) == [1, 2]
    assert ledger.commit([entry("c.png")], targets=["mqtt"], notes={"drift": "{}"}) == [3]
    ledger.close()
    ledger = Ledger(tmp_path / "a.watch", tables=False)
    assert ledger.is_seen(one.id) and not ledger.is_seen(content_id("a.png", "01"))
    assert [(seq, image["image"], len(regions)) for seq, image, regions in ledger.rows()] == [
        (1, "a.png", 1), (2, "b.png", 1), (3, "c.png", 1),
    ]  # fmt: skip
    assert (ledger.waiting("webhook"), ledger.waiting("mqtt")) == (2, 3)
    (message,) = ledger.messages("mqtt", after=2, most=9)
    assert message.seq == 3 and json.loads(message.body)["regions"] == [{"image": "c.png", "region": 0}]
    (placing,) = ledger.places()
    assert (placing.seq, placing.target, placing.marks) == (2, "k/b.png", "1 b.png")
    assert ledger.files() == {"a.png": "1 a.png", "b.png": "1 b.png", "c.png": "1 c.png"}
    ledger.message_taken("mqtt", 2)
    ledger.placed([2])
    ledger.set_files({"a.png": "2"}, gone=["b.png"])
    ledger.rows_written(2, {"size": "9"})
    assert (ledger.waiting("mqtt"), ledger.places(), len(ledger.rows()), ledger.note("size")) == (1, [], 1, "9")
    assert ledger.files() == {"a.png": "2", "c.png": "1 c.png"}


@pytest.mark.parametrize("tables", [True, False])
def test_a_commit_that_fails_leaves_nothing(tables: bool, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.sqlite", tables=tables)
    ledger.commit([entry("a.png")])
    with pytest.raises(RunError, match="UNIQUE"):
        ledger.commit([entry("b.png"), entry("a.png")], targets=["webhook"])
    assert not ledger.is_seen(entry("b.png").id) and ledger.waiting("webhook") == 0 and ledger.note("seq") == "1"
    assert ledger.commit([entry("b.png")]) == [2]
    if tables:
        with sqlite3.connect(tmp_path / "a.sqlite") as db:
            assert db.execute("SELECT seq, image FROM images").fetchall() == [(1, "a.png"), (2, "b.png")]
            assert db.execute("SELECT seq, image FROM regions").fetchall() == [(1, "a.png"), (2, "b.png")]


def test_a_clock_that_goes_back_does_not_open_a_day_again(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "a.watch", tables=False)
    for name, day in (("a", "18"), ("b", "19"), ("c", "18")):
        ledger.commit([entry(name, f"2026-11-{day}T00:00:00.000+01:00")])
    assert ledger.days() == {"2026-11-18": 1, "2026-11-19": 3}


def test_a_file_that_is_no_ledger_and_one_of_another_version(tmp_path: Path) -> None:
    (tmp_path / "a.watch").write_bytes(b"no database at all, but long enough to be read as one " * 40)
    with pytest.raises(RunError, match="not a database"):
        Ledger(tmp_path / "a.watch", tables=False)
    Ledger(tmp_path / "b.watch", tables=False).set_note("version", "0")
    with pytest.raises(RunError, match="another version"):
        Ledger(tmp_path / "b.watch", tables=False)
