"""The tables of a run as files."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anomalyncd.data.dataset import Sample
from anomalyncd.data.maps import StackRow
from anomalyncd.errors import DataError, RunError
from anomalyncd.regions.find import Region
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run import tables
from anomalyncd.run.evaluate import read_labels
from anomalyncd.run.tables import header, is_changed, manifest, read_csv, read_names, result_files, to_csv

NAMES = {0: "normal", 1: "dent", 2: "class 2"}


def image(index: int, n_regions: int = 0, error: str = "", note: str = "") -> ImageRecord:
    return ImageRecord(index, f"{index}.png", 100, 100, n_regions, 0.5, 0.3, error, note)


def region(index: int, number: int = 0, area: float = 100.0) -> Region:
    return Region(
        index=index, image=f"{index}.png", region=number, box=(1, 2, 3, 4), square=(0, 0, 10), area=area, score=0.9
    )


def test_the_manifest_lists_every_file() -> None:
    items = [
        Sample("0.png", Path("0.png"), Path("0.npy")),
        Sample("1.png", Path("1.png")),
        Sample("2", np.zeros((2, 2, 3))),
    ]
    table = manifest([image(0, 2), image(1, error="damaged"), image(2, note="odd")], items, Path("run"))
    assert table["file"].tolist() == [str(Path("0.png").absolute()), str(Path("1.png").absolute()), ""]
    assert table["map"].tolist() == [str(Path("0.npy").absolute()), "", ""]
    assert table["status"].tolist() == ["ok", "skipped", "ok"]
    assert table["message"].tolist() == ["", "damaged", "odd"]
    assert np.isnan(table["score"][1]) and table["score"][0] == 0.5


def test_csv_is_read_as_it_was_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "image": ["001", "NA", "null", 'a,b "c"\n.png', "größe/缺陷 1.png"],
            "label": [0, 1, -1, 2, 3],
            "class_name": ["1", "nan", "None", "x", "y"],
            "classes": ["0", "1", "-1", "2;1", "3"],
            "p_0": rng.random(5) ** 20,
            "true_label": ["007", None, "good", "N/A", "1e3"],
        }
    )
    (tmp_path / "images.csv").write_bytes(to_csv(table).encode())
    again = read_csv(tmp_path / "images.csv")
    assert again["p_0"].tolist() == table["p_0"].tolist()  # to the last bit
    for name in ("image", "label", "class_name", "classes"):
        assert again[name].tolist() == table[name].tolist()
    assert [None if pd.isna(value) else value for value in again["true_label"]] == ["007", None, "good", "N/A", "1e3"]
    assert to_csv(again) == to_csv(table)


@pytest.mark.parametrize("label", [10**6 + 1, -(10**6) - 1])
def test_a_number_that_is_too_large_is_named(label: int, tmp_path: Path) -> None:
    table = pd.DataFrame({"image": ["a", "b", "c"], "label": [10**6, label, -(10**6)], "class_name": "x"})
    (tmp_path / "images.csv").write_bytes(to_csv(table).encode())
    with pytest.raises(RunError, match=rf"up to 1,000,000 in the column label, but found {label}\."):
        read_csv(tmp_path / "images.csv")


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b'a,b\n"1'], ids=["empty", "not UTF-8", "broken off"])
def test_a_damaged_table_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "images.csv").write_bytes(content)
    with pytest.raises(RunError, match=r"images\.csv"):
        read_csv(tmp_path / "images.csv")


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("image,label,label", "the column 'label' is there twice"),
        (",".join(["image"] * 9000), "the column 'image' is there twice"),
        (",".join(f"c{number}" for number in range(20_000)), "more than 10,100 columns"),
        ("x" * 300_000, "more than 10,100 columns|field larger than"),
    ],
)
def test_a_header_that_no_program_writes_is_refused_at_once(first: str, words: str, tmp_path: Path) -> None:
    table = tmp_path / "images.csv"
    table.write_text(first + "\n" + "1," * first.count(",") + "1\n")
    started = time.process_time()
    with pytest.raises(RunError, match=words):
        read_csv(table)
    with pytest.raises(DataError, match=words):
        read_labels(table)
    assert time.process_time() - started < 2


def test_empty_columns_of_a_spreadsheet_do_not_matter(tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text("image,label,,\na.png,dent,,\n")
    assert read_labels(table) == {"a.png": "dent"}
    table.write_text("")
    with pytest.raises(DataError, match="cannot be read as one"):
        read_labels(table)


@pytest.mark.parametrize(
    ("column", "value"), [("height", 0), ("width", -1), ("height", 900_000), ("n_regions", -1), ("n_regions", 10**6)]
)
def test_a_size_or_number_that_cannot_be_is_refused_alone(column: str, value: int, tmp_path: Path) -> None:
    table = manifest([image(0)], [Sample("0.png", Path("0.png"))], tmp_path)
    table["width"] = table["height"] = 900
    (tmp_path / "manifest.csv").write_text(to_csv(table))
    assert len(read_csv(tmp_path / "manifest.csv")) == 1
    table[column] = value
    if value == 900_000:
        table["width"] = 900_000
    (tmp_path / "manifest.csv").write_text(to_csv(table))
    with pytest.raises(RunError, match="expected the size of an image"):
        read_csv(tmp_path / "manifest.csv")


def test_maps_inside_a_run_are_called_by_their_name_there(tmp_path: Path) -> None:
    run = tmp_path / "run"
    items = [
        Sample("0.png", Path("0.png"), run / "maps" / "a" / "0.npy"),
        Sample("1.png", Path("1.png"), run / "other" / "1.npy"),
        Sample("2.png", Path("2.png"), StackRow(Path("maps.npy"), 17)),
        Sample("3.png", Path("3.png"), np.zeros((2, 2))),
    ]
    records = [image(number, number) for number in range(4)]
    records[1].score, records[2].n_bytes, records[3].sha256 = 0.12345678, "12", "ab"
    table = manifest(records, items, run)
    maps = ["maps/a/0.npy", str(run / "other" / "1.npy"), f"{Path('maps.npy').absolute()}[17]", ""]
    assert table["map"].tolist() == maps
    assert table["score"].tolist() == [0.5, 0.123457, 0.5, 0.5] and table["threshold"].tolist() == [0.3] * 4
    assert table["n_regions"].tolist() == [0, 1, 2, 3] and table["height"].tolist() == [100] * 4
    assert table["n_bytes"].tolist() == ["", "", "12", ""] and table["sha256"].tolist() == ["", "", "", "ab"]


def test_a_file_is_another_by_its_content_or_else_by_its_time(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"one")
    status = file.stat()
    digest = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"  # of "one"
    row = {"n_bytes": "3", "modified": str(status.st_mtime_ns), "sha256": digest}
    assert not is_changed(file, row, 0)
    assert not is_changed(file, {**row, "modified": "1"}, 0), "touched"
    assert not is_changed(file, {**row, "sha256": "x"}, 0), "of the same size and time"
    assert is_changed(file, {**row, "n_bytes": "4", "sha256": "x"}, 0)
    assert is_changed(file, {**row, "modified": "1", "sha256": "x"}, 0)
    old = {**row, "sha256": np.nan}  # of a version that noted nothing
    assert is_changed(file, old, status.st_mtime_ns - 1) and not is_changed(file, old, status.st_mtime_ns)
    assert not is_changed(tmp_path / "gone.png", row, 0)


@pytest.mark.parametrize("count", [10_100, 10_101])
def test_as_many_columns_as_a_run_of_ten_thousand_classes_has(count: int, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(",".join(f"c{number}" for number in range(count)))
    if count > 10_100:
        with pytest.raises(ValueError, match="more than 10,100 columns"):
            header(file)
    else:
        assert len(header(file)) == count


@pytest.mark.parametrize("length", [10, 11])
def test_a_first_line_may_be_so_long(length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "LONGEST_HEADER", 10)
    (tmp_path / "a.csv").write_text("x" * length)
    if length > 10:
        with pytest.raises(ValueError, match="columns"):
            header(tmp_path / "a.csv")
    else:
        assert header(tmp_path / "a.csv") == ["x" * 10]


@pytest.mark.parametrize("more", [0, 1])
def test_a_table_may_be_so_large(more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "images.csv"
    file.write_text("image,label,class_name\na.png,1,x\n")
    monkeypatch.setattr(tables, "LARGEST", file.stat().st_size - more)
    if more:
        with pytest.raises(RunError, match="it has more than"):
            read_csv(file)
    else:
        assert len(read_csv(file)) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("images.csv", "image,label,class_name\n,1,x\n", "the name of an image in every row, but one is empty"),
        ("images.csv", "image,label,class_name\na,1.5,x\n", "expected whole numbers in the column label"),
        ("images.csv", "image,label,class_name,score\na,1,x,high\n", "expected numbers in the column score"),
        ("images.csv", "image,label\na,1\n", "it has no column class_name"),
        ("groups.csv", "group,image\n1,a\n", "it has no column region"),
        ("corrections.csv", "image,region\na,1\n", "it has no column label"),
        ("known.csv", "image,region,label,class_name\na,1,1,x\n", "it has no column looks_like"),
        ("regions.csv", "image,region,x,y,width\na,1,1,1,1\n", "it has no column height"),
        ("manifest.csv", "image,status,height,width,n_regions\na,ok,1,1,1\n", "it has no column message"),
        ("loss.csv", "epoch,loss\n1,high\n", "expected numbers, a row for each epoch"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(name: str, content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(RunError, match=words):
        read_csv(tmp_path / name)


def test_sound_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / "loss.csv").write_text("epoch,loss\n1,0.5\n")
    (tmp_path / "images.csv").write_text("image,label,class_name,score\na,1,x,1\nb,-1,y,0.5\n")
    (tmp_path / "regions.csv").write_text(
        "image,region,x,y,width,height,area,score,label,class_name,probability\na,0,1,2,3,4,5,0.5,1,x,\n"
    )
    (tmp_path / "other.csv").write_text("image,label\n,x\n")  # not of a run
    for name in ("loss", "images", "regions", "other"):
        assert len(read_csv(tmp_path / f"{name}.csv"))
    (tmp_path / "groups.csv").write_text("group,image,region\n")
    assert not len(read_csv(tmp_path / "groups.csv"))


@pytest.mark.parametrize(
    ("height", "width", "n_regions", "right"),
    [(1, 1, 0, True), (1, 1, 64, True), (1, 1, 65, False), (20_000, 20_000, 1, True), (20_000, 20_001, 1, False)],
)
def test_sizes_up_to_what_can_be_read(height: int, width: int, n_regions: int, right: bool, tmp_path: Path) -> None:
    columns = "image,status,height,width,n_regions,message"
    (tmp_path / "manifest.csv").write_text(f"{columns}\na,ok,{height},{width},{n_regions},\nb,skipped,0,0,0,damaged\n")
    if right:
        assert len(read_csv(tmp_path / "manifest.csv")) == 2
    else:
        with pytest.raises(RunError, match="expected the size of an image"):
            read_csv(tmp_path / "manifest.csv")


def test_names_that_people_gave(tmp_path: Path) -> None:
    assert read_names(tmp_path) == {}
    (tmp_path / "classes.json").write_text('{"1": "dent", "0": "normal"}')
    assert read_names(tmp_path) == {1: "dent", 0: "normal"}
    for wrong in ('{"one": "dent"}', "[1]", "nonsense", '{"1": "\\ud800"}'):
        (tmp_path / "classes.json").write_text(wrong)
        with pytest.raises(RunError, match="expected names of classes as"):
            read_names(tmp_path)


def test_all_tables_that_a_run_ends_with() -> None:
    empty = pd.DataFrame({"image": ["a"]})
    found = result_files(empty, empty.assign(region=1), empty.assign(group=2), empty.assign(status="ok"), NAMES)
    assert {name: data.decode().splitlines()[0] for name, data in found.items() if name.endswith("csv")} == {
        "images.csv": "image", "regions.csv": "image,region", "groups.csv": "image,group", "manifest.csv": "image,status",
    }  # fmt: skip
    assert found["classes.json"].decode() == '{\n "0": "normal",\n "1": "dent",\n "2": "class 2"\n}\n'
    assert list(found)[-1] == "images.csv"  # where it is, the run is whole
