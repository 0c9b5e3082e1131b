"""Paths and names of files as people give them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from anomalyncd.errors import DataError, WrongTypeError
from anomalyncd.paths import counted, is_inside, named, names_of, path_of, posix, resolved, stem_of, suffix_of


@pytest.mark.parametrize("value", [None, 5, b"images", ["images"]])
def test_what_is_no_path_is_said_with_its_type(value: object) -> None:
    with pytest.raises(WrongTypeError, match=f"images: expected a path, but got {type(value).__name__}"):
        path_of(value, "images")


@pytest.mark.parametrize("value", ["", "a\0b"])
def test_what_can_be_no_path(value: str) -> None:
    with pytest.raises(DataError, match="which none can be"):
        path_of(value, "images")
    assert path_of("images", "images") == path_of(Path("images"), "images") == Path("images")


@pytest.mark.parametrize(("value", "words"), [("\udc80", "not valid UTF-8"), ("x" * 5000, "too long for a path")])
def test_what_no_table_can_name_and_no_system_can_hold(
    value: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match=words):
        path_of(value, "images")


@pytest.mark.skipif(os.name == "nt", reason="names are text there")
def test_a_working_folder_that_is_not_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        (tmp_path / "\udc80").mkdir()
    except OSError:
        pytest.skip("this file system takes no such name")
    monkeypatch.chdir(tmp_path / "\udc80")
    with pytest.raises(DataError, match="not valid UTF-8"):
        path_of("images", "images")


def test_a_link_that_leads_to_itself_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert resolved(tmp_path / "loop").name == "loop"
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert is_inside(tmp_path / "link", tmp_path / "real") and not is_inside(tmp_path, tmp_path / "real")


def test_names() -> None:
    assert posix("a\\b.png") == "a/b.png" and suffix_of("a/B.PNG") == ".png" and stem_of("a.b/c.d.png") == "a.b/c.d"
    assert counted(["a"], "map") == "1 map" and counted(["a", "b"], "map") == "2 maps"
    assert named([str(number) for number in range(7)]).endswith("and 2 more") and named(["a", "b"]) == "a, b"


@pytest.mark.parametrize("value", [None, 5, 1.5, Path("."), [1], [["a"]], np.zeros((2, 2)), np.array(5), b"abc"])
def test_what_is_no_name_is_told(value: object) -> None:
    with pytest.raises(WrongTypeError, match="exclude: expected names, but got"):
        names_of(value, "exclude")
    assert names_of((name for name in ("a", "b", "a")), "exclude") == {"a", "b"}
