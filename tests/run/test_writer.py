"""Tables that are written piece by piece, whole or not at all."""

from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest

from anomalyncd.errors import RunError, SettingsError
from anomalyncd.run import writer
from anomalyncd.run.writer import MACHINE, TableWriter, check_table
from scenes import write_table


def test_write_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pd.DataFrame({"image": ["ü"], "label": [1]})
    write_table(table, tmp_path / "new" / "out.CSV")
    assert (tmp_path / "new" / "out.CSV").read_bytes() == "image,label\nü,1\n".encode()
    with pytest.raises(SettingsError, match=r"\.csv or \.parquet"):
        check_table(tmp_path / "out.xlsx")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(RunError, match="this is a folder"):
        TableWriter(tmp_path / "folder.csv")
    monkeypatch.setattr(writer, "find_spec", lambda _: None)
    with pytest.raises(SettingsError, match=r"pip install 'anomalyncd\[parquet\]'"):
        check_table(tmp_path / "out.parquet")


def test_write_table_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.FileIO):
        def write(self, data: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", lambda path, mode: io.BufferedWriter(Full(path, mode)))
    with pytest.raises(RunError, match=r"out\.csv: cannot be written \(No space left"):
        write_table(pd.DataFrame({"image": ["a"]}), tmp_path / "out.csv")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_in_pieces_is_the_table(suffix: str, tmp_path: Path) -> None:
    truth = [None, None, "x", "y"]
    table = pd.DataFrame({"image": list("abcd"), "label": [1, 2, 3, 4], "p_0": [0.1, 1 / 3, 0, 1], "true": truth})
    pieces, whole = tmp_path / f"pieces{suffix}", tmp_path / f"whole{suffix}"
    with TableWriter(pieces) as file:
        for piece in (table[:0], table[:2], table[2:2], table[2:]):
            file.add(piece)
    write_table(table, whole)
    if suffix == ".csv":
        assert pieces.read_bytes() == whole.read_bytes()
    else:
        pd.testing.assert_frame_equal(pd.read_parquet(pieces), pd.read_parquet(whole))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([pieces.name, whole.name])


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_table_without_rows_has_its_columns(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"empty{suffix}"
    write_table(pd.DataFrame({"image": [], "label": []}), path)
    found = pd.read_csv(path) if suffix == ".csv" else pd.read_parquet(path)
    assert list(found.columns) == ["image", "label"] and not len(found)


def test_two_processes_may_write_one_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "table.csv"
    with TableWriter(path) as first:
        first.add(pd.DataFrame({"a": [1, 1]}))
        monkeypatch.setattr("os.getpid", lambda: 1)
        with TableWriter(path) as second:
            second.add(pd.DataFrame({"a": [2]}))
        assert path.read_text() == "a\n2\n"
    assert path.read_text() == "a\n1\n1\n" and [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_a_table_that_is_not_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt), TableWriter(path) as file:
        file.add(pd.DataFrame({"a": [1]}))
        raise KeyboardInterrupt
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot be written"), TableWriter(tmp_path / "file" / "table.csv") as table:
        table.add(pd.DataFrame({"a": [1]}))


def test_what_a_killed_process_left_is_taken_away_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    dead, alive, elsewhere = (
        tmp_path / f"t.csv.{who}.partial" for who in (f"{MACHINE}.{gone.pid}", f"{MACHINE}.{os.getppid()}", "other.1")
    )
    for file in (dead, alive, elsewhere):
        file.touch()
    with TableWriter(tmp_path / "t.csv") as table:
        table.add(pd.DataFrame({"a": [1]}))
    assert not dead.exists() and alive.exists() and elsewhere.exists()


def test_rows_do_not_pile_up_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "GROUP", 3)
    with TableWriter(tmp_path / "t.csv") as table:
        for number in range(7):
            table.add(pd.DataFrame({"a": [number]}))
            assert sum(map(len, table._waiting)) == (number + 1) % 3
    assert pd.read_csv(tmp_path / "t.csv")["a"].tolist() == list(range(7))


@pytest.mark.parametrize(("age", "there"), [(86_300, True), (86_500, False)])
def test_a_day_later_nobody_writes_to_a_file_of_another_machine_any_more(age: int, there: bool, tmp_path: Path) -> None:
    left, other = tmp_path / "t.csv.other.1.partial", tmp_path / "u.csv.other.1.partial"
    for file in (left, other):
        file.touch()
        os.utime(file, (time.time() - age, time.time() - age))
    with TableWriter(tmp_path / "t.csv") as table:
        table.add(pd.DataFrame({"a": [1]}))
    assert left.exists() is there and other.exists()


def test_nothing_added_makes_an_empty_file(tmp_path: Path) -> None:
    with TableWriter(tmp_path / "t.csv"):
        pass
    assert (tmp_path / "t.csv").read_bytes() == b""


def test_a_column_without_values_in_the_first_piece_holds_text_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "GROUP", 1)
    with TableWriter(tmp_path / "t.parquet") as table:
        table.add(pd.DataFrame({"image": ["a"], "true_label": [None], "p": [0.5]}))
        table.add(pd.DataFrame({"image": ["b"], "true_label": ["dent"], "p": [0.25]}))
    found = pd.read_parquet(tmp_path / "t.parquet")
    assert found["true_label"].isna().tolist() == [True, False] and found["true_label"][1] == "dent"
    assert found["p"].tolist() == [0.5, 0.25]
    assert found["image"].tolist() == ["a", "b"]
