"""What all rivals share: images in, K clusters over all of them out, normal counted as one class like any other."""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...binarize.prepare import prepare_map
from ...data.dataset import Dataset, Sample
from ...data.images import read_image
from ...data.maps import read_mask
from ...errors import BadFileError, DataError, SettingsError
from ...learn.cluster import by_size
from ...model.backbone import MaskGuidedViT, load_vit, resolve_name
from ...model.device import choose_device
from ...progress import Silent
from ...regions.records import ImageRecord, report_files
from ...run.stages import content_digest
from .cache import Cache

R = TypeVar("R", bound="Rival")
Given = Literal["maps", "masks"] | None
Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Inputs:
    """What a rival works on, all lists in an order by content, so that no file name has a say in a result.

    images : those that can be read; given : what they came with
    base : labelled defects of other products, or None; normal : images of normal products, perhaps none
    cache : keeps costly arrays
    """

    images: list[Sample]
    given: Given
    base: Dataset | None
    normal: list[Sample]
    cache: Cache


class Rival(ABC):
    """A method that puts images into K clusters.

    Parameters
    ----------
    n_classes : how many clusters, the normal class counted
    random_state : seed of every random choice but the views that are kept in the cache, which are the same for all seeds
    backbone, device, progress : as for `AnomalyNCD`
    backbone_weights : local file with its weights, instead of the cache or the hub

    Attributes
    ----------
    labels_ : (N,) int64, cluster of each image that could be read, 0 … K−1 from the largest to the smallest
    features_ : (N, d) float32, what was clustered
    images_ : table with `image` and `label`
    seconds_ : stage → time that it took in this call
    """

    name: ClassVar[str]
    uses_base: ClassVar[bool] = False
    uses_normal: ClassVar[bool] = False

    def __init__(
        self,
        n_classes: int,
        *,
        random_state: int = 0,
        backbone: str = "auto",
        backbone_weights: Path | None = None,
        device: str = "auto",
        progress: Silent | None = None,
    ) -> None:
        self.n_classes, self.random_state = n_classes, random_state
        self.backbone, self.backbone_weights, self.device = backbone, backbone_weights, device
        self.progress = progress or Silent()

    def fit(
        self: R,
        dataset: Dataset,
        *,
        base: Dataset | None = None,
        normal: Sequence[Sample] = (),
        run: Path | None = None,
    ) -> R:
        """Cluster all images.

        Parameters
        ----------
        dataset : images, which may have maps or masks
        base : labelled defects of other products; normal : images of normal products; not every rival uses them
        run : folder for costly tokens, so that another seed or another rival does not compute them again
        """
        if self.n_classes < 2:
            raise SettingsError(f"n_classes must be at least 2, normal counted, but got {self.n_classes}.")
        self.seconds_: dict[str, float] = {}
        with tempfile.TemporaryDirectory(prefix="anomalyncd-") as workspace:
            folder = run or Path(workspace)
            dataset.check_outside(folder)
            images = self._readable(dataset)
            if len(images) < self.n_classes:
                found = f"{len(images)} image{'s' * (len(images) != 1)}"
                raise DataError(
                    f"{self.name}: found {found}, but {self.n_classes} classes were asked for. Give more images or ask for "
                    "fewer classes."
                )
            name = resolve_name(self.backbone)
            self._network_key = [
                name,
                content_digest(self.backbone_weights),
            ]  # what tokens depend on, besides the images
            vit = load_vit(name, file=self.backbone_weights, progress=self.progress.say)
            self._vit = MaskGuidedViT(vit, guidance="none").to(choose_device(self.device)).eval()
            given: Given = "maps" if dataset.has_maps else "masks" if dataset.has_masks else None
            known = None if base is None or not self.uses_base else replace(base, samples=self._readable(base))
            normal = self._readable(normal if self.uses_normal else ())
            features, labels = self._discover(Inputs(images, given, known, normal, Cache(folder)))
        place = {sample.id: index for index, sample in enumerate(dataset)}
        back = np.argsort([place[sample.id] for sample in images])  # to the order in which the images were given
        self.labels_ = by_size(labels, self.n_classes)[back]
        self.features_ = features[back].astype(np.float32, copy=False)
        self.images_ = pd.DataFrame({"image": [images[index].id for index in back], "label": self.labels_})
        return self

    @abstractmethod
    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        """What was clustered (N, d), and the cluster of each image (N,), of the images."""

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds_[stage] = time.perf_counter() - started

    def _readable(self, samples: Sequence[Sample]) -> list[Sample]:
        """Those that can be read, in an order by content."""
        records = [ImageRecord(index, sample.id, error=_problem(sample)) for index, sample in enumerate(samples)]
        report_files(records, self.progress)
        readable = [sample for sample, record in zip(samples, records, strict=True) if not record.error]
        return sorted(readable, key=lambda sample: content_digest(sample.image))


def image_key(samples: Sequence[Sample]) -> list[str]:
    """What identifies the images, whatever maps or masks came with them."""
    return [content_digest(sample.image) for sample in samples]


def _problem(sample: Sample) -> str:
    """Why a file of an image cannot be read, empty if it can."""
    try:
        read_image(sample.image)
        if sample.map is not None:
            prepare_map(sample.map, 0)
        if sample.mask is not None:
            read_mask(sample.mask)
    except BadFileError as error:
        return str(error)
    return ""
