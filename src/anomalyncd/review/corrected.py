"""Corrections and what follows from them: the run's classes, then every action that was not undone, in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..labels import NORMAL, UNKNOWN, default_name
from .action_log import Row
from .uncorrected import UncorrectedClasses

CORRECTIONS = ("name", "merge", "split", "move", "false_alarm")


class ConflictError(Exception):
    """An action that makes no sense as things stand now, said in words."""


class CorrectedClasses:
    """The classes as corrected; as the run has them until `apply` is called.

    Attributes
    ----------
    before : the run's own classes
    labels : (R,) int64
    names : label → name of every class that is there, empty ones as well
    fixed : (R,) bool, regions that a person placed one by one
    changed_by : label → id of the last action that changed its card
    done, undone : actions that `undo` and `redo` would take next from the end
    """

    def __init__(self, before: UncorrectedClasses) -> None:
        self.before, self.labels = before, before.labels.copy()
        self.names = {k: name for k, name in before.names.items() if k != UNKNOWN or UNKNOWN in self.labels}
        self.fixed = np.array([key in before.fixed for key in before.keys], bool)
        self.changed_by: dict[int, int] = {}
        self.done: list[Row] = []
        self.undone: list[Row] = []

    def members(self, label: int) -> npt.NDArray[np.int64]:
        """Numbers of the regions of a class."""
        return np.flatnonzero(self.labels == label)

    def moved(self) -> npt.NDArray[np.bool_]:
        """(R,) bool, regions in another class than the run has them in"""
        return np.asarray(self.labels != self.before.labels)

    def apply(self, row: Row) -> None:
        """Do a correction. What is no longer there is passed over: the log outlives the tables it was made on."""
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
        moved = labels != self.labels
        self.changed_by |= dict.fromkeys({*labels[moved].tolist(), *self.labels[moved].tolist()}, row.id)
        self.done.append(row)
        self.undone.clear()

    def _place(self, regions: Sequence[Sequence[Any]], to: int, *, by_hand: bool) -> None:
        rows = [self.before.rows[key] for image, region in regions if (key := (image, region)) in self.before.rows]
        self.labels[rows] = to
        self.fixed[rows] = by_hand
        self.names.setdefault(to, default_name(to))

    def check_class(self, label: int) -> None:
        """Refuse what was said of a class that is gone."""
        if label not in self.names:
            raise ConflictError(f"There is no class {label} any more.")

    def check_name(self, label: int, name: str) -> None:
        """Refuse a second class of one name: nobody could tell the two apart."""
        self.check_class(label)
        if label == UNKNOWN:
            raise ConflictError("What is unknown has no name: move its regions to a class and name that.")
        if name.casefold() == default_name(UNKNOWN):
            raise ConflictError("The name “unknown” means regions of no class: choose another.")
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
        count = len(body["regions"])
        what = f"{count} region{'' if count == 1 else 's'}"
        return f"call {what} false alarm" if row.kind == "false_alarm" else f"move {what} to {self.title(body['to'])}"

    def title(self, label: int) -> str:
        """The name of a class, or its number where it has none."""
        return self.names.get(label) or default_name(label)
