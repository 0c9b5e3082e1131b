"""Lists of images as tables, CSV or Parquet: one row an image, with its map, mask and label if there are any."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from io import TextIOWrapper
from typing import Any

from ..errors import DataError
from ..paths import suffix_of
from ..places.parquet import read_columns
from ..places.stored import File
from .limits import memory_limit

TABLE_SUFFIXES = frozenset({".csv", ".parquet"})
_START = 4096  # bytes
_COLUMNS = ("image", "map", "mask", "label")


def is_table(path: str | File) -> bool:
    """Whether this is called as a list of images rather than as a folder of them."""
    return suffix_of(str(path)) in TABLE_SUFFIXES


def row_name(table: File, line: int) -> str:
    """What a message calls a row: lines of a CSV can be looked up in any editor, Parquet has none."""
    return f"{'row' if suffix_of(table.name) == '.parquet' else 'line'} {line}"


def read_table(path: File) -> list[tuple[int, dict[str, str]]]:
    """(line, cells by column) for each row of a table that has a column `image`; lower-case columns, no spaces.

    In a CSV the line is that of the file, in Parquet the number of the row, from 1; there, only the columns of a list of
    images are read, and an empty cell is "".
    """
    table = _read_parquet(path) if suffix_of(path.name) == ".parquet" else _read_csv(path)
    for line, cells in table:
        if not cells["image"]:
            raise DataError(f"{path}, {row_name(path, line)}: the column 'image' is empty")
    return table


def check_text(path: File) -> None:
    """Refuse what is no text before all of it is read: it may have no line to end with."""
    try:
        with path.open("rb") as file:
            if b"\0" in file.read(_START):
                raise DataError(f"{path}: expected a CSV table in UTF-8, found binary data")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _read_csv(path: File) -> list[tuple[int, dict[str, str]]]:
    check_text(path)
    try:
        with TextIOWrapper(path.open("rb"), encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, restval="")
            rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
            _check_columns(path, rows.fieldnames)
            return [
                (rows.line_num, {name: cell.strip() for name, cell in row.items() if isinstance(cell, str)})
                for row in rows
            ]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV table in UTF-8 ({error})") from error


def _read_parquet(path: File) -> list[tuple[int, dict[str, str]]]:
    columns = read_columns(path, _COLUMNS, memory_limit(), lambda names: _check_columns(path, names))
    cells = [[_cell(path, name, value) for value in column] for name, column in columns.items()]
    return [(line, dict(zip(columns, row, strict=True))) for line, row in enumerate(zip(*cells, strict=True), start=1)]


def _cell(path: File, name: str, value: Any) -> str:
    if isinstance(value, str):
        return value.strip()
    if value is None or value != value:  # NaN: how pandas stores an empty cell of a column of numbers
        return ""
    if name == "label" and isinstance(value, int | float):
        # whole numbers of a column with empty cells are stored as 3.0
        return str(int(value) if isinstance(value, float) and value.is_integer() else value)
    raise DataError(f"{path}: expected text in the column '{name}', found {type(value).__name__}")


def _check_columns(path: File, names: Sequence[str]) -> None:
    if "image" not in names:
        raise DataError(f"{path}: expected a column 'image', found {', '.join(names) or 'none'}")
