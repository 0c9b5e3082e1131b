"""Tables as Parquet data sets, of a run and of `detect`: the rows of the CSV files, in groups, with types that hold."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from anomalyncd.errors import MissingRunError, RunError
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.tables import read_csv
from anomalyncd.run.writer import GROUP
from anomalyncd.steps.data_sets import find_tables, read_pieces, write_data_sets
from anomalyncd.steps.tables import PART
from command import call, fail
from scenes import KINDS, write_scenes

FAST = ("--backbone", "tiny", "--set", "features.views=1", "--quiet")


def manifest(n: int) -> pd.DataFrame:
    """The first half was given as arrays and has no file; the others are files that could not be read."""
    half, names = n // 2, [f"{number}" for number in range(n)]
    return pd.DataFrame(
        {
            "image": names,
            "status": ["ok"] * half + ["skipped"] * (n - half),
            "height": 9,
            "width": 9,
            "n_regions": 0,
            "score": [None] * half + [0.25] * (n - half),
            "message": [None] * half + ["empty"] * (n - half),
            "file": [None] * half + [f"/line/{name}.png" for name in names[half:]],
            "n_bytes": [None] * half + ["7"] * (n - half),
            "modified": [None] * half + ["1763589600123456789"] * (n - half),
        }
    )


def test_rows_come_in_groups_whose_types_do_not_depend_on_what_is_in_them(tmp_path: Path) -> None:
    manifest(4 * GROUP).to_csv(tmp_path / "manifest.csv", index=False)
    assert write_data_sets({"manifest": tmp_path / "manifest.csv"}, tmp_path) == {"manifest": 4 * GROUP}
    file = pq.ParquetFile(tmp_path / "manifest" / PART)
    assert file.num_row_groups == 4
    found = pd.read_parquet(tmp_path / "manifest")
    assert found["image"].tolist()[-1] == f"{4 * GROUP - 1}" and found["score"].iloc[-1] == 0.25
    assert found["file"].isna().sum() == 2 * GROUP and found["message"].iloc[-1] == "empty"
    assert int(found["modified"].iloc[-1]) == 1763589600123456789 and found["n_regions"].dtype == "int64"


def test_no_more_than_a_group_of_rows_is_held(tmp_path: Path) -> None:
    manifest(100).to_csv(tmp_path / "manifest.csv", index=False)
    assert [len(piece) for piece in read_pieces(tmp_path / "manifest.csv", 30)] == [30, 30, 30, 10]


def test_a_table_that_was_spoiled_is_refused_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "manifest.csv"
    for column, value, what in (("height", 10**30, "table of a run"), ("width", 10**9, "numbers up to")):
        manifest(4).assign(**{column: value}).to_csv(path, index=False)
        with pytest.raises(RunError, match=f"manifest.csv: expected .*{what}") as error:
            list(read_pieces(path))
        assert str(error.value).count("manifest.csv") == 1
    with pytest.raises(MissingRunError, match=r"images\.csv, or scores\.csv"):
        find_tables(RunFolder(tmp_path))


def test_a_run_and_a_folder_of_detect(tmp_path: Path) -> None:
    line = write_scenes(tmp_path, KINDS, 0)
    call("detect", line / "images", "--detector", "musc", "--out", tmp_path / "found", *FAST)
    told = call("export", tmp_path / "found", "--format", "parquet", "--out", tmp_path / "tables")
    scores = pd.read_csv(tmp_path / "found/scores.csv", dtype={"label": str})
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "tables/scores"), scores, check_dtype=False)
    assert f"{len(scores)} images, 0 regions" in told.stdout and "DuckDB" in told.stdout
    run = tmp_path / "run"
    call("discover", line / "images", "--maps", line / "maps", "--classes", 4, "--out", run, *FAST)
    call("export", run, "--format", "parquet")
    for name in ("images", "regions", "manifest", "groups"):
        own = read_csv(run / f"{name}.csv")
        table = pd.read_parquet(run / "export/parquet" / name)
        if name == "manifest":
            own[["n_bytes", "modified"]] = own[["n_bytes", "modified"]].astype("int64")
        pd.testing.assert_frame_equal(table, own, check_dtype=False)
    assert "lie inside" in fail("export", run, "--format", "parquet", "--out", line / "images/tables")
    assert "expected a finished run" in fail("export", tmp_path, "--format", "parquet")
