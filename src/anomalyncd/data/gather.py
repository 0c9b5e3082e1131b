"""What a caller hands over, in one form: a list of items, whatever mixture of folders, paths and arrays it was."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from ..errors import DataError, SettingsError
from ..regions.records import Item
from .dataset import load_base, load_dataset
from .lists import is_table

Source = str | Path | npt.NDArray[Any]
Sources = Sequence[Source | None] | npt.NDArray[Any] | str | Path
Base = tuple[Sequence[Source], Sequence[Source], Sequence[Any]] | str | Path


@dataclass(frozen=True)
class Inputs:
    """Images to work on.

    truth : id → class by folder or table; only ever copied into tables, never read by anything that learns
    folders : that the files were searched in
    notes : what was left out, a sentence each, for the user to read
    """

    items: list[Item]
    truth: dict[str, str] = field(default_factory=dict)
    folders: tuple[Path, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    def check_outside(self, run: Path, *others: Path) -> None:
        """A run inside a folder of inputs, or of `others` that are read, would be found among them by the next call."""
        for folder in (*self.folders, *others):
            if run.resolve().is_relative_to(folder.resolve()):
                raise SettingsError(
                    f"{run}: the run would lie inside {folder}, which is read. Choose a folder outside."
                )


@dataclass(frozen=True)
class BaseSet:
    """Labelled defects of other products; labels : (N,) int, 0 … number of classes − 1, for each item."""

    items: list[Item]
    labels: npt.NDArray[np.int64]


def gather(
    images: Sources, maps: Sources | None = None, masks: Sources | None = None, *, detected: bool = False
) -> Inputs:
    """Images with either a map or a mask each; with neither where a detector will make maps (`detected`).

    Examples
    --------
    >>> gather([np.zeros((4, 4, 3), np.uint8)], masks=[None]).items[0].id
    'image_000000'
    """
    if detected and (maps is not None or masks is not None):
        raise DataError("give maps, masks or a detector, only one of them.")
    if (maps is None) == (masks is None) and not _is_table(images) and not detected:
        raise DataError("give either maps (--maps) or masks (--masks), and not both: one for each image.")
    if _is_place(images):
        if not all(value is None or _is_place(value) for value in (maps, masks)):
            raise DataError(
                "images are a folder or table, so maps or masks must be a folder too, or maps a .npy stack."
            )
        return load_inputs(images, maps=maps, masks=masks, detected=detected)  # type: ignore[arg-type]
    assert not isinstance(images, str | Path)
    listed = list(images)
    if not listed:
        raise DataError("expected at least one image, but the list of images is empty.")
    found_maps, found_masks = _matched(maps, len(listed), "map"), _matched(masks, len(listed), "mask")
    if maps is not None and (gap := next((i for i, value in enumerate(found_maps) if value is None), None)) is not None:
        raise DataError(f"expected one map for each of {len(listed)} images, but the map of image {gap} is None.")
    items = [
        Item(_name(index, image), _source(image, f"image {index}"), map_, mask)
        for index, (image, map_, mask) in enumerate(zip(listed, found_maps, found_masks, strict=True))
    ]
    return Inputs(items)


def load_inputs(
    images: str | Path,
    *,
    maps: str | Path | None = None,
    masks: str | Path | None = None,
    exclude: Collection[str] = (),
    detected: bool = False,
) -> Inputs:
    """Images of a folder or table, with maps or masks unless these are `detected`; arguments as for `load_dataset`."""
    dataset = load_dataset(images, maps=maps, masks=masks, exclude=exclude, with_maps=not detected)
    if dataset.has_maps and dataset.has_masks and not detected:
        raise DataError(f"{images}: found both maps and masks. Give one of them: with a table, leave one column out.")
    if detected:
        dataset = replace(dataset, samples=tuple(replace(s, map=None, mask=None) for s in dataset.samples))
    elif not dataset.has_maps and not dataset.has_masks:
        raise DataError(
            f"{images}: give maps (--maps) or masks (--masks), one for each image (or, for `discover`, a --detector)."
        )
    items = [Item(s.id, s.image, s.map, s.mask) for s in dataset.samples]
    searched = [Path(folder) for folder in (maps, masks) if folder is not None]
    if not _is_table(images):
        searched.append(dataset.root)
    truth = {s.id: s.label for s in dataset.samples if s.label is not None}
    return Inputs(items, truth, tuple(searched), dataset.notes)


def gather_base(base: Base | None) -> BaseSet | None:
    """The labelled base set: (images, masks, labels), or a folder."""
    if base is None:
        return None
    if isinstance(base, str | Path):
        samples = load_base(base).samples
        items = [Item(s.id, s.image, mask=s.mask) for s in samples]
        names = [str(s.label) for s in samples]
    else:
        if len(base) != 3 or any(part is None for part in base):
            raise DataError("base must be (images, masks, labels), three lists of the same length, or a folder.")
        images, masks, labels = base
        items = gather(list(images), masks=list(masks)).items
        names = [str(label) for label in labels]
        if len(names) != len(items):
            raise DataError(f"base: expected one label for each of {len(items)} images, but got {len(names)}.")
    _, numbers = np.unique(names, return_inverse=True)
    return BaseSet(items, numbers.astype(np.int64))


def _is_place(value: object) -> TypeGuard[str | Path]:
    return isinstance(value, str | Path)


def _is_table(value: object) -> bool:
    return isinstance(value, str | Path) and is_table(value)


def _matched(values: Sources | None, count: int, what: str) -> list[Any]:
    if values is None:
        return [None] * count
    if _is_place(values):
        raise DataError(f"images are a list, so {what}s must be a list too, one for each image.")
    assert not isinstance(values, str | Path)
    found = [None if value is None else _source(value, f"{what} {i}") for i, value in enumerate(values)]
    if len(found) != count:
        raise DataError(f"expected one {what} for each of {count} images, but got {len(found)}.")
    return found


def _source(value: object, what: str) -> Path | npt.NDArray[Any]:
    if isinstance(value, str | Path):
        return Path(value)
    if isinstance(value, np.ndarray):
        return value
    raise DataError(f"{what}: expected a path or a NumPy array, but got {type(value).__name__}.")


def _name(index: int, image: object) -> str:
    return Path(image).as_posix() if isinstance(image, str | Path) else f"image_{index:06d}"
