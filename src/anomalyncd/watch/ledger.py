"""What is known for certain, in one SQLite file: which contents were classed, and what still has to be done about them."""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunError
from .columns import IMAGE_COLUMNS, TEXT, WATCHED_REGIONS, WHOLE, Entry, Row

BUSY_SECONDS = 30.0  # for which one thread waits for another's transaction
VERSION = "1"
SCHEMA = """
CREATE TABLE IF NOT EXISTS watch_notes (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS watch_seen (id BLOB PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS watch_files (path TEXT PRIMARY KEY, marks TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS watch_rows (seq INTEGER PRIMARY KEY, day TEXT, image TEXT, regions TEXT);
CREATE TABLE IF NOT EXISTS watch_outbox (target TEXT, seq INTEGER, id TEXT, body TEXT, PRIMARY KEY (target, seq));
CREATE TABLE IF NOT EXISTS watch_places (seq INTEGER PRIMARY KEY, source TEXT, target TEXT, marks TEXT);
"""


@dataclass(frozen=True)
class Placing:
    """A file that goes, or is linked, into the folder of its class; marks : of the content that was classed."""

    seq: int
    source: str
    target: str
    marks: str


@dataclass(frozen=True)
class Message:
    """One image, for others; id : the same however often it is sent."""

    seq: int
    id: str
    body: str


