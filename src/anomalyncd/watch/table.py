"""The tables that only grow: what the ledger has committed, as CSV files, or as Parquet files of a day each."""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ..errors import RunError, SettingsError
from ..export.cells import safe_cell
from ..run.writer import TableWriter, check_table
from .columns import IMAGE_COLUMNS, TEXT, WATCHED_REGIONS, WHOLE, Row
from .ledger import Ledger

SQLITE = (".sqlite", ".sqlite3", ".db")
REST_SECONDS = 60.0  # between two writings of the file of today
BEGUN = "last day with a file"
REST_TIMES = 20  # how much longer than a writing the rest after it is


class GrowingTable:
    """Where rows go that the ledger has committed; here they are in the table by then, which is in the same SQLite file."""

    def flush(self, *, last: bool = False) -> None:
        """Bring what is committed into the table; last : nothing more comes for a while"""


class CsvTable(GrowingTable):
    """TABLE.csv and TABLE_regions.csv, to which rows are appended.

    The ledger knows how long each file was when all was well, and keeps rows until they are beyond doubt in it. Whatever
    a killed process, or a full disk, let through of them is the beginning of the same bytes, and only the rest is added.

    quote : see `export.cells.safe_cell`
    """

    def __init__(self, path: Path, ledger: Ledger, *, quote: bool = False) -> None:
        self.ledger, self.quote = ledger, quote
        self.files = {path: IMAGE_COLUMNS, regions_beside(path): WATCHED_REGIONS}

    def flush(self, *, last: bool = False) -> None:
        rows = self.ledger.rows()
        if not rows:
            return
        images, regions = [image for _, image, _ in rows], [region for _, _, own in rows for region in own]
        sizes = {
            _size_of(path): str(self._append(path, columns, some))
            for (path, columns), some in zip(self.files.items(), (images, regions), strict=True)
        }
        self.ledger.rows_written(rows[-1][0], sizes)

    def _append(self, path: Path, columns: Sequence[str], rows: Sequence[Row]) -> int:
        """Add rows that are not in the file yet; returns its length."""
        known = self.ledger.count(_size_of(path))
        try:
            if not path.exists():  # taken away, or never there: a new one begins
                known = 0
            text = self._text(columns, rows, header=not known)
            with path.open("ab+") as file:
                length = file.seek(0, os.SEEK_END)
                file.seek(min(known, length))
                if length < known or length > known + len(text) or not text.startswith(tail := file.read()):
                    raise RunError(
                        f"{path}: expected the {known} bytes that were written so far, but found another file. Rows wait "
                        f"in {self.ledger.path.name}: move the table away, and a new one begins with them."
                    )
                file.write(text[len(tail) :])
                file.flush()
                os.fsync(file.fileno())
                return known + len(text)
        except OSError as error:
            raise RunError(
                f"{path}: cannot be written ({error.strerror or error}). Rows wait in the ledger."
            ) from error

    def _text(self, columns: Sequence[str], rows: Sequence[Row], *, header: bool) -> bytes:
        """Lines; a row has the same bytes in whatever company it is written."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        if header:
            writer.writerow(columns)
        change = safe_cell if self.quote else lambda value: value
        writer.writerows([change(row.get(column)) for column in columns] for row in rows)
        return text.getvalue().encode()


class ParquetTable(GrowingTable):
    """A folder with DAY.parquet and DAY_regions.parquet, each there whole; the ledger keeps rows until their day is over.

    The files of today are written again now and then, and when `flush` is told to be the last.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.folder, self.ledger = folder, ledger
        self._written: dict[str, int] = {}  # day → highest number in its file
        self._next = 0.0

    def flush(self, *, last: bool = False) -> None:
        days = self.ledger.days()
        today = max(days, default="")
        over = {day: seq for day, seq in days.items() if day < today}
        is_due = last or time.monotonic() >= self._next
        for day, seq in days.items():
            if self._written.get(day) == seq or (day == today and not is_due):
                continue
            started = time.monotonic()
            rows = self.ledger.rows(day)
            images, regions = [image for _, image, _ in rows], [region for _, _, own in rows for region in own]
            path = self.folder / f"{day}.parquet"
            self._begin(day, path)
            for place, columns, some in (
                (regions_beside(path), WATCHED_REGIONS, regions),
                (path, IMAGE_COLUMNS, images),
            ):
                with TableWriter(place) as file:
                    file.add(frame(some, columns))
            self._written[day] = seq
            self._next = time.monotonic() + max(REST_SECONDS, REST_TIMES * (time.monotonic() - started))
        if over:
            self.ledger.rows_written(max(over.values()), {})
            self._written = {day: seq for day, seq in self._written.items() if day not in over}

    def _begin(self, day: str, path: Path) -> None:
        """A file that is there before its day has begun in the ledger holds rows that this would end."""
        if (self.ledger.note(BEGUN) or "") >= day:
            return
        if path.exists():
            raise RunError(
                f"{path}: is there already, but its ledger {self.ledger.path} is another. Move the file away."
            )
        self.ledger.set_note(BEGUN, day)


def open_table(path: Path, *, quote: bool = False) -> tuple[Ledger, GrowingTable]:
    """The ledger of a table and the table; made where they are not there yet."""
    kind = path.suffix.lower()
    if quote and kind != ".csv":
        raise SettingsError(f"{path}: cells are quoted in a .csv table only.")
    try:
        (path if kind == ".parquet" else path.parent).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path}: cannot be made ({error.strerror or error}).") from error
    if kind in SQLITE:
        return Ledger(path, tables=True), GrowingTable()
    if kind == ".parquet":
        check_table(path / "day.parquet")
        ledger = Ledger(path / ".watch", tables=False)
        return ledger, ParquetTable(path, ledger)
    if kind != ".csv":
        raise SettingsError(
            f"{path}: expected a table that ends in .csv, .sqlite or .parquet (a folder, a file a day)."
        )
    check_table(path)
    ledger = Ledger(path.with_name(f"{path.name}.watch"), tables=False)
    return ledger, CsvTable(path, ledger, quote=quote)


def regions_beside(path: Path) -> Path:
    """Where the regions of a table of images are.

    Examples
    --------
    >>> regions_beside(Path("a/line.csv")).as_posix()
    'a/line_regions.csv'
    """
    return path.with_name(f"{path.stem}_regions{path.suffix}")


def frame(rows: Sequence[Row], columns: Sequence[str]) -> pd.DataFrame:
    """Rows as a table whose types do not depend on what is in it."""
    table = pd.DataFrame(rows, columns=list(columns))
    whole = (*WHOLE, "region", "x", "y", "crop_x", "crop_y", "crop_size")
    kinds = {name: "str" if name in TEXT else "Int64" if name in whole else "float64" for name in columns}
    return table.astype(kinds)


def _size_of(path: Path) -> str:
    return f"size of {path.name}"
