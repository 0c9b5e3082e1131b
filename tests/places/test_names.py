from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from anomalyncd.data.dataset import load_dataset
from anomalyncd.data.gather import gather
from anomalyncd.errors import BadFileError, DataError, MissingDataError, SettingsError, WrongTypeError
from anomalyncd.places.names import VARIABLE, entry_of, file_named, is_file, is_open, is_remote, look_up, place_of
from anomalyncd.places.remote import remote
from anomalyncd.places.stored import Stored
from anomalyncd.places.tars import Tars
from anomalyncd.ray.blocks import Block

from .stores import Requests
from .test_tars import write_tar


def test_names_of_this_machine_stay_paths(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    for name in (str(tmp_path / "images"), tmp_path / "images", f"file://{tmp_path}/images"):
        assert place_of(name, "images") == tmp_path / "images"
    assert place_of("gone", "images") == Path("gone") == file_named("gone")
    assert file_named("file:///a%20b/c.png") == Path("/a b/c.png")
    assert not is_remote(Path("s3://a")) and entry_of("a\\b.png") == "a/b.png" and entry_of("s3://a/b") == "s3://a/b"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("http://line/day", "expected a path or a name with s3://, gs:// or az://, but got http://"),
        ("s3://key:secret@line/day", "without credentials or ports"),
        ("s3://", "expected s3://bucket/folder, but got 's3://'"),
        ("s3://a::file:///etc", "expected s3://bucket/folder"),
        ("file://host/share", "but got file://"),
    ],
)
def test_names_of_no_store_are_refused(name: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        place_of(name, "images")
    assert not file_named(name).is_file()  # a table's name of that kind is a file that is gone
    with pytest.raises(WrongTypeError, match="not as a Path"):
        place_of(Path("s3://line/day"), "images")


def test_secrets_are_not_repeated() -> None:
    with pytest.raises(SettingsError) as error:
        place_of("s3://key:secret@line/day", "images")
    assert "secret" not in str(error.value)


def test_tables_open_no_store(memory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    memory.pipe_file("line/a.png", b"x")
    files = remote("memory", "line").files = Requests(memory)
    name = "memory://line/a.png"
    file = file_named(name)
    assert str(file) == name and not file.is_file() and not file.parent.is_dir() and not is_file(file)
    for ask in (file.open, file.stat, lambda: file.find({".png"})):
        with pytest.raises(
            BadFileError, match=rf"only a table names its store. If you trust it: {VARIABLE}=memory://line$"
        ):
            ask()
    assert files.n == 0
    monkeypatch.setenv(VARIABLE, "s3://other, memory://line/some/folder")
    assert file_named(name).is_file() and files.n > 0 and not is_open("memory://line-3")
    monkeypatch.delenv(VARIABLE)
    assert not file_named(name).is_file()
    place_of("memory://line/day", "images")  # a person names it
    assert file_named(name).is_file() and not is_open("memory://other")


def test_a_list_names_files_of_its_own_store_or_of_one_that_is_open(memory: Any, tmp_path: Path) -> None:
    for name in ("day/a.png", "day/b.png"):
        memory.pipe_file(f"line/{name}", b"x")
    memory.pipe_file("line/list.csv", b"image\nday/a.png\nmemory://line/day/b.png\n")
    assert load_dataset("memory://line/list.csv").ids == ["day/a.png", "memory://line/day/b.png"]
    (tmp_path / "list.csv").write_text("image\nmemory://other/a.png\n")
    memory.pipe_file("other/a.png", b"x")
    with pytest.raises(DataError, match=r"list.csv: memory://other/a.png is not read, because only a table names"):
        load_dataset(tmp_path / "list.csv")
    memory.pipe_file("line/away.csv", b"image\n/etc/hostname\n")
    with pytest.raises(MissingDataError, match="does not exist"):
        load_dataset("memory://line/away.csv")
    memory.pipe_file("line/up.csv", b"image\n../other/a.png\n")
    with pytest.raises(MissingDataError, match="does not exist"):
        load_dataset("memory://line/up.csv")


def test_a_long_list_asks_its_store_once(memory: Any) -> None:
    for number in range(100):
        memory.pipe_file(f"line/day/{number:03d}.png", b"x")
    memory.pipe_file("line/list.csv", "\n".join(["image", *(f"day/{k:03d}.png" for k in range(100))]).encode())
    files = remote("memory", "line").files = Requests(memory)
    assert len(load_dataset("memory://line/list.csv")) == 100
    assert files.n < 10
    look_up([place_of("memory://line", "images") / "a.png", Path("b.png")])
    assert files.n < 10


def test_archives_by_name_pattern_range_and_folder(memory: Any, tmp_path: Path) -> None:
    for number in range(12):
        path = write_tar(tmp_path / f"day-{number:03d}.tar", **{f"{number:03d}.png": b"x"})
        memory.pipe_file(f"line/shards/{path.name}", path.read_bytes())
    (tmp_path / "index.json").write_text("{}")
    memory.pipe_file("line/shards/index.json", b"{}")
    for folder in (str(tmp_path), "memory://line/shards"):
        counts = {"": 12, "/day-00?.tar": 10, "/day-{000..010}.tar": 11, "/day-011.tar": 1, "/*.tar": 12}
        for pattern, count in counts.items():
            place = place_of(folder + pattern, "images")
            assert isinstance(place, Stored) and isinstance(place.store, Tars) and str(place) == folder + pattern
            assert len(place.find({".png"})) == count
        for pattern in ("/no-*.tar", "/gone.tar"):
            with pytest.raises(MissingDataError, match=r"expected (a )?tar archive"):
                place_of(folder + pattern, "images").find({".png"})
    (tmp_path / "a.png").touch()
    assert place_of(tmp_path, "images") == tmp_path  # a folder of images, which holds archives too


def test_a_list_of_names_asks_nothing_before_it_is_read(memory: Any) -> None:
    files = remote("memory", "line").files = Requests(memory)
    names = [f"memory://line/day/{number}.png" for number in range(3)]
    memory.pipe_file("line/day/0.png", b"x")
    dataset = gather(names)
    assert dataset.ids == names and files.n == 0
    assert dataset[0].image.is_file() and files.n == 1
    block = pickle.loads(pickle.dumps(Block(0, dataset.samples).numbered))  # on the way to a worker
    assert [str(sample.image) for _, sample in block] == names and files.n == 1


def test_a_member_is_found_again_by_its_name(memory: Any, tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", **{"crack/0.png": b"zero"})
    memory.pipe_file("line/a.tar", path.read_bytes())
    place_of("memory://line", "images")
    for name in (f"{path}/crack/0.png", "memory://line/a.tar/crack/0.png"):
        file = file_named(name)
        assert str(file) == name and file.stat().st_size == 4
    (tmp_path / "b.tar").mkdir()
    (tmp_path / "b.tar" / "1.png").touch()
    assert file_named(f"{tmp_path}/b.tar/1.png") == tmp_path / "b.tar" / "1.png"  # a folder may be called so
