"""run.log: what was called, with which versions, what was said and how long it took; each call adds to it."""

from __future__ import annotations

import os
import platform
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import AnomalyNCDError
from ..progress import Advance, Silent


class RunLog(Silent):
    """Hands everything on to another progress, and keeps the lines, with their times, in a file."""

    def __init__(self, path: Path, progress: Silent) -> None:
        self.path, self.progress = path, progress

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        with self.progress.task(name, total) as advance:
            yield advance

    def say(self, text: str) -> None:
        self.note(text)
        self.progress.say(text)

    def warn(self, text: str) -> None:
        self.note(f"warning: {text}")
        self.progress.warn(text)

    def note(self, text: str) -> None:
        """A line for the file only."""
        now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
        lines = "".join(f"{now}  {line}\n" for line in text.splitlines())
        with suppress(OSError), open(self.path, "ab", opener=_open) as file:
            file.write(lines.encode("utf-8", "backslashreplace"))  # names of files hold halves of characters


def _open(path: str, flags: int) -> int:
    """No way to another file, should somebody put a link there; no run fails for its log."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


@contextmanager
def logging_to(path: Path, progress: Silent, call: str) -> Iterator[RunLog]:
    """Log one call from its beginning to its end, warnings of libraries and the error that ended it included.

    path : of the log, as `RunFolder.place` gives it
    """
    import numpy
    import torch

    log = RunLog(path, progress)
    log.note(progress.call or call)
    log.note(
        f"anomalyncd {__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
        f"numpy {numpy.__version__}, {platform.platform()}"
    )
    started = time.perf_counter()
    with warnings.catch_warnings():
        show = warnings.showwarning
        known: set[str] = set()

        def show_and_note(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if str(message) not in known:
                known.add(str(message))
                log.note(f"warning: {message}")
                show(message, category, *where, **more)

        warnings.showwarning = show_and_note
        try:
            yield log
        except BaseException as error:
            log.note(f"error: {error}" if isinstance(error, AnomalyNCDError) else f"ended by {error!r}")
            raise
    log.note(f"finished in {time.perf_counter() - started:.1f} s")
