"""A workbook that a real reader opens: all cells of the tables, texts as texts, and a picture an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anomalyncd.errors import SettingsError
from anomalyncd.export import export_run, formats, xlsx
from anomalyncd.run.finished import FinishedRun

openpyxl = pytest.importorskip("openpyxl")


def test_a_workbook_has_what_the_tables_have_and_pictures(run: Path, tmp_path: Path) -> None:
    names = json.loads((run / "classes.json").read_text())
    first = next(key for key in names if key not in ("0", "-1"))
    names[first] = '=HYPERLINK("http://127.0.0.1","x")'
    (run / "classes.json").write_text(json.dumps(names))
    for name in ("images.csv", "regions.csv"):
        from anomalyncd.run.tables import read_csv

        table = read_csv(run / name)
        table["class_name"] = table["class_name"].where(table["label"] != int(first), names[first])
        table.to_csv(run / name, index=False)
    export_run(run, "xlsx", tmp_path / "out")
    book = openpyxl.load_workbook(tmp_path / "out" / "results.xlsx")
    assert book.sheetnames == ["images", "regions"]
    for name, table in formats.csv(FinishedRun(run)).items():
        sheet = book[Path(name).stem]
        skip = sheet.title == "images"
        assert [cell.value for cell in sheet[1]][skip:] == list(table.columns)
        for row, values in zip(sheet.iter_rows(min_row=2), table.itertuples(index=False), strict=True):
            for cell, value in zip(row[skip:], values, strict=True):
                assert cell.value == value or (cell.value is None and (value != value or value == ""))
                assert cell.data_type != "f"
    assert len(book["images"]._images) == len(FinishedRun(run).images)
    cells = [cell for row in book["images"].iter_rows() for cell in row if str(cell.value).startswith("=HYPER")]
    assert cells and all(cell.data_type == "s" and cell.quotePrefix for cell in cells)


def test_without_openpyxl_the_extra_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx, "find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"pip install 'anomalyncd\[xlsx\]'"):
        export_run(run, "xlsx", tmp_path / "out")


def test_formulas_of_csv_are_quoted_on_request(run: Path, tmp_path: Path) -> None:
    import pandas as pd

    for name in ("images.csv", "regions.csv"):
        table = pd.read_csv(run / name)
        table.loc[0, "class_name"] = "@SUM(A1)"
        table.to_csv(run / name, index=False)
    for quote, expected in ((False, "@SUM(A1)"), (True, "'@SUM(A1)")):
        export_run(run, "csv", tmp_path / "out", quote=quote)
        assert pd.read_csv(tmp_path / "out" / "images.csv")["class_name"].iloc[0] == expected
        assert pd.read_csv(tmp_path / "out" / "images.csv")["label"].dtype.kind == "i"
