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
from ...data.gather import Base, Sources, gather, gather_base, gather_normal
from ...data.images import read_image
from ...data.maps import read_mask
from ...errors import BadFileError, DataError, SettingsError
from ...learn.cluster import by_size
from ...model.backbone import MaskGuidedViT, load_vit, resolve_name
from ...model.device import choose_device
from ...progress import Silent
from ...regions.records import ImageRecord, report_files
from ..datasets import digest
from .cache import Cache

R = TypeVar("R", bound="Rival")
Features = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Inputs:
    """What a rival works on, all lists in an order by content, so that no file name has a say in a result.

    images : those that can be read; given : what they came with
    base : labelled defects of other products, or None; normal : images of normal products, perhaps none
    cache : keeps costly arrays
    """

    images: list[Sample]
    given: Literal["maps", "masks"] | None
    base: Dataset | None
    normal: list[Sample]
    cache: Cache


class Rival(ABC):
    """A method that puts images into K clusters; the interface is that of `AnomalyNCD`.

    Parameters
    ----------
    n_classes : how many clusters, the normal class counted
    random_state : seed of every random choice but the views that are kept in the cache, which are the same for all seeds
    backbone, device, progress : as for `AnomalyNCD`
    backbone_weights : local file with its weights, instead of the cache or the hub

    Attributes
    ----------
    labels_ : (N,) int64, cluster of each image that could be read, 0 … K−1 from the largest to the smallest
    probabilities_ : (N, K) float64, one-hot where the method gives no probabilities
    classes_ : (K,) int64
    features_ : (N, d) float32, what was clustered
    images_ : table with `image`, `label`, and `true_label` where folders tell
    seconds_ : stage → time that it took in this call
    skipped_ : id → reason, for files that could not be read
    """

    name: ClassVar[str]
    uses_base: ClassVar[bool] = False
    uses_normal: ClassVar[bool] = False

    def __init__(
        self,
        n_classes: int,
        *,
        random_state: int = 0,
        backbone: str | None = None,
        backbone_weights: Path | None = None,
        device: str = "auto",
        progress: Silent | None = None,
    ) -> None:
        self.n_classes, self.random_state = n_classes, random_state
        self.backbone, self.backbone_weights, self.device = backbone, backbone_weights, device
        self.progress = progress or Silent()

    def fit(
        self: R,
        images: Sources | Dataset,
        *,
        maps: Sources | None = None,
        masks: Sources | None = None,
        base: Base | None = None,
        normal: str | Path | None = None,
        run: str | Path | None = None,
    ) -> R:
        """Cluster all images; arguments as for `AnomalyNCD.fit`, of which each rival uses what its paper has a place for.

        run : folder of the rivals' own for costly tokens, so that another seed or another rival does not compute them again
        """
        if isinstance(self.n_classes, bool) or not isinstance(self.n_classes, int | np.integer) or self.n_classes < 2:
            raise SettingsError(
                f"n_classes must be a whole number of at least 2, normal counted, but got {self.n_classes!r}."
            )
        dataset = gather(images, maps, masks)
        labelled = gather_base(base) if self.uses_base else None
        normal_images = gather_normal(normal if self.uses_normal else None)
        for note in dataset.notes:
            self.progress.warn(note)
        self.seconds_: dict[str, float] = {}
        with tempfile.TemporaryDirectory(prefix="anomalyncd-") as workspace:
            folder = Path(workspace if run is None else run)
            dataset.check_outside(folder)
            kept, self.skipped_ = self._readable(dataset)
            if len(kept) < self.n_classes:
                raise DataError(
                    f"{self.name}: found {len(kept)} image{'s' * (len(kept) != 1)}, but {self.n_classes} classes were asked "
                    "for. Give more images or ask for fewer classes."
                )
            name = resolve_name(self.backbone or "auto")
            self._network_key = [name, digest(self.backbone_weights)]  # what tokens depend on, besides the images
            vit = load_vit(name, file=self.backbone_weights, progress=self.progress.say)
            self._vit = MaskGuidedViT(vit, guidance="none").to(choose_device(self.device)).eval()
            inputs = Inputs(
                [dataset[index] for index in kept],
                "maps" if dataset.has_maps else "masks" if dataset.has_masks else None,
                None if labelled is None else replace(labelled, samples=self._sorted(labelled)),
                self._sorted(normal_images),
                Cache(folder),
            )
            features, probabilities = self._discover(inputs)
        self._set(dataset, np.array(kept), features, probabilities)
        return self

    @abstractmethod
    def _discover(self, inputs: Inputs) -> tuple[Features, Probabilities]:
        """What was clustered (N, d), and probabilities (N, K), of the images."""

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds_[stage] = time.perf_counter() - started

    def _readable(self, samples: Sequence[Sample]) -> tuple[list[int], dict[str, str]]:
        """Places of those that can be read, in an order by content; and why others cannot."""
        records = [ImageRecord(index, sample.id, error=_problem(sample)) for index, sample in enumerate(samples)]
        skipped = report_files(records, self.progress)
        order = sorted(range(len(samples)), key=lambda index: digest(samples[index].image))
        return [index for index in order if not records[index].error], skipped

    def _sorted(self, samples: Sequence[Sample]) -> list[Sample]:
        return [samples[index] for index in self._readable(samples)[0]]

    def _set(
        self, dataset: Dataset, kept: npt.NDArray[np.int64], features: Features, probabilities: Probabilities
    ) -> None:
        """Number the clusters by size, and put the rows back into the order in which the images were given."""
        count = self.n_classes
        found = probabilities.argmax(axis=1)
        rank = by_size(np.concatenate([found, np.arange(count)]), count)[-count:]
        back = np.argsort(kept)
        self.probabilities_ = probabilities[back][:, np.argsort(rank)]
        self.labels_: npt.NDArray[np.int64] = rank[found][back]
        self.features_ = features[back].astype(np.float32, copy=False)
        self.classes_ = np.arange(count, dtype=np.int64)
        samples = [dataset[index] for index in kept[back]]
        self.images_ = pd.DataFrame({"image": [sample.id for sample in samples], "label": self.labels_})
        if dataset.truth:
            self.images_["true_label"] = [sample.label for sample in samples]


def one_hot(labels: npt.NDArray[np.int64], count: int) -> Probabilities:
    """(N,) cluster numbers → (N, count), 1 in the column of the cluster.

    Examples
    --------
    >>> one_hot(np.array([1, 0]), 2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    out: Probabilities = np.eye(count)[labels]
    return out


def image_key(samples: Sequence[Sample]) -> list[str]:
    """What identifies the images, whatever maps or masks came with them."""
    return [digest(sample.image) for sample in samples]


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
