"""The tables of a run: one row an image, one row a region, one row a file that was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from ..data.dataset import Sample, Source
from ..data.maps import StackRow
from ..errors import RunError
from ..regions.records import ImageRecord
from .folder import CLASS_NAMES, CORRECTIONS, GROUPS, IMAGES_TABLE, MANIFEST, REGIONS_TABLE, to_json

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
}
WHOLE_NUMBERS = (
    "region", "label", "x", "y", "width", "height", "crop_x", "crop_y", "crop_size", "n_regions",
)  # fmt: skip
NUMBERS = ("area", "score", "probability", "unknown", "foreign", "false_alarm")


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
        }
    )


def _place(source: Source | None, run: Path) -> str:
    if isinstance(source, StackRow):
        return str(replace(source, path=source.path.absolute()))
    if not isinstance(source, Path):
        return ""
    inside = source.is_relative_to(run / "maps")
    return source.relative_to(run).as_posix() if inside else str(source.absolute())


def to_csv(table: pd.DataFrame) -> str:
    """The same text on every platform."""
    return table.to_csv(index=False, lineterminator="\n")


def read_csv(path: Path) -> pd.DataFrame:
    """A table of a run; names stay text even where they look like numbers, and numbers are exact."""
    text = ("image", "class_name", "crop", "classes", "true_label", "message", "status", "file", "map")
    try:
        columns = pd.read_csv(path, nrows=0).columns
        table = pd.read_csv(
            path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(text, str),
            converters={name: float for name in columns if name.startswith("p_")},
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: expected a table of a run ({error}).") from error
    _check(table, path)
    return table


def _check(table: pd.DataFrame, path: Path) -> None:
    """Refuse a table that was damaged, or spoiled by an editor, before somebody trips over a cell of it."""
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
