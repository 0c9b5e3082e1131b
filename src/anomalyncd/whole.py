"""Files that are whole or not there, whenever a process is killed, the disk is full or the power goes."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def create(path: Path, data: bytes, *, becomes: Path | None = None) -> None:
    """A new file in the place of what may be left of one; becomes : the name that it gets once it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    try:
        with path.open("xb") as file:  # "x" does not follow a link that somebody else made meanwhile
            file.write(data)
            if becomes:
                file.flush()
                os.fsync(file.fileno())  # on disk before the name is: a power cut must not leave an empty file
        if becomes:
            os.replace(path, becomes)
    except OSError:
        with suppress(OSError):
            path.unlink()  # on a full disk every byte counts
        raise


def settle() -> None:
    """Wait until all that was written without waiting is on disk; Windows offers no such thing."""
    if hasattr(os, "sync"):
        os.sync()
