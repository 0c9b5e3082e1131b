"""The loop of `anomalyncd watch`: look, read, class, write down, place, tell; and again, whatever happened meanwhile."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from ..errors import AnomalyNCDError, SettingsError
from ..labels import NORMAL, NOT_THIS_PRODUCT, UNKNOWN
from ..progress import Silent
from ..regions.prefetch import prefetch
from .arrivals import Arrival, Arrivals
from .classing import CurrentModel, Read, Reader, class_images
from .columns import OK, UNREADABLE, Entry
from .drift import DriftMonitor, Shift
from .ledger import Ledger
from .places import Places
from .senders import Sender
from .table import GrowingTable

BATCH = 16  # images that the network sees, and that are committed, together
BATCH_BYTES = 64_000_000  # of their files
FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds between attempts while something is wrong
LONG_SECONDS = 5.0  # for which a receiver must have refused before people are told
MOST_SECONDS = 1_000_000.0
DRIFT, DRIFT_MODEL = "drift", "model of drift"


@dataclass
class Status:
    """How it is going, for people and for programs that watch over it.

    problem : why nothing goes on just now; empty where it does
    looked : when the folder was last looked through, by the monotonic clock
    waiting : files that are there but not written down yet
    away : receiver → why it has taken nothing for a while; images are classed all the same
    places : folders that others are told by their last name only
    """

    problem: str = ""
    away: dict[str, str] = field(default_factory=dict)
    stopping: bool = False
    looked: float = field(default_factory=time.monotonic)
    waiting: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    shifts: dict[str, Shift] = field(default_factory=dict)
    places: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Pace:
    """How often and how patiently files are looked at.

    every : seconds between looks
    settle : seconds for which a file must not have changed
    patience : seconds after which a file that cannot be read is called unreadable, not half-written
    """

    every: float = 0.5
    settle: float = 1.0
    patience: float = 60.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= MOST_SECONDS:  # so written, NaN is refused too
                raise SettingsError(f"--{name} must be from 0 to {MOST_SECONDS:g} seconds, but got {value:g}.")


class Watcher:
    """Classes what arrives in a folder, each content of each path once.

    Parameters
    ----------
    folder : that images arrive in
    model : of the run
    reader : of the folder's files
    ledger, table : what was committed, and where it is written
    places : folders of classes, if wanted; senders : whom to tell
    on_batch : called with outcomes and seconds of each batch
    """

    def __init__(
        self,
        folder: Path,
        model: CurrentModel,
        reader: Reader,
        ledger: Ledger,
        table: GrowingTable,
        *,
        places: Places | None = None,
        senders: Sequence[Sender] = (),
        pace: Pace = Pace(),
        progress: Silent = Silent(),
        on_batch: Callable[[list[str], float], None] = lambda outcomes, seconds: None,
    ) -> None:
        self.folder, self.model, self.reader, self.ledger, self.table = folder, model, reader, ledger, table
        self.places, self.senders, self.pace, self.progress, self.on_batch = places, senders, pace, progress, on_batch
        self.status = Status(places=(folder, ledger.path.parent, *([] if places is None else [places.folder])))
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._unsettled, self._since = "", 0.0  # why what is committed cannot be written out, and since when
        self._rest, self._again = 0.0, 0.0  # until the next attempt, and when that is

    @cached_property
    def arrivals(self) -> Arrivals:
        return Arrivals(self.folder, self.ledger.files(), self.pace.settle)

    def stop(self) -> None:
        """End after what is under way; any thread, and a signal, may call it."""
        self.status.stopping = True
        self._stop.set()

    def run(self, *, once: bool = False) -> None:
        """Go on until `stop`; once : or until nothing is left to do."""
        rest, drift = self.pace.every, self._drift()
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self._settle()
                if self._refresh():
                    drift = self._drift()
                ready, gone = self.arrivals.look()
                self.ledger.set_files({}, gone)
                self._tell_of_waiting()
                self._tell_of_receivers()
                self.status.waiting = len(self.arrivals.waiting)
                for batch in _batches(ready):
                    self._take(batch, drift)
                    if self._stop.is_set():
                        break
                self.status.looked, self.status.problem = time.monotonic(), self._unsettled
                # A large folder takes long to look through, and others want the drive too.
                rest = max(self.pace.every, time.monotonic() - started if not ready else 0.0)
                is_settled = not self._unsettled or time.monotonic() - self._since > self.pace.patience
                if once and is_settled and len(self.arrivals.stuck(self.pace.patience)) == len(self.arrivals.waiting):
                    break
            except (AnomalyNCDError, OSError) as error:
                self.status.problem = str(error)
                self._say(str(error))
                drift = self._drift_or(drift)
                rest = min(2 * max(rest, FIRST_REST), LONGEST_REST)
            self._stop.wait(rest)
        self._settle(last=True)

    def _settle(self, *, last: bool = False) -> None:
        """What was committed and is not done yet, also by a process before this one.

        Where a table or a folder cannot be written, images are classed and committed all the same, and it is tried again;
        last : then it is an error
        """
        now = time.monotonic()
        if last or now >= self._again:
            try:
                self.table.flush(last=last)
                if self.places is not None:
                    self.places.place(self.ledger)
                self._unsettled, self._rest = "", 0.0
            except (AnomalyNCDError, OSError) as error:
                if last:
                    raise
                self._since = self._since if self._unsettled else now
                self._unsettled, self._rest = str(error), min(2 * self._rest or FIRST_REST, LONGEST_REST)
                self._again = now + self._rest
                self._say(str(error))
        for sender in self.senders:
            sender.wake()

    def _refresh(self) -> bool:
        """Whether there is a new model; where it cannot be read yet, the old one goes on."""
        try:
            changed = self.model.refresh()
        except (AnomalyNCDError, OSError) as error:
            self._say(f"the model of before goes on, because the new one cannot be read yet: {error}")
            return False
        if changed:
            self.progress.say(f"new model {self.model.id}")
        return changed

    def _take(self, batch: Sequence[Arrival], drift: DriftMonitor) -> None:
        """Everything about a few files."""
        started = time.perf_counter()
        reads, known = self._read(batch)
        if known:
            self.ledger.set_files(known)
            self.arrivals.done(known.items())
        entries = class_images(reads, self.model, self.folder)
        if not entries:
            return
        places = self._places(entries)
        shifts = [shift for entry in entries for shift in drift.add(_figures(entry))]
        self.ledger.commit(
            entries,
            targets=[sender.line.name for sender in self.senders],
            places=places,
            notes={DRIFT: json.dumps(drift.state()), DRIFT_MODEL: self.model.id},
        )
        self.arrivals.done((str(entry.image["image"]), entry.marks) for entry in entries)
        self.status.waiting = len(self.arrivals.waiting)
        self.status.looked = time.monotonic()
        self._settle()
        outcomes = [_outcome(entry) for entry in entries]
        self.status.counts.update(str(entry.image.get("class_name") or UNREADABLE) for entry in entries)
        self.on_batch(outcomes, time.perf_counter() - started)
        self.status.shifts = dict(drift.shifted)
        for shift in shifts:
            self.progress.warn(f"drift: {shift.words}")

    def _read(self, batch: Sequence[Arrival]) -> tuple[list[Read], dict[str, str]]:
        """Files to class; and name → marks of those whose content was committed before."""
        known: dict[str, str] = {}
        new: list[tuple[Read, bytes]] = []
        contents = prefetch(lambda arrival: self.reader.content(arrival, self.pace.patience), batch)
        for arrival, found in zip(batch, contents, strict=True):
            if found is not None and self.ledger.is_seen(found[0].id):
                known[arrival.name] = arrival.marks
            elif found is not None:
                new.append(found)
        reads = []
        for one in prefetch(lambda found: self.reader.decode(*found, self.pace.patience), new):
            if one is not None and (one.sample is not None or one.arrival.seconds >= self.pace.patience):
                reads.append(one)
        taken = {read.arrival.name for read in reads} | known.keys()
        self.arrivals.later(arrival.name for arrival in batch if arrival.name not in taken)
        return reads, known

    def _places(self, entries: Sequence[Entry]) -> dict[str, tuple[str, str]]:
        """Id → where its file lies and where it will; the table tells the latter of one that is moved."""
        found: dict[str, tuple[str, str]] = {}
        if self.places is None:
            return found
        taken: set[str] = set()
        for entry in entries:
            image = entry.image
            kind = str(image.get("class_name") or UNREADABLE)
            target = str(self.places.target(str(image["image"]), kind, entry.id, taken).absolute())
            taken.add(target)
            found[entry.id] = (str(image["file"]), target)
            if not self.places.link:
                image["file"] = target
        return found

    def _drift(self) -> DriftMonitor:
        """As it was committed last; of a new model, whose scores mean something else, from the start."""
        return DriftMonitor.restore(self.ledger.note(DRIFT) if self.ledger.note(DRIFT_MODEL) == self.model.id else None)

    def _drift_or(self, drift: DriftMonitor) -> DriftMonitor:
        """As `_drift`, which a full disk may keep from being read."""
        try:
            return self._drift()
        except AnomalyNCDError:
            return drift

    def _tell_of_waiting(self) -> None:
        if stuck := self.arrivals.stuck(self.pace.patience):
            why = (
                "it cannot be opened"
                if self.reader.beside is None
                else f"it cannot be opened, or its {self.reader.what} has not come"
            )
            more = f", and {len(stuck) - 1} more like it" if len(stuck) > 1 else ""
            self._say(f"{stuck[0]} waits because {why}{more}")
        if self.arrivals.nameless:
            self._say(f"left alone, because its name is no text: {min(self.arrivals.nameless)!r}")

    def _tell_of_receivers(self) -> None:
        before = self.status.away
        self.status.away = {
            sender.line.name: problem
            for sender in self.senders
            if (problem := sender.problem) and time.monotonic() - sender.since >= LONG_SECONDS
        }
        for name in self.status.away.keys() - before.keys():
            self.progress.warn(f"{self.status.away[name]}. Messages wait on disk, and are sent when it takes them.")
        for name in before.keys() - self.status.away.keys():
            self.progress.say(f"{name} takes messages again")

    def _say(self, words: str) -> None:
        """Once, however often it happens in a row."""
        if words not in self._said:
            self._said = {*list(self._said)[-100:], words}
            self.progress.warn(words)


def _batches(arrivals: Sequence[Arrival]) -> Iterator[list[Arrival]]:
    """A few files at a time, and few bytes."""
    batch: list[Arrival] = []
    for arrival in arrivals:
        if batch and (len(batch) == BATCH or sum(one.n_bytes for one in batch) + arrival.n_bytes > BATCH_BYTES):
            yield batch
            batch = []
        batch.append(arrival)
    if batch:
        yield batch


def _figures(entry: Entry) -> dict[str, float | None]:
    """What drift is seen in: light and looks of all images of the product, and scores of normal ones."""
    image = entry.image
    if image["status"] != OK or image["class_name"] == NOT_THIS_PRODUCT:
        return {}
    figures = {name: image.get(name) for name in ("brightness", "contrast", "foreign")}
    return figures | ({"score": image.get("score")} if image["label"] == NORMAL else {})


def _outcome(entry: Entry) -> str:
    if entry.image["status"] != OK:
        return UNREADABLE
    return "unknown" if entry.image["label"] == UNKNOWN else "known"
