"""Tables that a user asked for, .csv or .parquet, written piece by piece."""

from __future__ import annotations

import glob
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import RunError, SettingsError
from .folder import PARTIAL

GROUP = 10_000  # rows that are written at once
ABANDONED = 86_400  # seconds after which a file that a killed process of another machine left is taken away
MACHINE = re.sub(r"\W", "_", platform.node())[:40]


def check_table(path: Path) -> None:
    """Fail before the work, not after it, where `TableWriter` could not write such a file."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise SettingsError(f"{path}: expected a table that ends in .csv or .parquet.")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise SettingsError(f"{path}: Parquet needs pyarrow: pip install 'anomalyncd[parquet]', or write .csv.")
    if path.is_dir():
        raise RunError(f"{path}: expected a file to write, but this is a folder.")


class TableWriter:
    """A .csv or .parquet file that is written piece by piece, and is there whole or not at all.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "table.csv"
    >>> with TableWriter(path) as table:
    ...     table.add(pd.DataFrame({"image": ["a.png"], "label": [1]}))
    ...     table.add(pd.DataFrame({"image": ["b.png"], "label": [2]}))
    >>> path.read_text().split()
    ['image,label', 'a.png,1', 'b.png,2']
    """

    def __init__(self, path: Path) -> None:
        check_table(path)
        self.path = path
        # Another process, on another machine too, may write the same table.
        self.partial = path.with_name(f"{path.name}.{MACHINE}.{os.getpid()}{PARTIAL}")
        self._empty: pd.DataFrame | None = None  # what to write where no piece has a row
        self._waiting: list[pd.DataFrame] = []  # pieces of the next group of rows
        self._parquet: Any = None

    def __enter__(self) -> TableWriter:
        with self._told():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for left in self.path.parent.glob(f"{glob.escape(self.path.name)}.*{PARTIAL}"):
                if _has_died(left) or time.time() - left.stat().st_mtime > ABANDONED:
                    left.unlink(missing_ok=True)
            self.partial.unlink(missing_ok=True)
            self._file = self.partial.open("xb")
        self._begun = False
        return self

    def add(self, table: pd.DataFrame) -> None:
        """Put rows behind those that are there; a piece without rows waits for one that has some."""
        if len(table):
            self._waiting.append(table)
            if sum(map(len, self._waiting)) >= GROUP:
                self._flush()
        elif self._empty is None:
            self._empty = table

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                if not self._begun and not self._waiting and self._empty is not None:
                    self._waiting.append(self._empty)
                self._flush()
                with self._told():
                    if self._parquet is not None:
                        self._parquet.close()
                    self._file.flush()
                    os.fsync(self._file.fileno())  # on disk before the name is
                    self._file.close()
                    self.partial.replace(self.path)
        finally:
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self.partial.unlink(missing_ok=True)

    def _flush(self) -> None:
        if not self._waiting:
            return
        table, self._waiting = pd.concat(self._waiting, ignore_index=True), []
        with self._told():
            if self.path.suffix.lower() == ".csv":
                text = table.to_csv(index=False, header=not self._begun, lineterminator="\n")
                self._file.write(text.encode("utf-8"))
            else:
                self._write_parquet(table)
        self._begun = True

    def _write_parquet(self, table: pd.DataFrame) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self._parquet is None:
            schema = pa.Schema.from_pandas(table, preserve_index=False)
            for place, column in enumerate(schema):  # a column of nothing but None in the first piece holds text later
                if pa.types.is_null(column.type):
                    schema = schema.set(place, pa.field(column.name, pa.string()))
            self._parquet = pq.ParquetWriter(self._file, schema)
        self._parquet.write_table(pa.Table.from_pandas(table, schema=self._parquet.schema, preserve_index=False))

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RunError(f"{self.path}: cannot be written ({error.strerror or error}).") from error


def _has_died(partial: Path) -> bool:
    """Whether a process of this machine left the file and is there no more."""
    found = re.search(rf"\.{MACHINE}\.(\d{{1,9}}){re.escape(PARTIAL)}$", partial.name)
    return found is not None and has_ended(int(found[1]))


def has_ended(process: int) -> bool:
    """Whether there is no process of that number on this machine; no on Windows, where asking would end it."""
    if os.name == "nt":
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
