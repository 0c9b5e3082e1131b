"""What moved between two runs of the same images, on a case made by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from anomalyncd.errors import DataError
from anomalyncd.run.tables import read_csv, to_csv
from anomalyncd.studio.compare import compare


def test_classes_are_matched_and_moves_are_what_is_left(product: Path, tmp_path: Path) -> None:
    one, other = product / "run", Path(shutil.copytree(product / "run", tmp_path / "other"))
    table = read_csv(other / "images.csv")
    labels = table["label"].tolist()
    defects = sorted({label for label in labels if label > 0})
    swap = {defects[0]: defects[-1], defects[-1]: defects[0]}  # other numbers, same classes
    table["label"] = [swap.get(label, label) for label in labels]
    moved = labels.index(0)
    table.loc[moved, "label"] = swap[defects[0]]
    (other / "images.csv").write_text(to_csv(table))
    found = compare("one", one, "other", other)
    assert (found.shared, found.only_first, found.only_second) == (12, 0, 0)
    assert found.same == 11 and sum(map(sum, found.table)) == 12
    (move,) = found.moved
    assert move.before == "normal" and move.count == 1 and move.images == [moved]


def test_runs_without_a_common_image_are_not_compared(product: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(product / "run", tmp_path / "other"))
    text = (other / "manifest.csv").read_text().replace(str(product / "images"), "/elsewhere")
    (other / "manifest.csv").write_text(text)
    with pytest.raises(DataError, match="no image in common"):
        compare("one", product / "run", "other", other)
