"""What all rivals share: images in, K clusters over all of them out, normal like any other class; costly arrays on disk."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from ... import __version__
from ...binarize.prepare import prepare_map
from ...checksums import stable_hash
from ...data.dataset import Dataset, Sample
from ...data.images import read_image
from ...data.maps import read_mask
from ...errors import BadFileError, DataError, SettingsError
from ...learn.cluster import by_size
from ...model.backbone import MaskGuidedViT, load_vit, resolve_name
from ...model.device import choose_device
from ...progress import Silent
from ...regions.records import ImageRecord, report_files
from ...run.folder import PARTIAL, RunFolder
from ..datasets import digest

R = TypeVar("R", bound="Rival")
Array = npt.NDArray[Any]
Given = Literal["maps", "masks"] | None
Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]


class Cache:
    """Arrays that several rivals, seeds and settings share: whole folders of .npy files or none, named by their origin.

    Parameters
    ----------
    folder : of the rivals' own, not the run folder of an `AnomalyNCD`

    Examples
    --------
    >>> import tempfile
    >>> cache = Cache(Path(tempfile.mkdtemp()))
    >>> cache.array("squares", [3], lambda: np.arange(3) ** 2).tolist()
    [0, 1, 4]
    >>> cache.array("squares", [3], lambda: 1 / 0).tolist()  # made before
    [0, 1, 4]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, key: Any, make: Callable[[Path], None]) -> Path:
        """The folder that `make` fills, given a path to write to; it is only called where there is none for this key.

        A second process that wants to write waits for the first. `make` must not ask the cache for anything.
        """
        target = self.folder / f"{name}-{stable_hash(__version__, key)[:24]}"
        if not _is_whole(target):
            with RunFolder(self.folder).writing(patience=-1):  # sweeps away what a failure leaves behind
                if not _is_whole(target):
                    partial = target.with_name(target.name + PARTIAL)
                    shutil.rmtree(target, ignore_errors=True)
                    partial.mkdir()
                    make(partial)
                    partial.rename(target)
        return target

    def array(self, name: str, key: Any, make: Callable[[], Array]) -> Array:
        """One array that `make` returns."""
        folder = self(name, key, lambda path: np.save(path / "array.npy", make(), allow_pickle=False))
        found: Array = np.load(folder / "array.npy", allow_pickle=False)
        return found


def _is_whole(folder: Path) -> bool:
    """Whether each array is as long as its header says; one that is not was cut off, by a full disk for instance."""
    try:
        for path in folder.glob("*.npy"):
            np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return folder.is_dir()


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
            self._network_key = [name, digest(self.backbone_weights)]  # what tokens depend on, besides the images
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
        return sorted(readable, key=lambda sample: digest(sample.image))


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
