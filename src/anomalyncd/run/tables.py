"""The tables of a run: one row an image, one row a region, one row a file that was looked at."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..checksums import file_marks
from ..data.dataset import Sample, Source
from ..data.limits import MAX_SIDE, VARIABLE, memory_limit
from ..data.maps import StackRow
from ..errors import RunError
from ..places.stored import File, Stored
from ..regions.records import MOST_REGIONS, ImageRecord
from .folder import (
    CLASS_NAMES,
    CORRECTIONS,
    GROUPS,
    HISTORY,
    IMAGES_TABLE,
    KNOWN,
    MANIFEST,
    REGIONS_TABLE,
    RunFolder,
    to_json,
)

LARGEST = 4_000_000_000  # bytes of a table, ten million images
MOST_COLUMNS, LONGEST_HEADER = 10_100, 200_000  # one for each of 10,000 classes; letters of all
DIGITS = 6  # of all figures: equal results are equal bytes, whichever engine computed them
REGION_COLUMNS = (
    "image", "region", "x", "y", "width", "height", "crop_x", "crop_y", "crop_size", "area", "score",
    "label", "class_name", "probability", "unknown", "false_alarm",
)  # fmt: skip
REQUIRED = {
    IMAGES_TABLE: ("image", "label", "class_name"),
    REGIONS_TABLE: (*REGION_COLUMNS[:6], "area", "score", "label", "class_name", "probability"),
    MANIFEST: ("image", "status", "height", "width", "n_regions", "message"),
    CORRECTIONS: ("image", "region", "label"),
    KNOWN: ("image", "region", "label", "class_name", "looks_like"),
    GROUPS: ("group", "image", "region"),
}
WHOLE_NUMBERS = (
    "region", "label", "x", "y", "width", "height", "crop_x", "crop_y", "crop_size", "n_regions",
)  # fmt: skip
MARKS = ("n_bytes", "modified", "sha256")  # by which a file is known again
NUMBERS = ("area", "score", "probability", "unknown", "foreign", "false_alarm")
TEXT = (
    "image", "class_name", "looks_like", "crop", "classes", "true_label", "message", "status", "file", "map", *MARKS,
)  # fmt: skip


def result_files(
    images: pd.DataFrame, regions: pd.DataFrame, outliers: pd.DataFrame, rows: pd.DataFrame, names: Mapping[int, str]
) -> dict[str, bytes]:
    """File name → content of the tables that a run ends with; rows : of manifest.csv; names : label → name."""
    tables = {MANIFEST: rows, REGIONS_TABLE: regions, GROUPS: outliers, IMAGES_TABLE: images}
    named = {CLASS_NAMES: to_json({str(k): name for k, name in names.items()}).encode()}
    return named | {name: to_csv(table).encode() for name, table in tables.items()}


def manifest(images: Sequence[ImageRecord], items: Sequence[Sample], run: Path) -> pd.DataFrame:
    """Every file that was looked at, read or skipped, and where it and its map lie; arrays lie nowhere.

    run : its folder; a map inside it is called by its name there, `maps/crack/000.npy`
    """
    return pd.DataFrame(
        {
            "image": [r.id for r in images],
            "status": ["skipped" if r.error else "ok" for r in images],
            "height": [r.height for r in images],
            "width": [r.width for r in images],
            "n_regions": [r.n_regions for r in images],
            "score": [np.nan if r.error else round(r.score, DIGITS) for r in images],
            "threshold": [r.threshold for r in images],
            "message": [r.error or r.note for r in images],
            "file": [_place(item.image, run) for item in items],
            "map": [_place(item.map, run) for item in items],
            **{name: [getattr(r, name) for r in images] for name in MARKS},
        }
    )


def is_changed(path: File, row: Mapping[Any, Any], written: int) -> bool:
    """Whether a file is another than the one that a row of manifest.csv is about.

    One of the same size and time is taken for the same; of others the content tells. written : time (ns) of the table,
    which decides where an earlier version has noted nothing else
    """
    try:
        status = path.stat()
    except OSError:
        return False
    n_bytes, modified, content = (row.get(name) for name in MARKS)
    if not isinstance(content, str):
        return status.st_mtime_ns > written
    if (str(status.st_size), str(status.st_mtime_ns)) == (n_bytes, modified):
        return False
    marks = file_marks(path)
    return marks is not None and marks[2] != content


def _place(source: Source | None, run: Path) -> str:
    if isinstance(source, StackRow):
        return str(replace(source, path=source.path.absolute()))
    if isinstance(source, Stored):
        return str(source)
    if not isinstance(source, Path):
        return ""
    inside = source.is_relative_to(run / "maps")
    return source.relative_to(run).as_posix() if inside else str(source.absolute())


def to_csv(table: pd.DataFrame) -> str:
    """The same text on every platform."""
    return table.to_csv(index=False, lineterminator="\n")


def read_csv(path: Path) -> pd.DataFrame:
    """A table of a run; names stay text even where they look like numbers, and numbers are exact."""
    try:
        if path.stat().st_size > LARGEST:
            raise ValueError(f"it has more than {LARGEST:,} bytes")
        columns = header(path)
        table = pd.read_csv(
            path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(TEXT, str),
            converters={name: float for name in columns if name.startswith("p_")},
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: expected a table of a run ({error}).") from error
    check_cells(table, path)
    return table


def header(path: Path) -> list[str]:
    """Names of the columns of a CSV table, each there once: pandas would take hours over a stranger's million equal ones."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        line = file.readline(LONGEST_HEADER + 1)
    try:
        names = next(csv.reader([line]), [])
    except csv.Error as error:
        raise ValueError(error) from error
    if len(line) > LONGEST_HEADER or len(names) > MOST_COLUMNS:
        raise ValueError(f"it has more than {MOST_COLUMNS:,} columns")
    name, count = max(Counter(filter(None, names)).items(), key=lambda item: item[1], default=("", 1))
    if count > 1:
        raise ValueError(f"the column {name!r} is there twice")
    return names


