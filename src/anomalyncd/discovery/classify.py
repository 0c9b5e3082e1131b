"""A finished run at work on new images, a few at a time, so that memory does not grow with their number. No torch here."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data.dataset import Dataset, Sample
from ..data.images import read_image
from ..errors import BadFileError, DataError
from ..model.seen import Seen
from ..progress import Silent
from ..regions.extract import Extracted, Extractor
from ..regions.network import share
from ..regions.prefetch import prefetch
from ..regions.records import ImageRecord, report_files
from ..run.store import SHARD
from .model import DiscoveryModel
from .results import assign

Picture = npt.NDArray[np.uint8]
Needs = Literal["image", "map", "mask"]


@dataclass(frozen=True)
class Prediction:
    """Classes of new images.

    labels : (N,) int, 0 normal, 1 … defect classes, −1 unknown, or an image that does not show the product
    probabilities : (N, K) over the model's `classes_`
    regions, images : tables with the columns of regions.csv (but no `crop`) and images.csv
    skipped : id → why a file could not be read; such images are in none of the above

    The probabilities of an image are all 0 where its label is −1.
    """

    labels: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    regions: pd.DataFrame
    images: pd.DataFrame
    skipped: dict[str, str]


class MapMaker(Protocol):
    """What a detector is needed for here."""

    def maps(self, images: Iterable[Picture]) -> Iterator[npt.NDArray[np.float32]]:
        """One map for each (H, W, 3) uint8 image, in order."""
        ...


class Predictor:
    """Images → classes, with all that this needs in memory once.

    Parameters
    ----------
    model : of a finished run
    extractor : finds and describes regions, as `model.extractor()`
    detector : makes maps of images that come without; None where maps or masks are given
    """

    def __init__(self, model: DiscoveryModel, extractor: Extractor, detector: MapMaker | None = None) -> None:
        self.model, self.extractor, self.detector = model, extractor, detector
        if detector is not None:  # what it sees in an image describes it too
            extractor.encoder.seen = seen = Seen()
            share(detector, seen, model.config, blocks=extractor.encoder.blocks)

    def __call__(self, inputs: Dataset, progress: Silent | None = None) -> Prediction:
        """Classes of all images at once."""
        return joined(list(self.stream(inputs, progress)))

    def stream(self, inputs: Dataset, progress: Silent | None = None) -> Iterator[Prediction]:
        """Classes of a few images after the other; at the end, what could not be read is said once for all."""
        progress = progress or Silent()
        self.model.check_maps(inputs)
        truth = inputs.truth
        odd: list[ImageRecord] = []
        fine: list[ImageRecord] = []
        with progress.task("Images", len(inputs)) as advance:
            for found in self.extract(inputs.samples):
                odd += [record for record in found.images if record.error or record.note]
                fine = fine or [record for record in found.images if not record.error and not record.note][:1]
                yield self.classify(found, truth)
                advance(len(found.images))
        report_files([*odd, *fine], progress)

    def extract(self, items: Sequence[Sample]) -> Iterator[Extracted]:
        """Regions and features; files are read, masks made and crops cut in threads while the network works."""
        prepared = prefetch(self.extractor.prepare, enumerate(self._with_maps(items)))
        while some := list(islice(prepared, SHARD)):
            yield self.extractor.encode(some)

    def classify(self, found: Extracted, truth: Mapping[str, str | None] | None = None) -> Prediction:
        """Classes of what was extracted; truth : id → class by folder, only copied into the table."""
        model = self.model
        probabilities, unknown, chance = model.recognize(found.parts, found.regions, found.images)
        foreign = model.foreign(found.scenes)
        outside = None if foreign is None else foreign > 0.5
        result = assign(found.images, found.regions, probabilities, model, unknown, chance, truth, foreign, outside)
        skipped = {record.id: record.error for record in found.images if record.error}
        return Prediction(result.labels, result.probabilities, result.regions, result.images, skipped)

    def _with_maps(self, items: Iterable[Sample]) -> Iterator[Sample]:
        """Items with images and maps in memory; one that cannot be read stays as it is."""
        if self.detector is None:
            yield from items
            return
        waiting: deque[tuple[Sample, bool]] = deque()

        def pictures() -> Iterator[Picture]:
            for item, image in prefetch(_read, items):
                waiting.append((item if image is None else replace(item, image=image), image is not None))
                if image is not None:
                    yield image

        for anomaly_map in self.detector.maps(pictures()):
            while waiting and not waiting[0][1]:
                yield waiting.popleft()[0]
            if not waiting:
                raise DataError("the detector must give one map for each image, but gave more.")
            yield replace(waiting.popleft()[0], map=anomaly_map)
        if any(readable for _, readable in waiting):
            raise DataError("the detector must give one map for each image, but gave fewer.")
        yield from (item for item, _ in waiting)


def joined(some: Sequence[Prediction]) -> Prediction:
    """Predictions of several batches as one."""
    if len(some) == 1:
        return some[0]
    return Prediction(
        np.concatenate([one.labels for one in some]), np.concatenate([one.probabilities for one in some]),
        _stacked([one.regions for one in some]), _stacked([one.images for one in some]),
        {name: why for one in some for name, why in one.skipped.items()},
    )  # fmt: skip


def needs_of(predictor: Predictor) -> Needs:
    """What must come with each image: nothing else (`image`), a `map` or a `mask`."""
    if predictor.detector is not None:
        return "image"
    return "mask" if predictor.model.binarizer is None else "map"


def warm_up(predictor: Predictor) -> None:
    """Class an image before any client comes: the first takes longest, because compilers and libraries start with it."""
    binarizer, place = predictor.model.binarizer, (slice(64, 128), slice(64, 128))
    image = np.full((256, 256, 3), 128, np.uint8)
    marks = np.full((256, 256), 0 if binarizer is None else binarizer.low_, np.float32)
    image[place], marks[place] = 255, 1 if binarizer is None else binarizer.high_
    if binarizer is None:
        item = Sample("warm", image, mask=marks)
    else:
        item = Sample("warm", image, map=None if predictor.detector is not None else marks)
    for found in predictor.extract([item]):
        predictor.classify(found)


def _stacked(tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Tables below each other; those without rows know no types and would spoil the others'."""
    return pd.concat([table for table in tables if len(table)] or tables[:1], ignore_index=True)


def _read(item: Sample) -> tuple[Sample, Any]:
    try:
        return item, read_image(item.image)
    except BadFileError:
        return item, None
