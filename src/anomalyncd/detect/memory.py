"""Detectors that compare patches with those of normal images which they remember: what they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from torch import Tensor

from ..errors import DataError
from ..grid import TokenGrid, top_mean
from .base import Detection, Picture
from .tokens import TokenDetector


class MemoryDetector(TokenDetector):
    """A one-class detector whose `memory` has normal patches; its `owner` (M,) tells the image that each, or a group, is of.

    Attributes
    ----------
    highest : share of a map's highest values whose mean is the score of the image
    """

    needs_normal = True
    highest: ClassVar[float] = 0.01

    @property
    def is_ready(self) -> bool:
        return self.memory is not None

    @abstractmethod
    def scores(self, memory: Any, grid: TokenGrid, without: int | None = None) -> Tensor:
        """Patch scores (h·w,) or (h, w), as if the normal image `without` were not remembered."""

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps of the patch scores, and the means of their highest values."""
        memory = self._remembered()
        for grid in self.reader(images):
            yield self._detection(self.scores(memory, grid), grid)

    def held_out(self, normal_images: Iterable[Picture], places: Sequence[int]) -> Iterator[Detection] | None:
        """See `Detector`: compared with the other images; None where only one is remembered."""
        memory = self._remembered()
        if len(memory.owner.unique()) < 2:
            return None
        grids = zip(self.reader(normal_images), places, strict=True)
        return (self._detection(self.scores(memory, grid, place), grid) for grid, place in grids)

    def _remembered(self) -> Any:
        if self.memory is None:
            raise DataError(f"{type(self).__name__} was not fitted: give it normal images first.")
        return self.memory

    def _detection(self, scores: Tensor, grid: TokenGrid) -> Detection:
        values = self.to_map(scores, grid)
        return Detection(values, top_mean(values, self.highest))