def check_cells(table: pd.DataFrame, path: Path) -> None:
    """Refuse a table that was damaged, or spoiled by an editor, before somebody trips over a cell of it."""
    if path.name == HISTORY and any(kind.kind not in "iuf" for kind in table.dtypes):
        raise RunError(f"{path}: expected numbers, a row for each epoch, but found something else.")
    if missing := [column for column in REQUIRED.get(path.name, ()) if column not in table]:
        raise RunError(f"{path}: expected the table of a run, but it has no column {missing[0]}.")
    if not len(table) or path.name not in REQUIRED:
        return
    if table["image"].isna().any():
        raise RunError(f"{path}: expected the name of an image in every row, but one is empty.")
    for name in (*WHOLE_NUMBERS, *NUMBERS):
        kinds = "iu" if name in WHOLE_NUMBERS else "iuf"
        if name in table and table[name].dtype.kind not in kinds:
            what = "whole numbers" if name in WHOLE_NUMBERS else "numbers"
            raise RunError(f"{path}: expected {what} in the column {name}, but found something else.")
        if name in WHOLE_NUMBERS and name in table and not table[name].between(-MAX_SIDE, MAX_SIDE).all():
            odd = table[name][~table[name].between(-MAX_SIDE, MAX_SIDE)].iloc[0]
            raise RunError(f"{path}: expected numbers up to {MAX_SIDE:,} in the column {name}, but found {odd}.")
    if path.name == MANIFEST:
        _check_sizes(table[table["status"] == "ok"], path)


def _check_sizes(rows: pd.DataFrame, path: Path) -> None:
    """Refuse sizes that no image has which can be read here: masks of that size would be made."""
    height, width, n_regions = (rows[name].astype(float) for name in ("height", "width", "n_regions"))
    right = (height >= 1) & (width >= 1) & (3 * height * width <= memory_limit()) & n_regions.between(0, MOST_REGIONS)
    if not right.all():
        row = rows[~right].iloc[0]
        raise RunError(
            f"{path}: expected the size of an image and at most {MOST_REGIONS} regions, but {row['image']} has "
            f"{row['width']} × {row['height']} pixels and {row['n_regions']} regions. ({VARIABLE} allows larger images.)"
        )


def read_names(folder: Path) -> dict[int, str]:
    """Label → name that people gave to a class, from classes.json; empty where there is no such file."""
    path = RunFolder(folder).place(CLASS_NAMES)
    if not path.exists():
        return {}
    try:
        return {int(label): str(name) for label, name in RunFolder(folder).read_json(CLASS_NAMES).items()}
    except (ValueError, AttributeError) as error:  # None where it is no JSON
        raise RunError(f'{path}: expected names of classes as {{"1": "dent"}}, but found something else.') from error


def is_count(found: Any) -> bool:
    """Whether this says how the number of classes was estimated, as `CountEstimate` does."""
    if not isinstance(found, dict) or not isinstance(found.get("answers"), dict) or "normal" not in found:
        return False
    answers = list(found["answers"].values())
    numbers = [found.get(name) for name in ("count", "low", "high")] + answers
    finer, is_told = found.get("finer"), answers or found.get("verdict") in ("too few", "one kind")
    return bool(is_told) and all(_is_small(n) for n in numbers) and (finer is None or _is_small(finer))


def _is_small(number: Any) -> bool:
    return isinstance(number, int) and 0 <= number <= MAX_SIDE
