"""What all rivals share: inputs in, K clusters over all images out, normal counted as one class like any other."""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...binarize.prepare import prepare_map
from ...checksums import stable_hash
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
from ...run.store import content_order, file_identity
from .cache import Cache

T = TypeVar("T")
R = TypeVar("R", bound="Rival")
Given = Literal["maps", "masks"]
Features = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """What a rival works on, all lists in an order by content, so that no file name has a say in a result.

    items : images that can be read; given : whether they came with maps, masks or neither
    base : labelled defects of other products, or None; normal : images of normal products, perhaps none
    cache : keeps costly arrays
    """

    items: list[Sample]
    given: Given | None
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
        self.n_classes = n_classes
        self.backbone_weights = backbone_weights
        self.random_state = random_state
        self.backbone = backbone
        self.device = device
        self.progress = progress or Silent()

    def fit(
        self: R,
        images: Sources,
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
        self.seconds_: dict[str, float] = {}
        self._loaded: MaskGuidedViT | None = None
        inputs = gather(images, maps, masks)
        labelled = gather_base(base)
        normal_images = gather_normal(normal).samples
        for note in inputs.notes:
            self.progress.warn(note)
        with tempfile.TemporaryDirectory(prefix="anomalyncd-") as workspace:
            folder = Path(workspace if run is None else run)
            inputs.check_outside(folder)
            order = content_order(inputs.samples)
            records = [
                ImageRecord(index, inputs.samples[index].id, error=_problem(inputs.samples[index])) for index in order
            ]
            self.skipped_ = report_files(sorted(records, key=lambda record: record.index), self.progress)
            kept = [record.index for record in records if not record.error]
            if len(kept) < self.n_classes:
                raise DataError(
                    f"{self.name}: found {len(kept)} image{'s' * (len(kept) != 1)}, but {self.n_classes} classes were asked "
                    "for. Give more images or ask for fewer classes."
                )
            job = Job(
                [inputs.samples[index] for index in kept], _given(inputs),
                self._sorted_base(labelled) if labelled is not None and self.uses_base else None,
                self._sorted(normal_images) if self.uses_normal else [], Cache(folder),
            )  # fmt: skip
            features, probabilities = self._discover(job)
        self._store(inputs, np.array(kept), features, probabilities)
        return self

    @abstractmethod
    def _discover(self, job: Job) -> tuple[Features, Probabilities]:
        """What was clustered (N, d), and probabilities (N, K), for the items of the job."""

    @property
    def _vit(self) -> MaskGuidedViT:
        """A fresh backbone without mask guidance, the same one within a call of `fit`."""
        if self._loaded is None:
            vit = load_vit(self._backbone_name, file=self.backbone_weights, progress=self.progress.say)
            self._loaded = MaskGuidedViT(vit, guidance="none").to(choose_device(self.device)).eval()
        return self._loaded

    @property
    def _backbone_name(self) -> str:
        return resolve_name(self.backbone or "auto")

    @property
    def _network_key(self) -> str:
        """What tokens depend on, besides the images."""
        name = self._backbone_name
        return name if self.backbone_weights is None else stable_hash(name, file_identity(self.backbone_weights))

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        started = time.perf_counter()
        out = work()
        self.seconds_[stage] = self.seconds_.get(stage, 0.0) + time.perf_counter() - started
        return out

    def _sorted(self, items: Sequence[Sample]) -> list[Sample]:
        """Those that can be read, by content."""
        records = [ImageRecord(index, item.id, error=_problem(item)) for index, item in enumerate(items)]
        report_files(records, self.progress)
        return [items[index] for index in content_order(items) if not records[index].error]

    def _sorted_base(self, base: Dataset) -> Dataset:
        return Dataset([replace(item, mask=None) for item in self._sorted(base.samples)])

    def _store(
        self, inputs: Dataset, kept: npt.NDArray[np.int64], features: Features, probabilities: Probabilities
    ) -> None:
        """Number the clusters by size, and put the rows back into the order in which the images were given."""
        count = self.n_classes
        found = probabilities.argmax(axis=1)
        rank = by_size(np.concatenate([found, np.arange(count)]), count)[-count:]
        back = np.argsort(kept)
        columns = np.argsort(rank)
        self.probabilities_ = probabilities[back][:, columns]
        self.labels_: npt.NDArray[np.int64] = rank[found][back]
        self.features_ = features[back].astype(np.float32, copy=False)
        self.classes_ = np.arange(count, dtype=np.int64)
        names = [inputs.samples[index].id for index in kept[back]]
        self.images_ = pd.DataFrame({"image": names, "label": self.labels_})
        if inputs.truth:
            self.images_["true_label"] = [inputs.samples[index].label for index in kept[back]]


def one_hot(labels: npt.NDArray[np.int64], count: int) -> Probabilities:
    """(N,) cluster numbers → (N, count), 1 in the column of the cluster.

    Examples
    --------
    >>> one_hot(np.array([1, 0]), 2).tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """
    out: Probabilities = np.eye(count)[labels]
    return out


def _given(inputs: Dataset) -> Given | None:
    return "maps" if inputs.has_maps else "masks" if inputs.has_masks else None


def _problem(item: Sample) -> str:
    """Why a file of an image cannot be read, empty if it can."""
    try:
        read_image(item.image)
        if item.map is not None:
            prepare_map(item.map, 0)
        if item.mask is not None:
            read_mask(item.mask)
    except BadFileError as error:
        return str(error)
    return ""