class Ledger:
    """Each image is committed once, with its row, its messages and its placing, in one transaction.

    A process that is killed leaves either all of that or nothing. Each thread needs a ledger of its own.

    Parameters
    ----------
    path : SQLite file; that of a table of `watch`, or one beside it
    tables : rows go into the tables `images` and `regions` of this file, rather than to `rows`

    Examples
    --------
    >>> import tempfile
    >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "a.watch", tables=False)
    >>> entry = Entry({"id": content_id("a.png", "00"), "time": "2026-11-18T10:00:00.000+00:00", "image": "a.png"}, "1")
    >>> ledger.commit([entry], targets=["webhook"]), ledger.is_seen(entry.id), len(ledger.rows()), ledger.waiting("webhook")
    ([1], True, 1, 1)
    """

    def __init__(self, path: Path, *, tables: bool) -> None:
        self.path, self.tables = path, tables
        with told(path):
            self._db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")  # a row that somebody was told of survives a power cut
            with self._transaction():
                for statement in SCHEMA.strip().split(";\n"):
                    self._db.execute(statement)
                if tables:
                    for name, columns in (("images", IMAGE_COLUMNS), ("regions", WATCHED_REGIONS)):
                        self._db.execute(f"CREATE TABLE IF NOT EXISTS {name} ({', '.join(map(_declared, columns))})")
                    self._db.execute("CREATE INDEX IF NOT EXISTS regions_of ON regions (seq)")
                self._db.execute("INSERT OR IGNORE INTO watch_notes VALUES ('version', ?)", (VERSION,))
            if self.note("version") != VERSION:
                raise RunError(f"{path}: written by another version of anomalyncd, which this one cannot go on with.")

    def close(self) -> None:
        self._db.close()

    def is_seen(self, id: str) -> bool:
        """Whether this content was committed under this path."""
        return bool(self._all((int,), "SELECT 1 FROM watch_seen WHERE id = ?", bytes.fromhex(id)))

    def files(self) -> dict[str, str]:
        """Path → marks of its last committed content, of files that were there when somebody last looked."""
        return dict(self._all((str, str), "SELECT path, marks FROM watch_files"))

    def set_files(self, marks: Mapping[str, str], gone: Collection[str] = ()) -> None:
        """Remember files whose content was committed before, and forget those that are there no more."""
        if marks or gone:
            with told(self.path), self._transaction():
                self._mark(marks.items())
                self._db.executemany("DELETE FROM watch_files WHERE path = ?", ((path,) for path in gone))

    def commit(
        self,
        entries: Sequence[Entry],
        *,
        targets: Collection[str] = (),
        places: Mapping[str, tuple[str, str]] | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Write images down, all or none; returns the number of each, 1 … without gaps.

        targets : who is to be told; places : id → where its file lies and where it goes; notes : what else to remember
        """
        with told(self.path), self._transaction():
            first = self.count("seq") + 1
            numbers = list(range(first, first + len(entries)))
            day = self.note("day") or ""
            for seq, entry in zip(numbers, entries, strict=True):
                entry.image["seq"] = seq
                regions = [{"seq": seq, **region} for region in entry.regions]
                day = max(day, str(entry.image["time"])[:10])  # a clock that goes back opens no closed day again
                self._db.execute("INSERT INTO watch_seen VALUES (?)", (bytes.fromhex(entry.id),))
                if self.tables:
                    self._insert("images", IMAGE_COLUMNS, [entry.image])
                    self._insert("regions", WATCHED_REGIONS, regions)
                else:
                    texts = (json.dumps(entry.image), json.dumps(regions))
                    self._db.execute("INSERT INTO watch_rows VALUES (?, ?, ?, ?)", (seq, day, *texts))
                if targets:
                    body = json.dumps({**entry.image, "regions": entry.regions}, ensure_ascii=False, allow_nan=False)
                    told_to = ((target, seq, entry.id, body) for target in targets)
                    self._db.executemany("INSERT INTO watch_outbox VALUES (?, ?, ?, ?)", told_to)
                if places and entry.id in places:
                    self._db.execute(
                        "INSERT INTO watch_places VALUES (?, ?, ?, ?)", (seq, *places[entry.id], entry.marks)
                    )
            self._mark((str(entry.image["image"]), entry.marks) for entry in entries)
            self._set("seq", str(first + len(entries) - 1))
            self._set("day", day)
            for name, value in (notes or {}).items():
                self._set(name, value)
        return numbers

    def rows(self, day: str | None = None) -> list[tuple[int, Row, list[Row]]]:
        """(seq, image, regions) of what the table beside does not hold yet, in order; day : of this day only."""
        where, values = ("", ()) if day is None else ("WHERE day = ?", (day,))
        statement = f"SELECT seq, image, regions FROM watch_rows {where} ORDER BY seq"
        found = self._all((int, str, str), statement, *values)
        try:
            rows = [(seq, json.loads(image), json.loads(regions)) for seq, image, regions in found]
        except (ValueError, RecursionError) as error:
            raise self._damaged(str(error)) from error
        for _, image, regions in rows:
            if not all(isinstance(row, dict) for row in (image, *(regions if isinstance(regions, list) else [None]))):
                raise self._damaged("a row that is none")
        return rows

    def days(self) -> dict[str, int]:
        """Day → highest number, of rows that the table beside does not hold for good."""
        return dict(self._all((str, int), "SELECT day, MAX(seq) FROM watch_rows GROUP BY day ORDER BY day"))

    def rows_written(self, last: int, notes: Mapping[str, str]) -> None:
        """The table beside holds all rows up to a number; notes : what to remember of it."""
        with told(self.path), self._transaction():
            self._db.execute("DELETE FROM watch_rows WHERE seq <= ?", (last,))
            for name, value in notes.items():
                self._set(name, value)

    def messages(self, target: str, after: int, most: int) -> list[Message]:
        """The oldest messages for somebody, of a number above `after`."""
        found = self._all(
            (int, str, str),
            "SELECT seq, id, body FROM watch_outbox WHERE target = ? AND seq > ? ORDER BY seq LIMIT ?",
            target,
            after,
            most,
        )
        return [Message(*row) for row in found]

    def message_taken(self, target: str, seq: int) -> None:
        with told(self.path), self._transaction():
            self._db.execute("DELETE FROM watch_outbox WHERE target = ? AND seq <= ?", (target, seq))

    def waiting(self, target: str) -> int:
        """How many messages have not been taken."""
        return int(self._all((int,), "SELECT COUNT(*) FROM watch_outbox WHERE target = ?", target)[0][0])

    def places(self) -> list[Placing]:
        found = self._all((int, str, str, str), "SELECT seq, source, target, marks FROM watch_places")
        return [Placing(*row) for row in found]

    def placed(self, numbers: Iterable[int]) -> None:
        with told(self.path), self._transaction():
            self._db.executemany("DELETE FROM watch_places WHERE seq = ?", ((seq,) for seq in numbers))

    def note(self, name: str) -> str | None:
        found = self._all((str,), "SELECT value FROM watch_notes WHERE name = ?", name)
        return str(found[0][0]) if found else None

    def count(self, name: str) -> int:
        """A note that is a number, 0 where there is none."""
        text = self.note(name) or "0"
        if not re.fullmatch("[0-9]{1,18}", text):
            raise self._damaged(f"{name} is {text[:40]!r}")
        return int(text)

    def set_note(self, name: str, value: str) -> None:
        with told(self.path), self._transaction():
            self._set(name, value)

    def _set(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO watch_notes VALUES (?, ?)", (name, value))

    def _mark(self, marks: Iterable[tuple[str, str]]) -> None:
        self._db.executemany("INSERT OR REPLACE INTO watch_files VALUES (?, ?)", marks)

    def _insert(self, table: str, columns: Sequence[str], rows: Sequence[Row]) -> None:
        places = ", ".join("?" * len(columns))
        self._db.executemany(
            f"INSERT INTO {table} ({', '.join(map(_quoted, columns))}) VALUES ({places})",
            ([row.get(column) for column in columns] for row in rows),
        )

    def _all(self, kinds: tuple[type, ...], statement: str, *values: Any) -> list[Any]:
        """Rows of values of these kinds, which SQLite does not look after."""
        with told(self.path):
            rows = self._db.execute(statement, values).fetchall()
        if not all(all(map(isinstance, row, kinds)) for row in rows):
            raise self._damaged("text and numbers in each other's place")
        return rows

    def _damaged(self, why: str) -> RunError:
        return RunError(f"{self.path}: is damaged ({why}). Move it away, with its table, and new ones begin.")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._db.in_transaction:  # one that could not even be undone, on a full disk
            self._db.execute("ROLLBACK")
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise


def content_id(image: str, sha256: str) -> str:
    """The name of a content under a path, 32 hexadecimal digits: the same in the table, at a webhook and after a restart.

    Examples
    --------
    >>> content_id("a.png", "00") == content_id("a.png", "00") != content_id("b.png", "00")
    True
    """
    return hashlib.sha256(f"{image}\0{sha256}".encode()).hexdigest()[:32]


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Errors of SQLite in words."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # even its own words about damage may be damaged
        raise RunError(f"{path}: cannot be written or read ({error}). Make room or mend the permission.") from error


def _declared(column: str) -> str:
    return f"{_quoted(column)} {'TEXT' if column in TEXT else 'INTEGER' if column in WHOLE else ''}"


def _quoted(column: str) -> str:
    """`foreign` is a word of SQL."""
    return f'"{column}"'
