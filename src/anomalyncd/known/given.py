"""Labels that people give before a run: class folders, a table, or a run that they have reviewed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data.dataset import NORMAL_NAMES, Dataset, Sample, load_dataset
from ..data.lists import is_table, read_table, row_name
from ..data.maps import StackRow
from ..errors import DataError
from ..labels import NORMAL, default_name
from ..paths import resolved
from ..places.names import beside, file_named, is_file, place_of
from ..places.stored import File
from ..progress import Silent
from ..regions.find import Region, strengths
from ..run.finished import FinishedRun
from ..run.folder import IMAGES_TABLE, KNOWN
from .seeded import Marked

Box = tuple[int, int, int, int]
KnownKinds = str | File | Mapping[str, str] | Dataset
SAME_PLACE = 0.5  # overlap from which on a region of another run is the one that was labelled
LONGEST_NUMBER = 10  # digits of the number of a region
MOST_NAMED = 10  # suspect labels that are warned of one by one
FOLDER = "known"  # under which images that a run takes in as examples are called


@dataclass(frozen=True)
class Example:
    """A label: of an image, or of one of its regions, told by its number or its box.

    sample : the image, and map and mask that came with it; an image of the run may be there by its id alone
    name : of the class
    """

    sample: Sample
    name: str
    region: int | None = None
    box: Box | None = None

    @property
    def is_normal(self) -> bool:
        return self.name.lower() in NORMAL_NAMES


@dataclass(frozen=True)
class Told:
    """What is known of the images of a run.

    examples : whose samples have the ids that the images have in the run
    """

    examples: tuple[Example, ...] = ()

    @property
    def kinds(self) -> list[str]:
        """Names of the known kinds of defect, in order."""
        return sorted({example.name for example in self.examples if not example.is_normal})

    @property
    def normal(self) -> set[str]:
        """Ids of images that are known to be normal."""
        return {example.sample.id for example in self.examples if example.is_normal and example.region is None}

    @property
    def key(self) -> list[Any]:
        """What learning depends on; empty where nothing is known."""
        return [[e.sample.id, e.name, e.region, e.box] for e in self.examples]

    def labels(self, regions: Sequence[Region], *, masked: bool) -> dict[int, str]:
        """Place of each labelled region → its class.

        The label of an image is that of its strongest region, because the others may be false alarms; with masks, and where
        the image is normal, of all of them.
        """
        of_image: dict[str, list[int]] = {}
        for place, region in enumerate(regions):
            of_image.setdefault(region.image, []).append(place)
        strength, found = strengths(regions), dict[int, str]()
        for example in sorted(self.examples, key=lambda one: one.region is not None or one.box is not None):
            own = of_image.get(example.sample.id, [])
            if example.region is not None:
                own = [place for place in own if regions[place].region == example.region]
            elif example.box is not None:
                own = [place for place in own if overlap(regions[place].box, example.box) >= SAME_PLACE][:1]
            elif own and not (masked or example.is_normal):
                own = [max(own, key=lambda place: strength[place])]
            found |= dict.fromkeys(own, example.name)
        return found

    def mark(self, regions: Sequence[Region], *, masked: bool, has_normal: bool) -> Marked | None:
        """The regions that are labelled; None where nothing is known. Kinds without a region are not among the names."""
        if not self.examples:
            return None
        if not has_normal and any(example.is_normal for example in self.examples):
            raise DataError("some labelled images are normal (--known), but --no-normal says that none is.")
        found = self.labels(regions, masked=masked)
        names = sorted({name for name in found.values() if name.lower() not in NORMAL_NAMES})
        kinds, normal = np.full(len(regions), -1, np.int64), np.zeros(len(regions), bool)
        for place, name in found.items():
            if name in names:
                kinds[place] = names.index(name)
            else:
                normal[place] = True
        return Marked(names, kinds, normal)


def gather_known(known: KnownKinds | None, dataset: Dataset) -> list[Example]:
    """Labels as a caller hands them over.

    Parameters
    ----------
    known : a folder of class folders (or `images/` with `masks/`, or a product of MVTec AD); a table with the columns
        `image` and `label`, and optionally `region`, `map` and `mask`; a reviewed run; a Dataset with labels; or
        image → class
    dataset : the images of the run, which the labels may be about
    """
    if known is None:
        return []
    ids = {sample.id: sample for sample in dataset}
    if isinstance(known, Mapping):
        if missing := [name for name in known if name not in ids]:
            raise DataError(f"known: there is no image {missing[0]!r} in the run; ids look like {dataset[0].id!r}.")
        return [Example(ids[name], _name(label, f"known: {name}")) for name, label in known.items()]
    if isinstance(known, Dataset):
        return [Example(sample, sample.label) for sample in known if sample.label]
    path = place_of(known, "known")
    if is_table(path) and path.is_file():
        found = _of_table(path, ids)
    elif isinstance(path, Path) and (path / IMAGES_TABLE).is_file():
        found = _of_run(FinishedRun(path, device="cpu"), dataset)
    else:
        has_masks = dataset.has_masks and (path / "images").is_dir() and (path / "masks").is_dir()
        masks: File | None = (
            path / "masks" if has_masks else path if (path / "ground_truth").is_dir() and dataset.has_masks else None
        )
        samples = load_dataset(path / "images" if has_masks else path, masks=masks, with_maps=False)
        found = [Example(sample, sample.label) for sample in samples if sample.label]
    if not found:
        raise DataError(
            f"{path}: expected labelled images (--known): a folder of class folders, a table with the columns image and "
            "label, or a run whose classes people have named or corrected; none found."
        )
    return found


def join_known(dataset: Dataset, examples: Sequence[Example]) -> tuple[Dataset, Told]:
    """The images to sort, with those of the examples that are not among them; and what is known of them.

    An image is known again by its file, or by its id. New ones are called `known/<id>`, and have no true label: what was
    told is no question.
    """
    if not examples:
        return dataset, Told()
    by_file = {resolved(s.image): s for s in dataset if isinstance(s.image, File)}
    by_id, added, told = {sample.id: sample for sample in dataset}, dict[str, Sample](), []
    for example in examples:
        sample = example.sample
        own = by_file.get(resolved(sample.image)) if isinstance(sample.image, File) else by_id.get(sample.id)
        if own is None:
            own = replace(sample, id=_free(f"{FOLDER}/{sample.id}", by_id), label=None)
            _check_companion(example, dataset)
            if isinstance(own.image, File):
                by_file[resolved(own.image)] = own
            by_id[own.id] = added[own.id] = own
        told.append(replace(example, sample=own))
    return replace(dataset, samples=(*dataset.samples, *added.values())), Told(tuple(told))


def known_table(
    marked: Marked, regions: Sequence[Region], classes: Sequence[int], names: Mapping[int, str]
) -> pd.DataFrame:
    """known.csv: a row for each labelled region; looks_like : class that it seems to be of, where that is another one.

    classes : label of each cluster that was learned
    """
    rows = []
    for place, region in enumerate(regions):
        label = NORMAL if marked.normal[place] else int(marked.kinds[place]) + 1
        if marked.normal[place] or marked.kinds[place] >= 0:
            seems = marked.suspects.get(place)
            looks = "" if seems is None else names[classes[seems]]
            rows.append((region.image, region.region, label, names[label], looks))
    return pd.DataFrame(rows, columns=["image", "region", "label", "class_name", "looks_like"])


def warn_of_known(told: Told, table: pd.DataFrame, progress: Silent) -> None:
    """Say what of the labels could not be used, and which of them look wrong."""
    found = set(table["class_name"])
    if missing := [name for name in told.kinds if name not in found]:
        progress.warn(
            f"{', '.join(missing)}: no region was found in any image of this name (--known), so it is not learned."
        )
    wrong = table[table["looks_like"] != ""]
    for row in wrong.head(MOST_NAMED).to_dict("records"):
        progress.warn(
            f"{row['image']}: labelled {row['class_name']}, but it looks like {row['looks_like']}. Nothing was learned from "
            "this label; look at it."
        )
    if len(wrong) > MOST_NAMED:
        progress.warn(f"{len(wrong) - MOST_NAMED} more labels look wrong: see looks_like in {KNOWN}.")
    progress.note(f"{len(table)} regions of {len(found)} known classes, {len(wrong)} labels look wrong")


def with_known(
    known: KnownKinds | None, samples: Sequence[Sample], manifest: pd.DataFrame, inputs: Dataset
) -> tuple[list[Sample], Told]:
    """New images of a run, with those of the examples that neither it nor they hold; and what is known of all of them.

    samples : new images; manifest : of the run, whose images may be labelled too; inputs : what came with the new ones
    """
    if known is None:
        return list(samples), Told()
    own = [
        Sample(row["image"], file_named(row["file"]) if isinstance(row["file"], str) else np.empty(0), np.empty((0, 0)))
        for row in manifest.to_dict("records")
    ]
    if not inputs.has_maps:
        own = [replace(sample, map=None) for sample in own]
    everything = Dataset((*samples, *own), masked=inputs.has_masks)
    joined, told = join_known(everything, gather_known(known, everything))
    return [*samples, *joined[len(everything) :]], told


def decide(
    found: Mapping[int, str],
    wanted: npt.NDArray[np.int64],
    fixed: npt.NDArray[np.bool_],
    names: Mapping[int, str],
    highest: int,
) -> dict[int, str]:
    """Give labelled regions their classes for good; returns the names of all classes, new ones among them.

    found : place of a region → name of its class; wanted, fixed : (R,) classes, and which of them people decided; changed
    """
    names = dict(names)
    following = max(highest, int(wanted.max(initial=0))) + 1
    for name in sorted(set(found.values())):
        if name.lower() in NORMAL_NAMES:
            label = NORMAL
            if NORMAL not in names:
                raise DataError("some labelled images are normal (--known), but the run was told that none is.")
        else:
            label = next((k for k, known in names.items() if known == name), following)
            following += label == following
            names[label] = name
        own = [place for place, called in found.items() if called == name]
        wanted[own], fixed[own] = label, True
    return names


def overlap(a: Box, b: Box) -> float:
    """Shared area of two boxes (x, y, width, height) over that of both.

    Examples
    --------
    >>> overlap((0, 0, 4, 4), (0, 0, 4, 2)), overlap((0, 0, 2, 2), (5, 5, 2, 2))
    (0.5, 0.0)
    """
    width = min(a[0] + a[2], b[0] + b[2]) - max(a[0], b[0])
    height = min(a[1] + a[3], b[1] + b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    return shared / max(a[2] * a[3] + b[2] * b[3] - shared, 1)


def _of_table(path: File, ids: Mapping[str, Sample]) -> list[Example]:
    found = []
    for line, cells in read_table(path):
        where = f"{path}, {row_name(path, line)}"
        if not cells.get("label"):
            continue
        region = cells.get("region", "")
        if region and not (region.isdecimal() and len(region) < LONGEST_NUMBER):
            raise DataError(f"{where}: expected the number of a region, but got {region[:40]!r}.")
        sample = ids.get(PurePosixPath(cells["image"]).as_posix())
        if sample is None:
            files = {name: beside(path, cells[name]) for name in ("image", "map", "mask") if cells.get(name)}
            if gone := [file for file in files.values() if not is_file(file)]:
                raise DataError(f"{where}: {gone[0]} is neither an image of the run nor a file.")
            sample = Sample(cells["image"], files["image"], files.get("map"), files.get("mask"))
        found.append(Example(sample, cells["label"], int(region) if region else None))
    return found


def _of_run(run: FinishedRun, dataset: Dataset) -> list[Example]:
    """Regions that a person placed, and those of classes that a person named; where they lie is told by their boxes."""
    names = {label: name for label, name in run.names.items() if label > NORMAL and name != default_name(label)}
    found = []
    labels, boxes = (
        run.regions["label"].tolist(),
        run.regions[["x", "y", "width", "height"]].astype(int).to_numpy().tolist(),
    )
    maps = dict(zip(run.manifest["image"], run.manifest["map"], strict=True)) if dataset.has_maps else {}
    masks = {record.id: run.store.mask_name(record) for record in run.store.images} if dataset.has_masks else {}
    for key, row in run.rows.items():
        label = run.corrections.get(key, int(labels[row]))
        if key not in run.corrections and label not in names:
            continue
        name, file = key[0], run.file(key[0])
        if file is None or not is_file(file):
            continue
        x, y, width, height = boxes[row]
        sample = Sample(
            name, file, _map_of(run, maps.get(name)), run.folder.place(masks[name]) if dataset.has_masks else None
        )
        called = "normal" if label == NORMAL else run.names.get(label, default_name(label))
        found.append(Example(sample, called, box=(x, y, width, height)))
    return found


def _map_of(run: FinishedRun, place: Any) -> File | StackRow | None:
    """The map that a cell of manifest.csv tells."""
    if not isinstance(place, str) or not place:
        return None
    return run.folder.place(place) if place.startswith("maps/") else StackRow.parse(place)


def _check_companion(example: Example, dataset: Dataset) -> None:
    """An image that is taken in needs what the others have; a normal one has no mask."""
    what = "map" if dataset.has_maps else "mask" if dataset.has_masks and not example.is_normal else None
    if what is not None and getattr(example.sample, what) is None:
        raise DataError(
            f"{example.sample.image}: this labelled image (--known) is not among the images, so it needs a {what} as they "
            f"have. Give a table with the columns image, label and {what}, or label images of the run."
        )


def _free(name: str, taken: Mapping[str, Sample]) -> str:
    number, path = 1, PurePosixPath(name)
    while name in taken:
        number += 1
        name = path.with_name(f"{path.stem} ({number}){path.suffix}").as_posix()
    return name


def _name(label: object, where: str) -> str:
    if not isinstance(label, str) or not label.strip():
        raise DataError(f"{where}: expected the name of a class, but got {label!r}.")
    return label.strip()
