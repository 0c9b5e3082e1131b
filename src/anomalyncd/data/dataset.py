"""A data set as sorted samples: an image, and its map, mask and label if there are any. Nothing is read."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from ..errors import DataError, MissingDataError, SettingsError
from ..paths import counted, is_inside, named, names_of, resolved
from ..places.names import beside, entry_of, is_file, look_up, place_of
from ..places.shards import belonging, read_class
from ..places.stored import File, Stored
from ..places.tars import Tars
from .companions import find_companions, missing_maps
from .images import IMAGE_SUFFIXES
from .layouts import F, find_images, product_folder
from .lists import is_table, read_table, row_name
from .maps import MAP_SUFFIXES, StackRow

Picture = File | npt.NDArray[Any]
Source = Picture | StackRow
NORMAL_NAMES = frozenset({"good", "normal", "ok"})
_BASE_LAYOUTS = (
    "A base set holds images/<class>/<name> and masks/<class>/<name>, "
    "or test/<class>/<name> and ground_truth/<class>/<name>_mask.png"
)


@dataclass(frozen=True, slots=True)
class Sample:
    """One image and what belongs to it; with neither map nor mask it has no defect, or a detector will make its map.

    id : POSIX path relative to the data set's root, or `image_000017` for an array
    image, mask : file or array; map : file, row of a stack, or array
    label : class by folder or table; only ever copied into tables, never read by anything that learns
    """

    id: str
    image: Picture
    map: Source | None = None
    mask: Picture | None = None
    label: str | None = None


@dataclass(frozen=True)
class Dataset(Sequence[Sample]):
    """Samples to work on.

    root : folder that the ids are relative to
    folders : that the files were searched in
    masked : masks were given, so that an image without one is normal
    notes : what was left out, a sentence each, for the user to read
    """

    samples: Sequence[Sample]
    root: File = Path()
    folders: tuple[File, ...] = ()
    masked: bool = False
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
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
    def truth(self) -> dict[str, str]:
        """Image id → class name, where one is known."""
        return {sample.id: sample.label for sample in self.samples if sample.label is not None}

    @property
    def numbered_labels(self) -> npt.NDArray[np.int64]:
        """(N,) the labels, all of which must be known, as numbers 0 … in the order of their names."""
        return np.unique([str(label) for label in self.labels], return_inverse=True)[1].astype(np.int64)

    @property
    def n_without_mask(self) -> int:
        """How many images have no mask."""
        return sum(sample.mask is None for sample in self.samples)

    @property
    def has_maps(self) -> bool:
        """Whether each image has a map."""
        return bool(self.samples) and all(sample.map is not None for sample in self.samples)

    @property
    def has_masks(self) -> bool:
        """Whether masks are known; then an image without one is normal."""
        return self.masked or any(sample.mask is not None for sample in self.samples)

    @property
    def is_bare(self) -> bool:
        """Whether there are images alone, so that a detector must make the maps."""
        return not self.has_maps and not self.has_masks

    def check_outside(self, run: Path, *others: File) -> None:
        """Refuse a run inside a folder of inputs, or of `others` that are read: the next call would find it among them."""
        for folder in (*self.folders, *others):
            if isinstance(folder, Path) and resolved(run).is_relative_to(resolved(folder)):
                raise SettingsError(
                    f"{run}: the run would lie inside {folder}, which is read. Choose a folder outside."
                )


def load_dataset(
    images: str | File,
    *,
    maps: str | File | None = None,
    masks: str | File | None = None,
    exclude: Collection[str] = (),
    with_maps: bool = True,
) -> Dataset:
    """Find the images of a data set, and the maps and masks that belong to them.

    Parameters
    ----------
    images : folder or table
        A flat folder; a folder of class folders (the first folder's name is the label); a product of MVTec AD
        or AeBAD-S, which stands for its `test/`; MTD as downloaded (`MT_<Class>/Imgs/`); or a table, .csv or .parquet,
        with the column `image` and optionally `map`, `mask`, `label`; paths are absolute or relative to the table.
    maps, masks : folder, optional
        Mirrors the tree of the images, for one product or for many (`<product>/<class>/<name>`), or is flat. A map is
        `<name>.*` or `<name>_map.*`, a mask `<name>.*` or `<name>_mask.*`. Every image needs a map; an image without a
        mask is normal. These override a table's own columns.
        Or `maps` is one stack, a .npy file (N, H, W) with a row for each image. A .csv beside it with the column `image`,
        or a .txt with one name a line, says whose row each is; without one, rows are in the order of the image ids
        sorted as text ("10.png" before "2.png"), or of the rows of a table of images, excluded images among them or not.
    exclude : class names to leave out
    with_maps : False leaves a table's column `map` unread, as when a detector will make maps

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
    source = place_of(images, "images")
    excluded = names_of(exclude, "exclude")
    places: dict[str, File] = {}
    if maps is not None:
        places["map"] = _map_place(place_of(maps, "maps"))
    if masks is not None:
        places["mask"] = product_folder(_folder(place_of(masks, "masks"), "masks"), "ground_truth", "test")
    foreign: list[str] = []
    root: File
    if is_table(source) and is_file(source):
        root, everything = source.parent, _read_samples(source, with_maps)
        samples = [sample for sample in everything if sample.label not in excluded]
    else:
        root = product_folder(_folder(source, "images, or a CSV or Parquet file"), "test")
        images_found, foreign = find_images(root, other_folders=[place for place in places.values() if place.is_dir()])
        foreign = [file for file in foreign if file.split("/")[0] not in excluded]
        everything = [Sample(id_, root / id_, label=label) for id_, label in images_found]
        if isinstance(root, Stored) and isinstance(root.store, Tars):
            everything = _with_members(everything, root, with_maps)
        samples = [sample for sample in everything if not excluded & {sample.label, sample.id.split("/")[0]}]
    notes = []
    if foreign:
        notes.append(f"{counted(foreign, 'file')} of other formats left out: {named(foreign)}; convert them to PNG")
    if not samples:
        what = f"all {len(everything)} images are excluded" if everything else ". ".join(["found none", *notes])
        raise DataError(f"{source}: expected images ({', '.join(sorted(IMAGE_SUFFIXES))}), {what}")
    samples.sort(key=lambda sample: sample.id)
    for sample in samples:
        if (name := sample.id.encode("utf-8", "backslashreplace").decode()) != sample.id:
            raise DataError(f"{name}: the file's name is not valid UTF-8. Rename it")

    for what, place in places.items():
        found, surplus = find_companions(what, place, root, [s.id for s in samples], [s.id for s in everything])
        samples = [replace(sample, **{what: found.get(sample.id)}) for sample in samples]  # type: ignore[arg-type]
        if surplus and not is_inside(root, place):  # there, other files lie among them
            notes.append(f"{place}: {counted(surplus, what)} of no image left out: {named(surplus)}")
    without_map = [sample.id for sample in samples if sample.map is None]
    if 0 < len(without_map) < len(samples):
        raise DataError(missing_maps(source, len(samples), without_map))
    searched = [place_of(place, "maps or masks") for place in (maps, masks) if place is not None]
    folders = searched if is_table(source) else [*searched, root]
    return Dataset(tuple(samples), root, tuple(folders), notes=tuple(notes))


def load_base(folder: str | File) -> Dataset:
    """Find a labelled base set: every sample has a label and a mask.

    Normal classes (good, normal, ok) and images without a mask are left out.

    Parameters
    ----------
    folder : folder or table
        `images/<class>/<name>` with `masks/<class>/<name>`; a product of MVTec AD or AeBAD-S (`test/`
        with `ground_truth/`); MTD as downloaded; or a table with the columns `image`, `mask` and `label`.

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
    root = place_of(folder, "base")
    images: File
    masks: File | None
    has_pair = (root / "images").is_dir() and (root / "masks").is_dir()
    images, masks = (root / "images", root / "masks") if has_pair else (root, None if is_file(root) else root)
    try:
        dataset = load_dataset(images, masks=masks)
    except DataError as error:
        raise type(error)(f"{error}. {_BASE_LAYOUTS}") from error
    samples = tuple(
        sample
        for sample in dataset
        if sample.mask is not None and sample.label is not None and sample.label.lower() not in NORMAL_NAMES
    )
    if not samples:
        raise DataError(f"{root}: none of {len(dataset)} images has both a mask and a defect class. {_BASE_LAYOUTS}")
    return replace(dataset, samples=samples, masked=True)


def _folder(path: F, what: str) -> F:
    if isinstance(path, Stored):
        if not path.is_dir():
            raise MissingDataError(f"{path}: expected a folder of {what}, found nothing there")
        return path
    if not os.path.isdir(path):
        there = os.path.lexists(path)
        error = DataError if there else MissingDataError
        raise error(f"{path}: expected a folder of {what}, found {'this file' if there else 'nothing there'}")
    return path


def _map_place(path: File) -> File:
    if isinstance(path, Stored) and path.suffix.lower() == ".npy":
        raise DataError(f"{path}: expected a folder of maps. A stack of maps must lie on this machine: copy it")
    if path.suffix.lower() == ".npy" and path.is_file():
        return path
    if path.suffix.lower() == ".npz" and path.is_file():
        raise DataError(
            f"{path}: expected a folder of maps or a .npy stack, found a .npz. Save its array with numpy.save"
        )
    return product_folder(_folder(path, "maps, or a .npy stack of maps"), "test")


def _with_members(samples: Sequence[Sample], root: Stored, with_maps: bool) -> list[Sample]:
    """Images of archives, with what lies beside them there."""
    suffixes = {"map": MAP_SUFFIXES, "mask": IMAGE_SUFFIXES | {".npy"}}
    found = belonging([sample.id for sample in samples], root, suffixes)
    own = {str(file) for files in found.values() for file in files.values()}
    maps, masks = found["map"] if with_maps else {}, found["mask"]
    labels = {id_: read_class(file) for id_, file in found["cls"].items()}
    return [
        replace(one, map=maps.get(one.id), mask=masks.get(one.id), label=labels.get(one.id, one.label))
        for one in samples
        if str(one.image) not in own
    ]


def _read_samples(path: File, with_maps: bool) -> list[Sample]:
    wanted = ("image", "map", "mask") if with_maps else ("image", "mask")
    samples: list[Sample] = []
    line_of: dict[str, int] = {}
    rows = read_table(path)
    entries_of = []
    for line, cells in rows:
        entries_of.append({name: entry_of(cells[name]) for name in wanted if cells.get(name)})
        id_ = entries_of[-1]["image"]
        if (first := line_of.setdefault(posixpath.normpath(id_), line)) != line:
            raise DataError(f"{path}, {row_name(path, line)}: the image {id_} is already in {row_name(path, first)}")
    files_of = [{name: beside(path, entry) for name, entry in entries.items()} for entries in entries_of]
    look_up(file for files in files_of for file in files.values())
    for (line, cells), entries, files in zip(rows, entries_of, files_of, strict=True):
        for name, file in files.items():
            if not is_file(file):
                raise MissingDataError(f"{path}, {row_name(path, line)}: the {name} {file} does not exist")
        samples.append(
            Sample(entries["image"], files["image"], files.get("map"), files.get("mask"), cells.get("label") or None)
        )
    return samples
