"""What a detector is: images in, anomaly maps out. Subclass `Detector` to plug in one of your own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
AnomalyMap = npt.NDArray[np.float32]


class Detector(ABC):
    """Finds where images are abnormal.

    Attributes
    ----------
    name : short name
    needs_normal : whether `fit` needs images of normal products; otherwise the images are compared with each other
    """

    name: ClassVar[str]
    needs_normal: ClassVar[bool]

    @abstractmethod
    def fit(self, normal_images: Iterable[Picture]) -> Detector:
        """Learn what is normal from (H, W, 3) uint8 RGB images. Does nothing where `needs_normal` is False."""

    @abstractmethod
    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        """One (h, w) float32 map for each image, in order, high where it is abnormal, of the image's aspect.

        The values mean the same in every call, whatever other images are in it.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Store all that `maps` needs in an empty folder; numbers and JSON only, no pickles."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, *, device: str = "auto") -> Detector:
        """The inverse of `save`."""
