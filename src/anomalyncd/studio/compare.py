"""Two runs of the same images: which classes are the same, and which images moved between others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from ..errors import DataError
from ..labels import default_name
from ..run.finished import FinishedRun
from .schema import CompareAnswer, Moved

SHOWN = 24  # images of one kind of move
MOST_MOVES = 60


def compare(first: str, one: Path, second: str, other: Path) -> CompareAnswer:
    """Match the classes of two runs one to one by the images that they share, and say what is not matched."""
    a, b = _classes(FinishedRun(one, device="cpu")), _classes(FinishedRun(other, device="cpu"))
    shared = [key for key in b if key in a]
    if not shared:
        raise DataError(f"{first} and {second} have no image in common, so there is nothing to compare.")
    rows = sorted({a[key][:2] for key in shared}, key=_place)
    columns = sorted({b[key][:2] for key in shared}, key=_place)
    row_of, column_of = ({name: n for n, name in enumerate(names)} for names in (rows, columns))
    table = np.zeros((len(rows), len(columns)), np.int64)
    cells: dict[tuple[int, int], list[int]] = {}
    for key in shared:
        cell = row_of[a[key][:2]], column_of[b[key][:2]]
        table[cell] += 1
        cells.setdefault(cell, []).append(b[key][2])
    matched = [(int(r), int(c)) for r, c in zip(*linear_sum_assignment(-table), strict=True) if table[r, c]]
    moves = sorted((cell for cell in cells if cell not in set(matched)), key=lambda cell: -len(cells[cell]))
    return CompareAnswer(
        first=first, second=second, shared=len(shared), only_first=len(a) - len(shared), only_second=len(b) - len(shared),
        same=int(sum(table[cell] for cell in matched)), rows=[name for _, name in rows],
        columns=[name for _, name in columns], matched=matched, table=table.tolist(),
        moved=[
            Moved(before=rows[r][1], after=columns[c][1], count=len(cells[r, c]), images=cells[r, c][:SHOWN])
            for r, c in moves[:MOST_MOVES]
        ],
    )  # fmt: skip


def _classes(run: FinishedRun) -> dict[str, tuple[int, str, int]]:
    """File of an image (or its name, where it is none) → label, name of its class, and its row in manifest.csv."""
    files = run.manifest["file"] if "file" in run.manifest else run.manifest["image"]
    file_of = {
        image: (number, file if isinstance(file, str) and file else image)
        for number, (image, file) in enumerate(zip(run.manifest["image"], files, strict=True))
    }
    names = run.names
    return {
        file_of[image][1]: (int(label), names.get(int(label), default_name(int(label))), file_of[image][0])
        for image, label in zip(run.images["image"], run.images["label"], strict=True)
    }


def _place(found: tuple[int, str]) -> tuple[bool, int]:
    """Defects as numbered, then normal, then unknown."""
    return found[0] <= 0, abs(found[0])
