"""Tables that grow: whatever was let through of the last rows, the next call adds the rest and nothing twice."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.errors import RunError, SettingsError
from anomalyncd.watch.columns import Entry
from anomalyncd.watch.ledger import content_id
from anomalyncd.watch.table import open_table, regions_beside


def entries(*names: str, day: str = "18") -> list[Entry]:
    row = {
        "time": f"2026-11-{day}T10:00:00.000+01:00",
        "status": "ok",
        "label": 1,
        "class_name": "=1+1",
        "probability": 0.5,
    }
    return [
        Entry({"id": content_id(name, "00"), "image": name, **row}, "1", [{"image": name, "region": 0, "area": 2.5}])
        for name in names
    ]


@settings(max_examples=30, deadline=None)
@given(cut=st.floats(0, 1), other=st.floats(0, 1), after=st.booleans())
def test_a_table_that_was_cut_anywhere_becomes_the_whole_one(
    tmp_path_factory: pytest.TempPathFactory, cut: float, other: float, after: bool
) -> None:
    folder = tmp_path_factory.mktemp("cut")
    path = folder / "t.csv"
    ledger, table = open_table(path)
    ledger.commit(entries("a", "b, c"))
    table.flush()
    before = {file: file.read_bytes() for file in (path, regions_beside(path))}
    ledger.commit(entries("d", "é\nf"))
    table.flush()
    whole = {file: file.read_bytes() for file in before}
    # As if killed in the middle: the ledger still has the rows, and the files any part of them.
    ledger.close()
    again, table = open_table(path)
    again._db.execute("DELETE FROM watch_notes WHERE name LIKE 'size%'")
    for file, share in zip(before, (cut, other), strict=True):
        again.set_note(f"size of {file.name}", str(len(before[file])))
        part = whole[file][len(before[file]) :]
        file.write_bytes(before[file] + part[: int(share * len(part))])
    again._db.execute("DELETE FROM watch_seen")
    again._db.execute("UPDATE watch_notes SET value = '2' WHERE name = 'seq'")
    again.commit(entries("d", "é\nf"))
    if after:
        again.commit(entries("later"))
    table.flush()
    again.close()
    for file, text in whole.items():
        assert file.read_bytes().startswith(text) and (after or file.read_bytes() == text)
    assert pd.read_csv(path)["image"].tolist() == ["a", "b, c", "d", "é\nf", *(["later"] if after else [])]


def test_a_table_that_another_program_changed_is_left_alone_and_one_that_was_taken_away_begins_anew(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.csv"
    ledger, table = open_table(path)
    ledger.commit(entries("a"))
    table.flush()
    text = path.read_bytes()
    ledger.commit(entries("b"))
    for changed in (text + b"by hand\n", text[:-3]):
        path.write_bytes(changed)
        with pytest.raises(RunError, match="found another file"):
            table.flush()
        assert path.read_bytes() == changed
    path.rename(tmp_path / "old.csv")
    table.flush()
    assert pd.read_csv(path)["image"].tolist() == ["b"]


def test_formulas_are_quoted_on_request(tmp_path: Path) -> None:
    for quote, expected in ((False, "=1+1"), (True, "'=1+1")):
        path = tmp_path / f"{quote}.csv"
        ledger, table = open_table(path, quote=quote)
        ledger.commit(entries("a"))
        table.flush()
        assert pd.read_csv(path)["class_name"].tolist() == [expected]
    with pytest.raises(SettingsError, match=r"\.csv table only"):
        open_table(tmp_path / "a.sqlite", quote=True)


def test_parquet_has_a_file_a_day_and_the_ledger_lets_go_of_days_that_are_over(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    ledger, table = open_table(tmp_path / "t.parquet")
    ledger.commit(entries("a", "b"))
    table.flush()
    ledger.commit(entries("c"))
    table.flush()  # not due yet
    assert pd.read_parquet(tmp_path / "t.parquet" / "2026-11-18.parquet")["image"].tolist() == ["a", "b"]
    ledger.commit(entries("d", day="19"))
    table.flush(last=True)
    days = {path.name: pd.read_parquet(path)["image"].tolist() for path in (tmp_path / "t.parquet").glob("*.parquet")}
    assert days["2026-11-18.parquet"] == days["2026-11-18_regions.parquet"] == ["a", "b", "c"]
    assert days["2026-11-19.parquet"] == ["d"] and ledger.days() == {"2026-11-19": 4}
    ledger.close()
    (tmp_path / "t.parquet" / ".watch").unlink()
    ledger, table = open_table(tmp_path / "t.parquet")
    ledger.commit(entries("a", day="19"))
    with pytest.raises(RunError, match="Move the file away"):
        table.flush(last=True)


def test_other_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"\.csv, \.sqlite or \.parquet"):
        open_table(tmp_path / "a.xlsx")
