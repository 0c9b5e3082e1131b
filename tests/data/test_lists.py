"""Lists of images in Parquet say what the same lists in CSV say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from anomalyncd.data import load_dataset
from anomalyncd.errors import DataError

pytest.importorskip("pyarrow", reason="pyarrow is not installed")


def write(folder: Path, **columns: object) -> Path:
    for name in ("1.png", "2.png", "m/1.npy"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).touch()
    pd.DataFrame(columns).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


def test_same_as_csv(tmp_path: Path) -> None:
    table = write(
        tmp_path,
        **{" Image": ["2.png", " 1.png"], "mask": ["m/1.npy", None], "LABEL": ["a", None], "other": [b"x", b"y"]},
    )
    (tmp_path / "t.csv").write_text("image,mask,label\n2.png,m/1.npy,a\n1.png,,\n")
    assert load_dataset(table).samples == load_dataset(tmp_path / "t.csv").samples


def test_labels_may_be_numbers(tmp_path: Path) -> None:
    assert load_dataset(write(tmp_path, image=["1.png", "2.png"], label=[3, 4])).labels == ["3", "4"]
    assert load_dataset(write(tmp_path, image=["1.png", "2.png"], label=[3, None])).labels == ["3", None]
    assert load_dataset(write(tmp_path, image=["1.png", "2.png"], label=[3.5, np.inf])).labels == ["3.5", "inf"]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": ["1.png", "gone.png"]}, r"t\.parquet, row 2: the image .*gone\.png does not exist"),
        ({"image": ["1.png", "./1.png"]}, "row 2: the image 1.png is already in row 1"),
        ({"image": ["1.png", None]}, "row 2: the column 'image' is empty"),
        ({"image": [1, 2]}, "expected text in the column 'image', found int"),
        ({"image": [["1.png"], ["2.png"]]}, "expected text in the column 'image', found list"),
        ({"file": ["1.png"]}, "expected a column 'image', found file"),
        ({"image": []}, "found none"),
    ],
)
def test_bad_tables(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_dataset(write(tmp_path, **columns))


def test_damaged(tmp_path: Path) -> None:
    table = write(tmp_path, image=["1.png"])
    content = table.read_bytes()
    for damaged in (b"", b"image\n1.png\n", content[:-9], content[: len(content) // 2]):
        table.write_bytes(damaged)
        with pytest.raises(DataError, match="expected a Parquet table"):
            load_dataset(table)
