"""A folder of runs: which there are, what each holds in short, and a picture of each."""

from __future__ import annotations

import json
import os
import re
import threading
import unicodedata
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from filelock import FileLock, Timeout
from pydantic import TypeAdapter

from ..errors import AnomalyNCDError, RunError
from ..labels import NORMAL
from ..report.canvas import Picture, fitted, overlay
from ..run.finished import FinishedRun
from ..run.folder import CLASS_NAMES, COUNT, IMAGES_TABLE, RANGE, REPORT, STAGES
from ..whole import create

OWN = ".studio"  # what belongs to the studio and not to a run
LOCK, SUMMARIES = "studio.lock", "summaries.json"
LONGEST_NAME = 60
RESERVED = ("dropped",)  # folders of the workspace that are no runs
MOST_RUNS = 1000
TILES, TILE_SIDE = 4, 160  # crops in the picture of a run
KEPT = 200  # summaries and pictures in memory
T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """A run in short; finished : seconds since 1970, 0 where it is not; trouble : why it cannot be read"""

    n_images: int = 0
    n_normal: int = 0
    n_kinds: int = 0
    n_regions: int = 0
    finished: float = 0
    classes: tuple[tuple[int, str, int], ...] = ()  # label, name, images
    has_report: bool = False
    trouble: str = ""


class Workspace:
    """Runs in one folder: each folder in it that is a run, or has one in `run/` as the demo.

    Parameters
    ----------
    path : made if missing; no other studio can use it meanwhile
    """

    def __init__(self, path: Path) -> None:
        try:
            (path / OWN).mkdir(parents=True, exist_ok=True)
            self.path = path.resolve()
            self._own = FileLock(self.path / OWN / LOCK, timeout=0, thread_local=False)
            self._own.acquire()
        except Timeout:
            raise RunError(f"{path}: another studio has this folder open. Use its page, or stop it first.") from None
        except OSError as error:
            raise RunError(f"{path}: expected a folder that can be written to ({error.strerror or error}).") from error
        self._summaries, self._pictures = Kept(_read_summary), Kept(_draw)
        self._summaries.load(self.path / OWN / SUMMARIES, TypeAdapter(Summary))

    def close(self) -> None:
        """Let another studio use the folder."""
        self._own.release()

    def keep(self) -> None:
        """Put what was read of the runs on disk, so that the next studio need not read all their tables."""
        self._summaries.keep(self.path / OWN / SUMMARIES, TypeAdapter(Summary))

    def runs(self) -> dict[str, Path]:
        """Name → folder, by name; links are left out, so that nothing leads out of the workspace."""
        found = {}
        with closing(os.scandir(self.path)) as entries:
            folders = sorted(e.name for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False))
        for name in folders[:MOST_RUNS]:
            for place in (self.path / name, self.path / name / "run"):
                if (place / STAGES).is_file() and not place.is_symlink():
                    found[name] = place
                    break
        return found

    def new_name(self, title: str, inside: Path | None = None) -> str:
        """A name for a new run that no folder has: letters, digits, - and _ of the title.

        inside : folder that it is for, the workspace itself by default.
        A name that another job has been given but has not used yet must not be given twice, so its folder is made.
        """
        plain = unicodedata.normalize("NFKC", title)
        start = re.sub(r"[^\w-]+", "-", plain).strip("-_")[:LONGEST_NAME].strip("-_") or "run"
        folder = inside or self.path
        number = 2 if folder == self.path and start.casefold() in RESERVED else 1
        while True:
            name = start if number == 1 else f"{start}-{number}"
            try:
                (folder / name).mkdir()
                return name
            except FileExistsError:
                number += 1
            except OSError as error:
                raise RunError(f"{start}: a folder of this name cannot be made ({error.strerror}).") from error

    def summary(self, run: Path) -> Summary:
        """What a run holds; read again only when its tables change."""
        return self._summaries.get(run)

    def picture(self, run: Path) -> bytes:
        """JPEG of some regions of a run, one of each of the first classes; empty where there is none."""
        return self._pictures.get(run)


