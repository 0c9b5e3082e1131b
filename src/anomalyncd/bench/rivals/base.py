"""What all rivals share: images in, K clusters over all of them out, normal like any other class; tokens kept on disk."""

from __future__ import annotations

import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from ... import __version__
from ...binarize.prepare import filled, prepare_map
from ...checksums import stable_hash
from ...data.dataset import Dataset, Sample
from ...data.images import read_image
from ...data.maps import read_mask
from ...detect.base import check_least
from ...detect.patchcore import PatchBank
from ...errors import BadFileError, DataError, SettingsError
from ...learn.cluster import by_size
from ...model.backbone import MaskGuidedViT, image_tensor, load_vit, resolve_name
from ...model.device import autocast, choose_device
from ...progress import Silent
from ...regions.records import ImageRecord, report_files
from ...run.folder import PARTIAL, RunFolder
from ...run.stages import content_digest

R = TypeVar("R", bound="Rival")
Array = npt.NDArray[Any]
Given = Literal["maps", "masks"] | None
Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
BATCH = 16
Tokens = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]


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
    backbone, device, precision, progress : as for `AnomalyNCD`; heads and blocks are always trained in float32
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
    looks_at: ClassVar[Literal["maps and masks", "masks", "images"]] = "maps and masks"  # what has a say in a result

    def __init__(
        self,
        n_classes: int,
        *,
        random_state: int = 0,
        backbone: str = "auto",
        backbone_weights: Path | None = None,
        device: str = "auto",
        precision: str = "auto",
        progress: Silent | None = None,
    ) -> None:
        self.n_classes, self.random_state = n_classes, random_state
        self.backbone, self.backbone_weights, self.device, self.precision = (
            backbone,
            backbone_weights,
            device,
            precision,
        )
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
            # What tokens depend on, besides the images.
            self._network_key = [name, content_digest(self.backbone_weights), self.precision]
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

    def _frozen(self) -> AbstractContextManager[None]:
        """In which the frozen trunk is run."""
        return autocast(self._vit.mean.device, self.precision)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds_[stage] = self.seconds_.get(stage, 0.0) + time.perf_counter() - started

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


class PatchRival(Rival):
    """A rival that clusters mixtures of patch tokens.

    Parameters
    ----------
    size : side in pixels of the square that images are squeezed into, rounded to whole patches
    """

    def __init__(self, n_classes: int, *, size: int = 224, **settings: Any) -> None:
        super().__init__(n_classes, **settings)
        self.size = size

    @abstractmethod
    def _blocks(self) -> list[int]:
        """Numbers of the blocks, from 0, whose tokens are averaged."""

    @property
    def _grid(self) -> tuple[int, int]:
        """Patches (h, w) of an image."""
        side, (height, width) = self._vit.fit_size(self.size), self._vit.patch_size
        return side // height, side // width

    def _tokens(self, cache: Cache, samples: Sequence[Sample]) -> Tokens:
        """Patch tokens (N, P, C) float16, the mean over the blocks; a memory map."""
        check_least(1, size=self.size)
        vit, blocks, grid = self._vit, self._blocks(), self._grid
        side, device = vit.fit_size(self.size), next(vit.parameters()).device

        @torch.inference_mode()
        def fill(path: Path) -> None:
            shape = (len(samples), grid[0] * grid[1], vit.width)
            tokens = np.lib.format.open_memmap(path / "tokens.npy", mode="w+", dtype=np.float16, shape=shape)
            with self.progress.task("Patch tokens", len(samples)) as advance:
                for start in range(0, len(samples), BATCH):
                    pictures = [square(read_image(sample.image), side) for sample in samples[start : start + BATCH]]
                    with self._frozen():
                        found = vit.block_tokens(image_tensor(np.stack(pictures), device), blocks)
                    mean = torch.stack([found[block][:, vit.n_prefix :] for block in blocks]).mean(dim=0)
                    tokens[start : start + BATCH] = mean.half().cpu().numpy()
                    advance(len(pictures))
            tokens.flush()

        stored = cache("patches", [image_key(samples), self._network_key, side, blocks], fill)
        out: Tokens = np.load(stored / "tokens.npy", mmap_mode="r")
        return out

    def _distances_to(self, rows: Tensor, tokens: Tokens) -> Floats:
        """Distance of each patch (N, P, C), scaled to length 1, to the nearest of the rows (M, C): (N, P)."""
        bank, out = PatchBank(rows), np.empty(tokens.shape[:2], np.float32)
        with self.progress.task("Patch distances", len(tokens)) as advance:
            for index, image in enumerate(tokens):
                out[index] = bank.nearest(unit(image))[0].numpy()
                advance()
        return out


def on_grid(samples: Sequence[Sample], grid: tuple[int, int]) -> Floats:
    """What was given with each image, averaged over each patch: (N, P), map values or the share that the mask covers.

    Examples
    --------
    >>> on_grid([Sample("a", np.zeros((4, 4, 3), np.uint8), mask=np.eye(4) > 0)], (2, 2)).tolist()
    [[0.5, 0.0, 0.0, 0.5]]
    """
    rows = []
    for sample in samples:
        values = np.zeros((1, 1), np.float32)
        if sample.map is not None:
            values = filled(prepare_map(sample.map, 0))
        elif sample.mask is not None:
            values = read_mask(sample.mask).astype(np.float32)
        rows.append(F.adaptive_avg_pool2d(torch.from_numpy(values)[None], grid).flatten().numpy())
    return np.stack(rows)


def square(image: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """The whole image in a square, as our own `context` features see it: nothing is cut off, the aspect is not kept."""
    method = cv2.INTER_AREA if max(image.shape[:2]) > side else cv2.INTER_CUBIC
    return cv2.resize(image, (side, side), interpolation=method).astype(np.uint8, copy=False)


def unit(tokens: npt.NDArray[np.floating]) -> Tensor:
    """(…, C) of any float type → unit vectors, float32."""
    return F.normalize(torch.from_numpy(np.asarray(tokens, np.float32)), dim=-1)
