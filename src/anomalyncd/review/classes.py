"""The classes of a run: as its tables have them, and as corrected by every action that was not undone, in order."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..checksums import stable_hash
from ..errors import RunError
from ..labels import NORMAL, NOT_THIS_PRODUCT, UNKNOWN, default_name
from ..large import LARGE, sample
from ..learn.cluster import kmeans
from ..learn.rows import vectors
from ..regions.drawn import Drawn, as_drawn
from ..run.finished import FinishedRun, Key
from .action_log import Row

CORRECTIONS = ("name", "merge", "split", "move", "false_alarm", "draw")
UNREAD = -2  # label of an image that could not be read
DRAWN = -3  # label that a drawn region had before it was one
FIRST_DRAWN = 2**30  # number of the first drawn region; those of the table are below


class ConflictError(Exception):
    """An action that makes no sense as things stand now, said in words."""


class UncorrectedClasses:
    """What the tables of a run say, read once.

    Parameters
    ----------
    path : folder of a finished run

    Attributes
    ----------
    run : where pictures are read from
    regions : regions.csv; the number of a row is the region's number everywhere in the review
    keys : (image, region) of each row, and rows : its inverse
    labels : (R,) int64
    images : number of an image → its name, in the order of manifest.csv, numbers : its inverse, and shown : for the page
    image_of : (R,) int64, number of each region's image
    names : label → name, of every class that the run knows
    learned : changes when `discover` learns anew, and numbers of classes mean others
    fixed : regions that a person placed in earlier applies
    """

    def __init__(self, path: Path) -> None:
        self.run = run = FinishedRun(path, device="cpu")
        self._signature = run.signature  # before the tables: if they change meanwhile, they are read again
        self.learned, self.fixed = run.learned, frozenset(run.corrections)
        self.regions, self.rows, self.keys = run.regions, run.rows, list(run.rows)
        self.labels = run.regions["label"].to_numpy(np.int64)
        self.images: list[str] = run.manifest["image"].tolist()
        self.shown = shown_names(self.images)
        self.numbers = {name: index for index, name in enumerate(self.images)}
        self.image_of = np.array([self.numbers[image] for image, _ in self.keys], np.int64)
        self.names = {NORMAL: default_name(NORMAL)} | run.names

    @cached_property
    def image_labels(self) -> npt.NDArray[np.int64]:
        """(N,) int64, label of each image; −2 where it could not be read."""
        labels = np.full(len(self.images), UNREAD)
        table = self.run.images
        labels[[self.numbers[name] for name in table["image"]]] = table["label"]
        return labels

    @cached_property
    def boxes(self) -> npt.NDArray[np.float64]:
        """(R, 4) left, top, right and bottom of each region in shares of its image's sides."""
        sides = self.run.manifest[["width", "height"]].to_numpy(np.float64)[self.image_of]
        box = self.regions[["x", "y", "width", "height"]].to_numpy(np.float64)
        corners = np.concatenate([box[:, :2], box[:, :2] + box[:, 2:]], axis=1)
        return np.asarray(corners / np.tile(sides, 2))

    def is_current(self) -> bool:
        """Whether no table of the run has changed since."""
        return self.run.signature == self._signature

    @cached_property
    def table(self) -> str:
        """Tells whether numbers of regions still mean the same regions."""
        return stable_hash(self.keys)[:16]

    @cached_property
    def digest(self) -> str:
        """Tells whether regions still have the same classes, and these still mean the same."""
        return stable_hash(self.learned, sorted(self.names), [*zip(self.keys, self.labels.tolist(), strict=True)])[:16]


