"""The run folder on disk: whole files or none, one writer at a time, no way out of it, and what each stage was made from."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from ..errors import AnomalyNCDError, RunError
from ..whole import create
from .work import KEPT, copy_work, work_of_people

FORMAT = 7  # of all that a run folder holds; raised when a run of before cannot be read any more
FORMAT_KEY = "format"  # under which stages.json has it
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
APPLIED = "applied.json"  # which corrections of the review the tables hold
COUNT = "count.json"
GROUPS = "groups.csv"
KNOWN = "known.csv"  # regions whose class was told before classes were learned
TREE = "tree.json"  # which classes would become one next, and which would fall into two
REPORT = "report.html"
RETRAINED = "tokens/trained.safetensors"  # features of all regions after training, where the network changed
UPDATE = "update"  # stage: more images than `discover` was given
EXPORT = "export"
RANGE = "range.json"
MAPS = "maps"
NORMAL_MAPS = "normal/maps"  # of normal images, each made as if the detector had not seen it
SEEN = "seen"  # what the detector saw in whole images, until the regions are described
TRAINING = "training"  # what a detector has learned so far; gone when it has learned all
NORMAL_SCORES = "normal.json"  # how normal images score, how the run's images do, and where the line is
SUSPECTS = "suspects.csv"  # of the normal images that the detector was given, those that seem to show a defect
SCORES, METRICS = "scores.csv", "metrics.json"  # of `anomalyncd detect`: with labels, and against them
PATIENCE = 30.0  # seconds that a reader waits while another process changes several files at once
COMMIT = "commit"  # files that replace others together
REVIEW_LOG = "review.sqlite"
DEEPEST = 100  # folders in folders; those of maps are as deep as the images
LARGEST_TEXT = 500_000_000  # bytes of a JSON file, with some figures of each image
JUNCTION = 0xA0000003  # st_reparse_tag of what Windows has besides symbolic links
# What a run ends with: gone as soon as an earlier stage is done anew, so that a folder is whole or says that it is not.
RESULTS = (
    MODEL_FILE, IMAGES_TABLE, REGIONS_TABLE, MANIFEST, CLASS_NAMES, HISTORY, CLASS_SHEET, CORRECTIONS, APPLIED, COUNT,
    GROUPS, TREE, KNOWN, NORMAL_SCORES, "pictures", REPORT,
)  # fmt: skip
OWN = (
    *RESULTS, LOG, "config.yaml", "range.json", "maps", "masks", "crops", "detector", "detector.json", "tokens", "base",
    "normal", "scores.csv", "metrics.json", TRAINING, SEEN, EXPORT, REVIEW_LOG, "review.sqlite-wal", "review.sqlite-shm",
)  # fmt: skip


class RunFolder:
    """Everything of one run in one folder.

    Each stage has a key, the hash of all that it reads. `stages.json` holds the key that each stage was begun with and
    whether it was finished, so a second call redoes only what changed, and what a killed process left half-done is never
    taken for a result.

    A run may come from a stranger, so no name inside it leads out of it: `place`, the one way from a name to a path,
    refuses links and special files. A command that only reads a run, maybe of a million files, looks at its top level
    once (`recover`) and at each further name when it needs it (`place`); one that writes looks at all of it, in the walk
    that sweeps leftovers away. The folder itself may be a link.

    Parameters
    ----------
    force : names and corrections of people may be given up, see `drop_results`

    Attributes
    ----------
    kept : where a copy of them was put; None where none was given up

    Examples
    --------
    >>> import tempfile
    >>> run = RunFolder(Path(tempfile.mkdtemp()))
    >>> run.start("regions", "abc"); run.is_done("regions", "abc")
    False
    >>> run.finish("regions", "abc"); run.is_done("regions", "abc")
    True
    """

    def __init__(self, path: Path, *, force: bool = False) -> None:
        self.path, self.force = path, force
        self.kept: Path | None = None

    def place(self, name: str) -> Path:
        """The path of a name inside the run, whether it is there or not.

        A RunError where the name leads out of the run: `..`, absolute names, links and special files on the way.
        """
        relative = Path(name)
        if relative.anchor or ".." in relative.parts or "\0" in name:
            raise RunError(f"{self.path}: expected the name of a file inside the run, but got {name!r}.")
        at = str(self.path)
        for part in relative.parts:
            at = f"{at}{os.sep}{part}"
            try:
                status = os.lstat(at)
            except OSError:  # not there, and nothing below it either
                break
            linked = stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == JUNCTION
            if linked or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise RunError(
                    f"{at}: is a {'link' if linked else 'pipe, socket or device'}, but a run holds plain files and folders "
                    "only, so that nothing in it leads out of it. Remove it, or take a run that you trust."
                )
        return self.path / relative

    def files(self, under: str = "") -> Iterator[str]:
        """Names of all files below a folder of the run, in order; a RunError at the first link or special file.

        Half-written folders and exports, which may hold links to images, are not looked into.
        """
        return (name for name, is_folder in self._walk(under) if not is_folder)

    @contextmanager
    def writing(self, patience: float = 0) -> Iterator[RunFolder]:
        """Create the folder, keep other writers out, and sweep away what a killed one left half-written.

        patience : seconds to wait for another writer
        """
        try:
            self._check_ours()
            self.path.mkdir(parents=True, exist_ok=True)
            with FileLock(self.place(LOCK), timeout=patience):
                self._check_format()
                self._sweep()
                self._finish_commit()
                if not self.place(STAGES).exists():
                    self.write_json(STAGES, {FORMAT_KEY: FORMAT})
                try:
                    yield self
                except (Exception, KeyboardInterrupt):
                    self._sweep()  # a view bank is large, and who stops a run may want the room
                    raise
        except Timeout:
            raise RunError(
                f"{self.path}: another process is writing to this run. Wait for it or choose another folder."
            ) from None
        except AnomalyNCDError:  # of which some are OSErrors
            raise
        except OSError as error:
            raise RunError(
                f"{self.path}: cannot write the run ({error.strerror or error}). What was finished is kept: make room or "
                "mend the permission, and call the same command again."
            ) from error

    def recover(self) -> None:
        """Before files are read: refuse links and a run of another version, finish a commit that a killed process left."""
        if not (self.path / STAGES).exists() and not (self.path / IMAGES_TABLE).exists():
            return  # no run: whoever wants to read one says what is missing
        try:
            found = dict(self._walk(deep=False))
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read ({error.strerror or error}).") from error
        self._check_format()
        if found.get(COMMIT):
            with self.writing(PATIENCE):
                pass

    def is_done(self, stage: str, key: str) -> bool:
        """Whether the stage was finished from exactly these inputs."""
        return self._stages().get(stage) == {"key": key, "done": True}

    def has_begun(self, stage: str) -> bool:
        """Whether the stage was ever begun."""
        return stage in self._stages()

    def key(self, stage: str) -> str:
        """Hash of what the stage was made from; empty where it was never begun."""
        return str(self._stages().get(stage, {}).get("key", ""))

    def start(self, stage: str, key: str, *outputs: str) -> None:
        """Begin or go on with a stage: its outputs are kept only if they were begun from the same inputs."""
        if self._stages().get(stage, {}).get("key") != key:
            self.drop_results(*outputs)  # before the new key is written: old outputs must not pass for new ones
        self.write(STAGES, self.stages_with(stage, key, done=False))

    def drop_results(self, *outputs: str) -> None:
        """Take away what the run ended with, and other outputs, because something that it was made from is made anew.

        What people have done to the classes is not taken away: a RunError unless `force` is set, and then it is kept.
        """
        self.keep_work("classes would be learned anew (other images or settings than before, or a damaged file)")
        for name in (*RESULTS, *outputs):
            self.remove(name)

    def keep_work(self, what: str) -> None:
        """Refuse, in these words, what would end the work of people in this run; copy it to `kept/` if `force` is set."""
        work = work_of_people(
            self.read_json(CLASS_NAMES), self.place(CORRECTIONS), self.place(REVIEW_LOG),
            self.key("learn"), told=self.place(KNOWN), finished=self.place(IMAGES_TABLE).exists(),
        )  # fmt: skip
        if not work:
            return
        if not self.force:
            raise RunError(
                f"{self.path}: {what}, and the work of people would no longer fit: {work}. Choose another folder, or force "
                f"it (discover --force, force=True in Python): a copy of that work is kept in {KEPT}/."
            )
        self.kept = copy_work(self, (*RESULTS, STAGES, "config.yaml"), REVIEW_LOG)

    def finish(self, stage: str, key: str) -> None:
        """Record a finished stage."""
        self.write(STAGES, self.stages_with(stage, key))

    def stages_with(self, stage: str, key: str, *, done: bool = True) -> bytes:
        """What stages.json holds once a stage is finished (or begun), for a commit."""
        return to_json({FORMAT_KEY: FORMAT, **self._stages(), stage: {"key": key, "done": done}}).encode()

    def write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all."""
        create(self.place(name + PARTIAL), data, becomes=self.place(name))

    def put(self, name: str, data: bytes) -> None:
        """Write one of many small files, which count only once a file that is written after them says so."""
        create(self.place(name), data)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file (UTF-8, newline as given) whole or not at all."""
        self.write(name, text.encode("utf-8"))

    def write_json(self, name: str, value: Any) -> None:
        """Write JSON, sorted and indented, whole or not at all."""
        self.write_text(name, to_json(value))

    def read_json(self, name: str) -> Any:
        """What a JSON file holds; None where it is missing or damaged."""
        from ..checksums import from_json  # with numpy, which commands that only help do without

        path = self.place(name)
        try:
            return from_json(path.read_text(encoding="utf-8")) if path.stat().st_size <= LARGEST_TEXT else None
        except (OSError, ValueError, RecursionError):
            return None

    def remove(self, name: str) -> None:
        """Take a file or a folder away, if it is there."""
        path = self.place(name)
        if path.is_dir():
            try:
                shutil.rmtree(path)
            except RecursionError:
                raise RunError(
                    f"{path}: has more folders in folders than can be removed. Remove it yourself."
                ) from None
        else:
            path.unlink(missing_ok=True)

    def commit(self, files: Mapping[str, bytes]) -> None:
        """Replace several files as one: whenever the process is killed, either all or none of them are new."""
        for name, data in files.items():
            self.place(name)
            self.write(f"{COMMIT}{PARTIAL}/{name}", data)  # a killed process leaves a folder that is swept away …
        os.replace(self.place(COMMIT + PARTIAL), self.place(COMMIT))
        self._finish_commit()  # … and from here on one that the next call goes on with

    def replace_by(self, source: Path) -> None:
        """Put the content of another run folder in the place of this one's; what either has in `kept/` stays where it is."""
        self.keep_work("another run would take the place of this one")
        for _ in RunFolder(source).files():  # a link in it would be copied, or what it leads to
            pass
        copy = self.place(f"copy{PARTIAL}")
        ignored = shutil.ignore_patterns(LOCK, "review.lock", KEPT, f"*{PARTIAL}")
        shutil.copytree(source, copy, symlinks=True, ignore=ignored)  # links of an export lead to images
        self.write_json(STAGES, {FORMAT_KEY: FORMAT})
        for name in OWN:
            self.remove(name)
        # Where images.csv is, the run is whole; and stages.json must not promise what is not there yet.
        for entry in sorted(copy.iterdir(), key=lambda entry: (entry.name == IMAGES_TABLE, entry.name == STAGES)):
            os.replace(entry, self.place(entry.name))
        copy.rmdir()

    def _walk(self, under: str = "", *, deep: bool = True) -> Iterator[tuple[str, bool]]:
        """Names in a folder of the run, sorted, and whether each is a folder; a RunError where one is a link or special."""
        folder = self.place(under)
        if under.count("/") > DEEPEST:
            raise RunError(f"{self.path}: expected folders at most {DEEPEST} deep, but this goes on: {under[:80]}…")
        for entry in sorted(os.scandir(folder) if folder.is_dir() else (), key=lambda entry: entry.name):
            name = f"{under}/{entry.name}" if under else entry.name
            if not entry.is_file(follow_symlinks=False):
                self.place(name)
            is_folder = entry.is_dir(follow_symlinks=False)
            yield name, is_folder
            if deep and is_folder and not name.endswith(PARTIAL) and name != EXPORT:
                yield from self._walk(name)

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

    def _check_format(self) -> None:
        found = self._content().get(FORMAT_KEY)
        if found != FORMAT and (self.place(STAGES).exists() or self.place(IMAGES_TABLE).exists()):
            of = f"format {found}" if isinstance(found, int) else "no format number"
            raise RunError(
                f"{self.path}: made by another version of anomalyncd ({of}, this one reads {FORMAT}). Make it anew, in an "
                "empty folder, with `anomalyncd discover`."
            )

    def _sweep(self) -> None:
        for name in [name for name, _ in self._walk() if name.endswith(PARTIAL)]:
            self.remove(name)

    def _finish_commit(self) -> None:
        if self.place(COMMIT).is_dir():
            moves = [(self.place(name), self.place(name.removeprefix(f"{COMMIT}/"))) for name in self.files(COMMIT)]
            for file, target in moves:  # of which each was looked at before the first is moved
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)
            self.remove(COMMIT)

    def _content(self) -> dict[str, Any]:
        """What stages.json says; of a damaged one only that it is of this version, so that everything is done again."""
        if not self.place(STAGES).exists():
            return {}
        content = self.read_json(STAGES)
        return content if isinstance(content, dict) else {FORMAT_KEY: FORMAT}

    def _stages(self) -> dict[str, dict[str, Any]]:
        return {stage: state for stage, state in self._content().items() if isinstance(state, dict)}


def to_json(value: Any) -> str:
    """JSON, sorted and indented."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
