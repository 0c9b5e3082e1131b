"""Files of this machine, found and opened without surprises."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from ..errors import BadFileError, DataError
from ..paths import suffix_of


def reason(error: Exception) -> str:
    """Why a file could not be read, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def open_plain(path: Path) -> BinaryIO:
    """The file opened for reading bytes; a BadFileError if it is missing, a folder, a pipe, a device, locked or empty."""
    try:
        _check_plain(path, path.stat())  # first: to open some devices does something
        # What has become a pipe since would let us wait for somebody to write into it.
        file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)), "rb")
        try:
            _check_plain(path, os.fstat(file.fileno()))
        except BadFileError:
            file.close()
            raise
        return file
    except BadFileError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise BadFileError(f"{path}: cannot be read ({reason(error)})") from error


def find_plain(folder: Path, suffixes: Collection[str]) -> list[str]:
    """Sorted POSIX paths, relative to `folder`, of all files below it that have one of the `suffixes`.

    Hidden files and folders are left out. Linked folders are followed, but no folder is entered twice.
    """
    files: list[str] = []
    folders, links = [""], list[str]()
    entered: set[tuple[int, int]] = set()
    while folders or links:
        if not folders:  # links last, so that a folder is known by its own name rather than by a link's
            links.sort(reverse=True)
            folders.append(links.pop())
        prefix = folders.pop()
        here = folder / prefix
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        (links if entry.is_symlink() else folders).append(f"{prefix}{entry.name}/")
                    elif suffix_of(entry.name) in suffixes:
                        files.append(prefix + entry.name)
        except OSError as error:
            raise DataError(f"{here}: the folder cannot be read ({error.strerror})") from error
    return sorted(files)


def _check_plain(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        found = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or pipe"
        raise BadFileError(f"{path}: expected a file, found {found}")
    if status.st_size == 0:
        raise BadFileError(f"{path}: the file is empty")


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reading it will give a clear error
        return False
