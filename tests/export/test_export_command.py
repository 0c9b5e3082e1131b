"""`anomalyncd export`: tables as documented, whole folders, and what it refuses (formats.py, source.py, target.py).

Covers formats, source, target.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import anomalyncd.export as export_module
from anomalyncd.errors import RunError
from anomalyncd.export import FORMATS, export_run
from anomalyncd.run.tables import read_csv
from command import call, fail
from export.scenes import SCENES

DOCS = Path(__file__).parents[2] / "docs/export.md"
FILES = {
    "parquet": set(),
    "xlsx": {"results.xlsx"},
    "yolo": {"data.yaml"},
    "voc": set(),
    "csv": {"images.csv", "regions.csv"},
    "coco": {"annotations.json"},
    "labelstudio": {"tasks.json", "interface.xml"},
    "fiftyone": {"data.json", "labels.json", "image_labels.json"},
    "folders": set(),
}


def documented(table: str) -> list[str]:
    """The columns that docs/export.md lists under the table's name."""
    after = DOCS.read_text(encoding="utf-8").split(f"\n`{table}`, one row", 1)[1]
    lines = after.split("|---|---|\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [re.match(r"\| `(\w+)`", line).group(1) for line in lines]  # type: ignore[union-attr]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("with_unknown", [False, True])
def test_columns_are_those_of_the_documentation(run: Path, with_unknown: bool) -> None:
    for name in ("images.csv", "regions.csv"):
        table = read_csv(run / name).drop(columns="unknown", errors="ignore")
        table.assign(**{"unknown": 0.25} if with_unknown else {}).to_csv(run / name, index=False)
    call("export", run, "--format", "csv")
    images, regions = (pd.read_csv(run / "export/csv" / name) for name in ("images.csv", "regions.csv"))
    own = read_csv(run / "images.csv")
    expected = documented("images.csv")
    assert expected.pop() == "p_0"
    assert list(images.columns) == [*expected, *(column for column in own if column.startswith("p_"))]
    assert list(regions.columns) == documented("regions.csv")
    assert images["image"].tolist() == list(SCENES)
    assert list(zip(images["height"], images["width"], strict=True)) == [size for size, _ in SCENES.values()]
    assert all(Path(file).is_file() for file in images["file"])
    assert len(regions) == 8 and (regions["label"] == 0).sum() == 2
    assert images["unknown"].notna().all() == with_unknown
    pd.testing.assert_frame_equal(regions[["x", "crop", "area"]], read_csv(run / "regions.csv")[["x", "crop", "area"]])


@pytest.mark.parametrize("format", FORMATS)
def test_each_format_says_what_it_wrote_and_what_to_do_next(run: Path, format: str) -> None:
    result = call("export", run, "--format", format)
    folder = run / "export" / format
    files = {path.name for path in folder.iterdir() if path.is_file()}
    assert files == FILES[format] | {"export.json"}
    assert f"7 images, {8 if format in ('csv', 'parquet', 'xlsx') else 6} regions: {folder}\n" in result.stdout
    assert "\nNext: " in result.stdout and str(folder) in result.stdout.split("Next: ")[1]
    assert "warning" not in result.output
    before = snapshot(folder)
    assert call("export", run, "--format", format, "--quiet").stderr == ""
    # A workbook tells when it was made.
    assert format == "xlsx" or snapshot(folder) == before  # a second export takes the place of the first
    assert not list(run.rglob("*.partial"))


def test_missing_files_are_said(moved: Path, tmp_path: Path) -> None:
    for name in list(SCENES)[:6]:
        (moved / "images" / name).unlink()
    result = call("export", moved / "run", "--format", "folders", "--out", tmp_path / "out")
    assert "6 images (file gone since the run was made, left out): Riß" in result.stderr
    assert "Riß, grün/a 1.png" in result.stderr and "good/A 1.png" not in result.stderr and "…" in result.stderr
    assert "1 image, " in result.stdout


def test_formats_that_are_not_there(run: Path) -> None:
    assert "expected one of csv, parquet, xlsx, coco, yolo, voc, labelstudio, fiftyone, folders" in fail(
        "export", run, "--format", "pdf"
    )
    assert not (run / "export").exists()


def test_options_that_do_not_fit_the_format(run: Path, tmp_path: Path) -> None:
    assert "--root" in fail("export", run, "--format", "coco", "--root", tmp_path)
    assert "--link" in fail("export", run, "--format", "coco", "--link")


def test_no_run(run: Path, tmp_path: Path) -> None:
    assert "expected a finished run" in fail("export", tmp_path / "nothing", "--format", "csv")
    (run / "regions.csv").unlink()
    assert "regions.csv" in fail("export", run, "--format", "coco")
    assert not (run / "export/coco").exists()


def test_tables_that_do_not_fit_the_masks(run: Path) -> None:
    regions = read_csv(run / "regions.csv")
    regions.drop(index=0).to_csv(run / "regions.csv", index=False)
    assert "expected 2 regions of Riß, grün/a 1.png" in fail("export", run, "--format", "coco")


@pytest.mark.parametrize("inside", ["", "export", "dot", "dot/deep/er"])
def test_not_among_the_images(moved: Path, inside: str) -> None:
    message = fail("export", moved / "run", "--format", "csv", "--out", moved / "images" / inside)
    assert "inside" in message and str(moved / "images") in message
    assert not (moved / "images/export").exists() and not (moved / "images/dot/deep").exists()


def test_other_files_are_never_replaced(run: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    call("export", run, "--format", "csv", "--out", mine)  # an empty folder is fine
    before = snapshot(mine)
    assert "holds an export to csv" in fail("export", run, "--format", "coco", "--out", mine)
    assert snapshot(mine) == before
    (mine / "notes.txt").write_text("mine")
    assert "notes.txt" in fail("export", run, "--format", "csv", "--out", mine)
    (mine / "export.json").write_text("[]")
    assert "export.json" in fail("export", run, "--format", "csv", "--out", mine)
    (mine / "export.json").unlink()
    assert "holds other files" in fail("export", run, "--format", "csv", "--out", mine)
    assert "holds other files" in fail("export", run, "--format", "csv", "--out", run)
    assert "this is a file" in fail("export", run, "--format", "csv", "--out", mine / "notes.txt")
    assert (mine / "notes.txt").read_text() == "mine"


def test_a_folder_of_somebody_else_under_the_partial_name(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial/thesis.txt").touch()
    assert "is in the way" in fail("export", run, "--format", "csv", "--out", tmp_path / "out")
    assert (tmp_path / "out.partial/thesis.txt").exists()


def test_what_a_killed_call_left_is_swept_away(run: Path, tmp_path: Path) -> None:
    for name in ("out.partial", "out.old.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "export.json").write_text("{")
    call("export", run, "--format", "csv", "--out", tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my run", "out"]


@pytest.mark.parametrize("stop", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_export_that_fails_changes_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop: BaseException
) -> None:
    out = tmp_path / "out"
    export_run(run, "coco", out)
    before = snapshot(out)

    def break_off(path: Path, value: Any) -> None:
        path.write_text("half of it")
        raise stop

    monkeypatch.setattr(export_module, "write_json", break_off)
    with pytest.raises(RunError if isinstance(stop, OSError) else KeyboardInterrupt):
        export_run(run, "coco", out)
    assert snapshot(out) == before
    with pytest.raises((RunError, KeyboardInterrupt)):
        export_run(run, "coco", tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my run", "out"]


def test_the_old_export_comes_back_when_the_new_one_cannot_take_its_place(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    export_run(run, "csv", out)
    before, replace = snapshot(out), os.replace

    def refuse(source: Path, target: Path) -> None:
        if source.name == "out.partial":
            raise PermissionError(13, "Permission denied")
        replace(source, target)

    monkeypatch.setattr("anomalyncd.export.target.os.replace", refuse)
    with pytest.raises(RunError, match="Permission denied"):
        export_run(run, "csv", out)
    assert snapshot(out) == before and sorted(path.name for path in tmp_path.iterdir()) == ["my run", "out"]


def test_one_image_at_a_time(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each annotation is written before the masks of the next image are read."""
    events: list[str] = []
    masks = export_module.Results.masks

    def watched(self: Any, image: Any) -> Any:
        events.append("read")
        for found in masks(self, image):
            yield found
            events.append("written")

    monkeypatch.setattr(export_module.Results, "masks", watched)
    export_run(run, "coco", tmp_path / "out")
    assert events == ["read", "written", "written", "read", "written", "read", "written", "written", "read", "read",
                      "read", "read", "written"]  # fmt: skip


def test_names_without_a_meaning_in_xml_or_json(run: Path, tmp_path: Path) -> None:
    (run / "classes.json").write_text(json.dumps({"0": "normal", "1": "a\x00\x07b", "2": " ", "5": "<&\"'"}))
    for format in FORMATS:
        export_run(run, format, tmp_path / format)
    categories = json.loads((tmp_path / "coco/annotations.json").read_text(encoding="utf-8"))["categories"]
    assert [category["name"] for category in categories] == ["unknown", "a  b", "class 2", "<&\"'"]
