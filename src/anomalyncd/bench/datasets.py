"""Data sets of the benchmark: files in an order that no folder name has a say in, and the truth apart from them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from ..checksums import stable_hash
from ..data.dataset import NORMAL_NAMES, Dataset, load_base, load_dataset
from ..data.gather import Base
from ..data.layouts import find_images
from ..errors import DataError
from ..run.stages import content_digest

NORMAL_FOLDER = Path("train", "good")


@dataclass(frozen=True)
class BenchData:
    """A product to sort, or a labelled base set.

    dataset : images, labels and masks; those of a product sorted by what the images hold
    fingerprint : of names and contents of all files
    exclude : class folders that were left out
    """

    name: str
    root: Path
    dataset: Dataset
    fingerprint: str
    exclude: tuple[str, ...] = ()

    @property
    def normal(self) -> Path | None:
        """Folder of normal images, if there is one."""
        return folder if (folder := self.root / NORMAL_FOLDER).is_dir() else None

    @property
    def labels(self) -> dict[str, str]:
        """Image id → true class. For scoring, and for the number of classes asked for: no method is handed these."""
        return self.dataset.truth

    @property
    def n_classes(self) -> int:
        """How many classes there are, normal counted."""
        return len(set(self.labels.values()))

    @property
    def has_normal(self) -> bool:
        """Whether normal images are among them."""
        return not NORMAL_NAMES.isdisjoint(label.lower() for label in self.labels.values())

    def images(self, *, masks: bool = False) -> Dataset:
        """Images without labels, with their true masks if these are wanted."""
        if masks and not self.dataset.has_masks:
            raise DataError(f"{self.root}: expected true masks in ground_truth/, none found.")
        samples = [replace(sample, label=None, mask=sample.mask if masks else None) for sample in self.dataset]
        return Dataset(samples, folders=(self.root,))

    @property
    def base(self) -> Base:
        """(images, masks, labels) as `fit` takes them."""
        masks = [sample.mask for sample in self.dataset if sample.mask is not None]  # a base set has one for each image
        return [sample.image for sample in self.dataset], masks, list(self.labels.values())


def load_product(name: str, root: Path, exclude: Collection[str] = ()) -> BenchData:
    """Read a folder in MVTec AD's layout: test/<class>, ground_truth/<class>, and train/good where there is one."""
    if not (root / "test").is_dir():
        raise DataError(f"{root}: expected a product in MVTec AD's layout (test/<class>), but there is no test/.")
    masks, folder = root / "ground_truth", root / NORMAL_FOLDER
    truth = load_dataset(root / "test", masks=masks if masks.is_dir() else None, exclude=exclude)
    digests = {sample.id: content_digest(sample.image) for sample in truth}
    files = [[sample.id, digests[sample.id], content_digest(sample.mask)] for sample in truth]
    normal = [[found, content_digest(folder / found)] for found, _ in find_images(folder)[0]] if folder.is_dir() else []
    in_order = sorted((replace(sample, label=str(sample.label)) for sample in truth), key=lambda s: digests[s.id])
    return BenchData(name, root, replace(truth, samples=in_order), stable_hash(files, normal), tuple(exclude))


def load_base_set(name: str, root: Path, exclude: Collection[str] = ()) -> BenchData:
    """Read a labelled base set, in any layout that `load_base` reads."""
    found = load_base(root)
    samples = [sample for sample in found if sample.label not in exclude]
    if not samples:
        raise DataError(f"{root}: no class is left of this base set without {', '.join(exclude)}.")
    fingerprint = stable_hash(
        [[sample.id, content_digest(sample.image), content_digest(sample.mask)] for sample in samples]
    )
    return BenchData(name, root, replace(found, samples=samples), fingerprint, tuple(exclude))


def fingerprint_of(place: Path) -> str:
    """Of names and contents of all files below a folder, or of one file."""
    paths = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return stable_hash([[path.relative_to(place).as_posix(), content_digest(path)] for path in paths])
