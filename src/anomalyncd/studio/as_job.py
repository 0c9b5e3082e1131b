"""A command as a job of the studio: in a process of its own, which whoever starts the studio next can find again."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

JOB = "ANOMALYNCD_JOB"  # environment variable: folder of the job that this process is
PROGRESS = "progress.json"
ALIVE = "alive.lock"  # held as long as the process lives, however it ends
PROCESS, END = "process.json", "end.json"
TAKE_SECONDS = 5.0  # for a server that is just looking whether somebody holds the lock


@contextmanager
def as_job(folder: Path) -> Iterator[None]:
    """Hold the lock of a job, and note its process and how it ended. Where it is under way already, do nothing at all."""
    try:
        lock = FileLock(folder / ALIVE, timeout=TAKE_SECONDS).acquire()
    except Timeout:
        raise SystemExit(0) from None
    with lock:
        with suppress(ValueError):  # not of the main thread
            signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background it would be ignored
        _write(folder / PROCESS, {"pid": os.getpid()})
        code = 1
        try:
            yield
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
            raise
        finally:
            with suppress(OSError):
                _write(folder / END, {"code": code})


def is_alive(folder: Path) -> bool:
    """Whether a process holds the lock of the job."""
    if not (folder / ALIVE).exists():
        return False
    try:
        with FileLock(folder / ALIVE, timeout=0):
            return False
    except (Timeout, OSError):
        return True


def read_json(path: Path) -> dict[str, object]:
    """A JSON object; an empty one where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _write(path: Path, content: dict[str, object]) -> None:
    draft = path.with_suffix(".partial")
    draft.write_text(json.dumps(content), encoding="utf-8")
    os.replace(draft, path)
