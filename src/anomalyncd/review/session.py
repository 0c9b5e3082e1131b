"""One review of one run: takes actions, stores them, and knows the classes that follow. No web here."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from ..checksums import stable_hash
from ..errors import AnomalyNCDError, DataError, RunError, without_folders
from ..labels import NORMAL
from ..regions.records import MOST_REGIONS
from ..run.folder import APPLIED
from ..steps.drawn import check_drawing
from .action_log import LOG_FILE, ActionLog, Body, Row, unreadable
from .classes import CORRECTIONS, DRAWN, ConflictError, CorrectedClasses, UncorrectedClasses, split_regions
from .schema import ActionRequest, Draw, FalseAlarm, Merge, Move, Name, Split, Undo

REVIEW_LOCK = "review.lock"


class Session:
    """The corrected classes of a run, for several clients at once.

    Parameters
    ----------
    run : folder of a finished run; no other process can review it meanwhile

    Attributes
    ----------
    classes : as of now
    version : id of the last row of the log
    applying : the row of an apply that has begun and not ended
    applied : the row of the last apply that ended
    notice : something that whoever opens the review should know
    """

    def __init__(self, run: Path) -> None:
        self.run, self.lock = run, threading.RLock()
        self.notice, self.version = "", 0
        self.applying: Row | None
        self.applied: Row | None
        before = UncorrectedClasses(run)
        place = before.run.folder.place
        with ExitStack() as opened:
            own = FileLock(place(REVIEW_LOCK), timeout=0, thread_local=False)  # closed by another thread
            try:
                opened.enter_context(own)
            except Timeout:
                raise RunError(
                    f"{run}: another process is reviewing this run. Use its page, or stop it first."
                ) from None
            except OSError as error:
                raise RunError(f"{run}: cannot write the review ({error.strerror or error}).") from error
            self.log = opened.enter_context(closing(ActionLog(place(LOG_FILE))))
            try:
                self._replay(before)
                if self.applying is None:
                    self._fit_to_tables()
                else:
                    was = "The process was ended while it applied the corrections"
                    self.finish_apply(f"{was}: they are still here, not applied.")
            except AnomalyNCDError:
                raise
            except Exception as error:  # SQLite notices damage to its own pages, not to what is written in them
                raise unreadable(run / LOG_FILE, error) from error
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Let another process review the run."""
        with self.lock:
            self._opened.close()

    def refresh(self) -> CorrectedClasses:
        """The classes of now, on the tables of now."""
        with self.lock:
            # While heads are learned the tables change before the log says so: until then the old ones hold.
            if self.applying is None and not self.classes.before.is_current():
                self._replay(UncorrectedClasses(self.run))
                self._fit_to_tables()
            return self.classes

    def act(self, request: ActionRequest) -> int:
        """Do and store an action; returns its id, the same one if it was done before under the same key."""
        digest = stable_hash(request.action.model_dump(mode="json"))
        if (known := self._known(request.key, digest)) is not None:
            return known
        parts = self._split(request) if isinstance(request.action, Split) else []
        with self.lock:
            if (known := self._known(request.key, digest)) is not None:
                return known
            classes = self._seen_by(request)
            body = self._resolve(classes, request, parts)
            row = self.log.append(request.action.kind, body, key=request.key, request=digest, base=classes.before)
            if row.kind in CORRECTIONS:
                classes.apply(row)
                self.version = row.id
            else:
                self._replay(classes.before)
            return row.id

    def append(self, kind: str, body: Body, key: str, base: UncorrectedClasses) -> Row:
        """Store what is not a correction (the steps of an apply) and follow it."""
        with self.lock:
            row = self.log.append(kind, body, key=key, base=base)
            self._replay(base)
            return row

    def words(self, error: Exception) -> str:
        """An error for the page, without places of this machine."""
        told = isinstance(error, AnomalyNCDError | OSError | sqlite3.Error)
        return without_folders(str(error) if told else f"{type(error).__name__}: {error}", self.run)

    def _seen_by(self, request: ActionRequest) -> CorrectedClasses:
        """The classes of now, where the request was made by someone who has seen them."""
        classes = self.refresh()
        if self.applying is not None:
            raise ConflictError("The corrections are being applied: wait until that is done.")
        if request.version != self.version:
            raise ConflictError("Something was changed since you looked, so this was not done: look again.")
        return classes

    def _known(self, key: str, digest: str) -> int | None:
        with self.lock:
            known = self.log.find(key)
        if known is not None and known[1] != digest:
            raise ConflictError("This key was used for another action already.")
        return None if known is None else known[0]

    def _resolve(self, classes: CorrectedClasses, request: ActionRequest, parts: list[npt.NDArray[np.int64]]) -> Body:
        """What to store: with regions by name, and with all that was chosen, so that replay has no choice left."""
        action, before = request.action, classes.before
        if isinstance(action, Name):
            classes.check_name(action.label, action.name)
            return {"label": action.label, "name": action.name}
        if isinstance(action, Merge):
            classes.check_merge(action.source, action.into)
            return {"from": action.source, "into": action.into}
        if isinstance(action, Split):
            classes.check_class(action.label)
            if not np.array_equal(np.sort(np.concatenate(parts)), self._divisible(classes, action.label)):
                raise ConflictError("The class changed while it was being split: look again.")
            first = self._new_label()
            placed = [{"to": first + n, "regions": classes.named(rows)} for n, rows in enumerate(parts[1:])]
            return {"label": action.label, "parts": placed}
        if isinstance(action, Move | FalseAlarm):
            if request.table != before.table:
                raise ConflictError("The regions of this run have changed: look again.")
            to = NORMAL if isinstance(action, FalseAlarm) else action.to
            if to is not None:
                classes.check_target(to)
            regions = classes.named(dict.fromkeys(classes.row(number) for number in action.regions))
            return {"regions": regions, "to": self._new_label() if to is None else to}
        if isinstance(action, Draw):
            return self._resolve_drawing(classes, request.table, action)
        stack = classes.done if isinstance(action, Undo) else classes.undone
        if not stack:
            raise ConflictError(f"There is nothing to {action.kind}.")
        if stack[-1].id != action.action:
            raise ConflictError(f"Something else was done since: the next to {action.kind} is another action.")
        return {"action": action.action}

    def _split(self, request: ActionRequest) -> list[npt.NDArray[np.int64]]:
        """Numbers of the regions of each part; outside the lock, because it may take a while."""
        action = request.action
        assert isinstance(action, Split)
        with self.lock:
            classes = self._seen_by(request)
            classes.check_class(action.label)
            members, before = self._divisible(classes, action.label), classes.before
        if len(members) < action.parts:
            raise ConflictError(f"{len(members)} regions cannot be split into {action.parts} parts.")
        labels = split_regions(self.run, [before.keys[row] for row in members], action.parts)
        parts = [members[labels == part] for part in range(action.parts)]
        if not all(len(part) for part in parts):
            raise ConflictError(f"The regions are too much alike to make {action.parts} parts of them.")
        return parts

    @staticmethod
    def _divisible(classes: CorrectedClasses, label: int) -> npt.NDArray[np.int64]:
        """Regions of a class of which is known what they look like: what was just drawn stays with the largest part."""
        members = classes.members(label)
        return members[members < len(classes.before.keys)]

    def _resolve_drawing(self, classes: CorrectedClasses, table: str, action: Draw) -> Body:
        before = classes.before
        if table != before.table or action.image >= len(before.images):
            raise ConflictError("The images of this run have changed: look again.")
        name = before.images[action.image]
        number = max((region for image, region in classes.keys if image == name), default=-1) + 1
        if number >= MOST_REGIONS:
            raise ConflictError(f"This image has {number} regions already, more than that an image cannot have.")
        try:
            check_drawing(before.run)
        except DataError as error:
            raise ConflictError(f"Nothing can be drawn: {error}") from None
        if action.to is not None:
            classes.check_target(action.to)
        if before.run.image(name) is None:
            raise ConflictError(
                "The image is no longer where it was when the run was made, so nothing can be drawn on it."
            )
        to = self._new_label() if action.to is None else action.to
        strokes = [one.model_dump() for one in action.strokes]
        return {"regions": [[name, number]], "to": to, "strokes": strokes}

    def _new_label(self) -> int:
        """A number that no class ever had, so that no earlier action can mean it."""
        classes = self.classes
        used = [NORMAL, *classes.before.names, *classes.names, *classes.labels.tolist()]
        for row in self.log.rows():
            if row.kind in CORRECTIONS:
                used += row.targets
            elif row.kind == "renumber":
                used += [new for _, new in row.body["numbers"]]
        return int(max(used)) + 1

    def _replay(self, before: UncorrectedClasses) -> None:
        """All that follows from the log, on these tables."""
        done: list[Row] = []
        undone: list[Row] = []
        self.applying = self.applied = None
        for row in self.log.rows():
            self.version = row.id
            if row.kind in CORRECTIONS:
                done.append(row)
                undone.clear()
            elif row.kind == "undo":
                undone.append(done.pop())
            elif row.kind == "redo":
                done.append(undone.pop())
            elif row.kind == "renumber":
                numbers = dict(row.body["numbers"])
                done, undone = ([other.renumbered(numbers) for other in stack] for stack in (done, undone))
            elif row.kind == "applying":
                self.applying = row
            else:
                self.applying = None
                if row.kind == "applied":
                    self.applied = row
                if row.kind in ("applied", "set_aside"):
                    done, undone = [], []
        classes = CorrectedClasses(before)
        for row in done:
            classes.apply(row)
        classes.undone = undone
        classes.changed_by = dict.fromkeys({*classes.names, *classes.labels.tolist()}, self.version)
        self.classes = classes

    @staticmethod
    def mark_of(row: Row) -> dict[str, object]:
        """What an apply leaves in the run, in the same commit as the tables."""
        return {"action": row.id, "mark": row.body.get("mark")}

    def finish_apply(self, failure: str = "") -> bool:
        """End an apply; returns whether the corrections are in the tables, from where on they are not replayed.

        failure : what to say if they are not; empty where `relearn` said that they are
        """
        with self.lock:
            row, before = self.applying, UncorrectedClasses(self.run)
            assert row is not None
            now = dict(zip(before.keys, before.labels.tolist(), strict=True))
            done = not failure or before.run.folder.read_json(APPLIED) == self.mark_of(row)
            if done:
                moves = [
                    [image, region, label, now[image, region]]
                    for image, region, label in self.log.made_on(row.id)["regions"]
                    if now.get((image, region), label) != label
                ]
                drawn = [(one["image"], one["region"]) for one in row.body.get("drawn", [])]
                moves += [[*key, DRAWN, now[key]] for key in drawn if key in now]
                body = {"moves": moves, "labels": row.body["labels"], "names": row.body["old"]}
                self.append("applied", body, f"end:{row.id}", before)
            else:
                self.append("failed", {"message": failure}, f"end:{row.id}", before)
                self.notice = failure
                self._fit_to_tables()
            return done

    def _fit_to_tables(self) -> None:
        """Make waiting corrections fit the tables that another command has written since, or set them aside."""
        before, waiting = self.classes.before, [*self.classes.done, *self.classes.undone]
        if not waiting:
            return
        if self.log.made_on(min(row.id for row in waiting))["learned"] == before.learned:
            self._renumber(waiting)  # as after `update`: regions may move, classes keep their numbers
            return
        count = len(self.classes.done)
        self.append("set_aside", {}, f"aside:{self.version}", before)
        if count:
            self.notice = (
                f"The run was sorted anew since the last visit, so {count} correction{'' if count == 1 else 's'} that had "
                "not been applied no longer fit and were set aside."
            )

    def _renumber(self, waiting: Iterable[Row]) -> None:
        """Give classes that corrections opened another number where `update` has opened one of the same number since.

        Stored, because later corrections are made by people who see the new numbers.
        """
        before, taken = self.classes.before, set[int]()
        for row in waiting:
            new = set(before.names) - set(self.log.made_on(row.id)["classes"])
            taken |= {label for label in row.targets if label > NORMAL and label in new}
        if taken:
            numbers = [[label, number] for number, label in enumerate(sorted(taken), self._new_label())]
            self.append("renumber", {"numbers": numbers}, f"renumber:{self.version}", before)
