"""Many clients, one network: images are prepared in threads, and whatever is ready goes through the network together."""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.dataset import Sample
from ..data.images import read_image
from ..data.maps import read_map, read_mask
from ..discovery.classify import Prediction, Predictor
from ..errors import BadFileError
from ..labels import UNKNOWN
from ..regions.extract import Extracted
from ..regions.records import ImageRecord
from .guard import try_later
from .pace import SHARE_OF_TIME, Pace
from .traffic import Limits, Metrics
from .uploads import Upload

LOOK_SECONDS = 0.5  # between looks whether anybody still waits for an image that has no room


@dataclass(frozen=True)
class Classed:
    """What became of one image.

    image, regions : its row of images.csv and its rows of regions.csv
    probabilities : (K,) over the model's classes
    mask : (h, w) at map resolution, None where there is none
    """

    record: ImageRecord
    image: dict[Hashable, Any]
    regions: list[dict[Hashable, Any]]
    probabilities: npt.NDArray[np.float64]
    mask: npt.NDArray[np.bool_] | None


@dataclass
class _Job:
    """One image on its way.

    content : the Upload, then the Sample, then what was Extracted of it; each takes the place of the one before
    pixels : that were decoded
    """

    index: int
    content: Any
    pixels: int = 0
    future: Future[Classed] = field(default_factory=Future)


class Batcher:
    """A predictor that many threads may call at once.

    Parameters
    ----------
    predictor : of a run; only one thread of this object ever uses its network and detector
    limits : `queue`, `seconds`, `decoded_pixels`, `batch`, `wait_seconds`, `threads`, `pixels` and `map_pixels` are used
    """

    def __init__(self, predictor: Predictor, limits: Limits, metrics: Metrics) -> None:
        self.predictor, self.limits, self.metrics = predictor, limits, metrics
        self._numbers = itertools.count()  # of images, so that those of any requests can share a batch
        self._lock = threading.Condition()
        self.in_flight = self._decoded = 0  # images that wait or are worked on, and their pixels
        self._pace = Pace()
        self._ready: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(limits.threads, thread_name_prefix="anomalyncd-read")
        self._helpers = ThreadPoolExecutor(limits.threads, thread_name_prefix="anomalyncd-prepare")
        self._worker = threading.Thread(target=self._work, name="anomalyncd-network", daemon=True)
        self._worker.start()

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive()

    def submit(self, uploads: Sequence[Upload]) -> list[Future[Classed]]:
        """One future for each image, all or none; an image that cannot be read raises a BadFileError there."""
        with self._lock:
            wanted = self.in_flight + len(uploads)
            late = self.in_flight and self._pace.wait(wanted) > SHARE_OF_TIME * self.limits.seconds
            if wanted > self.limits.queue or late:
                raise try_later(f"{self.in_flight} images are waiting already: try again later.")
            if not self.in_flight:
                self._pace.begin(time.monotonic())
            self.in_flight = wanted
        jobs = [_Job(next(self._numbers), upload) for upload in uploads]
        for job in jobs:
            self._readers.submit(self._read, job)
        return [job.future for job in jobs]

    def close(self) -> None:
        """End the threads, after what they were given is done."""
        self._readers.shutdown()
        self._ready.put(None)
        self._worker.join()
        self._helpers.shutdown()

    def _read(self, job: _Job) -> None:
        """In a thread: all that can be done for one image without the network."""
        with self._lock:
            while self._decoded >= self.limits.decoded_pixels and not job.future.cancelled():
                self._lock.wait(LOOK_SECONDS)
        if job.future.cancelled():  # nobody waits for it any more
            self._end(job)
            return
        try:
            job.content, pixels = _decode_upload(job.index, job.content, self.limits)
            with self._lock:
                job.pixels = pixels
                self._decoded += pixels
            if self.predictor.detector is None:
                job.content = self.predictor.extractor.prepare((job.index, job.content))
        except BaseException as error:
            self._end(job, error)
            return
        self._ready.put(job)

    def _work(self) -> None:
        """The one thread that uses the network."""
        ending = False
        while not ending:
            batch: list[_Job] = []
            deadline = 0.0
            while not ending and len(batch) < self.limits.batch:
                # A batch only waits while more images are on their way.
                left = max(0.0, deadline - time.monotonic()) if self.in_flight > len(batch) else 0.0
                try:
                    job = self._ready.get(timeout=left) if batch else self._ready.get()
                except queue.Empty:
                    break
                if job is None:
                    ending = True
                elif job.future.cancelled():
                    self._end(job)
                else:
                    deadline = deadline if batch else time.monotonic() + self.limits.wait_seconds
                    batch.append(job)
            if batch:
                self._answer(batch)

    def _answer(self, jobs: Sequence[_Job]) -> None:
        started = time.perf_counter()
        try:
            found = self._classify(jobs)
        except Exception as error:
            if len(jobs) == 1:
                self._end(jobs[0], error)
            else:  # one bad image must not spoil the others
                for job in jobs:
                    self._answer([job])
            return
        self.metrics.batch_done(len(jobs), time.perf_counter() - started)
        with self._lock:
            self._pace.end(len(jobs), time.monotonic())
        for job in jobs:
            self._end(job, found[job.index])

    def _classify(self, jobs: Sequence[_Job]) -> dict[int, Classed | BadFileError]:
        predictor, prepared = self.predictor, [job.content for job in jobs]
        if predictor.detector is not None:
            maps = predictor.detector.maps([np.asarray(job.content.image, np.uint8) for job in jobs])
            samples = [(job.index, replace(job.content, map=found)) for job, found in zip(jobs, maps, strict=True)]
            prepared = list(self._helpers.map(predictor.extractor.prepare, samples))
        return _split(prepared, predictor.classify(predictor.extractor.encode(prepared)))

    def _end(self, job: _Job, outcome: Classed | BaseException | None = None) -> None:
        """Make room for others, and tell whoever waits what came out, unless nobody does."""
        with self._lock:
            self.in_flight -= 1
            self._decoded -= job.pixels
            self._lock.notify_all()
        if isinstance(outcome, Classed):
            self.metrics.image_done("unknown" if outcome.image["label"] == UNKNOWN else "known")
        elif isinstance(outcome, BadFileError):
            self.metrics.image_done("unreadable")
        if outcome is None or not job.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Classed):
            job.future.set_result(outcome)
        else:
            job.future.set_exception(outcome)


