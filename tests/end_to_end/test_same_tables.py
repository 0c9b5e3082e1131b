"""The comparison of `benchmarks/same_tables.py`, which calls every command of two checkouts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from same_tables import PREDICTED, TABLES, Case, Side, differences, make_cases


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of a case with the same tables."""
    for side in ("old", "new"):
        for name in (*TABLES, *PREDICTED):
            path = tmp_path / side / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"image,label,p_0\na.png,1,0.531\nb.png,0,1.0\n")
    return tmp_path / "old", tmp_path / "new"


def test_equal_tables(folders: tuple[Path, Path]) -> None:
    assert differences(*folders, TABLES + PREDICTED) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"image,label,p_0\na.png,1,0.532\nb.png,0,1.0\n", "line 2"),
        (b"image,label,p_0\r\na.png,1,0.531\nb.png,0,1.0\n", "line 1"),
        (b"image,label,p_0\na.png,1,0.531\n", "line 3"),
        (b"image,label,p_0\na.png,1,0.531\nb.png,0,1.0", "line 3"),
        (b"image,label,p_0\na.png,1,0.531\nb.png,0,1.0\nc.png,0,1.0\n", "line 4"),
        (b"", "line 1"),
    ],
)
def test_other_bytes_are_shown(folders: tuple[Path, Path], content: bytes, words: str) -> None:
    old, new = folders
    (new / TABLES[1]).write_bytes(content)
    found = differences(old, new, TABLES + PREDICTED)
    assert len(found) == 1 and found[0].startswith(f"{TABLES[1]}, {words}: ")
    assert differences(old, new, PREDICTED) == [] and differences(new, old, TABLES) != []


def test_a_difference_has_both_sides(folders: tuple[Path, Path]) -> None:
    old, new = folders
    (new / TABLES[0]).write_bytes((old / TABLES[0]).read_bytes().replace(b"0.531", b"0.532"))
    was, _, now = differences(old, new, TABLES)[0].partition(" → ")
    assert "a.png,1,0.531" in was and "a.png,1,0.532" in now


def test_missing_files(folders: tuple[Path, Path]) -> None:
    old, new = folders
    (new / TABLES[2]).unlink()
    assert differences(old, new, TABLES) == [f"{TABLES[2]}: missing in new"]
    assert differences(new, old, TABLES) == [f"{TABLES[2]}: missing in old"]
    (old / TABLES[2]).unlink()
    assert differences(old, new, TABLES) == [f"{TABLES[2]}: missing in old and new"]


def test_cases_begin_with_cases_that_are_there(tmp_path: Path) -> None:
    cases = make_cases(tmp_path / "here", tmp_path / "lines", "tiny")
    names = list(cases)
    for name, case in cases.items():
        assert not case.after or names.index(case.after) < names.index(name)
    assert cases["fast-maps"] != make_cases(tmp_path / "here", tmp_path / "lines", None)["fast-maps"]


def test_what_was_made_is_used_again_until_a_command_changes(tmp_path: Path) -> None:
    def side(*options: str) -> Side:
        return Side(Path(__file__).parents[2], tmp_path / "results", tmp_path / "here", {"case": Case((options,))})

    seconds = side("--version").make("case")
    made = (tmp_path / "results/case/made.json").stat().st_mtime_ns
    assert side("--version").make("case") == seconds
    assert (tmp_path / "results/case/made.json").stat().st_mtime_ns == made
    side("weights", "list").make("case")
    assert (tmp_path / "results/case/made.json").stat().st_mtime_ns > made