class CorrectedClasses:
    """The classes as corrected; as the run has them until `apply` is called.

    Attributes
    ----------
    before : the run's own classes
    drawn : defects that were drawn, which become regions of the run with the next apply; D of them
    keys : (image, region) of each row: those of the run, and behind them the drawn ones
    image_of : (R + D,) int64, number of each region's image
    labels : (R + D,) int64
    names : label → name of every class that is there, empty ones as well
    fixed : (R + D,) bool, regions that a person placed one by one
    changed_by : label → id of the last action that changed its card
    done, undone : actions that `undo` and `redo` would take next from the end
    """

    def __init__(self, before: UncorrectedClasses) -> None:
        self.before, self.labels = before, before.labels.copy()
        self.names = {k: name for k, name in before.names.items() if k != UNKNOWN or UNKNOWN in self.labels}
        self.fixed = np.array([key in before.fixed for key in before.keys], bool)
        self.keys, self.image_of = list(before.keys), before.image_of
        self.drawn: list[Drawn] = []
        self._numbers: list[int] = []  # of the drawn ones
        self.changed_by: dict[int, int] = {}
        self.done: list[Row] = []
        self.undone: list[Row] = []

    def members(self, label: int) -> npt.NDArray[np.int64]:
        """Numbers of the regions of a class."""
        return np.flatnonzero(self.labels == label)

    def moved(self) -> npt.NDArray[np.bool_]:
        """(R + D,) bool, regions in another class than the run has them in"""
        return np.asarray(self.labels != self.labels_before)

    def image_labels(self) -> npt.NDArray[np.int64]:
        """(N,) int64 class of each image, −2 where it could not be read: that of the run, which the report has too.

        Where regions were moved, the class that covers most of the image, as Apply will find it but for close calls.
        """
        labels = self.before.image_labels.copy()
        moved = np.isin(self.image_of, self.image_of[self.moved()])
        if moved.any():
            pairs, pair_of = np.unique(
                np.stack([self.image_of, self.labels], axis=1)[moved], axis=0, return_inverse=True
            )
            area = np.bincount(pair_of.ravel(), weights=self.column("area", np.inf)[moved])
            rank = np.where(pairs[:, 1] > NORMAL, 2, np.where(pairs[:, 1] < NORMAL, 1, 0))
            order = np.lexsort((area, rank, pairs[:, 0]))
            labels[pairs[order, 0]] = pairs[order, 1]  # of several the last one stays
        return labels

    @property
    def labels_before(self) -> npt.NDArray[np.int64]:
        """(R + D,) int64, of the run; −1 of what was drawn since"""
        return np.append(self.before.labels, np.full(len(self.drawn), UNKNOWN))

    def column(self, name: str, drawn: float) -> npt.NDArray[np.float64]:
        """(R + D,) figures of regions.csv, and this one for what was drawn since."""
        return np.append(self.before.regions[name].to_numpy(np.float64), np.full(len(self.drawn), drawn))

    def number(self, row: int) -> int:
        """The number by which a region is called: its row, or one that no other drawing ever had."""
        first = len(self.before.keys)
        return row if row < first else self._numbers[row - first]

    def row(self, number: int) -> int:
        """The row of a region by its number; a ConflictError where there is none."""
        if number in self._numbers:
            return len(self.before.keys) + self._numbers.index(number)
        if not 0 <= number < len(self.before.keys):
            raise ConflictError(f"There is no region {number}.")
        return number

    def drawing(self, row: int) -> Drawn | None:
        """What was drawn, of a region that waits for the next apply."""
        first = len(self.before.keys)
        return self.drawn[row - first] if row >= first else None

    def box(self, row: int) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of a region in shares of its image's sides."""
        drawn = self.drawing(row)
        if drawn is not None:
            points = np.array([point for stroke in drawn.strokes for point in stroke.points])
            (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
            return left, top, right, bottom
        left, top, right, bottom = self.before.boxes[row].tolist()
        return left, top, right, bottom

    def named(self, rows: Iterable[int]) -> list[list[Any]]:
        """Image and region of each of these rows, as the log stores them."""
        return [list(self.keys[row]) for row in rows]

    def apply(self, row: Row) -> None:
        """Do a correction. What is no longer there is passed over: the log outlives the tables it was made on."""
        if row.kind == "draw":
            self._draw(row)
        body, labels = row.body, self.labels.copy()
        if row.kind == "name":
            self.names[body["label"]] = body["name"]
            self.changed_by[body["label"]] = row.id
        elif row.kind == "merge":
            self.labels[self.labels == body["from"]] = body["into"]
            self.names.pop(body["from"], None)
            self.names.setdefault(body["into"], default_name(body["into"]))
        elif row.kind == "split":
            for part in body["parts"]:
                self._place(part["regions"], part["to"], by_hand=False)
        else:
            self._place(body["regions"], body["to"], by_hand=True)
        if row.kind == "draw":
            self.changed_by[body["to"]] = row.id
        moved = labels != self.labels
        self.changed_by |= dict.fromkeys({*labels[moved].tolist(), *self.labels[moved].tolist()}, row.id)
        self.done.append(row)
        self.undone.clear()

    def _place(self, regions: Sequence[Sequence[Any]], to: int, *, by_hand: bool) -> None:
        own = {(one.image, one.region): len(self.before.keys) + place for place, one in enumerate(self.drawn)}
        rows = [row for image, region in regions if (row := self._find((image, region), own)) is not None]
        self.labels[rows] = to
        self.fixed[rows] = by_hand
        self.names.setdefault(to, default_name(to))

    def _find(self, key: Key, drawn: dict[Key, int]) -> int | None:
        return self.before.rows[key] if key in self.before.rows else drawn.get(key)

    def _draw(self, row: Row) -> None:
        """Add a region, unless a killed apply has done so already, or its image is gone."""
        ((image, region),) = row.body["regions"]
        if (image, region) in self.before.rows or image not in self.before.numbers:
            return
        self.drawn.append(as_drawn({"image": image, "region": region, "strokes": row.body["strokes"]}))
        self._numbers.append(FIRST_DRAWN + row.id)
        self.keys.append((image, region))
        self.image_of = np.append(self.image_of, self.before.numbers[image])
        self.labels, self.fixed = np.append(self.labels, UNKNOWN), np.append(self.fixed, True)

    def check_class(self, label: int) -> None:
        """Refuse what was said of a class that is gone."""
        if label not in self.names:
            raise ConflictError(f"There is no class {label} any more.")

    def check_name(self, label: int, name: str) -> None:
        """Refuse a second class of one name: nobody could tell the two apart."""
        self.check_class(label)
        if label == UNKNOWN:
            raise ConflictError("What is unknown has no name: move its regions to a class and name that.")
        if name.casefold() in (default_name(UNKNOWN), NOT_THIS_PRODUCT):
            raise ConflictError(f"The name “{name.casefold()}” means regions of no class: choose another.")
        for other, taken in self.names.items():
            if other != label and taken.casefold() == name.casefold():
                raise ConflictError(
                    f"Class {other} is called “{taken}” already: merge the two, or choose another name."
                )

    def check_merge(self, source: int, into: int) -> None:
        """Refuse to merge what cannot be one class."""
        self.check_class(source)
        self.check_class(into)
        if source == into:
            raise ConflictError("A class cannot be merged into itself.")
        if source == NORMAL:
            raise ConflictError("Normal stays a class of its own: move its regions instead.")
        if into == UNKNOWN:
            raise ConflictError("Nothing can be merged into unknown.")

    def check_target(self, label: int) -> None:
        """Refuse to move regions where none can be."""
        if label == UNKNOWN:
            raise ConflictError("Nothing can be moved to unknown.")
        if label != NORMAL:
            self.check_class(label)

    def describe(self, row: Row) -> str:
        """A correction in words, with the names of now."""
        body = row.body
        if row.kind == "name":
            return f"name class {body['label']} “{body['name']}”"
        if row.kind == "merge":
            return f"merge class {body['from']} into {self.title(body['into'])}"
        if row.kind == "split":
            return f"split {self.title(body['label'])} into {len(body['parts']) + 1}"
        if row.kind == "draw":
            return f"draw a defect of {self.title(body['to'])}"
        count = len(body["regions"])
        what = f"{count} region{'' if count == 1 else 's'}"
        return f"call {what} false alarm" if row.kind == "false_alarm" else f"move {what} to {self.title(body['to'])}"

    def title(self, label: int) -> str:
        """The name of a class, or its number where it has none."""
        return self.names.get(label) or default_name(label)


def shown_names(names: Sequence[str]) -> list[str]:
    """Names of images for the page: paths of this machine without the folder that all of them are in.

    Examples
    --------
    >>> shown_names(["/data/line/a/1.png", "/data/line/b/1.png", "2.png"])
    ['a/1.png', 'b/1.png', '2.png']
    """
    folders = {os.path.dirname(name) for name in names if os.path.isabs(name)}
    try:
        start = os.path.commonpath(folders) if folders else ""
    except ValueError:  # on several drives
        start = ""
    return [os.path.relpath(name, start) if start and os.path.isabs(name) else name for name in names]


def split_regions(path: Path, keys: Sequence[Key], n_parts: int) -> npt.NDArray[np.int64]:
    """Divide a class by re-clustering its regions on their stored features.

    Returns (R,) int, 0 … n_parts − 1, the largest part first; a part is empty where regions are too much alike.
    """
    run = FinishedRun(path, device="cpu")  # one that is let go afterwards: features are large
    classifier = run.model.classifier
    if classifier is None:
        raise RunError(f"{path}: nothing was learned in this run, so a class cannot be split.")
    if not run.rows.keys() >= set(keys):
        raise ConflictError("The regions of this run have changed: look again.")
    rows = [run.rows[key] for key in keys]
    features = vectors(classifier.space, {name: part[rows] for name, part in run.features.items()})
    seed = run.model.config.random_state
    if len(np.unique(features[sample(len(rows), LARGE, seed)], axis=0)) < n_parts:
        return np.zeros(len(keys), np.int64)
    return kmeans(features, n_parts, seed)
