"""Whole commands on images that lie in archives and stores: the tables of the folder, byte by byte. Covers nothing else."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from anomalyncd.errors import StoreError
from anomalyncd.places.names import VARIABLE
from anomalyncd.places.remote import remote
from anomalyncd.review.session import Session
from anomalyncd.run.finished import FinishedRun
from command import call, fail
from scenes import KINDS, write_scenes

from .stores import EachTwentieth, GoesAway, Requests

HOW = ("--backbone", "tiny", "--classes", 4, "--set", "features.views=1", "--set", "learn.epochs=2", "--quiet")
TABLES = ("images.csv", "regions.csv", "groups.csv", "classes.json", "tree.json")
STORE = "memory://line"


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """images/ and maps/, the same in archives and in shards, and the run of the folder."""
    line = write_scenes(tmp_path_factory.mktemp("places"), KINDS, 0)
    for kind in ("images", "maps"):
        with tarfile.open(line / f"{kind}.tar", "w") as tar:
            tar.add(line / kind, arcname=".")
    (line / "shards").mkdir()
    files = sorted((line / "images").iterdir())
    for number in range(3):
        with tarfile.open(line / "shards" / f"part-{number}.tar", "w") as tar:
            for file in files[number::3]:
                tar.add(file, arcname=file.name)
                tar.add(line / "maps" / f"{file.stem}.npy", arcname=f"{file.stem}.map.npy")
    call("discover", line / "images", "--maps", line / "maps", "--out", line / "run", *HOW)
    return line


@pytest.fixture
def store(line: Path, memory: Any) -> Iterator[Any]:
    """The same files in a store that counts what is asked of it."""
    for kind in ("images", "maps", "shards"):
        for file in (line / kind).iterdir():
            memory.pipe_file(f"line/{kind}/{file.name}", file.read_bytes())
    rows = (f"images/{file.name},maps/{file.stem}.npy" for file in (line / "images").iterdir())
    memory.pipe_file("line/list.csv", "\n".join(["image,map", *rows]).encode())
    yield count(Requests(memory))


def count(files: Any) -> Any:
    remote("memory", "line").files = files
    return files


def tables(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in TABLES]


def test_discover_finds_the_same_in_archives_and_stores(line: Path, store: Any, tmp_path: Path) -> None:
    places = (
        (line / "images.tar", "--maps", f"{STORE}/maps"),
        (line / "shards",),
        (f"{STORE}/shards/part-{{0..2}}.tar",),
        (f"{STORE}/images", "--maps", line / "maps.tar"),
    )
    for number, place in enumerate(places):
        call("discover", *place, "--out", tmp_path / f"{number}", *HOW)
        assert tables(tmp_path / f"{number}") == tables(line / "run"), place
    call("discover", f"{STORE}/list.csv", "--out", tmp_path / "list", *HOW)
    found = (tmp_path / "list/images.csv").read_bytes()
    assert found.replace(b"images/", b"") == (line / "run/images.csv").read_bytes()


def test_one_failure_in_twenty_and_a_store_that_goes_away(line: Path, store: Any, memory: Any, tmp_path: Path) -> None:
    images = ("discover", f"{STORE}/images", "--maps", f"{STORE}/maps", "--out", tmp_path / "run", *HOW)
    files = count(GoesAway(memory, 40))
    assert "the store cannot be reached" in fail(*images)
    assert files.failed and not (tmp_path / "run/images.csv").exists()
    files = count(EachTwentieth(memory))
    call(*images)  # goes on where it ended
    assert files.failed > 2 and tables(tmp_path / "run") == tables(line / "run")


def test_what_follows_reads_the_store_too(line: Path, store: Any, memory: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    call("discover", f"{STORE}/images", "--maps", f"{STORE}/maps", "--out", run, *HOW)
    name = FinishedRun(run).images["image"].iloc[-1]
    assert FinishedRun(run).image(name) is not None and FinishedRun(run).map(name) is not None
    found = call("export", run, "--format", "folders", "--out", tmp_path / "folders", "--quiet")
    assert len(list((tmp_path / "folders").rglob("*.png"))) == len(KINDS), found.output
    assert "opens files of this machine" in fail("export", run, "--format", "labelstudio", "--quiet")
    for number, place in enumerate(((line / "images", line / "maps"), (f"{STORE}/images", line / "maps.tar"))):
        call("predict", run, place[0], "--maps", place[1], "--out", tmp_path / f"{number}.csv", "--quiet")
    assert (tmp_path / "0.csv").read_bytes() == (tmp_path / "1.csv").read_bytes()

    held = call("update", run, f"{STORE}/images", "--maps", f"{STORE}/maps", "--quiet")
    assert f"{len(KINDS)} images in the run already" in held.output and "0 new images" in held.output
    new = (line / "images" / "010.png").read_bytes()
    memory.pipe_file("line/images/020.png", new)  # a camera has used the name again
    memory.pipe_file("line/maps/020.npy", (line / "maps" / "010.npy").read_bytes())
    held = call("update", run, f"{STORE}/images", "--maps", f"{STORE}/maps", "--quiet")
    assert "1 new image with 1 region" in held.output


def test_a_detector_fits_to_normal_images_of_a_store(line: Path, store: Any, tmp_path: Path) -> None:
    how = ("--detector", "patchcore", "--backbone", "tiny", "--set", "model.image_size=112", "--quiet")
    for name, images, normal in (
        ("0", line / "images", line / "images"),
        ("1", line / "images.tar", f"{STORE}/images"),
    ):
        call("detect", images, "--normal", normal, "--out", tmp_path / name, *how)
    assert (tmp_path / "0/scores.csv").read_bytes() == (tmp_path / "1/scores.csv").read_bytes()


def test_the_manifest_of_a_stranger_asks_nobody(
    line: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(line / "run", run)
    table = (run / "manifest.csv").read_text()
    (run / "manifest.csv").write_text(table.replace(f"{line}/", f"{STORE}/"))
    assert f"{STORE}/images/000.png" in (run / "manifest.csv").read_text()
    finished = FinishedRun(run)
    name = str(finished.images["image"].iloc[-1])
    assert finished.image(name) is None and finished.map(name) is None and not finished.file(name).is_file()
    call("report", run, "--no-attention", "--quiet")
    for form in ("folders", "coco", "csv", "yolo", "xlsx"):
        call("export", run, "--format", form, "--out", tmp_path / form, "--quiet")
    session = Session(run)
    session.close()
    call("update", run, line / "images", "--maps", line / "maps", "--quiet")
    fail(
        "discover",
        line / "images",
        "--maps",
        line / "maps",
        "--known",
        run,
        "--out",
        tmp_path / "new",
        *HOW,
    )
    assert store.n == 0
    monkeypatch.setenv(VARIABLE, STORE)
    assert FinishedRun(run).image(name) is not None and store.n > 0


def test_no_secret_stands_in_a_run(line: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-very-secret-key")
    run = tmp_path / "run"
    call("discover", f"{STORE}/images", "--maps", f"{STORE}/maps", "--out", run, *HOW)
    assert not [path for path in run.rglob("*") if path.is_file() and b"a-very-secret-key" in path.read_bytes()]


def test_pictures_of_a_store_that_is_away_are_gone_and_no_error(
    line: Path, store: Any, memory: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    call("discover", f"{STORE}/images", "--maps", f"{STORE}/maps", "--out", run, *HOW)
    count(GoesAway(memory, 0))
    remote("memory", "line").forget("images/000.png")
    assert FinishedRun(run).image("000.png") is None
    with pytest.raises(StoreError):
        remote("memory", "line").find("images")
    call("report", run, "--no-attention", "--quiet")


def test_the_file_system_of_this_machine_is_a_store_too(line: Path, tmp_path: Path) -> None:
    remote("memory", "line").files = fsspec.filesystem("file")
    store = remote("memory", "line")
    store.bucket = str(line)
    call("discover", f"{STORE}/images", "--maps", f"{STORE}/maps", "--out", tmp_path / "run", *HOW)
    assert tables(tmp_path / "run") == tables(line / "run")
