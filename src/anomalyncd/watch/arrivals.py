"""Which files of a folder have come whole: looked at again and again, because network drives tell of nothing."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..data.files import open_file
from ..data.images import IMAGE_SUFFIXES
from ..data.layouts import find_files
from ..data.limits import memory_limit
from ..errors import BadFileError

ENDS = {b"\x89PNG\r\n\x1a\n": b"IEND\xaeB`\x82", b"\xff\xd8\xff": b"\xff\xd9"}  # start of a file → what it ends with
LONGEST_END = 65_536  # bytes in which that is looked for, because some cameras put notes behind it
FIRST_REST, LONGEST_REST = 0.5, 5.0  # seconds between attempts to take a file


@dataclass(frozen=True)
class Arrival:
    """A file whose size and times have not changed for a while.

    name : relative to the folder, with slashes
    marks : its size and times
    seconds : for how long it has been as it is
    """

    name: str
    marks: str
    seconds: float

    @property
    def n_bytes(self) -> int:
        return int(self.marks.split()[0])

    @property
    def modified(self) -> int:
        """In nanoseconds."""
        return int(self.marks.split()[1])


@dataclass
class _Seen:
    marks: str
    since: float
    rest: float = 0.0  # seconds from one attempt to the next, and when that is
    again: float = 0.0
    tried: float = 0.0  # when it was handed out last


class Arrivals:
    """Files below a folder that are new, or other than they were.

    Memory grows with the number of files that are in the folder, some 200 bytes each, not with those that ever were.

    Parameters
    ----------
    folder : may have folders in it; hidden files, and files that are no images by their names, are left alone
    known : name → marks of files that need no look
    settle : seconds for which a file must not have changed
    suffixes : of files that count
    clock : seconds, for tests
    """

    def __init__(
        self,
        folder: Path,
        known: dict[str, str],
        settle: float,
        *,
        suffixes: Collection[str] = IMAGE_SUFFIXES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.known, self.settle, self.suffixes, self.clock = folder, known, settle, suffixes, clock
        self.waiting: dict[str, _Seen] = {}  # files that are not known as they are now
        self.nameless: set[str] = set()  # files whose names are no text, which no table can hold

    def look(self) -> tuple[list[Arrival], list[str]]:
        """Files that have come whole and are not known, oldest first; and the names of known ones that are gone."""
        now, found = self.clock(), set[str]()
        before, self.waiting = self.waiting, {}
        for name in find_files(self.folder, self.suffixes):
            if not is_text(name):
                self.nameless.add(name)
                continue
            marks = marks_of(self.folder / name)
            if marks is None:
                continue
            found.add(name)
            if self.known.get(name) == marks:
                continue
            seen = before.get(name)
            self.waiting[name] = seen if seen and seen.marks == marks else _Seen(marks, now)
        gone = [name for name in self.known if name not in found]
        for name in gone:
            del self.known[name]
        ready = []
        for name, seen in self.waiting.items():
            if now - seen.since >= self.settle and now >= seen.again:
                seen.tried = now
                ready.append(Arrival(name, seen.marks, now - seen.since))
        return sorted(ready, key=lambda arrival: (arrival.modified, arrival.name)), gone

    def done(self, arrivals: Iterable[tuple[str, str]]) -> None:
        """These names are known with these marks."""
        for name, marks in arrivals:
            self.known[name] = marks
            self.waiting.pop(name, None)

    def later(self, names: Iterable[str]) -> None:
        """These could not be taken yet: they are tried again, less often each time."""
        for name in names:
            if (seen := self.waiting.get(name)) is not None:
                seen.rest = min(2 * seen.rest, LONGEST_REST) or FIRST_REST
                seen.again = self.clock() + seen.rest

    def stuck(self, patience: float) -> list[str]:
        """Names of files that had not changed for so many seconds when they were tried, and could not be taken then."""
        return [name for name, seen in self.waiting.items() if seen.rest and seen.tried - seen.since >= patience]


def marks_of(path: Path) -> str | None:
    """Size and times of a file, by which another content is suspected; None where there is no plain file."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    return _marks(status) if stat.S_ISREG(status.st_mode) else None


def read_settled(path: Path, marks: str) -> bytes | None:
    """What a file holds, if it is as it was marked before and after; None where it changed, vanished or is locked.

    A BadFileError where it holds more than is read of any file.
    """
    if (n_bytes := int(marks.split()[0])) > memory_limit():
        raise BadFileError(f"too large: the file has {n_bytes:,} bytes, more than the limit of {memory_limit():,}")
    try:
        with open_file(path) as file:
            if _marks(os.fstat(file.fileno())) != marks:
                return None
            content = file.read()
            return content if _marks(os.fstat(file.fileno())) == marks == marks_of(path) else None
    except BadFileError:
        return b"" if marks_of(path) == marks and marks.startswith("0 ") else None
    except (OSError, MemoryError):
        return None


def ends_whole(content: bytes) -> bool:
    """Whether a file has the end that its format has; for formats without an end, yes.

    Decoders are content with less, so that a file whose last bytes are on their way would be taken for whole.

    Examples
    --------
    >>> jpeg = bytes.fromhex("ffd8ff 00 ffd9")
    >>> ends_whole(jpeg), ends_whole(jpeg[:-1]), ends_whole(b"II*")
    (True, False, True)
    """
    for start, end in ENDS.items():
        if content.startswith(start):
            return end in content[-LONGEST_END:]
    return True


def is_text(name: str) -> bool:
    """Whether a name can stand in a table: names of files may hold bytes that are no characters."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _marks(status: os.stat_result) -> str:
    # What replaces a file with its size and time kept has another time of change (on Windows: of creation).
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"
