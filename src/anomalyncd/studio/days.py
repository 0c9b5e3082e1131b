"""The page of a day inside the studio: of tables that lie in the workspace, as `watch` writes them, and of predictions."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path

from ..errors import DataError
from .jobs import Job
from .predictions import TABLE
from .workspace import OWN, Workspace

SUFFIXES = (".csv", ".sqlite", ".parquet")
MOST_TABLES = 200
MOST_BYTES = 2_000_000_000  # of a table


class Days:
    """Makes pages of tables, each again only when its table has changed.

    Parameters
    ----------
    workspace : whose own folder the pages are kept in
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self._pages = workspace, workspace.path / OWN / "days"
        self._lock = threading.Lock()  # one at a time: a table may take a gigabyte

    def tables(self) -> list[str]:
        """Names of the tables in the workspace; links and tables of regions are left out."""
        with closing(os.scandir(self._workspace.path)) as entries:
            names = [e.name for e in entries if _is_table(e)]
        found = [name for name in sorted(names) if name.lower().endswith(SUFFIXES)]
        return [name for name in found if not Path(name).stem.endswith("_regions")][:MOST_TABLES]

    def of_table(self, name: str) -> bytes | None:
        """The page of a table of the workspace; None where there is no such table."""
        return self._page(self._workspace.path / name, f"table-{name}") if name in self.tables() else None

    def of_job(self, job: Job) -> bytes | None:
        """The page of a prediction; None where it has no table yet."""
        path, images = job.folder / TABLE, Path(str(job.order.get("images", "")))
        if job.order.get("kind") != "predict" or not path.is_file():
            return None
        return self._page(path, f"job-{job.number}", images if images.is_dir() else None)

    def _page(self, table: Path, name: str, root: Path | None = None) -> bytes:
        from ..day.html import write_day
        from ..day.source import read_table

        page = self._pages / f"{name}.html"
        with self._lock:
            # What SQLite has not put into its file yet is beside it.
            parts = [table, table.with_name(f"{table.name}-wal"), *(table.glob("*.parquet") if table.is_dir() else ())]
            if any(part.is_symlink() for part in parts):
                raise DataError(f"{table.name}: expected files, but there is a link in it.")
            states = [part.stat() for part in parts if part.exists()]
            if sum(status.st_size for status in states) > MOST_BYTES:
                raise DataError(f"{table.name}: too large to be shown here: `anomalyncd day` makes the page.")
            if not page.is_file() or page.stat().st_mtime_ns <= max(status.st_mtime_ns for status in states):
                found = read_table(table, root=root)
                if not found.n_files:
                    raise DataError(f"{table.name}: expected images, but the table has no row yet.")
                write_day(found, page)
            return page.read_bytes()


def _is_table(entry: os.DirEntry[str]) -> bool:
    """Files, and folders with a Parquet file a day; no links and nothing hidden."""
    if entry.name.startswith("."):
        return False
    return entry.is_file(follow_symlinks=False) or (
        entry.name.lower().endswith(".parquet") and entry.is_dir(follow_symlinks=False)
    )
