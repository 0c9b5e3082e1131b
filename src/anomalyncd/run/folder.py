"""The run folder on disk: whole files or none, one writer at a time, and a record of what each stage was made from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import RunError

PARTIAL = ".partial"  # ending of a file or folder that is not whole yet
STAGES = "stages.json"  # there from the first moment on, so it also tells a run folder from any other
LOCK = ".lock"
LOG = "run.log"
MODEL_FILE = "model.safetensors"
CLASS_NAMES = "classes.json"
IMAGES_TABLE = "images.csv"
REGIONS_TABLE = "regions.csv"
MANIFEST = "manifest.csv"
HISTORY = "loss.csv"
CLASS_SHEET = "classes.png"
CORRECTIONS = "corrections.csv"  # classes of single regions that a person decided
COUNT = "count.json"
GROUPS = "groups.csv"
REPORT = "report.html"
RETRAINED = "tokens/trained.safetensors"  # features of all regions after training, where the network changed
UPDATE = "update"  # stage: more images than `discover` was given
EXPORT = "export"
PATIENCE = 30.0  # seconds that a reader waits while another process changes several files at once
COMMIT = "commit"  # files that replace others together
# What a run ends with: gone as soon as an earlier stage is done anew, so that a folder is whole or says that it is not.
RESULTS = (
    MODEL_FILE, IMAGES_TABLE, REGIONS_TABLE, MANIFEST, CLASS_NAMES, HISTORY, CLASS_SHEET, CORRECTIONS, COUNT, GROUPS,
    "pictures",
    REPORT,
)  # fmt: skip
OWN = (
    *RESULTS, LOG, "config.yaml", "range.json", "maps", "masks", "crops", "detector", "detector.json", "tokens", "base",
    "scores.csv", "metrics.json", EXPORT, "review.sqlite", "review.sqlite-wal", "review.sqlite-shm",
)  # fmt: skip


class RunFolder:
    """Everything of one run in one folder.

    Each stage has a key, the hash of all that it reads. `stages.json` holds the key that each stage was begun with and
    whether it was finished, so a second call redoes only what changed, and what a killed process left half-done is never
    taken for a result.

    Examples
    --------
    >>> import tempfile
    >>> run = RunFolder(Path(tempfile.mkdtemp()))
    >>> run.start("regions", "abc"); run.is_done("regions", "abc")
    False
    >>> run.finish("regions", "abc"); run.is_done("regions", "abc")
    True
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def writing(self, patience: float = 0) -> Iterator[RunFolder]:
        """Create the folder, keep other writers out, and sweep away what a killed one left half-written.

        patience : seconds to wait for another writer
        """
        try:
            self._check_ours()
            self.path.mkdir(parents=True, exist_ok=True)
            with FileLock(self.path / LOCK, timeout=patience):
                self._sweep()
                self._finish_commit()
                if not (self.path / STAGES).exists():
                    self.write_json(STAGES, {})
                try:
                    yield self
                except (Exception, KeyboardInterrupt):
                    self._sweep()  # a view bank is large, and who stops a run may want the room
                    raise
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
        return self._stages().get(stage) == {"key": key, "done": True}

    def has_begun(self, stage: str) -> bool:
        """Whether the stage was ever begun."""
        return stage in self._stages()

    def start(self, stage: str, key: str, *outputs: str) -> None:
        """Begin or go on with a stage: its outputs are kept only if they were begun from the same inputs."""
        if self._stages().get(stage, {}).get("key") != key:
            for name in (*RESULTS, *outputs):  # before the new key is written: old outputs must not pass for new ones
                _remove(self.path / name)
        self._record(stage, key, done=False)

    def stages_with(self, stage: str, key: str) -> bytes:
        """What stages.json holds once a stage is finished, for a commit."""
        return to_json({**self._stages(), stage: {"key": key, "done": True}}).encode()

    def finish(self, stage: str, key: str) -> None:
        """Record a finished stage."""
        self._record(stage, key, done=True)

    def replace_by(self, source: Path) -> None:
        """Put the content of another run folder in the place of this one's."""
        copy = self.path / f"copy{PARTIAL}"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns(LOCK, "review.lock", f"*{PARTIAL}"))
        self.write_json(STAGES, {})
        for name in OWN:
            _remove(self.path / name)
        # Where images.csv is, the run is whole; and stages.json must not promise what is not there yet.
        for entry in sorted(copy.iterdir(), key=lambda entry: (entry.name == IMAGES_TABLE, entry.name == STAGES)):
            os.replace(entry, self.path / entry.name)
        copy.rmdir()

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + PARTIAL)
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # on disk before the name is: a power cut must not leave an empty file
            os.replace(partial, target)
        except OSError:
            with suppress(OSError):
                partial.unlink()  # on a full disk every byte counts
            raise

    def commit(self, files: Mapping[str, bytes]) -> None:
        """Replace several files as one: whenever the process is killed, either all or none of them are new."""
        for name, data in files.items():
            self.write(f"{COMMIT}{PARTIAL}/{name}", data)  # a killed process leaves a folder that is swept away …
        os.replace(self.path / f"{COMMIT}{PARTIAL}", self.path / COMMIT)
        self._finish_commit()  # … and from here on one that the next call goes on with

    def recover(self) -> None:
        """Finish a commit that a killed process left, before the files are read."""
        if (self.path / COMMIT).is_dir():
            with self.writing(PATIENCE):
                pass

    def write_text(self, name: str, text: str) -> None:
        """Write a text file (UTF-8, newline as given) whole or not at all."""
        self.write(name, text.encode("utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        """Write JSON, sorted and indented, whole or not at all."""
        self.write_text(name, to_json(value))

    def _check_ours(self) -> None:
        """A run replaces what lies under its own names (masks, crops …), so it must not meet somebody else's."""
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path}: expected a folder for the run, but this is a file.")
        found = {entry.name for entry in self.path.iterdir()} if self.path.exists() else set()
        others = sorted(found - {LOCK, STAGES + PARTIAL})
        if others and STAGES not in found:
            raise RunError(
                f"{self.path}: expected an empty folder or an earlier run, but it holds other files ({others[0]}). Choose "
                "another folder."
            )

    def _sweep(self) -> None:
        for leftover in list(self.path.rglob(f"*{PARTIAL}")):
            if EXPORT not in leftover.relative_to(self.path).parts:  # made without the lock, and swept by itself
                _remove(leftover)

    def _finish_commit(self) -> None:
        folder = self.path / COMMIT
        if folder.is_dir():
            for file in [entry for entry in folder.rglob("*") if entry.is_file()]:
                target = self.path / file.relative_to(folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)
            _remove(folder)

    def _record(self, stage: str, key: str, done: bool) -> None:
        self.write_json(STAGES, {**self._stages(), stage: {"key": key, "done": done}})

    def _stages(self) -> dict[str, dict[str, Any]]:
        try:
            stages = json.loads((self.path / STAGES).read_text(encoding="utf-8"))
            return {stage: dict(state) for stage, state in stages.items()}
        except (FileNotFoundError, IsADirectoryError, ValueError, TypeError, AttributeError, RecursionError):
            return {}  # damaged: everything is done again


def to_json(value: Any) -> str:
    """JSON, sorted and indented."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
