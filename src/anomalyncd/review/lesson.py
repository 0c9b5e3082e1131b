"""False alarms that the detector of a run is to learn as normal: what that would change, and on request that it does."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ..data.dataset import Dataset, Sample
from ..errors import DataError
from ..places.names import is_file
from .apply import Job, renew_report
from .classes import ConflictError, UncorrectedClasses
from .schema import LessonAnswer, LessonRequest
from .session import Session

MOST_NAMES = 200  # of images in an answer
DETECTORS = ("patchcore",)  # that can learn more


def can_learn(classes: UncorrectedClasses) -> bool:
    """Whether the run has a detector that can be shown more normal images."""
    config = classes.run.config
    return config.detect.name in DETECTORS and config.has_normal


class Lessons:
    """One lesson at a time, in the background; the run takes one writer, so an apply meanwhile fails in words."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._answer = LessonAnswer(job=None, n_normal=0, n_defective=0, turned=[], lost=[], applied=False)
        self._job: Job | None = None
        self._key = ""
        self._thread: threading.Thread | None = None

    def start(self, request: LessonRequest) -> LessonAnswer:
        """Begin; the same request again is answered with how far it is."""
        session = self.session
        with session.lock:
            if request.key == self._key:
                return self.answer()
            classes = session.refresh()
            if session.applying is not None or self.is_running:
                raise ConflictError("Something is being learned: wait until that is done.")
            if request.version != session.version:
                raise ConflictError("Something was changed since you looked, so this was not done: look again.")
            before = classes.before
            if max(request.images) >= len(before.images):
                raise ConflictError("The images of this run have changed: look again.")
            names = [before.images[image] for image in dict.fromkeys(request.images)]
            self._key, self._job = request.key, Job(session.run)
            self._thread = threading.Thread(
                target=self._work, args=(before, names, self._job, request.apply), name="lesson"
            )
            self._thread.start()
        return self.answer()

    def answer(self) -> LessonAnswer:
        """How far it is, or what it would change."""
        return self._answer.model_copy(update={"job": self._job and self._job.answer()})

    def wait(self) -> None:
        """Until nothing is under way."""
        if self._thread is not None:
            self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether one is under way."""
        return self._thread is not None and self._thread.is_alive()

    def _work(self, before: UncorrectedClasses, names: Sequence[str], job: Job, apply: bool) -> None:
        try:
            from ..steps.normal import learn_normal

            samples = []
            for name in names:
                file = before.run.file(name)
                if file is None or not is_file(file):
                    raise DataError(f"{name}: this image is no longer where it was when the run was made.")
                samples.append(Sample(name, file))
            found = learn_normal(self.session.run, Dataset(tuple(samples)), job, apply=apply)
            shown = dict(zip(before.images, before.shown, strict=True))
            self._answer = LessonAnswer(
                job=None, n_normal=found.n_normal, n_defective=found.n_defective, applied=found.applied,
                turned=[shown[name] for name in found.turned][:MOST_NAMES],
                lost=[shown[name] for name in found.lost][:MOST_NAMES],
            )  # fmt: skip
            if apply:
                renew_report(self.session, job)
            job.end("done")
        except Exception as error:  # whatever it is, the page must say it; nothing was changed
            job.end("failed", self.session.words(error))
