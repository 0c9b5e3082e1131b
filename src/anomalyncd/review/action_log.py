"""The log of corrections: one SQLite file in the run folder, only ever added to, one transaction an action."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checksums import from_json
from ..errors import RunError

if TYPE_CHECKING:
    from .classes import UncorrectedClasses

LOG_FILE = "review.sqlite"
SCHEMA = 2  # kept in the file's user_version
BUSY_SECONDS = 10
TABLES = """
CREATE TABLE actions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    at TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE,      -- chosen by the client, so that what is sent twice is done once
    request TEXT NOT NULL,         -- digest of what was sent under that key
    kind TEXT NOT NULL,
    body TEXT NOT NULL,            -- JSON, all that replay needs
    base TEXT NOT NULL             -- digest of the run's table that the action was made on
);
CREATE TABLE bases (digest TEXT PRIMARY KEY, labels BLOB NOT NULL);
"""

Body = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One row of the log. `body` is what replay needs and nothing that could come out differently another day."""

    id: int
    kind: str
    body: Body

    @property
    def targets(self) -> list[int]:
        """Classes that regions are put into, perhaps new ones."""
        return [part["to"] for part in (self.body, *self.body.get("parts", [])) if "to" in part]

    def renumbered(self, numbers: Mapping[int, int]) -> Row:
        """The same correction where classes have other numbers.

        Examples
        --------
        >>> Row(1, "split", {"label": 1, "parts": [{"to": 4, "regions": [["a", 4]]}]}).renumbered({4: 5}).body
        {'label': 1, 'parts': [{'to': 5, 'regions': [['a', 4]]}]}
        """

        def changed(body: Body) -> Body:
            return {k: numbers.get(v, v) if k in ("label", "from", "into", "to") else v for k, v in body.items()}

        body = changed(self.body)
        if "parts" in body:
            body["parts"] = [changed(part) for part in body["parts"]]
        return Row(self.id, self.kind, body)


class ActionLog:
    """Everything that people did to a run, in order. Safe to use from several threads if they take turns.

    Examples
    --------
    >>> import tempfile
    >>> log = ActionLog(Path(tempfile.mkdtemp()) / LOG_FILE)
    >>> log.append("name", {"label": 1, "name": "dent"}, key="a")
    Row(id=1, kind='name', body={'label': 1, 'name': 'dent'})
    >>> [row.kind for row in log.rows()]
    ['name']
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Never ours, but of a stranger's run: SQLite would do what it says, and that may be to delete any other file.
            path.with_name(f"{path.name}-journal").unlink(missing_ok=True)
            self._database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            with ExitStack() as on_error:
                on_error.callback(self._database.close)
                self._open()
                on_error.pop_all()
        except (sqlite3.Error, OSError, UnicodeError) as error:  # even its own words about damage may be damaged
            raise unreadable(path, error) from error

    def _open(self) -> None:
        database = self._database
        version = database.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, SCHEMA):
            known = f"schema {version}; this one knows schema {SCHEMA}"
            raise RunError(f"{self.path}: written by an older or newer version of anomalyncd ({known}).")
        # A view may be a table that never ends, and a trigger runs when something is written.
        if foreign := database.execute(
            "SELECT type, name FROM sqlite_master WHERE type IN ('view', 'trigger')"
        ).fetchone():
            raise sqlite3.DatabaseError(f"it has a {foreign[0]}, {foreign[1]}")
        if (found := database.execute("PRAGMA integrity_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(found)
        # A write-ahead log, put on disk before an action is answered: neither a crash nor a power cut takes it back.
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        if version == 0:
            database.executescript(f"BEGIN IMMEDIATE; {TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
        database.execute("SELECT id, at, key, request, kind, body, base FROM actions LIMIT 1").fetchone()

    def rows(self) -> list[Row]:
        """All rows, the oldest first."""
        with closing(self._database.execute("SELECT id, kind, body FROM actions ORDER BY id")) as found:
            return [Row(number, kind, from_json(body)) for number, kind, body in found]

    def find(self, key: str) -> tuple[int, str] | None:
        """Id and request of the row with this key."""
        with closing(self._database.execute("SELECT id, request FROM actions WHERE key = ?", (key,))) as found:
            row = found.fetchone()
        return None if row is None else (int(row[0]), str(row[1]))

    def append(
        self, kind: str, body: Body, *, key: str, request: str = "", base: UncorrectedClasses | None = None
    ) -> Row:
        """Add a row; when this returns it is on disk."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        digest = base.digest if base else ""
        database = self._database
        try:
            database.execute("BEGIN IMMEDIATE")
            if base is not None and not database.execute("SELECT 1 FROM bases WHERE digest = ?", (digest,)).fetchone():
                labels = zip(base.keys, base.labels.tolist(), strict=True)
                rows = [[image, region, label] for (image, region), label in labels]
                content = {"learned": base.learned, "classes": sorted(base.names), "regions": rows}
                packed = zlib.compress(json.dumps(content).encode())
                database.execute("INSERT INTO bases VALUES (?, ?)", (digest, packed))
            row = database.execute(
                "INSERT INTO actions (at, key, request, kind, body, base) VALUES (?, ?, ?, ?, ?, ?)",
                (now, key, request, kind, json.dumps(body), digest),
            )
            database.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise RunError(f"{self.path}: the action could not be stored ({error}). It was not done.") from error
        return Row(int(row.lastrowid or 0), kind, body)

    def made_on(self, action: int) -> Body:
        """The tables that an action was made on: `regions` (image, region, label), `classes`, and `learned`, a key."""
        query = "SELECT labels FROM bases JOIN actions ON digest = base WHERE id = ?"
        with closing(self._database.execute(query, (action,))) as found:
            content: Body = json.loads(zlib.decompress(found.fetchone()[0]))
        return content

    def close(self) -> None:
        """End the connection."""
        self._database.close()


def unreadable(path: Path, error: Exception) -> RunError:
    """What to say of a log that is damaged."""
    return RunError(
        f"{path}: expected the log of a review, but it cannot be read ({error}). What was applied is in the run's tables: "
        "move this file (with -wal and -shm) away to begin a new review."
    )
