"""What a detector is: images in, anomaly maps out. Subclass `Detector` to plug in one of your own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
AnomalyMap = npt.NDArray[np.float32]


class Detection(NamedTuple):
    """What a detector says about one image: an (h, w) map, and one number that is higher the more abnormal it is."""

    map: AnomalyMap
    score: float


class Detector(ABC):
    """Finds where images are abnormal.

    Attributes
    ----------
    name : short name
    needs_normal : whether `fit` needs images of normal products; otherwise the images are compared with each other
    """

    name: ClassVar[str]
    needs_normal: ClassVar[bool]

    @property
    def is_ready(self) -> bool:
        """Whether `maps` can be called without `fit`: always where no normal images are needed."""
        return not self.needs_normal

    @abstractmethod
    def fit(self, normal_images: Iterable[Picture]) -> Detector:
        """Learn what is normal from (H, W, 3) uint8 RGB images. Does nothing where `needs_normal` is False."""

    @abstractmethod
    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        """One (h, w) float32 map for each image, in order, high where it is abnormal, of the image's aspect.

        The values mean the same in every call, whatever other images are in it.
        """

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps with image scores: the largest value of the map, unless a detector has a better one.

        Pixels that are NaN or infinite have no say; the score is NaN where all are.
        """
        for anomaly_map in self.maps(images):
            finite = anomaly_map[np.isfinite(anomaly_map)]
            yield Detection(anomaly_map, float(finite.max()) if finite.size else float("nan"))

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Store all that `maps` needs in an empty folder; numbers and JSON only, no pickles."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, *, device: str = "auto") -> Detector:
        """The inverse of `save`."""
