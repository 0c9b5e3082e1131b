"""Parquet files that are small on disk and large in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from anomalyncd.errors import DataError
from anomalyncd.places.parquet import read_columns

pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


def test_a_small_file_of_many_rows_takes_no_memory(tmp_path: Path) -> None:
    path, seen = tmp_path / "a.parquet", list[list[str]]()
    many = pa.DictionaryArray.from_arrays(pa.array([0] * 99_999 + [None], pa.int32()), pa.array(["x" * 20_000]))
    parquet.write_table(pa.table({" Image": many, "label": [1.0] * 100_000, "other": many}), path)
    found = read_columns(path, ("image", "map", "label"), 10**9, seen.append)
    assert list(found) == ["image", "label"] and seen == [["image", "label", "other"]]
    assert len(found["image"]) == 100_000 and found["image"][-1] is None and found["label"][-1] == 1.0
    assert len(set(map(id, found["image"]))) < 9  # 2 GB otherwise
    for limit in (1_000_000, 30_010_000):  # by the number of rows, then by the texts
        with pytest.raises(DataError, match=r"a\.parquet: too large"):
            read_columns(path, ("image", "label"), limit, seen.append)