class Kept(Generic[T]):
    """What was made of a run, until the run changes; make : run → value"""

    def __init__(self, make: Callable[[Path], T]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._values: OrderedDict[tuple[str, object], T] = OrderedDict()
        self._is_new = False

    def get(self, run: Path) -> T:
        """Made now if need be; the ones that nobody asked for longest are let go."""
        key = (str(run), signature(run))
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
        value = self._make(run)
        with self._lock:
            self._values[key], self._is_new = value, True
            while len(self._values) > KEPT:
                self._values.popitem(last=False)
        return value

    def load(self, file: Path, kind: TypeAdapter[T]) -> None:
        """Take over what `keep` has left; nothing where that is damaged."""
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            for run, marks, value in json.loads(file.read_text(encoding="utf-8")):
                self._values[str(run), tuple(map(tuple, marks))] = kind.validate_python(value)

    def keep(self, file: Path, kind: TypeAdapter[T]) -> None:
        """Write down what is known, if there is news; it can be read again at any time, so that may fail."""
        with self._lock:
            if not self._is_new:
                return
            self._is_new = False
            rows = [[run, marks, kind.dump_python(value)] for (run, marks), value in self._values.items()]
        with suppress(OSError):
            create(file.with_suffix(".partial"), json.dumps(rows).encode(), becomes=file)


def signature(run: Path) -> tuple[object, ...]:
    """Changes when what is shown of a run does."""
    out = []
    for name in (IMAGES_TABLE, CLASS_NAMES, COUNT, REPORT):
        try:
            status = (run / name).stat()
            out.append((status.st_mtime_ns, status.st_size))
        except OSError:
            out.append((0, 0))
    return tuple(out)


def needs_of(run: Path) -> str:
    """What new images of a run need besides themselves: map or mask; `image` for nothing, as its own detector makes maps."""
    if FinishedRun(run, device="cpu").config.detect.name:
        return "image"
    return "map" if (run / RANGE).exists() else "mask"


def _read_summary(run: Path) -> Summary:
    if not (run / IMAGES_TABLE).exists():
        return Summary()
    try:
        found = FinishedRun(run, device="cpu")
        labels = found.images["label"].to_numpy(np.int64)
        counts = {int(label): int((labels == label).sum()) for label in np.unique(labels)}
        order = sorted(counts, key=lambda label: (label <= NORMAL, abs(label)))
        names = dict(zip(labels.tolist(), found.images["class_name"].tolist(), strict=True))
        return Summary(
            n_images=len(labels), n_normal=counts.get(NORMAL, 0), n_kinds=sum(label > NORMAL for label in counts),
            n_regions=int(found.images["n_regions"].sum()), finished=(run / IMAGES_TABLE).stat().st_mtime,
            classes=tuple((label, str(names[label]), counts[label]) for label in order),
            has_report=(run / REPORT).is_file(),
        )  # fmt: skip
    except (AnomalyNCDError, OSError, KeyError, ValueError, TypeError) as error:
        return Summary(trouble=str(error) if isinstance(error, AnomalyNCDError) else "This run cannot be read.")


def _draw(run: Path) -> bytes:
    from ..review.page_data import to_jpeg

    try:
        found = FinishedRun(run, device="cpu")
        regions = found.regions
        of_kinds = regions[regions["label"] > NORMAL].sort_values(["probability"], ascending=False, kind="stable")
        rows = _first_of_each(of_kinds["label"].tolist(), of_kinds.index.tolist())
        tiles = [tile for row in rows[:TILES] if (tile := _tile(found, row)) is not None]
    except (AnomalyNCDError, OSError, KeyError, ValueError, TypeError):
        tiles = []
    if not tiles:
        return b""
    return to_jpeg(np.concatenate(tiles, axis=1))


def _first_of_each(labels: Sequence[int], rows: Sequence[int]) -> list[int]:
    """The first row of each label, by label, then the second ones.

    Examples
    --------
    >>> _first_of_each([2, 1, 2], [10, 11, 12])
    [11, 10, 12]
    """
    seen: dict[int, int] = {}
    ranked = []
    for label, row in zip(labels, rows, strict=True):
        ranked.append((seen.get(label, 0), label, row))
        seen[label] = seen.get(label, 0) + 1
    return [row for _, _, row in sorted(ranked)]


def _tile(run: FinishedRun, row: int) -> Picture | None:
    picture, mask = run.crop(row)
    if picture is None:
        return None
    small = fitted(picture, TILE_SIDE)
    drawn = small if mask is None or mask.all() else overlay(small, None, mask, low=0, high=0)
    square = np.full((TILE_SIDE, TILE_SIDE, 3), 128, np.uint8)
    height, width = drawn.shape[:2]
    square[:height, :width] = drawn[:TILE_SIDE, :TILE_SIDE]
    return square
