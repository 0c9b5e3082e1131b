"""A data set as the benchmark sees it: files in an order that no folder name has a say in, and the truth apart from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from ..checksums import sha256, stable_hash
from ..data.dataset import NORMAL_NAMES, Dataset, Picture, Sample, load_base, load_dataset
from ..data.gather import Base
from ..data.layouts import find_images
from ..errors import DataError

NORMAL_FOLDER = Path("train", "good")


@dataclass(frozen=True)
class Product:
    """Test images of a product in MVTec AD's layout.

    truth : labels and masks, with the images sorted by what they hold
    fingerprint : of names and contents of all these files, and of the normal images for fitting
    exclude : class folders that were left out
    """

    name: str
    root: Path
    truth: Dataset
    fingerprint: str
    exclude: tuple[str, ...] = ()

    @property
    def normal(self) -> Path | None:
        """Folder of normal images, if there is one."""
        folder = self.root / NORMAL_FOLDER
        return folder if folder.is_dir() else None

    @cached_property
    def labels(self) -> dict[str, str]:
        """Image id → true class. For scoring, and for the number of classes asked for: no method is handed these."""
        return {sample.id: str(sample.label) for sample in self.truth}

    @property
    def n_classes(self) -> int:
        """How many classes there are, normal counted."""
        return len(set(self.labels.values()))

    @property
    def has_normal(self) -> bool:
        """Whether normal images are among them."""
        return not NORMAL_NAMES.isdisjoint(label.lower() for label in self.labels.values())

    def items(self) -> list[Sample]:
        """Images only."""
        return [Sample(sample.id, sample.image) for sample in self.truth]

    def masked_items(self) -> list[Sample]:
        """Images with their true masks."""
        if not self.truth.has_masks:
            raise DataError(f"{self.root}: expected true masks in ground_truth/, none found.")
        return [Sample(sample.id, sample.image, mask=sample.mask) for sample in self.truth]


def load_product(name: str, root: Path, exclude: Collection[str] = ()) -> Product:
    """Read a folder in MVTec AD's layout: test/<class>, ground_truth/<class>, and train/good where there is one."""
    if not (root / "test").is_dir():
        raise DataError(f"{root}: expected a product in MVTec AD's layout (test/<class>), but there is no test/.")
    masks = root / "ground_truth"
    truth = load_dataset(root / "test", masks=masks if masks.is_dir() else None, exclude=exclude)
    digests = {sample.id: _digest(sample.image) for sample in truth}
    in_order = sorted(truth, key=lambda sample: digests[sample.id])
    files = [[sample.id, digests[sample.id], _digest(sample.mask)] for sample in truth]
    folder = root / NORMAL_FOLDER
    normal = [[found, _digest(folder / found)] for found, _ in find_images(folder)] if folder.is_dir() else []
    return Product(name, root, replace(truth, samples=tuple(in_order)), stable_hash(files, normal), tuple(exclude))


@dataclass(frozen=True)
class Labelled:
    """A labelled base set; data : (images, masks, labels) as `fit` takes them."""

    name: str
    data: Base
    fingerprint: str


def load_labelled(name: str, root: Path, exclude: Collection[str] = ()) -> Labelled:
    """Read a labelled base set, in any layout that `load_base` reads."""
    samples = [sample for sample in load_base(root) if sample.label not in exclude]
    if not samples:
        raise DataError(f"{root}: no class is left of this base set without {', '.join(exclude)}.")
    images, labels = [sample.image for sample in samples], [sample.label for sample in samples]
    masks = [sample.mask for sample in samples if sample.mask is not None]  # `load_base` gives none without
    files = [[sample.id, _digest(sample.image), _digest(sample.mask)] for sample in samples]
    return Labelled(name, (images, masks, labels), stable_hash(files))


def fingerprint_of(folder: Path) -> str:
    """Of names and contents of all files below a folder, or of one file."""
    paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
    return stable_hash([[path.relative_to(folder).as_posix(), _digest(path)] for path in paths])


def _digest(path: Picture | None) -> str:
    return sha256(path) if isinstance(path, Path) else ""
