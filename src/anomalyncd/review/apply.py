"""Learning from the corrections, in the background, with its progress to be asked for."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from ..errors import without_folders
from ..progress import Advance, Silent
from ..regions.drawn import Drawn, as_drawn
from ..run.finished import FinishedRun, Key
from ..run.folder import APPLIED, to_json
from .action_log import Row
from .classes import ConflictError
from .schema import ApplyRequest, JobAnswer, JobState
from .session import Session

NOTES = 5  # that the page shows, the last ones


class Relearn(Protocol):
    """What an apply calls: `relearn`, or in tests something quicker."""

    def __call__(
        self,
        run: Path,
        labels: dict[Key, int],
        fixed: set[Key],
        names: dict[int, str],
        progress: Silent,
        *,
        also: Mapping[str, bytes],
        drawn: Sequence[Drawn],
    ) -> object: ...


def relearn(
    run: Path,
    labels: dict[Key, int],
    fixed: set[Key],
    names: dict[int, str],
    progress: Silent,
    *,
    also: Mapping[str, bytes],
    drawn: Sequence[Drawn] = (),
) -> None:
    """As in `discovery`; torch is imported by the first apply, not by everybody who looks at a page."""
    from ..discovery.relearn import relearn as learn

    learn(run, labels, fixed, names, progress, also=also, drawn=drawn)


class Job(Silent):
    """An apply under way, and how far it is; run : whose place no message tells."""

    def __init__(self, run: Path, state: JobState = "running", stage: str = "Starting") -> None:
        self._run, self._started = run, time.monotonic()
        self._shown = JobAnswer(state=state, stage=stage, step=0, total=0, message="", notes=[], seconds=0)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        self._shown.stage, self._shown.step, self._shown.total = name, 0, total

        def advance(steps: int = 1, note: str = "") -> None:
            self._shown.step += steps

        yield advance

    def say(self, text: str) -> None:
        self._shown.notes = [*self._shown.notes, without_folders(text, self._run)][-NOTES:]

    warn = say

    def end(self, state: JobState, message: str = "") -> None:
        """Note how it ended, and when."""
        self._shown = self.answer().model_copy(update={"state": state, "message": message})

    def answer(self) -> JobAnswer:
        """For the page."""
        if self._shown.state == "running":
            self._shown.seconds = round(time.monotonic() - self._started, 1)
        return self._shown


class Applier:
    """Runs one apply at a time."""

    def __init__(self, session: Session, learner: Relearn = relearn) -> None:
        self.session = session
        self.job: Job | None = None
        self._relearn = learner
        self._thread: threading.Thread | None = None

    def start(self, request: ApplyRequest) -> Job:
        """Begin; the same request again is answered with the same job."""
        session = self.session
        with session.lock:
            if session.log.find(request.key) is not None:
                return self.job or Job(session.run, "done", "Done")
            classes = session.refresh()
            if session.applying is not None:
                raise ConflictError("The corrections are being applied already.")
            if request.version != session.version:
                raise ConflictError("Something was changed since: look at it before you apply.")
            if not classes.done:
                raise ConflictError("There is no correction to apply.")
            before = classes.before
            body = {
                "labels": [[*classes.keys[row], int(classes.labels[row])] for row in classes.moved().nonzero()[0]],
                "fixed": classes.named(classes.fixed.nonzero()[0]),
                "drawn": [asdict(one) for one in classes.drawn],
                "names": {str(k): name for k, name in classes.names.items() if k >= 0 and before.names.get(k) != name},
                "old": {str(k): name for k, name in before.names.items()},
                "mark": secrets.token_hex(8),  # numbers of actions begin anew where the log was moved away
            }
            row = session.append("applying", body, request.key, before)
            self.job = Job(session.run)
            self._thread = threading.Thread(target=self._work, args=(row, self.job), name="apply")
            self._thread.start()
            return self.job

    def wait(self) -> None:
        """Until nothing is under way."""
        if self._thread is not None:
            self._thread.join()

    def _work(self, row: Row, job: Job) -> None:
        session, body = self.session, row.body
        labels = {(image, region): label for image, region, label in body["labels"]}
        fixed = {(image, region) for image, region in body["fixed"]}
        names = {int(label): name for label, name in body["names"].items()}
        try:
            mark = to_json(session.mark_of(row)).encode()
            drawn = [as_drawn(one) for one in body.get("drawn", [])]
            self._relearn(session.run, labels, fixed, names, job, also={APPLIED: mark}, drawn=drawn)
            session.finish_apply()
        except Exception as error:  # whatever it is, the page must say it and the corrections must stay
            words = session.words(error)
            failure = f"The corrections were not applied: {words}"
            try:
                done = session.finish_apply(failure)
            except Exception as another:
                job.end("failed", f"The next start will tell what was applied: {words} {session.words(another)}")
            else:
                job.end("done" if done else "failed", f"Applied, but: {words}" if done else failure)
            return
        renew_report(session, job)
        job.end("done")


def renew_report(session: Session, job: Job) -> None:
    """Pictures and report with the new classes; they can be made again at any time, so they may fail."""
    try:
        from ..report.classes import draw_class_sheets, draw_classes
        from ..report.html import write_report

        run = FinishedRun(session.run)
        draw_classes(run)
        draw_class_sheets(run)
        write_report(run, job)
    except Exception as error:
        job.warn(f"The report was not made anew: {session.words(error)}")
