from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

from anomalyncd.errors import SettingsError, StoreError
from anomalyncd.places import remote as module
from anomalyncd.places.remote import PACKAGES, Remote, remote

from .stores import EachTwentieth, GoesAway, Requests


@pytest.fixture(params=["memory", "local"])
def store(request: pytest.FixtureRequest, memory: Any, tmp_path: Path) -> Remote:
    """The same files in two file systems of fsspec."""
    files = memory if request.param == "memory" else fsspec.filesystem("file", auto_mkdir=True)
    bucket = "line" if request.param == "memory" else str(tmp_path)
    for name in ("day/crack/0.png", "day/1.png", "day/.git/2.png", "daylight/3.png", "4.png"):
        files.pipe_file(f"{bucket}/{name}", name.encode())
    return Remote("memory", bucket, Requests(files))


def test_files_are_listed_known_and_read(store: Remote) -> None:
    assert sorted(store.find("day")) == ["1.png", "crack/0.png"]
    assert sorted(store.find("")) == ["4.png", "day/1.png", "day/crack/0.png", "daylight/3.png"]
    assert store.find("gone") == [] == store.entries("gone")
    assert sorted(store.entries("")) == ["4.png", "day/", "daylight/"]
    asked = store.files.n
    assert store.status("day/1.png").st_size == len("day/1.png")
    assert store.files.n == asked  # the list has told it
    assert store.read("day/1.png", 4, 6) == b"1." and store.read("day/1.png", 4, 99) == b"1.png"
    with pytest.raises(FileNotFoundError):
        store.read("day/9.png", 0, 4)
    for name in ("day", "day/9.png"):
        with pytest.raises(FileNotFoundError):
            store.status(name)


def test_a_file_written_anew_has_another_time(store: Remote) -> None:
    before = store.status("4.png")
    files = store.files.files
    while True:
        files.pipe_file(f"{store.bucket}/4.png", b"4.PNG")
        assert store.status("4.png") == before  # until it is looked at again
        store.find("")
        if store.status("4.png") != before:
            break
    assert store.status("4.png").st_size == before.st_size


def test_tags_tell_what_changes_within_a_second() -> None:
    class Tagged:
        tag = '"one"'

        def info(self, place: str) -> dict[str, Any]:
            return {"type": "file", "size": 3, "LastModified": "2026-11-18T06:00:00Z", "ETag": self.tag}

    files = Tagged()
    store = Remote("s3", "line", files)
    first = store.status("a")
    files.tag = '"two"'
    store.forget("a")
    second = store.status("a")
    assert first != second and first.st_mtime_ns // 10**9 == second.st_mtime_ns // 10**9 == 1_794_981_600


def test_one_failure_in_twenty_changes_nothing(memory: Any) -> None:
    for number in range(200):
        memory.pipe_file(f"line/{number:03d}.png", b"%d" % number)
    files = EachTwentieth(memory)
    store = Remote("memory", "line", files)
    assert len(store.find("")) == 200
    assert [store.read(f"{number:03d}.png", 0, 9) for number in range(200)] == [b"%d" % k for k in range(200)]
    assert files.failed >= 10


def test_a_store_that_is_away_is_told(memory: Any) -> None:
    store = Remote("memory", "line", GoesAway(memory, 0))
    for request in (lambda: store.find("day"), lambda: store.read("a", 0, 1), lambda: store.is_dir("a")):
        with pytest.raises(StoreError, match=r"^memory://line.*cannot be reached .*connection refused"):
            request()


def test_a_missing_package_is_named_with_its_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme, (package, advice) in PACKAGES.items():
        monkeypatch.setitem(module.__dict__, "PACKAGES", {scheme: (package, advice)})
        monkeypatch.setattr(fsspec, "filesystem", lambda *some, **more: __import__("no_such_package"))
        with pytest.raises(SettingsError) as error:
            Remote(scheme, "line").find("")
        assert str(error.value) == f"{scheme}://line: needs the package {package}: {advice}"


def test_a_bucket_is_one_store() -> None:
    assert remote("memory", "a") is remote("memory", "a") is not remote("memory", "b")


@pytest.mark.parametrize(
    "info", [{"mtime": "x"}, {"mtime": float("nan")}, {"mtime": []}, {"size": "x"}, {"size": float("inf")}]
)
def test_a_store_that_tells_nonsense_is_one_line(
    memory: Any, info: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.pipe_file("line/a.png", b"x")
    store = Remote("memory", "line", memory)
    monkeypatch.setattr(
        memory, "find", lambda *_, **__: {"/line/a.png": {"type": "file", "size": 1, "mtime": 5} | info}
    )
    with pytest.raises(StoreError, match="a size or a time that is none"):
        store.find("")
