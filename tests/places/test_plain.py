"""More of it is in tests/data/test_files.py and tests/data/test_dataset.py, by the names of its callers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anomalyncd.errors import BadFileError, DataError
from anomalyncd.places.plain import find_plain, open_plain


def test_files_are_found_and_opened(tmp_path: Path) -> None:
    for name in ("b/1.png", "a/2.PNG", "a/3.txt", ".git/4.png", "a/.5.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    assert find_plain(tmp_path, {".png"}) == ["a/2.PNG", "b/1.png"]
    with open_plain(tmp_path / "b/1.png") as file:
        assert file.read() == b"b/1.png"
    with pytest.raises(DataError, match="the folder cannot be read"):
        find_plain(tmp_path / "gone", {".png"})


def test_what_is_no_file_is_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    for name, why in (("pipe", "device or pipe"), ("empty", "is empty"), (".", "a folder"), ("no", "No such file")):
        with pytest.raises(BadFileError, match=why):
            open_plain(tmp_path / name)
