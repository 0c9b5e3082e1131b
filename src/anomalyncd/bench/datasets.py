"""Data sets of the benchmark: files in an order that no folder name has a say in, and the truth apart from them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..checksums import stable_hash
from ..data.dataset import NORMAL_NAMES, Dataset, Sample, load_base, load_dataset
from ..data.gather import Base
from ..data.layouts import find_images
from ..errors import DataError, SettingsError
from ..run.stages import content_digest

NORMAL_FOLDER = Path("train", "good")
LEAST = 3  # images of a class that a limit leaves


@dataclass(frozen=True)
class BenchData:
    """A product to sort, or a labelled base set.

    dataset : images, labels and masks; those of a product sorted by what the images hold
    fingerprint : of names and contents of all files
    exclude : class folders that were left out
    normal : images of train/good
    limit : at most so many images, so many normal ones, and so many of a base set were taken; total : how many there are
    """

    name: str
    root: Path
    dataset: Dataset
    fingerprint: str
    exclude: tuple[str, ...] = ()
    normal: tuple[Sample, ...] = ()
    limit: int | None = None
    total: int = 0

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


def load_product(name: str, root: Path, exclude: Collection[str] = (), limit: int | None = None) -> BenchData:
    """Read a folder in MVTec AD's layout: test/<class>, ground_truth/<class>, and train/good where there is one."""
    if not (root / "test").is_dir():
        raise DataError(f"{root}: expected a product in MVTec AD's layout (test/<class>), but there is no test/.")
    masks, folder = root / "ground_truth", root / NORMAL_FOLDER
    truth = load_dataset(root / "test", masks=masks if masks.is_dir() else None, exclude=exclude)
    digests = {sample.id: content_digest(sample.image) for sample in truth}
    in_order = sorted((replace(sample, label=str(sample.label)) for sample in truth), key=lambda s: digests[s.id])
    taken = _spread(in_order, limit)
    ids = {sample.id for sample in taken}
    files = [[sample.id, digests[sample.id], content_digest(sample.mask)] for sample in truth if sample.id in ids]
    found = [name for name, _ in find_images(folder)[0]] if folder.is_dir() else []
    normal = [[name, content_digest(folder / name)] for name in _evenly(found, limit)]
    return BenchData(
        name, root, replace(truth, samples=taken), stable_hash(files, normal), tuple(exclude),
        tuple(Sample(name, folder / name) for name, _ in normal), limit, len(in_order),
    )  # fmt: skip


def load_base_set(name: str, root: Path, exclude: Collection[str] = (), limit: int | None = None) -> BenchData:
    """Read a labelled base set, in any layout that `load_base` reads."""
    found = load_base(root)
    everything = [sample for sample in found if sample.label not in exclude]
    if not everything:
        raise DataError(f"{root}: no class is left of this base set without {', '.join(exclude)}.")
    samples = _spread(everything, limit)
    fingerprint = stable_hash(
        [[sample.id, content_digest(sample.image), content_digest(sample.mask)] for sample in samples]
    )
    whole = replace(found, samples=samples)
    return BenchData(name, root, whole, fingerprint, tuple(exclude), limit=limit, total=len(everything))


def parse_data(texts: Sequence[str]) -> dict[str, Path]:
    """`hazelnut=PATH` … as a dictionary.

    Examples
    --------
    >>> parse_data(["mtd=data/mtd"])["mtd"].as_posix()
    'data/mtd'
    """
    pairs = [text.partition("=") for text in texts]
    if wrong := next((text for text, (name, _, path) in zip(texts, pairs, strict=True) if not name or not path), None):
        raise SettingsError(f"data must be given as NAME=PATH, such as mtd=data/mtd, but got {wrong!r}.")
    return {name: Path(path) for name, _, path in pairs}


def fingerprint_of(place: Path) -> str:
    """Of names and contents of all files below a folder, or of one file."""
    paths = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    return stable_hash([[path.relative_to(place).as_posix(), content_digest(path)] for path in paths])


def _spread(samples: Sequence[Sample], limit: int | None) -> list[Sample]:
    """About `limit` of them, as many of each class as its share, evenly spread over each, in their order."""
    if limit is None or len(samples) <= limit:
        return list(samples)
    taken: set[str] = set()
    for label in dict.fromkeys(sample.label for sample in samples):
        own = [sample.id for sample in samples if sample.label == label]
        taken.update(_evenly(own, max(LEAST, round(len(own) * limit / len(samples)))))
    return [sample for sample in samples if sample.id in taken]


def _evenly(names: Iterable[str], limit: int | None) -> list[str]:
    """At most `limit` of them, evenly spread over the list."""
    everything = list(names)
    count = len(everything) if limit is None else min(limit, len(everything))
    return [everything[(2 * place + 1) * len(everything) // (2 * count)] for place in range(count)]
