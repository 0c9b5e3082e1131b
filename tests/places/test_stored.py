from __future__ import annotations

import pickle
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from anomalyncd.errors import BadFileError
from anomalyncd.places import names, stored
from anomalyncd.places.remote import Remote
from anomalyncd.places.stored import Status, Stored


def line(memory: Any) -> Stored:
    for name in ("day/crack/0.png", "day/1.PNG", "day/.hidden.png", "night/2.png"):
        memory.pipe_file(f"line/{name}", name.encode())
    return Stored(Remote("memory", "line"))


def test_it_has_the_manners_of_a_path(memory: Any) -> None:
    folder = line(memory) / "day"
    file = folder / "crack/0.png"
    assert str(file) == "memory://line/day/crack/0.png" == file.as_posix() == str(file.absolute())
    assert (file.name, file.suffix, file.parent.name) == ("0.png", ".png", "crack")
    assert str(file.with_suffix(".npy")).endswith("day/crack/0.npy")
    assert file == folder / PurePosixPath("crack/0.png") and len({file, folder / "crack/0.png"}) == 1
    assert file.is_relative_to(folder) and not folder.is_relative_to(file) and not file.is_relative_to(Path())
    assert file.relative_to(folder).as_posix() == "crack/0.png"
    assert file.is_file() and not file.is_dir() and folder.is_dir() and not folder.is_file()
    assert not (folder / "gone").exists() and folder.exists()
    assert folder.find({".png"}) == ["1.PNG", "crack/0.png"]
    with file.open() as content:
        assert content.read() == b"day/crack/0.png"


def test_no_name_leads_out_of_the_store(memory: Any) -> None:
    folder = line(memory) / "day"
    memory.pipe_file("other/secret.png", b"secret")
    for name in ("../../other/secret.png", "/other/secret.png", "../../../secret.png"):
        assert not (folder / name).exists()
        with pytest.raises(BadFileError, match="No such file"):
            (folder / name).open()
    assert (folder / "../night/2.png").is_file()


def test_large_files_wait_on_disk(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    content = bytes(range(256)) * 10
    memory.pipe_file("line/large", content)
    file = Stored(Remote("memory", "line"), "large")
    for piece, held in ((100, 100), (100, 10_000), (len(content), 1), (len(content) - 1, 1)):
        monkeypatch.setattr(stored, "PIECE", piece)
        monkeypatch.setattr(stored, "IN_MEMORY", held)
        with file.open() as opened:
            assert opened.read() == content
            assert opened.seek(5) == 5 and opened.read(2) == content[5:7]


def test_what_is_gone_empty_or_cut_short_is_told(memory: Any) -> None:
    memory.pipe_file("line/empty", b"")
    memory.pipe_file("line/a", b"12345")
    store = Remote("memory", "line")
    for name, why in (("gone", "No such file"), ("empty", "is empty")):
        with pytest.raises(BadFileError, match=why):
            Stored(store, name).open()
    assert store.status("a") == Status(5, store.status("a").st_mtime_ns)
    memory.pipe_file("line/a", b"123")
    with pytest.raises(BadFileError, match="has changed while it was read"):
        Stored(store, "a").open()
    with Stored(store, "a").open() as file:  # and is looked up anew
        assert file.read() == b"123"


def test_another_process_opens_it_anew_if_it_is_open_here(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    line(memory)
    mine, theirs = names.place_of("memory://line/day/1.PNG", "images"), names.file_named("memory://theirs/1.PNG")
    sent = pickle.dumps([mine, theirs])  # as Ray sends it to its workers
    monkeypatch.setattr(names, "_opened", set())
    found, refused = pickle.loads(sent)
    assert found == mine and found.is_file() and refused == theirs and isinstance(refused.store, names.Closed)
