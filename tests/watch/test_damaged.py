"""Ledgers that something else has written into: one line, whatever is in them. Covers ledger, table, drift."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from anomalyncd.errors import RunError
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.drift import DriftMonitor
from anomalyncd.watch.ledger import content_id
from anomalyncd.watch.table import open_table

ENTRY = {"id": content_id("a.png", "00"), "time": "2026-11-18T10:00:00.000+00:00", "image": "a.png"}


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE watch_rows SET image = '{'", "UPDATE watch_rows SET regions = '5'", "UPDATE watch_rows SET image = NULL",
        "UPDATE watch_rows SET image = '[]'", "UPDATE watch_rows SET regions = '[5]'",
        "UPDATE watch_notes SET value = 'x' WHERE name = 'seq'", "UPDATE watch_notes SET value = x'ff' WHERE name = 'seq'",
        "INSERT INTO watch_notes VALUES ('size of a.csv', '-5')", "UPDATE watch_outbox SET body = x'05'",
        "UPDATE watch_places SET target = NULL", "UPDATE watch_files SET marks = x'00'",
    ],
)  # fmt: skip
def test_a_damaged_ledger_is_one_line(tmp_path: Path, damage: str) -> None:
    ledger, _ = open_table(tmp_path / "a.csv")
    ledger.commit([Entry(dict(ENTRY), "9 1 1")], targets=["webhook"], places={ENTRY["id"]: ("a.png", "b.png")})
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as db, db:
        db.execute(damage)
    ledger, table = open_table(tmp_path / "a.csv")
    with closing(ledger), pytest.raises(RunError, match=r"a\.csv\.watch: (is damaged|cannot be written or read)"):
        table.flush()
        ledger.places(), ledger.messages("webhook", 0, 5), ledger.files()
        ledger.commit([Entry({**ENTRY, "id": content_id("b.png", "00")}, "9 1 1")])


def test_damage_that_sqlite_has_no_words_for_is_one_line(tmp_path: Path) -> None:
    ledger, _ = open_table(tmp_path / "a.csv")
    ledger.close()
    data = ledger.path.read_bytes().replace(b"CREATE TABLE watch_rows", b"CREATE TABLEx watch_row")
    ledger.path.write_bytes(data.replace(b"watch_rowswatch_rows", b"watch\x80rowswatch_rows"))
    with pytest.raises(RunError, match=r"a\.csv\.watch: cannot be written or read"):
        open_table(tmp_path / "a.csv")


@pytest.mark.parametrize(
    "state", [None, "", "5", "{", '{"streams": 5}', '{"streams": {}, "shifted": {}}', "[" * 100_000, "9" * 5000]
)
def test_a_damaged_state_of_drift_begins_anew(state: str | None) -> None:
    assert DriftMonitor.restore(state).state() == DriftMonitor().state()
    known = DriftMonitor()
    known.add({"brightness": 3.0})
    assert DriftMonitor.restore(json.dumps(known.state())).state() == known.state()
    spoiled = json.dumps(known.state()).replace("3.0", '"x"')
    assert DriftMonitor.restore(spoiled).state() == DriftMonitor().state()
