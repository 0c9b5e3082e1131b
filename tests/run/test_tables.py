"""The tables of a run as files."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anomalyncd.data.dataset import Sample
from anomalyncd.errors import DataError, RunError
from anomalyncd.regions.find import Region
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run.evaluate import read_labels
from anomalyncd.run.tables import manifest, read_csv, to_csv

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
