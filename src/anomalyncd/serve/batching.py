"""Many clients, one network: images are prepared in threads, and whatever is ready goes through the network together."""

from __future__ import annotations

import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..data.dataset import Sample
from ..data.images import read_image
from ..data.maps import read_map, read_mask
from ..discovery.classify import Prediction, Predictor
from ..errors import BadFileError
from ..regions.extract import Prepared
from ..regions.records import ImageRecord
from .limits import Limits
from .metrics import Metrics
from .uploads import Upload

LOOK_SECONDS = 0.5  # between looks whether anybody still waits for an image that has no room

T = TypeVar("T")
Array = TypeVar("Array", bound=npt.NDArray[Any])


class BusyError(Exception):
    """No room for more images, or none are taken any more."""


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
    """One image on its way."""

    index: int
    upload: Upload | None
    pixels: int = 0  # that were decoded
    future: Future[Classed] = field(default_factory=Future)
    item: Sample | None = None
    prepared: Prepared | None = None


class Batcher:
    """A predictor that many threads may call at once.

    Parameters
    ----------
    predictor : of a run; only one thread of this object ever uses its network and detector
    limits : `queue`, `decoded_pixels`, `batch`, `wait_seconds`, `threads`, `pixels` and `map_pixels` are used
    """

    def __init__(self, predictor: Predictor, limits: Limits, metrics: Metrics | None = None) -> None:
        self.predictor, self.limits, self.metrics = predictor, limits, metrics or Metrics()
        self._numbers = itertools.count()  # of images, so that those of any requests can share a batch
        self._lock = threading.Condition()
        self._in_flight = self._decoded = 0  # images, and their pixels
        self._ready: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._readers = ThreadPoolExecutor(limits.threads, thread_name_prefix="anomalyncd-read")
        self._helpers = ThreadPoolExecutor(limits.threads, thread_name_prefix="anomalyncd-prepare")
        self._worker = threading.Thread(target=self._work, name="anomalyncd-network", daemon=True)
        self._worker.start()

    @property
    def in_flight(self) -> int:
        """Images that wait or are worked on."""
        return self._in_flight

    @property
    def is_alive(self) -> bool:
        return self._worker.is_alive()

    def submit(self, uploads: Sequence[Upload]) -> list[Future[Classed]]:
        """One future for each image, all or none; an image that cannot be read raises a BadFileError there."""
        with self._lock:
            if self._in_flight + len(uploads) > self.limits.queue:
                raise BusyError(f"{self._in_flight} images are waiting already: try again later.")
            self._in_flight += len(uploads)
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
            self._leave(job)
            return
        try:
            assert job.upload is not None
            job.item, job.upload = _item(job.index, job.upload, self.limits), None
            pixels = _pixels(job.item)
            with self._lock:
                job.pixels = pixels
                self._decoded += pixels
            if self.predictor.detector is None:
                job.prepared, job.item = self.predictor.extractor.prepare((job.index, job.item)), None
        except BaseException as error:
            self._fail(job, error)
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
                left = max(0.0, deadline - time.monotonic()) if self._in_flight > len(batch) else 0.0
                try:
                    job = self._ready.get(timeout=left) if batch else self._ready.get()
                except queue.Empty:
                    break
                if job is None:
                    ending = True
                else:
                    deadline = deadline if batch else time.monotonic() + self.limits.wait_seconds
                    batch.append(job)
            live = []
            for job in batch:
                if job.future.cancelled():
                    self._leave(job)
                else:
                    live.append(job)
            if live:
                self._answer(live)

    def _answer(self, jobs: Sequence[_Job]) -> None:
        started = time.perf_counter()
        try:
            found = self._classify(jobs)
        except Exception as error:
            if len(jobs) > 1:  # one bad image must not spoil the others
                for job in jobs:
                    self._answer([job])
            else:
                self._fail(jobs[0], error)
            return
        self.metrics.worked(len(jobs), time.perf_counter() - started)
        for job in jobs:
            classed = found[job.index]
            if isinstance(classed, Classed):
                self.metrics.seen("unknown" if classed.image["label"] < 0 else "known")
                self._leave(job, classed)
            else:
                self._fail(job, classed)

    def _classify(self, jobs: Sequence[_Job]) -> dict[int, Classed | BadFileError]:
        predictor = self.predictor
        if predictor.detector is not None:
            items = [job.item for job in jobs if job.item is not None]
            maps = list(predictor.detector.maps([np.asarray(item.image, np.uint8) for item in items]))
            mapped = [Sample(item.id, item.image, found) for item, found in zip(items, maps, strict=True)]
            numbered = zip([job.index for job in jobs], mapped, strict=True)
            prepared = list(self._helpers.map(predictor.extractor.prepare, numbered))
        else:
            prepared = [job.prepared for job in jobs if job.prepared is not None]
        prediction = predictor.classify(predictor.extractor.encode(prepared))
        return _split(prepared, prediction)

    def _fail(self, job: _Job, error: BaseException) -> None:
        if isinstance(error, BadFileError):
            self.metrics.seen("unreadable")
        self._leave(job, error)

    def _leave(self, job: _Job, outcome: Classed | BaseException | None = None) -> None:
        with self._lock:
            self._in_flight -= 1
            self._decoded -= job.pixels
            self._lock.notify_all()
        if outcome is None or not job.future.set_running_or_notify_cancel():
            return
        if isinstance(outcome, Classed):
            job.future.set_result(outcome)
        else:
            job.future.set_exception(outcome)


def _item(index: int, upload: Upload, limits: Limits) -> Sample:
    """An upload as arrays."""
    image = _named("image", lambda: read_image(upload.image, max_pixels=limits.pixels))
    anomaly_map, mask, most = None, None, limits.map_pixels
    if upload.map is not None:
        content = upload.map
        anomaly_map = _named("map", lambda: _no_larger(read_map(content, max_pixels=most), most))
    if upload.mask:
        content = upload.mask
        mask = _named("mask", lambda: _no_larger(read_mask(content, max_pixels=most), most))
    return Sample(str(index), image, anomaly_map, mask)


def _pixels(item: Sample) -> int:
    """Of all its arrays; colours of a pixel count once."""
    arrays = (item.image, item.map, item.mask)
    return sum(math.prod(array.shape[:2]) for array in arrays if isinstance(array, np.ndarray))


def _named(field: str, read: Callable[[], T]) -> T:
    """What was read; the message of what cannot be read begins with the name of the field."""
    try:
        return read()
    except BadFileError as error:
        raise BadFileError(f"{field}: {str(error).removeprefix('data: ')}") from error


def _no_larger(values: Array, most: int) -> Array:
    """Of an NPY file, whose pixels nobody counted yet."""
    if values.size > most:
        raise BadFileError(f"it has {values.size:,} pixels, more than the limit of {most:,}")
    return values


def _split(prepared: Sequence[Prepared], prediction: Prediction) -> dict[int, Classed | BadFileError]:
    """What was found for each image of a batch, by its number."""
    images = prediction.images.to_dict("records")
    rows = {row["image"]: place for place, row in enumerate(images)}
    regions: dict[str, list[dict[Hashable, Any]]] = {}
    for region in prediction.regions.to_dict("records"):
        regions.setdefault(region["image"], []).append(region)
    found: dict[int, Classed | BadFileError] = {}
    for one in prepared:
        record = one.record
        if record.error:
            found[record.index] = BadFileError(record.error)
            continue
        place = rows[record.id]
        found[record.index] = Classed(
            record, images[place], regions.get(record.id, []), prediction.probabilities[place], one.mask
        )
    return found
