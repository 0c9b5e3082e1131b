"""A data set as sorted samples: an image, and its map, mask and label if there are any. Nothing is read."""

from __future__ import annotations

import csv
import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import overload

from anomalyncd.data.images import IMAGE_SUFFIXES
from anomalyncd.data.layouts import find_images, match_files, missing_maps_message, product_folder, stem_of
from anomalyncd.data.maps import MAP_SUFFIXES
from anomalyncd.errors import DataError

NORMAL_NAMES = frozenset({"good", "normal", "ok"})
MASK_SUFFIXES = IMAGE_SUFFIXES | {".npy"}
_BASE_LAYOUTS = (
    "A base set holds images/<class>/<name> and masks/<class>/<name>, "
    "or test/<class>/<name> and ground_truth/<class>/<name>_mask.png"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what belongs to it. `id` is a POSIX path relative to the data set's root."""

    id: str
    image: Path
    map: Path | None = None
    mask: Path | None = None
    label: str | None = None


@dataclass(frozen=True)
class Dataset(Sequence[Sample]):
    """Samples sorted by id. `has_maps`: each has a map. `has_masks`: masks are known, None means normal."""

    samples: tuple[Sample, ...]
    root: Path
    has_maps: bool
    has_masks: bool

    def __len__(self) -> int:
        return len(self.samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Sample, ...]: ...
    def __getitem__(self, index: int | slice) -> Sample | tuple[Sample, ...]:
        return self.samples[index]

    @property
    def ids(self) -> list[str]:
        """Image ids, in order."""
        return [sample.id for sample in self.samples]

    @property
    def labels(self) -> list[str | None]:
        """Class names, in order; None where neither a folder nor a table tells."""
        return [sample.label for sample in self.samples]

    @property
    def n_without_mask(self) -> int:
        """How many images have no mask file."""
        return sum(sample.mask is None for sample in self.samples)


def load_dataset(
    images: str | Path,
    *,
    maps: str | Path | None = None,
    masks: str | Path | None = None,
    exclude: Collection[str] = (),
) -> Dataset:
    """Find the images of a data set, and the maps and masks that belong to them.

    Parameters
    ----------
    images : folder or CSV
        A flat folder; a folder of class folders (the first folder's name is the label); a product of MVTec AD
        or AeBAD-S, which stands for its `test/`; MTD as downloaded (`MT_<Class>/Imgs/`); or a CSV with the
        column `image` and optionally `map`, `mask`, `label`; paths are absolute or relative to the CSV.
    maps, masks : folder, optional
        Mirrors the tree of the images, or is flat. A map is `<name>.*` or `<name>_map.*`, a mask `<name>.*`
        or `<name>_mask.*`. Every image needs a map; an image without a mask is normal. These override a CSV's
        own columns.
    exclude : class names to leave out

    Raises
    ------
    DataError
        No image, a missing map, no mask at all, or a file that could belong to two images.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("crack/000.png", "good/000.png"):
    ...         path = Path(folder, name)
    ...         path.parent.mkdir()
    ...         path.touch()
    ...     dataset = load_dataset(folder)
    >>> dataset.ids, dataset.labels
    (['crack/000.png', 'good/000.png'], ['crack', 'good'])
    """
    source = Path(images)
    excluded = {exclude} if isinstance(exclude, str) else set(exclude)
    map_folder = None if maps is None else product_folder(_folder(maps, "maps"), "test")
    mask_folder = None if masks is None else product_folder(_folder(masks, "masks"), "ground_truth", "test")
    if source.is_file() and source.suffix.lower() == ".csv":
        root, samples = source.parent, _read_table(source)
        n_found = len(samples)
        samples = [sample for sample in samples if sample.label not in excluded]
    else:
        root = product_folder(_folder(source, "images, or a CSV file"), "test")
        found = find_images(root, other_folders=[f for f in (map_folder, mask_folder) if f is not None])
        n_found = len(found)
        samples = [
            Sample(id_, root / id_, label=label)
            for id_, label in found
            if label not in excluded and id_.split("/")[0] not in excluded
        ]
    if not samples:
        what = f"all {n_found} images are excluded" if n_found else "found none"
        raise DataError(f"{source}: expected images ({', '.join(sorted(IMAGE_SUFFIXES))}), {what}")
    samples.sort(key=lambda sample: sample.id)
    _check_names(samples)

    if map_folder is not None:
        samples = _with_maps(samples, map_folder, root)
    if mask_folder is not None:
        samples = _with_masks(samples, mask_folder, root)
    without_map = [sample.id for sample in samples if sample.map is None]
    if 0 < len(without_map) < len(samples):
        raise DataError(missing_maps_message(map_folder or source, len(samples), without_map))
    has_masks = any(sample.mask is not None for sample in samples)
    return Dataset(tuple(samples), root, has_maps=not without_map, has_masks=has_masks)


def load_base(folder: str | Path) -> Dataset:
    """Find a labelled base set: every sample has a label and a mask.

    Normal classes (good, normal, ok) and images without a mask are left out.

    Parameters
    ----------
    folder : folder or CSV
        `images/<class>/<name>` with `masks/<class>/<name>`; a product of MVTec AD or AeBAD-S (`test/`
        with `ground_truth/`); MTD as downloaded; or a CSV with the columns `image`, `mask` and `label`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("images/scratch/1.jpg", "images/good/2.jpg", "masks/scratch/1.png"):
    ...         path = Path(folder, name)
    ...         path.parent.mkdir(parents=True)
    ...         path.touch()
    ...     base = load_base(folder)
    >>> base.ids, base.labels
    (['scratch/1.jpg'], ['scratch'])
    """
    root = Path(folder)
    has_pair = (root / "images").is_dir() and (root / "masks").is_dir()
    images, masks = (root / "images", root / "masks") if has_pair else (root, None if root.is_file() else root)
    try:
        dataset = load_dataset(images, masks=masks)
    except DataError as error:
        raise DataError(f"{error}. {_BASE_LAYOUTS}") from error
    samples = tuple(
        sample
        for sample in dataset
        if sample.mask is not None and sample.label is not None and sample.label.lower() not in NORMAL_NAMES
    )
    if not samples:
        raise DataError(f"{root}: none of {len(dataset)} images has both a mask and a defect class. {_BASE_LAYOUTS}")
    return Dataset(samples, dataset.root, has_maps=False, has_masks=True)


def _folder(folder: str | Path, what: str) -> Path:
    path = Path(folder)
    if not path.is_dir():
        found = "this file" if path.exists() else "nothing there"
        raise DataError(f"{path}: expected a folder of {what}, found {found}")
    return path


def _with_maps(samples: list[Sample], folder: Path, root: Path) -> list[Sample]:
    ids = [sample.id for sample in samples]
    found = match_files(ids, folder, suffixes=MAP_SUFFIXES, ending="_map", root=root)
    missing = [id_ for id_ in ids if id_ not in found]
    if missing:
        raise DataError(missing_maps_message(folder, len(ids), missing))
    return [Sample(s.id, s.image, found[s.id], s.mask, s.label) for s in samples]


def _with_masks(samples: list[Sample], folder: Path, root: Path) -> list[Sample]:
    ids = [sample.id for sample in samples]
    found = match_files(ids, folder, suffixes=MASK_SUFFIXES, ending="_mask", root=root)
    if not found:
        raise DataError(
            f"{folder}: expected masks for {len(ids)} images, found none that matches. "
            f"The mask of {ids[0]} would be {stem_of(ids[0])}.png or {stem_of(ids[0])}_mask.png"
        )
    return [Sample(s.id, s.image, s.map, found.get(s.id), s.label) for s in samples]


def _read_table(path: Path) -> list[Sample]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, restval="")
            rows.fieldnames = [name.strip().lower() for name in rows.fieldnames or ()]
            if "image" not in rows.fieldnames:
                raise DataError(f"{path}: expected a column 'image', found {', '.join(rows.fieldnames) or 'none'}")
            return _table_samples(path, rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: expected a CSV table in UTF-8 ({error})") from error


def _table_samples(path: Path, rows: csv.DictReader[str]) -> list[Sample]:
    samples: list[Sample] = []
    line_of: dict[str, int] = {}
    for row in rows:
        line = rows.line_num
        cells = {name: (row.get(name) or "").strip() for name in ("image", "map", "mask", "label")}
        if not cells["image"]:
            raise DataError(f"{path}, line {line}: the column 'image' is empty")
        entries = {n: PurePosixPath(cells[n].replace("\\", "/")) for n in ("image", "map", "mask") if cells[n]}
        files = {name: path.parent / entry for name, entry in entries.items()}
        for name, file in files.items():
            if not file.is_file():
                raise DataError(f"{path}, line {line}: the {name} {file} does not exist")
        id_ = entries["image"].as_posix()
        first = line_of.setdefault(posixpath.normpath(id_), line)
        if first != line:
            raise DataError(f"{path}, line {line}: the image {id_} is already in line {first}")
        samples.append(Sample(id_, files["image"], files.get("map"), files.get("mask"), cells["label"] or None))
    return samples


def _check_names(samples: Sequence[Sample]) -> None:
    for sample in samples:
        try:
            sample.id.encode()
        except UnicodeEncodeError:
            name = sample.id.encode("utf-8", "backslashreplace").decode()
            raise DataError(f"{name}: the file's name is not valid UTF-8. Rename it") from None
