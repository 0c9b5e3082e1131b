"""What a spreadsheet would compute is text."""

from __future__ import annotations

import pandas as pd

from anomalyncd.export.cells import safe_cells


def test_cells_that_a_spreadsheet_would_compute() -> None:
    table = pd.DataFrame({"image": ["=1", "a", "@x", "+1", "-1", "\tx"], "label": [-1, 1, 2, 3, 4, 5], "p": [-0.5] * 6})
    safe = safe_cells(table)
    assert safe["image"].tolist() == ["'=1", "a", "'@x", "'+1", "'-1", "'\tx"]
    assert safe["label"].tolist() == [-1, 1, 2, 3, 4, 5] and safe["p"].tolist() == [-0.5] * 6
    assert table["image"][0] == "=1"
