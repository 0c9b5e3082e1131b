from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from anomalyncd.data.layouts import find_files
from anomalyncd.errors import BadFileError, DataError
from anomalyncd.places.names import file_named, place_of
from anomalyncd.places.remote import Remote
from anomalyncd.places.stored import Stored
from anomalyncd.places.tars import Archive, Tars

from .stores import Requests


def write_tar(path: Path, **files: bytes) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(content), 1_795_000_000
            tar.addfile(info, io.BytesIO(content))
    return path


def test_an_archive_is_a_folder(tmp_path: Path) -> None:
    path = write_tar(
        tmp_path / "a.tar", **{"./crack/0.png": b"zero", "1.png": b"one", "b/": b"", "./.git/2.png": b"no"}
    )
    root = place_of(path, "images")
    assert find_files(root, {".png"}) == ["1.png", "crack/0.png"]
    assert str(root) == str(path) and str(root / "crack/0.png") == f"{path}/crack/0.png"
    assert (root / "crack").is_dir() and not (root / "cra").is_dir() and not (root / "gone.png").exists()
    assert (root / "1.png").stat() == (3, 1_795_000_000 * 10**9, (root / "1.png").stat().st_mode)
    with (root / "crack/0.png").open() as file:
        assert file.read() == b"zero"
    assert root.store.read("1.png", 1, 99) == b"ne"  # nothing behind its end
    again = file_named(f"{path}/crack/0.png")
    assert again == root / "crack/0.png" and again.is_file()


def test_no_name_leads_out_of_an_archive(tmp_path: Path) -> None:
    names = ("../a.png", "/b.png", "c/../../d.png", "e//f.png", "g\0h.png", "..", "good.png")
    path = write_tar(tmp_path / "a.tar", **dict.fromkeys(names, b"x"))
    assert find_files(place_of(path, "images"), {".png"}) == ["g", "good.png"] or find_files(
        place_of(path, "images"), {".png"}
    ) == ["good.png"]


def test_of_equal_names_the_last_counts_and_between_archives_it_is_an_error(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for content in (b"old", b"newer"):
            info = tarfile.TarInfo("1.png")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    assert (place_of(tmp_path / "a.tar", "images") / "1.png").stat().st_size == 5
    write_tar(tmp_path / "b.tar", **{"1.png": b"x"})
    with pytest.raises(DataError, match=r"b.tar: 1.png lies in .*a.tar too"):
        find_files(place_of(tmp_path, "images"), {".png"})


def test_an_archive_that_was_made_anew_is_looked_at_again(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", **{"0.png": b"y" * 900, "1.png": b"one"})
    root = place_of(path, "images")
    assert find_files(root, {".png"}) == ["0.png", "1.png"]
    write_tar(path, **{"1.png": b"ONE"})
    os.utime(path, (1, 1))
    with (root / "1.png").open() as file:
        assert file.read() == b"ONE"
    with pytest.raises(BadFileError, match="No such file"):
        (root / "0.png").open()


def test_pipes_and_missing_archives_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(BadFileError, match="device or pipe"):
        Archive(tmp_path / "pipe.tar").members()
    with pytest.raises(BadFileError, match="No such file"):
        Archive(tmp_path / "gone.tar").members()


def test_in_a_store_headers_are_read_ahead(memory: Any, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", **{f"{k:03d}.png": b"%d" % k * 50 for k in range(100)})
    memory.pipe_file("line/a.tar", path.read_bytes())
    files = Requests(memory)
    tars = Tars("memory://line/a.tar", [Archive(Stored(Remote("memory", "line", files), "a.tar"))])
    assert len(tars.find("")) == 100
    assert files.n < 5
    with (Stored(tars) / "042.png").open() as file:
        assert file.read() == b"42" * 50
    assert str(Stored(tars) / "042.png") == "memory://line/a.tar/042.png"


def test_many_names_of_one_archive_cost_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "a.tar", **{f"{k:03d}.png": b"x" for k in range(300)})
    looks = []
    monkeypatch.setattr(Archive, "_look", lambda self, size, look=Archive._look: looks.append(1) or look(self, size))
    files = [file_named(f"{path}/{k:03d}.png") for k in range(300)]
    assert all(file.is_file() for file in files) and len(looks) == 1
    assert len({id(file.store) for file in files if isinstance(file, Stored)}) == 1
    write_tar(path, **{"new.png": b"xyz"})
    os.utime(path, (1, 1))
    assert not files[0].is_file() and file_named(f"{path}/new.png").stat().st_size == 3


def test_folders_in_folders_take_no_memory(tmp_path: Path) -> None:
    names = [f"{k}/" + "b/" * 2000 + "c.png" for k in range(30)]
    write_tar(tmp_path / "a.tar", **dict.fromkeys(names, b"x"))
    tracemalloc.start()
    root = place_of(tmp_path / "a.tar", "images")
    assert (root / "7/b/b").is_dir() and not (root / "7/c").is_dir() and len(find_files(root, {".png"})) == 30
    assert tracemalloc.get_traced_memory()[1] < 5_000_000  # the names of all folders on the way have 120 MB
    tracemalloc.stop()
