"""Tar archives as folders, one or many together (the shards of WebDataset): members are read where they lie."""

from __future__ import annotations

import posixpath
import threading
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property

from ..errors import BadFileError, DataError
from .headers import Member, members
from .plain import open_plain
from .remote import is_plain
from .stored import File, Status, Store, Stored

AHEAD = 1 << 18  # bytes that are asked of a store at once while headers are read
Mark = tuple[int, int]


class Archive:
    """One archive, whose members are looked up once for each size and time that it has."""

    def __init__(self, place: File) -> None:
        self.place = place
        self._lock, self._mark, self._found = threading.Lock(), (-1, -1), dict[str, Member]()

    def look_again(self) -> Archive:
        """The same; a store is asked anew whether it has changed."""
        if isinstance(self.place, Stored):
            self.place.store.forget(self.place.inner)
        return self

    @cached_property
    def alone(self) -> Tars:
        """This archive as a folder, the same one for each of the many names that lead into it."""
        return Tars(str(self.place), [self])

    def members(self) -> dict[str, Member]:
        """Name → member; of equal names the last counts, as for tar itself."""
        with self._lock:
            try:
                status = self.place.stat()
            except OSError as error:
                raise BadFileError(f"{self.place}: cannot be read ({error.strerror or 'No such file'})") from error
            mark = (status.st_size, status.st_mtime_ns)
            if mark != self._mark:
                self._found = self._look(status.st_size)
                self._mark = mark
            return self._found

    def read(self, begin: int, end: int) -> bytes:
        """Bytes of the archive."""
        if isinstance(self.place, Stored):
            return self.place.store.read(self.place.inner, begin, end)
        with open_plain(self.place) as file:
            file.seek(begin)
            return file.read(end - begin)

    def _look(self, size: int) -> dict[str, Member]:
        held, start = b"", 0

        def ahead(begin: int, end: int) -> bytes:
            nonlocal held, start
            if not start <= begin <= end <= start + len(held):
                start, held = begin, self.read(begin, min(max(end, begin + AHEAD), size))
            return held[begin - start : end - start]

        if isinstance(self.place, Stored):
            found = list(members(ahead, size, str(self.place)))
        else:
            with open_plain(self.place) as file:

                def read(begin: int, end: int) -> bytes:
                    file.seek(begin)
                    return file.read(end - begin)

                found = list(members(read, size, str(self.place)))
        named = {_cleaned(member.name): member for member in found}
        return {name: member for name, member in named.items() if is_plain(name)}


class Tars(Store):
    """The members of archives, as if these were one folder.

    Parameters
    ----------
    name : of all of them together
    """

    def __init__(self, name: str, archives: Sequence[Archive]) -> None:
        self.name, self._archives = name, archives
        self._places: dict[str, Archive] | None = None
        self._sorted: list[str] = []
        self._looked: dict[str, Member] | None = None  # what the only archive held when it was looked through

    def find(self, folder: str) -> list[str]:
        self._places = None
        start = f"{folder}/" if folder else ""
        return [name.removeprefix(start) for name in self._all() if name.startswith(start)]

    def status(self, name: str) -> Status:
        _, member = self._member(name)
        return Status(member.size, member.modified)

    def is_dir(self, name: str) -> bool:
        self._all()
        place = bisect_left(self._sorted, f"{name}/")
        return not name or (place < len(self._sorted) and self._sorted[place].startswith(f"{name}/"))

    def read(self, name: str, begin: int, end: int) -> bytes:
        archive, member = self._member(name)
        return archive.read(member.begin + begin, min(member.begin + end, member.begin + member.size))

    def text(self, name: str) -> str:
        """By the archive that it lies in."""
        archive = self._all().get(name) if name else None
        return posixpath.join(str(archive.place.absolute()) if archive else self.name, name) if name else self.name

    def _member(self, name: str) -> tuple[Archive, Member]:
        archive = self._all().get(name)
        member = archive.members().get(name) if archive else None
        if archive is None or member is None:
            raise FileNotFoundError(name)
        return archive, member

    def _all(self) -> dict[str, Archive]:
        only = self._archives[0].members() if len(self._archives) == 1 else None
        if self._places is None or only is not self._looked:
            found: dict[str, Archive] = {}
            for archive in self._archives:
                names = archive.members()
                if twice := next((name for name in names if name in found), None):
                    raise DataError(
                        f"{archive.place}: {twice} lies in {found[twice].place} too. Names must differ in all archives"
                    )
                found |= dict.fromkeys(names, archive)
            self._places, self._sorted, self._looked = found, sorted(found), only
        return self._places


def _cleaned(name: str) -> str:
    """Without the ./ that `tar -C FOLDER .` puts before each name."""
    return "/".join(part for part in name.split("/") if part != ".")


_archives: dict[str, Archive] = {}
_lock = threading.Lock()


def archive_at(place: File) -> Archive:
    """The one look at this archive in this process."""
    with _lock:
        return _archives.setdefault(str(place.absolute()), Archive(place))
