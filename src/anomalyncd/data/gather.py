"""What a caller hands over, in one form: a `Dataset`, whatever mixture of folders, tables, paths and arrays it was."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError, MissingDataError, WrongTypeError
from ..places.names import file_named, is_remote, place_of
from ..places.stored import File, Stored
from .dataset import Dataset, Sample, load_base, load_dataset
from .layouts import find_files, find_images, product_folder
from .maps import MAP_SUFFIXES

Source = str | File | npt.NDArray[Any]
Sources = Sequence[Source | None] | npt.NDArray[Any] | str | File
Base = tuple[Sequence[Source], Sequence[Source], Sequence[Any]] | str | File


def gather(
    images: Sources | Dataset,
    maps: Sources | None = None,
    masks: Sources | None = None,
    *,
    exclude: Collection[str] = (),
    bare: bool = False,
) -> Dataset:
    """Images with a map each, or with masks, or with neither.

    Parameters
    ----------
    images, maps, masks : folders or tables as `load_dataset` takes, or lists of paths and arrays; images may be a Dataset
    exclude : class names to leave out of a folder or table
    bare : a detector will make maps: a table's own columns `map` and `mask` are not used

    Examples
    --------
    >>> gather([np.zeros((4, 4, 3), np.uint8)], masks=[None])[0].id
    'image_000000'
    """
    if isinstance(images, Dataset):
        if maps is not None or masks is not None:
            raise DataError("images are a Dataset, which holds its maps or masks: give none beside it.")
        if images.has_maps and images.has_masks:
            raise DataError("the Dataset holds both maps and masks: load it with one of them.")
        return images
    if maps is not None and masks is not None:
        raise DataError("give either maps (--maps) or masks (--masks), and not both: one for each image.")
    if bare and (maps is not None or masks is not None):
        raise DataError("give maps, masks or a detector, only one of them.")
    if isinstance(images, str | File):
        if not all(value is None or isinstance(value, str | File) for value in (maps, masks)):
            raise DataError(
                "images are a folder or table, so maps or masks must be a folder too, or maps a .npy stack."
            )
        dataset = load_dataset(images, maps=maps, masks=masks, exclude=exclude, with_maps=not bare)  # type: ignore[arg-type]
        if bare:
            return replace(dataset, samples=tuple(replace(sample, mask=None) for sample in dataset))
        if dataset.has_maps and dataset.has_masks:
            raise DataError(
                f"{images}: found both maps and masks. Give one of them: with a table, leave one column out."
            )
        return dataset
    listed = _listed(images, "images")
    if not listed:
        raise DataError("expected at least one image, but the list of images is empty.")
    found_maps, found_masks = _matched(maps, len(listed), "map"), _matched(masks, len(listed), "mask")
    if maps is not None and (gap := next((i for i, value in enumerate(found_maps) if value is None), None)) is not None:
        raise DataError(f"expected one map for each of {len(listed)} images, but the map of image {gap} is None.")
    samples = tuple(
        Sample(_name(index, image), _source(image, f"image {index}"), map_, mask)
        for index, (image, map_, mask) in enumerate(zip(listed, found_maps, found_masks, strict=True))
    )
    return Dataset(samples, masked=masks is not None)


def gather_base(base: Base | Dataset | None) -> Dataset | None:
    """The labelled base set: (images, masks, labels), or a folder; every sample has a mask and a label."""
    if base is None or isinstance(base, Dataset):
        return base
    if isinstance(base, str | File):
        return load_base(base)
    parts = _listed(base, "base")
    if len(parts) != 3 or any(part is None for part in parts):
        raise DataError("base must be (images, masks, labels), three lists of the same length, or a folder.")
    images, masks, labels = (_listed(part, "a part of base") for part in parts)
    dataset = gather(images, masks=masks)
    if len(labels) != len(dataset):
        raise DataError(f"base: expected one label for each of {len(dataset)} images, but got {len(labels)}.")
    pairs = zip(dataset, labels, strict=True)
    return replace(dataset, samples=tuple(replace(sample, label=str(label)) for sample, label in pairs))


def gather_normal(normal: Sources | Dataset | None, maps: Sources | None = None) -> Dataset:
    """Images of normal products: a folder of any structure, or a list of paths and arrays; none where there are none.

    maps : one for each of them; or maps of normal products alone, and then each sample's image is its map

    Examples
    --------
    >>> maps_alone = gather_normal(None, [np.zeros((4, 4), np.float32)])
    >>> maps_alone.has_maps, maps_alone[0].image is maps_alone[0].map
    (True, True)
    """
    if maps is not None:
        return _normal_with_maps(normal, maps)
    if normal is None:
        return Dataset(())
    if not isinstance(normal, str | File):
        if not isinstance(normal, Dataset):
            normal = _listed(normal, "normal")
        if not len(normal):
            raise DataError("normal: expected at least one image of a normal product, but the list is empty.")
        return gather(normal)
    folder = place_of(normal, "normal")
    if not folder.is_dir():
        error = DataError if folder.exists() else MissingDataError
        raise error(f"{folder}: expected a folder of normal images (--normal).")
    root = product_folder(folder, "train/good", "train")  # of a product in MVTec AD's layout
    if (root / "ground_truth").is_dir():
        raise DataError(
            f"{root}: expected normal images only (--normal), but it has masks of defects in ground_truth/."
        )
    samples = tuple(Sample(name, root / name) for name, _ in find_images(root)[0])
    if not samples:
        raise DataError(f"{root}: expected normal images (--normal), none found.")
    return Dataset(samples, root, folders=(folder,))


def _normal_with_maps(normal: Sources | Dataset | None, maps: Sources) -> Dataset:
    if normal is not None:
        if not isinstance(normal, str | File) or not isinstance(maps, str | File):
            return gather(normal, maps)
        root = gather_normal(normal).root  # train/good of a product, with the messages of a folder without maps
        folders = (place_of(normal, "normal"), place_of(maps, "normal_maps"))
        return replace(load_dataset(root or normal, maps=maps), folders=folders)
    if not isinstance(maps, str | File):
        listed = enumerate(_listed(maps, "normal_maps"))
        sources = [_source(value, f"normal map {index}") for index, value in listed]
        if not sources:
            raise DataError("normal_maps: expected at least one map of a normal product, but the list is empty.")
        return Dataset([Sample(_name(index, source), source, source) for index, source in enumerate(sources)])
    folder = place_of(maps, "normal_maps")
    names = find_files(folder, MAP_SUFFIXES) if folder.is_dir() else []
    if not names:
        raise DataError(f"{folder}: expected a folder of anomaly maps of normal images (--normal-maps), none found.")
    sources = [folder / name for name in names]
    return Dataset([Sample(name, path, path) for name, path in zip(names, sources, strict=True)], folders=(folder,))


def _matched(values: Sources | None, count: int, what: str) -> list[Any]:
    if values is None:
        return [None] * count
    if isinstance(values, str | File):
        raise DataError(f"images are a list, so {what}s must be a list too, one for each image.")
    listed = enumerate(_listed(values, f"{what}s"))
    found = [None if value is None else _source(value, f"{what} {i}") for i, value in listed]
    if len(found) != count:
        raise DataError(f"expected one {what} for each of {count} images, but got {len(found)}.")
    return found


def _source(value: object, what: str) -> File | npt.NDArray[Any]:
    if isinstance(value, Stored) or is_remote(value):
        return place_of(value, what)
    if isinstance(value, str | Path):
        return file_named(value)
    if isinstance(value, np.ndarray):
        return value
    raise WrongTypeError(f"{what}: expected a path or a NumPy array, but got {type(value).__name__}.")


def _listed(values: Any, what: str) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise WrongTypeError(
            f"{what}: expected a folder or a list of paths and arrays, but got {type(values).__name__}."
        ) from None


def _name(index: int, image: object) -> str:
    if isinstance(image, Stored) or is_remote(image):
        return str(image)
    return Path(image).as_posix() if isinstance(image, str | Path) else f"image_{index:06d}"
