"""Corrections and what follows from them: the run's classes, then every action that was not undone, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from .action_log import Row
from .uncorrected import NORMAL, UNKNOWN, Key, UncorrectedClasses

CORRECTIONS = ("name", "merge", "split", "move", "false_alarm")


class ConflictError(Exception):
    """An action that makes no sense as things stand now, said in words."""


@dataclass
class CorrectedClasses:
    """The classes as corrected.

    before : the run's own
    labels : (R,) int64; names : label → name of every class that is there, empty ones as well
    fixed : (R,) bool, regions that a person placed one by one
    touched : label → id of the last action that changed its card
    done, undone : actions that `undo` and `redo` would take next, the last one first in line
    """

    before: UncorrectedClasses
    labels: npt.NDArray[np.int64]
    names: dict[int, str]
    fixed: npt.NDArray[np.bool_]
    touched: dict[int, int] = field(default_factory=dict)
    done: list[Row] = field(default_factory=list)
    undone: list[Row] = field(default_factory=list)

    @classmethod
    def start(cls, before: UncorrectedClasses, version: int = 0) -> CorrectedClasses:
        """As the run has it."""
        fixed = np.zeros(len(before.keys), bool)
        fixed[[before.rows[key] for key in before.fixed if key in before.rows]] = True
        names = {k: name for k, name in before.names.items() if k != UNKNOWN or (before.labels == UNKNOWN).any()}
        return cls(before, before.labels.copy(), names, fixed, dict.fromkeys(names, version))

    @property
    def fixed_keys(self) -> list[Key]:
        return [self.before.keys[row] for row in np.flatnonzero(self.fixed)]

    def members(self, label: int) -> npt.NDArray[np.int64]:
        """Numbers of the regions of a class."""
        return np.flatnonzero(self.labels == label)

    def changed(self) -> npt.NDArray[np.bool_]:
        """(R,) bool, regions in another class than the run has them in"""
        return np.asarray(self.labels != self.before.labels)

    def apply(self, row: Row) -> None:
        """Do a correction. What is no longer there is passed over: the log outlives the tables it was made on."""
        body, before = row.body, self.labels.copy()
        if row.kind == "name":
            self.names[body["label"]] = body["name"]
            self.touched[body["label"]] = row.id
        elif row.kind == "merge":
            self.labels[self.labels == body["from"]] = body["into"]
            self.names.pop(body["from"], None)
            self.names.setdefault(body["into"], f"class {body['into']}")
        elif row.kind == "split":
            for part in body["parts"]:
                self._place(part["regions"], part["to"], by_hand=False)
        else:
            self._place(body["regions"], body["to"], by_hand=True)
        for label in np.union1d(before[before != self.labels], self.labels[before != self.labels]).tolist():
            self.touched[label] = row.id
        self.done.append(row)
        self.undone.clear()

    def _place(self, regions: Sequence[Sequence[Any]], to: int, *, by_hand: bool) -> None:
        rows = [self.before.rows[key] for image, region in regions if (key := (image, region)) in self.before.rows]
        self.labels[rows] = to
        self.fixed[rows] = by_hand
        self.names.setdefault(to, "normal" if to == NORMAL else f"class {to}")

    def check_class(self, label: int) -> None:
        if label not in self.names:
            raise ConflictError(f"There is no class {label} any more.")

    def check_name(self, label: int, name: str) -> None:
        """Two classes of one name would be told apart by nobody."""
        self.check_class(label)
        if label == UNKNOWN:
            raise ConflictError("What is unknown has no name: move its regions to a class and name that.")
        if name.casefold() == "unknown":
            raise ConflictError("The name “unknown” means regions of no class: choose another.")
        for other, taken in self.names.items():
            if other != label and taken.casefold() == name.casefold():
                raise ConflictError(
                    f"Class {other} is called “{taken}” already: merge the two, or choose another name."
                )

    def check_merge(self, source: int, into: int) -> None:
        self.check_class(source)
        self.check_class(into)
        if source == into:
            raise ConflictError("A class cannot be merged into itself.")
        if source == NORMAL:
            raise ConflictError("Normal stays a class of its own: move its regions instead.")
        if into == UNKNOWN:
            raise ConflictError("Nothing can be merged into unknown.")

    def check_target(self, label: int) -> None:
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
        return self.names.get(label) or f"class {label}"
