"""What a name means: a path, `shards/*.tar`, or `s3://bucket/folder`. Only stores that a person named are ever asked."""

from __future__ import annotations

import copyreg
import os
import posixpath
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TypeGuard
from urllib.parse import unquote, urlsplit

from ..errors import BadFileError, DataError, MissingDataError, SettingsError, WrongTypeError
from ..paths import path_of, posix
from .remote import PACKAGES, Remote, remote
from .stored import File, Status, Store, Stored
from .tars import Tars, archive_at

VARIABLE = "ANOMALYNCD_STORES"  # that may be asked besides those of a command line, as "s3://line-3 gs://other/folder"
TAR = ".tar"
FEW = 20  # files that are asked for one by one
_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_opened: set[str] = set()


class Closed(Store):
    """A store that somebody else's table names, which must not make this machine ask anybody for anything."""

    def __init__(self, name: str) -> None:
        self.name = name

    def find(self, folder: str) -> list[str]:
        raise BadFileError(self.why(folder))

    def status(self, name: str) -> Status:
        raise BadFileError(self.why(name))

    def is_dir(self, name: str) -> bool:
        return False

    def read(self, name: str, begin: int, end: int) -> bytes:
        raise BadFileError(self.why(name))

    def why(self, name: str) -> str:
        """It is not read."""
        words = "is not read, because only a table names its store"
        return f"{self.text(name)} {words}. If you trust it: {VARIABLE}={self.name}"


def is_remote(text: object) -> TypeGuard[str]:
    """Whether a name is one of a store rather than of a file of this machine.

    Examples
    --------
    >>> [is_remote(name) for name in ("s3://line/day", "C:/line/day", "file:///line/day", "line/day")]
    [True, False, True, False]
    """
    return isinstance(text, str) and re.match(r"[a-z][a-z0-9+.-]+://", text) is not None


def place_of(value: object, what: str) -> File:
    """The file or folder that a person gave as `what`; its store is open from now on, to tables too.

    Examples
    --------
    >>> place_of("images", "images").name, place_of("memory://line/day", "images").name
    ('images', 'day')
    """
    if isinstance(value, Stored):
        return value
    if isinstance(value, Path) and re.match(rf"({'|'.join(PACKAGES)}):/", str(value)):
        raise WrongTypeError(f"{what}: {value} is no path: give the name of a store as text, not as a Path.")
    if isinstance(value, str) and is_remote(value):
        scheme, bucket, inner = _parts(value, what)
        if scheme == "file":
            return _local(f"/{inner}", what)
        store = remote(scheme, bucket)
        _opened.add(store.name)
        return _in_store(store, inner.rstrip("/"))
    return _local(value, what)


def file_named(text: str | Path) -> File:
    """The file that a table names: in a store only if somebody has named it, on the command line or in ANOMALYNCD_STORES.

    Examples
    --------
    >>> file_named("images/a.png").name, file_named("s3://somebody/a.png").is_file()
    ('a.png', False)
    """
    if isinstance(text, str) and is_remote(text):
        try:
            scheme, bucket, inner = _parts(text, "images")
        except SettingsError:
            return Stored(Closed(text))
        if scheme == "file":
            return Path(f"/{inner}")
        store = remote(scheme, bucket)
        if not is_open(store.name):
            return Stored(Closed(store.name), inner)
        return _in_store(store, inner, given=False)
    path = Path(text)
    return (f"{TAR}/" in str(path) and _in_archive(path)) or path


def file_given(text: str | Path) -> File:
    """One file of many that a person, or the machine that this one works for, gave by its name; nothing is asked yet."""
    if is_remote(text):
        scheme, bucket, _ = _parts(text, "images")
        if scheme != "file":
            _opened.add(remote(scheme, bucket).name)
    return file_named(text)


def reopened(text: str, named: bool) -> File:
    """The file that another process of ours tells by its name; named : whether a person has named its store there."""
    return file_given(text) if named else file_named(text)


def _by_name(file: Stored) -> tuple[object, tuple[str, bool]]:
    return reopened, (str(file), not isinstance(file.store, Closed))


# A worker of Ray opens the store anew, with its own credentials.
copyreg.pickle(Stored, _by_name)  # type: ignore[arg-type]


def is_open(store: str) -> bool:
    """Whether a person has named a store, by its bucket."""
    listed = re.split(r"[\s,]+", os.environ.get(VARIABLE, ""))
    return store in _opened or any(store == "/".join(one.split("/")[:3]) for one in listed)


def _parts(text: str, what: str) -> tuple[str, str, str]:
    scheme, _, rest = text.partition("://")
    bucket, _, inner = rest.partition("/")
    if scheme == "file" and not bucket:
        return scheme, bucket, unquote(urlsplit(text).path).lstrip("/")
    if scheme not in PACKAGES:
        *most, last = (f"{name}://" for name in PACKAGES if name != "memory")
        raise SettingsError(f"{what}: expected a path or a name with {', '.join(most)} or {last}, but got {scheme}://.")
    if "@" in bucket or ":" in bucket:
        raise SettingsError(
            f"{what}: expected {scheme}://bucket/folder without credentials or ports: the store's own settings and "
            "environment have them."
        )
    if not bucket or "\0" in text or "::" in text:
        raise SettingsError(f"{what}: expected {scheme}://bucket/folder, but got {text!r}.")
    return scheme, bucket, inner


