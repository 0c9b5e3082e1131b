"""Blocks of images → anomaly maps, and tokens for a detector to learn from."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..binarize.ignore import Shapes, without
from ..data.images import read_image
from ..detect.base import Detection, Detector, Picture
from ..detect.tokens import TokenDetector
from ..errors import BadFileError, DataError
from ..grid import TokenGrid, top_mean
from ..model.seen import Seen
from ..regions.records import ImageRecord
from .engine import Block, Engine

UNREADABLE = np.full((1, 1), np.nan, np.float32)  # map of such an image: every image has one, and this is never used


@dataclass
class DetectorWork:
    """Work of a detector; load : gets it in another process, where `here` is not; ignore : parts that are not looked at.

    seen : where that one leaves what it sees in whole images, as `here` does
    """

    load: Callable[[], Detector]
    ignore: Shapes = ()
    here: Detector | None = None
    seen: Seen | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "here": None, "seen": getattr(self.here, "seen", self.seen)}

    @property
    def detector(self) -> Detector:
        if self.here is None:
            self.here = self.load()
            if isinstance(self.here, TokenDetector):
                self.here.seen = self.seen
        return self.here


class MapWork(DetectorWork):
    """Maps of images."""

    def __call__(self, block: Block) -> Iterator[tuple[ImageRecord, bytes]]:
        """What became of each image, with its score, and its map as the content of a NPY file."""
        read = Reading(block)
        yield from self.maps(read, self.detector.detect(read))

    def maps(self, read: Reading | Looks, found: Iterable[Detection]) -> Iterator[tuple[ImageRecord, bytes]]:
        """The same, of what a detector has found."""
        n_maps = 0
        try:
            for anomaly_map, score in found:
                if n_maps < len(read.fine):
                    record, seen = read.fine[n_maps], without(anomaly_map, self.ignore)
                    record.score = top_mean(seen) if self.ignore else float(score)
                    yield record, npy(seen)
                n_maps += 1
        except NothingRead:
            pass
        if n_maps != len(read.fine):
            raise DataError(
                f"the detector {self.detector.name!r} must give one map for each of {len(read.fine)} images, not {n_maps}."
            )
        yield from ((record, npy(UNREADABLE)) for record in read.records if record.error)


class HeldOutWork(DetectorWork):
    """Maps of images that the detector was fitted on, where it can tell what it would say of them unseen."""

    def __call__(self, block: Block) -> Iterator[tuple[int, bytes]]:
        """Place of an image among those that were learned from, and its map as the content of a NPY file."""
        places = [place for place, _ in block]
        found = self.detector.held_out(Reading(block), places)
        for place, detection in zip(places, found or (), strict=found is not None):
            if detection is not None:
                yield place, npy(without(detection.map, self.ignore))


class TokenWork(DetectorWork):
    """Tokens of images, for a detector that learns from them alone (`TokenDetector.from_tokens`)."""

    def __call__(self, block: Block) -> Iterator[tuple[ImageRecord, list[TokenGrid]]]:
        """What became of each image, and what the detector sees of it; one that it sees turned gives several."""
        read = Reading(block)
        assert isinstance(self.detector, TokenDetector)
        if (seen := self.detector.seen) is not None:
            seen.keep(seen.blocks, seen.places, block[0][0])
        with suppress(NothingRead):
            for place, grids in enumerate(self.detector.look(read)):  # arrays, because a tensor takes its batch along
                own = [TokenGrid(grid.blocks.cpu().numpy(), grid.summary.cpu().numpy(), grid.size) for grid in grids]
                yield read.fine[place], own
        yield from ((record, []) for record in read.records if record.error)


class NothingRead(Exception):
    """No image of a block could be read: a detector is not to be blamed."""


class Reading(Iterable[Picture]):
    """The images of a block that can be read, and what became of each: `records` of all, `fine` of those that were read."""

    def __init__(self, block: Block, on_image: Callable[[], None] = lambda: None) -> None:
        self.block, self.on_image = block, on_image
        self.records = [ImageRecord(index, sample.id, score=np.nan) for index, sample in block]
        self.fine: list[ImageRecord] = []

    def __iter__(self) -> Iterator[Picture]:
        for record, (_, sample) in zip(self.records, self.block, strict=True):
            self.on_image()
            try:
                image = read_image(sample.image)
            except BadFileError as error:
                record.error = str(error)
                continue
            record.height, record.width = image.shape[:2]
            self.fine.append(record)
            yield image
        if not self.fine:
            raise NothingRead


class Looks:
    """What a detector that learns from tokens alone sees of images, read by an engine; `records` and `fine` as of `Reading`.

    Parameters
    ----------
    block : all the images; they are read in blocks of one batch each
    on_image : called for each
    """

    def __init__(self, engine: Engine, detector: TokenDetector, block: Block, on_image: Callable[[], None]) -> None:
        self.engine, self.detector, self.block, self.on_image = engine, detector, block, on_image
        self.records: list[ImageRecord] = []
        self.fine: list[ImageRecord] = []

    def __iter__(self) -> Iterator[list[TokenGrid]]:
        own, samples = self.detector, dict(self.block)
        size = own.batch_size if own.tile is None else 1
        load = partial(type(own), device=str(own.device), precision=own.precision, **own.settings)
        pieces = [self.block[start : start + size] for start in range(0, len(self.block), size)]
        for _, found in self.engine.each(TokenWork(load, here=own), pieces, in_order=True):
            for record, grids in found:
                self.on_image()
                self.records.append(record)
                if record.error:
                    self.engine.check_unread(samples[record.index])
                else:
                    self.fine.append(record)
                    yield list(map(self._here, grids))
        if not self.fine:
            raise NothingRead

    def _here(self, grid: TokenGrid) -> TokenGrid:
        blocks, summary = (torch.tensor(values, device=self.detector.device) for values in (grid.blocks, grid.summary))
        return TokenGrid(blocks, summary, grid.size)


def npy(values: npt.NDArray[np.float32]) -> bytes:
    """Content of a NPY file of float32."""
    buffer = io.BytesIO()
    np.save(buffer, values.astype(np.float32, copy=False), allow_pickle=False)
    return buffer.getvalue()