def _decode_upload(index: int, upload: Upload, limits: Limits) -> tuple[Sample, int]:
    """An upload as arrays, and the pixels of all of these; errors begin with the name of the field."""
    arrays: dict[str, Any] = {}
    for name, read, most in (
        ("image", read_image, limits.pixels),
        ("map", read_map, limits.map_pixels),
        ("mask", read_mask, limits.map_pixels),
    ):
        content = getattr(upload, name)
        if content is None or (name == "mask" and not content):  # an empty mask says that there is no defect
            continue
        try:
            arrays[name] = read(content, max_pixels=most)
        except BadFileError as error:
            raise BadFileError(f"{name}: {str(error).removeprefix('data: ')}") from error
    return Sample(str(index), **arrays), sum(math.prod(values.shape[:2]) for values in arrays.values())


def _split(prepared: Sequence[Extracted], prediction: Prediction) -> dict[int, Classed | BadFileError]:
    """What was found for each image of a batch, by its number."""
    regions: dict[str, list[dict[Hashable, Any]]] = {}
    for region in prediction.regions.to_dict("records"):
        regions.setdefault(region["image"], []).append(region)
    rows = zip(prediction.images.to_dict("records"), prediction.probabilities, strict=True)
    images = {row["image"]: (row, probabilities) for row, probabilities in rows}
    found: dict[int, Classed | BadFileError] = {}
    for one in prepared:
        record = one.images[0]
        if record.error:
            found[record.index] = BadFileError(record.error)
        else:
            row, probabilities = images[record.id]
            mask = one.masks.get(record.index)
            found[record.index] = Classed(record, row, regions.get(record.id, []), probabilities, mask)
    return found
