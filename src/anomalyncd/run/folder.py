"""The run folder on disk: whole files or none, one writer at a time, and a record of what each stage was made from."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import RunError

PARTIAL = ".partial"  # ending of a file or folder that is not whole yet
STAGES = "stages.json"


class RunFolder:
    """Everything of one run in one folder.

    Each stage has a key, the hash of all that it reads. `stages.json` holds the keys of finished stages, so a second call
    redoes only what changed, and what a killed process left half-written is never taken for a result.

    Examples
    --------
    >>> import tempfile
    >>> run = RunFolder(Path(tempfile.mkdtemp()))
    >>> run.is_done("regions", "abc")
    False
    >>> run.finish("regions", "abc"); run.is_done("regions", "abc")
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def writing(self) -> Iterator[RunFolder]:
        """Create the folder, keep other writers out, and sweep away what a killed one left half-written."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: expected a folder for the run, but this is a file.")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path / ".lock", timeout=0):
                for leftover in self.path.rglob(f"*{PARTIAL}"):
                    shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
                yield self
        except Timeout:
            raise RunError(
                f"{self.path}: another process is writing to this run. Wait for it or choose another folder."
            ) from None
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot write the run ({error.strerror or error}). What was finished is kept: make room or "
                "mend the permission, and call the same command again."
            ) from error

    def is_done(self, stage: str, key: str) -> bool:
        """Whether the stage was finished from exactly these inputs."""
        return self._stages().get(stage) == key

    def finish(self, stage: str, key: str) -> None:
        """Record a finished stage."""
        self.write_json(STAGES, {**self._stages(), stage: key})

    def restart(self, stage: str, key: str, *outputs: str) -> None:
        """Remove a stage's outputs unless they were begun from the same inputs, and record that they are begun now."""
        begun = f"{stage} (begun)"
        if self._stages().get(begun) != key:
            for name in outputs:
                shutil.rmtree(self.path / name, ignore_errors=True)
            self.finish(begun, key)

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all."""
        self.write_with(name, lambda path: path.write_bytes(data))

    def write_text(self, name: str, text: str) -> None:
        """Write a text file (UTF-8, newline as given) whole or not at all."""
        self.write(name, text.encode("utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        """Write JSON, sorted and indented, whole or not at all."""
        self.write_text(name, json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")

    def write_with(self, name: str, writer: Callable[[Path], object]) -> None:
        """Let `writer` fill a temporary path, then put it in place in one step."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + PARTIAL)
        writer(partial)
        if partial.is_file():
            with partial.open("rb+") as handle:  # on disk before the name is: a power cut must not leave an empty file
                os.fsync(handle.fileno())
        elif target.is_dir():
            shutil.rmtree(target)
        os.replace(partial, target)

    def _stages(self) -> dict[str, str]:
        try:
            stages: dict[str, str] = json.loads((self.path / STAGES).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return {}
        return stages


def stable_hash(*values: Any) -> str:
    """SHA-256 of JSON-like values, the same on every machine and day.

    Examples
    --------
    >>> stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
