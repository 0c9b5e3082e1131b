"""Paths and names of files as people give them and as messages say them."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from .errors import DataError, WrongTypeError

P = TypeVar("P")
_N_NAMED = 5  # files that a message names before it only counts


def path_of(value: object, what: str) -> Path:
    """The path that a caller gave as `what`.

    Examples
    --------
    >>> path_of(None, "images")
    Traceback (most recent call last):
    anomalyncd.errors.WrongTypeError: images: expected a path, but got NoneType.
    """
    if not isinstance(value, str | Path):
        raise WrongTypeError(f"{what}: expected a path, but got {type(value).__name__}.")
    if value == "" or "\0" in str(value):
        raise DataError(f"{what}: expected a path, but got {str(value)!r}, which none can be.")
    path = Path(value)
    try:
        str(path.absolute()).encode()  # tables and settings name it
        path.lstat()
    except UnicodeEncodeError:
        raise DataError(f"{path}: the path ({what}) is not valid UTF-8. Rename the folder.") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise DataError(f"{what}: {str(path)[:40]}… is too long for a path.") from None
    return path


def names_of(value: Any, what: str) -> set[str]:
    """The names that a caller gave as `what`, one or several.

    Examples
    --------
    >>> sorted(names_of(["good", "hole"], "exclude")), names_of("good", "exclude")
    (['good', 'hole'], {'good'})
    """
    try:
        listed = [value] if isinstance(value, str) else list(value)
    except TypeError:  # an array without an axis calls itself iterable
        listed = [None]
    if not all(isinstance(name, str) for name in listed):
        raise WrongTypeError(f"{what}: expected names, but got {type(value).__name__}.")
    return set(listed)


def resolved(path: P) -> P:
    """The path without links; one that leads to itself stays, where `Path.resolve` raises, and so does what is no path."""
    return Path(os.path.realpath(path)) if isinstance(path, Path) else path  # type: ignore[return-value]


def is_inside(folder: Any, other: Any) -> bool:
    """Whether `folder` is `other` or lies below it; both may lie in a store."""
    if not isinstance(folder, Path) or not isinstance(other, Path):
        return type(folder) is type(other) and bool(folder.is_relative_to(other))
    return resolved(folder).is_relative_to(resolved(other))


def posix(path: str) -> str:
    """A path that may have been written on Windows, with slashes."""
    return path.replace("\\", "/")


def suffix_of(file: str) -> str:
    """Lower-case suffix with its dot."""
    return os.path.splitext(file)[1].lower()


def stem_of(file: str) -> str:
    """The path without its last suffix."""
    return os.path.splitext(file)[0]


def named(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _N_NAMED
    return ", ".join(names[:_N_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def counted(names: Sequence[str], what: str) -> str:
    """How many of what there are: "1 map", "2 maps"."""
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"
