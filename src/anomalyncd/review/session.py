"""One review of one run: takes actions, stores them, and knows the state that follows. No web here."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock, Timeout

from ..checksums import stable_hash
from ..errors import AnomalyNCDError, RunError
from ..run.folder import RunFolder
from .actions import LOG_FILE, ActionLog, unreadable
from .requests import ActionRequest, FalseAlarm, Merge, Move, Name, Split, Undo
from .split import split_regions
from .state import CORRECTIONS, ConflictError, Row, State
from .tables import NORMAL, Base, signature_of

REVIEW_LOCK = "review.lock"


class Session:
    """The corrected classes of a run, for several clients at once.

    Parameters
    ----------
    run : folder of a finished run; no other process can review it meanwhile

    Attributes
    ----------
    state : as of now
    version : id of the last row of the log
    applying : the row of an apply that has begun and not ended
    applied : the row of the last apply that ended
    notice : something that whoever opens the review should know
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.lock = threading.RLock()
        base = Base.read(run)
        folder = RunFolder(run)
        self._owner = FileLock(folder.place(REVIEW_LOCK), timeout=0, thread_local=False)  # closed by another thread
        try:
            self._owner.acquire()
        except Timeout:
            raise RunError(f"{run}: another process is reviewing this run. Use its page, or stop it first.") from None
        except OSError as error:
            raise RunError(f"{run}: cannot write the review ({error.strerror or error}).") from error
        try:
            self.log = ActionLog(folder.place(LOG_FILE))
        except RunError:
            self._owner.release()
            raise
        self.notice = ""
        self.version = 0
        self.applying: Row | None = None
        self.applied: Row | None = None
        self.state = State.start(base)
        try:
            self._replay(base)
            self._recover()
        except AnomalyNCDError:
            self.close()
            raise
        except Exception as error:  # SQLite notices damage to its own pages, not to what is written in them
            self.close()
            raise unreadable(run / LOG_FILE, error) from error

    def close(self) -> None:
        with self.lock:
            self.log.close()
            self._owner.release()

    def refresh(self) -> State:
        """The state of now, on the tables of now."""
        with self.lock:
            # While heads are learned the tables change before the log says so: until then the old ones hold.
            if self.applying is None and signature_of(self.run) != self.state.base.signature:
                self._replay(Base.read(self.run))
                self._check_base()
            return self.state

    def act(self, request: ActionRequest) -> int:
        """Do and store an action; returns its id, the same one if it was done before under the same key."""
        digest = stable_hash(request.action.model_dump(mode="json"))
        if (known := self._known(request.key, digest)) is not None:
            return known
        parts = self._split(request.action) if isinstance(request.action, Split) else None
        with self.lock:
            if (known := self._known(request.key, digest)) is not None:
                return known
            state = self.refresh()
            if self.applying is not None:
                raise ConflictError("The corrections are being applied: wait until that is done.")
            kind, body = self._resolve(state, request, parts)
            row = self.log.append(kind, body, key=request.key, request=digest, base=state.base)
            self._advance(row)
            return row.id

    def append(self, kind: str, body: dict[str, Any], key: str, base: Base) -> Row:
        """Store what is not a correction (the steps of an apply) and follow it."""
        with self.lock:
            row = self.log.append(kind, body, key=key, base=base)
            self._replay(base)
            return row

    def _known(self, key: str, digest: str) -> int | None:
        with self.lock:
            known = self.log.find(key)
        if known is not None and known[1] != digest:
            raise ConflictError("This key was used for another action already.")
        return None if known is None else known[0]

    def _resolve(
        self, state: State, request: ActionRequest, parts: list[npt.NDArray[np.int64]] | None
    ) -> tuple[str, dict[str, Any]]:
        """What to store: with regions by name, and with all that was chosen, so that replay has no choice left."""
        action, base = request.action, state.base
        if isinstance(action, Name):
            state.check_name(action.label, action.name)
            return "name", {"label": action.label, "name": action.name}
        if isinstance(action, Merge):
            state.check_merge(action.source, action.into)
            return "merge", {"from": action.source, "into": action.into}
        if isinstance(action, Split):
            state.check_class(action.label)
            assert parts is not None
            if not np.array_equal(np.sort(np.concatenate(parts)), state.members(action.label)):
                raise ConflictError("The class changed while it was being split: look again.")
            first = self._new_label(state)
            placed = [{"to": first + n, "regions": _named(base, rows)} for n, rows in enumerate(parts[1:])]
            return "split", {"label": action.label, "parts": placed}
        if isinstance(action, Move | FalseAlarm):
            if request.table != base.table or max(action.regions) >= len(base.keys):
                raise ConflictError("The regions of this run have changed: look again.")
            regions = _named(base, dict.fromkeys(action.regions))
            if isinstance(action, FalseAlarm):
                return "false_alarm", {"regions": regions, "to": NORMAL}
            if action.to is not None:
                state.check_target(action.to)
            return "move", {"regions": regions, "to": self._new_label(state) if action.to is None else action.to}
        stack = state.done if isinstance(action, Undo) else state.undone
        if not stack:
            raise ConflictError(f"There is nothing to {action.kind}.")
        if stack[-1].id != action.action:
            raise ConflictError(f"Something else was done since: the next to {action.kind} is another action.")
        return action.kind, {"action": action.action}

    def _split(self, action: Split) -> list[npt.NDArray[np.int64]] | None:
        """Outside the lock, because it may take a while."""
        state = self.refresh()
        with self.lock:
            state.check_class(action.label)
            members, base = state.members(action.label), state.base
        if len(members) < action.parts:
            raise ConflictError(f"{len(members)} regions cannot be split into {action.parts} parts.")
        labels = split_regions(self.run, [base.keys[row] for row in members], action.parts)
        parts = [members[labels == part] for part in range(action.parts)]
        if not all(len(part) for part in parts):
            raise ConflictError(f"The regions are too much alike to make {action.parts} parts of them.")
        return parts

    def _new_label(self, state: State) -> int:
        """A number that no class ever had, so that no earlier action can mean it."""
        used = [0, *state.base.names, *state.names, *state.labels.tolist()]
        for row in self.log.rows():
            if row.kind in CORRECTIONS:
                used += row.targets
            elif row.kind == "renumber":
                used += [new for _, new in row.body["numbers"]]
        return int(max(used)) + 1

    def _advance(self, row: Row) -> None:
        if row.kind in CORRECTIONS:
            self.state.apply(row)
            self.version = row.id
        else:
            self._replay(self.state.base)

    def _replay(self, base: Base) -> None:
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
        state = State.start(base)
        for row in done:
            state.apply(row)
        state.undone = undone
        state.touched = dict.fromkeys({*state.names, *np.unique(state.labels).tolist()}, self.version)
        self.state = state

    def _recover(self) -> None:
        """Close what a killed process left open."""
        if self.applying is None:
            self._check_base()
        else:
            self.finish_apply(
                "The process was ended while it applied the corrections: they are still here, not applied."
            )

    def finish_apply(self, failure: str) -> bool:
        """End an apply of which only the run itself can tell whether it was done; returns whether it was.

        The tables change in `relearn`, the log changes here, and a crash may come between the two. Every label that an
        apply asks for differs, by its making, from the table it starts from. So tables that `relearn` has not written hold
        none of these labels, and tables that it has written hold all that people placed and nearly all others, which the
        heads were trained to give. Half is a safe line between the two. On the one side the corrections are not replayed
        on tables that have them already; on the other side they stay and can be applied again. Where only names were
        asked for, the names tell. Where nothing was asked for (a person confirmed what is there), applying it again
        changes nothing.
        """
        with self.lock:
            row, base = self.applying, Base.read(self.run)
            assert row is not None
            asked = {(image, region): label for image, region, label in row.body["labels"]}
            held = [base.labels[base.rows[key]] == label for key, label in asked.items() if key in base.rows]
            names = {int(label): name for label, name in row.body["names"].items()}
            named = bool(names) and all(base.names.get(label) == name for label, name in names.items())
            done = 2 * sum(held) > len(asked) if asked else named
            if done:
                before = self.log.made_on(row.id).labels
                moves = [
                    [*key, label, int(base.labels[base.rows[key]])]
                    for key, label in before.items()
                    if key in base.rows and base.labels[base.rows[key]] != label
                ]
                self.record_applied(row, moves, base)
            else:
                self.append("failed", {"message": failure}, f"end:{row.id}", base)
                self.notice = failure
                self._check_base()
            return done

    def record_applied(self, row: Row, moves: Iterable[list[Any]], base: Base) -> None:
        """The corrections are in the tables now: from here on they are not replayed."""
        body = {"moves": list(moves), "labels": row.body["labels"], "names": row.body["old"]}
        self.append("applied", body, f"end:{row.id}", base)

    def _check_base(self) -> None:
        """Make waiting corrections fit the tables that another command has written since, or set them aside."""
        base, waiting = self.state.base, [*self.state.done, *self.state.undone]
        if not waiting:
            return
        made = self.log.made_on(min(row.id for row in waiting))
        if made.learned and base.learned:
            fits = made.learned == base.learned  # as after `update`: regions may move, classes keep their numbers
        else:
            fits = all(base.labels[base.rows[key]] == label for key, label in made.labels.items() if key in base.rows)
        if fits:
            self._renumber(waiting)
            return
        count = len(self.state.done)
        self.append("set_aside", {}, f"aside:{self.version}", base)
        if count:
            self.notice = (
                f"The run was sorted anew since the last visit, so {count} correction{'' if count == 1 else 's'} that had "
                "not been applied no longer fit and were set aside."
            )

    def _renumber(self, waiting: Iterable[Row]) -> None:
        """Give classes that corrections opened another number where `update` has opened one of the same number since.

        Stored, because later corrections are made by people who see the new numbers.
        """
        base, taken = self.state.base, set[int]()
        for row in waiting:
            made = self.log.made_on(row.id)
            if made.classes is None:
                new = set(base.labels.tolist()) - set(made.labels.values())
            else:
                new = set(base.names) - made.classes
            taken |= {label for label in row.targets if label > NORMAL and label in new}
        if taken:
            numbers = [[label, number] for number, label in enumerate(sorted(taken), self._new_label(self.state))]
            self.append("renumber", {"numbers": numbers}, f"renumber:{self.version}", base)


def _named(base: Base, rows: Iterable[Any]) -> list[list[Any]]:
    return [list(base.keys[int(row)]) for row in rows]
