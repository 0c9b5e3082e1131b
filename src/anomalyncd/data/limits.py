"""How much memory reading may take: one limit for all threads together, kept before anything is decoded."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import SettingsError

VARIABLE = "ANOMALYNCD_READ_MB"
DEFAULT_MB = 1200  # with the rest of the program less than 2 GB
LEAST_MB = 100
MEGABYTE = 1_000_000
MAX_SIDE = 1_000_000  # each row costs time, however short it is


class TooLarge(Exception):
    """Nothing is wrong with a file but its size; the text says how large it is, and what to do."""


def memory_limit() -> int:
    """Bytes that reading may take, by the environment variable ANOMALYNCD_READ_MB."""
    text = os.environ.get(VARIABLE, "").strip() or str(DEFAULT_MB)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= LEAST_MB):
        raise SettingsError(
            f"{VARIABLE} must be a whole number of megabytes, at least {LEAST_MB}, but got {text[:100]!r}."
        )
    return int(text) * MEGABYTE


def check_size(width: int, height: int, max_pixels: int | None = None) -> None:
    """Refuse sizes that no memory would help."""
    if width < 1 or height < 1:
        raise ValueError(f"it has {width} × {height} pixels")
    if max_pixels is not None and width * height > max_pixels:
        raise TooLarge(f"it has {width} × {height} pixels, more than the limit of {max_pixels:,}")
    if max(width, height) > MAX_SIDE:
        raise TooLarge(f"it has {width} × {height} pixels, and a side longer than the limit of {MAX_SIDE:,}")


@contextmanager
def room(n_bytes: int, what: str) -> Iterator[None]:
    """Wait until so much of the limit is free, and hold it; TooLarge if it exceeds the limit.

    Examples
    --------
    >>> with room(10**12, "its 400000 × 400000 pixels"):
    ...     pass
    Traceback (most recent call last):
    anomalyncd.data.limits.TooLarge: to read its 400000 × 400000 pixels takes about 1,000,000 MB of memory, more than the \
limit of 1,200 MB. Set the environment variable ANOMALYNCD_READ_MB to 1000000 if there is as much, or cut it into parts
    """
    limit = memory_limit()
    if n_bytes > limit:
        needed = -(-n_bytes // MEGABYTE)
        raise TooLarge(
            f"to read {what} takes about {needed:,} MB of memory, more than the limit of {limit // MEGABYTE:,} MB. "
            f"Set the environment variable {VARIABLE} to {needed} if there is as much, or cut it into parts"
        )
    with _changed:
        _changed.wait_for(lambda: not _taken or sum(_taken) + n_bytes <= limit)
        _taken.append(n_bytes)
    try:
        yield
    finally:
        with _changed:
            _taken.remove(n_bytes)
            _changed.notify_all()


def _forget() -> None:
    """In a forked child, where the threads that hold something are not."""
    global _changed
    _changed = threading.Condition()
    _taken.clear()


_changed = threading.Condition()
_taken: list[int] = []  # bytes that each of the threads holds
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
