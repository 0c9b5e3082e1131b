"""The tables of a run, or of `detect`, as Parquet data sets: read and written in groups of rows, however long they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import MissingRunError, RunError
from ..run.folder import CORRECTIONS, GROUPS, IMAGES_TABLE, KNOWN, MANIFEST, REGIONS_TABLE, SCORES, SUSPECTS, RunFolder
from ..run.tables import TEXT, WHOLE_NUMBERS, check_cells, header
from ..run.writer import GROUP, TableWriter
from .tables import PART

TABLES = (IMAGES_TABLE, REGIONS_TABLE, MANIFEST, GROUPS, KNOWN, CORRECTIONS, SUSPECTS, SCORES)


def find_tables(folder: RunFolder) -> dict[str, Path]:
    """Name of a data set → the table of the folder that it is made of; a MissingRunError where nothing is finished."""
    folder.recover()
    found = {Path(name).stem: path for name in TABLES if (path := folder.place(name)).is_file()}
    if not {Path(IMAGES_TABLE).stem, Path(SCORES).stem} & set(found):
        raise MissingRunError(
            f"{folder.path}: expected a finished run with {IMAGES_TABLE}, or {SCORES} of `anomalyncd detect`, none found."
        )
    return found


def write_data_sets(tables: dict[str, Path], out: Path) -> dict[str, int]:
    """Write each table as a folder with a Parquet file; returns how many rows each has."""
    counts = dict.fromkeys(tables, 0)
    for name, path in tables.items():
        with TableWriter(out / name / PART) as table:
            for piece in read_pieces(path):
                table.add(piece)
                counts[name] += len(piece)
    return counts


def read_pieces(path: Path, rows: int = GROUP) -> Iterator[pd.DataFrame]:
    """A table, so many rows at a time; types depend on names of columns alone, not on what the rows happen to hold."""
    try:
        columns = header(path)
        types = {name: _type(name, path) for name in columns if not name.startswith("p_")}
        exact = {name: float for name in columns if name not in types}
        with pd.read_csv(
            path, keep_default_na=False, na_values=[""], dtype=types, converters=exact, chunksize=rows
        ) as pieces:
            for piece in pieces:
                check_cells(piece, path)
                yield piece
    except RunError:
        raise
    except (OSError, ValueError, OverflowError) as error:
        raise RunError(f"{path}: expected a table of a run ({error}).") from error


def _type(column: str, path: Path) -> Any:
    if column in ("n_bytes", "modified"):  # not there where the image was an array
        return "Int64"
    if column in TEXT or (column == "label" and path.name == SCORES):  # what the folder is called, not a class
        return str
    return "int64" if column in WHOLE_NUMBERS or column == "group" else "float64"
