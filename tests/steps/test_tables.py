from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from anomalyncd.errors import RunError, SettingsError
from anomalyncd.steps.tables import PART, check_places, open_tables, places
from command import call, fail
from scenes import KINDS, write_scenes

HOW = ("--backbone", "tiny", "--classes", 4, "--set", "features.views=1", "--set", "learn.epochs=1", "--quiet")


def write(out: Path, n: int) -> None:
    with open_tables(out) as (images, regions):
        for number in range(n):
            images.add(pd.DataFrame({"image": [f"{number}.png"], "label": [number]}))
            regions.add(pd.DataFrame({"image": [f"{number}.png"] * 2, "region": [0, 1]}))


def test_a_folder_is_two_data_sets(tmp_path: Path) -> None:
    write(tmp_path / "new.csv", 3)
    write(tmp_path / "new", 3)
    for folder, table in zip(places(tmp_path / "new"), places(tmp_path / "new.csv"), strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(folder), pd.read_csv(table))
    write(tmp_path / "new", 1)  # anew
    assert len(pd.read_parquet(tmp_path / "new" / "images")) == 1


def test_what_would_be_taken_for_a_part_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "new", 1)
    (tmp_path / "new" / "regions" / "000000000-000000015.parquet").touch()  # of `--engine ray`
    with pytest.raises(
        RunError, match=rf"regions: expected nothing, or an earlier {PART}, but it holds 000000000-0000"
    ):
        check_places(tmp_path / "new")
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match="this is a file"):
        check_places(tmp_path / "file")
    with pytest.raises(SettingsError, match=r"ends in .csv or .parquet"):
        check_places(tmp_path / "new.txt")


def test_predict_into_a_folder(tmp_path: Path) -> None:
    line = write_scenes(tmp_path, KINDS, 0)
    call("discover", line / "images", "--maps", line / "maps", "--out", tmp_path / "run", *HOW)
    new = ("predict", tmp_path / "run", line / "images", "--maps", line / "maps", "--quiet", "--out")
    call(*new, tmp_path / "new.parquet")
    found = call(*new, tmp_path / "new")
    for folder, table in zip(places(tmp_path / "new"), places(tmp_path / "new.parquet"), strict=True):
        assert (folder / PART).read_bytes() == table.read_bytes() and str(folder) in found.output
    assert "--page is drawn from" in fail(*new, tmp_path / "new", "--page", tmp_path / "day.html")
    assert "lie inside" in fail(*new, line / "images" / "new")
    assert "lie inside" in fail(*new, tmp_path / "run" / "new")
