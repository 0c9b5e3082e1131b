"""A file that lies in something else than a folder of this machine, with those manners of a `Path` that readers need."""

from __future__ import annotations

import io
import posixpath
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple, cast

from ..errors import BadFileError

PIECE = 8_000_000  # bytes that are asked for at once
IN_MEMORY = 2 * PIECE  # bytes of a file; what is larger waits on this machine's disk


class Status(NamedTuple):
    """What there is to know of a file without reading it, called as `os.stat` calls it.

    st_mtime_ns : changes when the content does, as far as its place tells
    """

    st_size: int
    st_mtime_ns: int
    st_mode: int = stat.S_IFREG | stat.S_IRUSR


class Store(ABC):
    """Something that holds files under names, which are POSIX paths inside it; "" is all of it.

    name : as a person gave it
    """

    name: str

    @abstractmethod
    def find(self, folder: str) -> list[str]:
        """Names of all files below a folder, relative to it, looked up anew; hidden ones are left out."""

    @abstractmethod
    def status(self, name: str) -> Status:
        """Of a file; a FileNotFoundError where there is none."""

    @abstractmethod
    def is_dir(self, name: str) -> bool:
        """Whether any file lies below this name."""

    @abstractmethod
    def read(self, name: str, begin: int, end: int) -> bytes:
        """Bytes of a file; fewer where it ends before; a FileNotFoundError where there is none."""

    def forget(self, name: str) -> None:  # noqa: B027
        """Look up anew how large and how old a file is when that is asked next."""

    def text(self, name: str) -> str:
        """What messages and tables call a file, so that it is found again."""
        return posixpath.join(self.name, name) if name else self.name


@dataclass(frozen=True, eq=False)
class Stored:
    """A file, or a folder, in a store.

    Examples
    --------
    >>> from anomalyncd.places.names import place_of
    >>> place_of("memory://line/day", "images") / "a.png"
    Stored('memory://line/day/a.png')
    """

    store: Store
    inner: str = ""

    def __str__(self) -> str:
        return self.store.text(self.inner)

    def __repr__(self) -> str:
        return f"Stored({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stored) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __truediv__(self, name: str | PurePosixPath) -> Stored:
        """A name that leads out of the store stays one, of nothing that is there."""
        inner = posixpath.normpath(posixpath.join(self.inner, str(name)))
        return Stored(self.store, "" if inner == "." else inner)

    @property
    def name(self) -> str:
        return posixpath.basename(self.inner or self.store.name)

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def parent(self) -> Stored:
        return Stored(self.store, posixpath.dirname(self.inner))

    def with_suffix(self, suffix: str) -> Stored:
        return Stored(self.store, PurePosixPath(self.inner).with_suffix(suffix).as_posix())

    def absolute(self) -> Stored:
        return self

    def as_posix(self) -> str:
        return str(self)

    def is_relative_to(self, other: object) -> bool:
        if not isinstance(other, Stored) or other.store.name != self.store.name:
            return False
        return not other.inner or f"{self.inner}/".startswith(f"{other.inner}/")

    def relative_to(self, other: Stored) -> PurePosixPath:
        return PurePosixPath(self.inner).relative_to(other.inner)

    def find(self, suffixes: Collection[str]) -> list[str]:
        """Sorted names, relative to this, of all files below it that have one of the `suffixes`."""
        return sorted(name for name in self.store.find(self.inner) if posixpath.splitext(name)[1].lower() in suffixes)

    def is_dir(self) -> bool:
        return self.store.is_dir(self.inner)

    def is_file(self) -> bool:
        try:
            return bool(self.stat())
        except (FileNotFoundError, BadFileError):
            return False

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def stat(self) -> Status:
        return self.store.status(self.inner)

    def open(self, mode: str = "rb") -> BinaryIO:
        """The whole content, fetched piece by piece, as a file to read bytes from and to seek in."""
        file: BinaryIO = io.BytesIO()
        try:
            size = self.stat().st_size
            if not size:
                raise BadFileError(f"{self}: the file is empty")
            if size > IN_MEMORY:
                file = cast(BinaryIO, tempfile.TemporaryFile())  # noqa: SIM115
            for begin in range(0, size, PIECE):
                piece = self.store.read(self.inner, begin, min(begin + PIECE, size))
                if len(piece) != min(PIECE, size - begin):
                    self.store.forget(self.inner)
                    raise BadFileError(f"{self}: has changed while it was read")
                file.write(piece)
        except BaseException as error:
            file.close()
            if isinstance(error, FileNotFoundError):
                raise BadFileError(f"{self}: cannot be read (No such file or directory)") from error
            raise
        file.seek(0)
        return file


File = Path | Stored
