"""What people have done to the classes of a run: names, corrections, and actions of the review that wait to be applied."""

from __future__ import annotations

import csv
import json
import shutil
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..labels import default_name

if TYPE_CHECKING:
    from .folder import RunFolder

KEPT = "kept"  # copies of it, a numbered folder each time that classes were learned anew all the same
SHOWN = 3  # names
MOST_STEPS = 2000  # of 100,000 instructions each: a table of a stranger may be one that never ends
MOST_BYTES = 1 << 30
WAITING = """
WITH waiting AS (
    SELECT id, kind, base FROM actions
    WHERE id > (SELECT coalesce(max(id), 0) FROM actions WHERE kind IN ('applied', 'set_aside'))
)
SELECT total(kind IN ('name', 'merge', 'split', 'move', 'false_alarm', 'redo')) - total(kind = 'undo'),
       (SELECT labels FROM bases JOIN waiting ON digest = base ORDER BY id LIMIT 1)
FROM waiting
"""


def work_of_people(names: Any, corrections: Path, log: Path, learned: str, *, finished: bool, told: Path) -> str:
    """What would be lost if classes were learned anew, in words; empty where there is nothing.

    Parameters
    ----------
    names : what classes.json holds; corrections : corrections.csv, which `apply` of the review and `update` write
    log : of the review; learned : key of the stage whose classes the run has now
    finished : whether the run has tables, without which no action can be applied any more
    told : known.csv; names that stand there are kept elsewhere
    """
    named = names.items() if isinstance(names, dict) else ()
    kept = _told_names(told)
    given = [str(name) for label, name in named if _is_given(label, name) and name not in kept]
    parts = []
    if given:
        parts.append(f"names of classes ({', '.join(given[:SHOWN])}{', …' if len(given) > SHOWN else ''})")
    if corrections.exists():
        parts.append("classes that were corrected or updated")
    if finished and (waiting := _waiting(log, learned)):
        parts.append(waiting)
    return ", ".join(parts)


def _told_names(path: Path) -> set[str]:
    """Names of classes that were given together with their examples."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return {row.get("class_name") or "" for row in csv.DictReader(file)}
    except (OSError, UnicodeDecodeError, csv.Error):
        return set()


def _is_given(label: str, name: object) -> bool:
    """Whether a person named the class: it is not called by its number."""
    try:
        return name not in ("", default_name(int(label)))
    except ValueError:
        return True


def _waiting(log: Path, learned: str) -> str:
    """Actions that wait, in words; those that were made on classes of before do not."""
    if not log.exists():
        return ""
    try:
        with _opened(log) as database:
            number, base = database.execute(WAITING).fetchone()
        if not number or base is None:
            return ""
        made_on = json.loads(zlib.decompressobj().decompress(base, MOST_BYTES))
        is_current = not learned or made_on["learned"] == learned  # nobody knows where stages.json is damaged
    except (sqlite3.Error, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        return f"a review that cannot be read ({error})"
    return f"{number:.0f} correction{'s' if number > 1 else ''} not applied yet" if is_current else ""


def copy_work(run: RunFolder, files: Iterable[str], log: str) -> Path:
    """Copies of files of a run, and of the log of its review, in the next folder of `kept/`."""
    taken = [int(place.name) for place in run.place(KEPT).glob("*") if place.name.isdecimal()]
    target = f"{KEPT}/{max(taken, default=0) + 1}"
    for name in files:
        if run.place(name).is_file():
            run.write(f"{target}.partial/{name}", run.place(name).read_bytes())
    if run.place(log).exists():
        _copy_log(run.place(log), run.place(f"{target}.partial/{log}"))
    return run.place(f"{target}.partial").rename(run.place(target))


def _copy_log(log: Path, target: Path) -> None:
    """As one file, also where the review is open; a damaged one as it is."""
    try:
        with _opened(log) as database, closing(sqlite3.connect(target)) as copy:
            database.backup(copy)
    except sqlite3.Error:
        shutil.copyfile(log, target)


@contextmanager
def _opened(log: Path) -> Iterator[sqlite3.Connection]:
    """Read only, so that nothing is rolled back, or deleted, because a file beside it says so."""
    is_open = log.with_name(f"{log.name}-wal").exists()  # or was when its process was killed
    address = f"{log.absolute().as_uri()}?mode=ro{'' if is_open else '&immutable=1'}"
    with closing(sqlite3.connect(address, uri=True)) as database:
        steps = count()
        database.set_progress_handler(lambda: next(steps) > MOST_STEPS, 100_000)
        yield database