def _in_store(store: Remote, inner: str, *, given: bool = True) -> Stored:
    """given : the name may be a pattern, or a folder of archives"""
    folder, _, name = inner.rpartition("/")
    if given and name.endswith(TAR) and _is_pattern(name):
        here = [found for found in store.entries(folder) if fits(found, name)]
        return _joined(f"{store.name}/{inner}", [Stored(store, folder) / found for found in sorted(here)])
    if f"{TAR}/" in inner or name.endswith(TAR):
        archive, _, member = f"{inner}/".partition(f"{TAR}/")
        place = Stored(store, f"{archive}{TAR}")
        if given and not place.is_file():
            raise MissingDataError(f"{place}: expected a tar archive, found nothing there")
        tars = _joined(str(place), [place]) if given else Stored(archive_at(place).alone)
        return tars / member.rstrip("/") if member else tars
    if given and (names := _only_archives(store.entries(inner))):
        return _joined(f"{store.name}/{inner}".rstrip("/"), [Stored(store, inner) / found for found in names])
    return Stored(store, inner)


def _local(value: object, what: str) -> File:
    if isinstance(value, str | Path) and Path(value).name.endswith(TAR):
        path = Path(value)
        if _is_pattern(path.name) and not os.path.lexists(path):
            folder = path_of(path.parent, what)
            here = sorted(entry for entry in _listed(folder) if fits(entry, path.name))
            return _joined(str(path), [folder / name for name in here])
        if os.path.isfile(path_of(path, what)):
            return _joined(str(path), [path])
        if not os.path.lexists(path):
            raise MissingDataError(f"{path}: expected a tar archive ({what}), found nothing there")
        return path
    path = path_of(value, what)
    if os.path.isdir(path) and (names := _only_archives(_listed(path))):
        return _joined(str(path), [path / name for name in names])
    return (f"{TAR}/" in str(path) and _in_archive(path)) or path


def _in_archive(path: Path) -> Stored | None:
    """The member of an archive that a path leads into, as tables name it."""
    for parent in path.parents:
        if parent.name.endswith(TAR) and os.path.isfile(parent):
            return Stored(archive_at(parent).alone) / path.relative_to(parent).as_posix()
    return None


def _joined(name: str, places: list[Path] | list[Stored]) -> Stored:
    if not places:
        raise MissingDataError(f"{name}: expected tar archives, found none of this name")
    return Stored(Tars(name, [archive_at(place).look_again() for place in places]))


def _listed(folder: Path) -> list[str]:
    """Names in a folder until one shows that it holds no archives; folders with a slash behind them."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                found.append(entry.name + "/" * entry.is_dir())
                if not entry.name.startswith(".") and not _may_lie_beside(found[-1]):
                    break
    except OSError:
        return []  # whoever reads it says why
    return found


def _only_archives(names: list[str]) -> list[str]:
    """Those of the names that are archives, where nothing lies there but these and words about them."""
    names = [name for name in names if not name.startswith(".")]
    found = sorted(name for name in names if name.endswith(TAR))
    return found if all(map(_may_lie_beside, names)) else []


def _may_lie_beside(name: str) -> bool:
    return name.endswith((TAR, ".json", ".txt", ".md", ".idx"))


def _is_pattern(name: str) -> bool:
    return bool(_RANGE.search(name)) or any(letter in name for letter in "*?[")


def fits(name: str, pattern: str) -> bool:
    """Whether a name is one of a pattern with * ? [ ] and {000..123}.

    Examples
    --------
    >>> fits("day-007.tar", "day-{000..011}.tar"), fits("day-012.tar", "day-{000..011}.tar"), fits("a.tar", "*.tar")
    (True, False, True)
    """
    found = _RANGE.search(pattern)
    if not found:
        return fnmatchcase(name, pattern)
    before, after = pattern[: found.start()], pattern[found.end() :]
    match = re.match(r"\d+", name[found.start() :])
    if not match or not fnmatchcase(name[: found.start()], before) or len(match[0]) < len(found[1]):
        return False
    rest = name[found.start() + len(match[0]) :]
    return int(found[1]) <= int(match[0]) <= int(found[2]) and fits(rest, after)


def check_open(file: File, where: str) -> None:
    """Refuse a file of a store that only a table names."""
    if isinstance(file, Stored) and isinstance(file.store, Closed):
        raise DataError(f"{where}: {file.store.why(file.inner)}")


def look_up(files: Iterable[File]) -> None:
    """Ask each store once for all that many files are asked about."""
    of_store: dict[Store, list[str]] = {}
    for file in files:
        if isinstance(file, Stored) and isinstance(file.store, Remote):
            of_store.setdefault(file.store, []).append(posixpath.dirname(file.inner))
    for store, folders in of_store.items():
        if len(folders) > FEW:
            store.find(posixpath.commonpath(folders) if all(folders) else "")


def is_file(place: File) -> bool:
    """Whether it is there, and a file; False too for a name that is too long or holds a NUL."""
    return place.is_file() if isinstance(place, Stored) else os.path.isfile(place)


def entry_of(cell: str) -> str:
    """A name in a table, of a file of this machine or of a store."""
    return cell if is_remote(cell) else PurePosixPath(posix(cell)).as_posix()


def beside(table: File, entry: str) -> File:
    """What a table names: beside itself, anywhere on this machine if it lies there too, or in a store that is open."""
    if isinstance(table, Stored) and not is_remote(entry):
        return table.parent / entry
    is_local = isinstance(table, Path) and not is_remote(entry)
    file = file_named(os.path.join(os.path.dirname(str(table)), entry) if is_local else entry)
    check_open(file, str(table))
    return file
