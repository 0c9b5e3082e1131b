"""What there is to export of a finished run: its images, their regions and the regions' masks, one image at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import RunError
from ..labels import NORMAL, UNKNOWN, default_name
from ..places.stored import File
from ..run.finished import FinishedRun
from ..run.folder import REGIONS_TABLE


@dataclass(frozen=True)
class Finding:
    """One region of an image, as regions.csv has it: its box in image pixels, what was found; unknown : NaN if not known."""

    region: int
    label: int
    class_name: str
    x: int
    y: int
    width: int
    height: int
    area: float
    score: float
    probability: float
    unknown: float

    def share_of(self, image: Image, whole: int = 1) -> list[float]:
        """x, y, width and height of the box as parts of the image's sides, which are `whole`."""
        sides = zip((self.x, self.y, self.width, self.height), (image.width, image.height) * 2, strict=True)
        return [whole * part / side for part, side in sides]


@dataclass(frozen=True)
class Image:
    """One image of images.csv.

    number : 1 … in the order of the table
    name : as in the tables, mostly the path relative to the folder of images
    file : where it lay when the run was made; None for an array
    findings : its regions but for false alarms (label 0)
    """

    number: int
    name: str
    file: File | None
    height: int
    width: int
    label: int
    class_name: str
    probability: float
    findings: tuple[Finding, ...]


class Results:
    """What a finished run found.

    Attributes
    ----------
    classes : label → name, ascending, of all classes of the run; −1 `unknown` only where something has this label
    images : the images that could be read
    """

    def __init__(self, run: FinishedRun) -> None:
        self.run = run
        used = {*run.images["label"], *run.regions["label"]}
        names = {label: _printable(run.names[label]) or default_name(label) for label in sorted(run.names)}
        self.classes = {label: name for label, name in names.items() if label != UNKNOWN or label in used}
        regions = _finite(run.regions.drop_duplicates(["image", "region"]))
        regions["class_name"] = regions["label"].map(self.classes)
        columns = list(Finding.__dataclass_fields__)
        self._regions = {
            str(name): [Finding(*row) for row in table[columns].itertuples(index=False)]
            for name, table in regions.groupby("image", sort=False)
        }
        images = _finite(run.images.drop_duplicates("image"))[["image", "label", "probability"]]
        self.images = [
            Image(
                number, name, run.file(name), *run.size(name), label, self.classes[label], probability,
                tuple(found for found in self._regions.get(name, ()) if found.label != NORMAL),
            )
            for number, (name, label, probability) in enumerate(images.itertuples(index=False), start=1)
        ]  # fmt: skip

    @property
    def defects(self) -> dict[int, str]:
        """Label → name of all classes but the normal one."""
        return {label: name for label, name in self.classes.items() if label != NORMAL}

    def regions(self, name: str) -> list[Finding]:
        """All regions of an image, false alarms too."""
        return list(self._regions.get(name, ()))

    def masks(self, image: Image) -> Iterator[tuple[Finding, NDArray[np.bool_]]]:
        """The findings of an image, each with its mask (H, W) bool; its box where the run's mask is gone."""
        if not image.findings:
            return
        regions, masks = self._regions[image.name], self.run.region_masks(image.name)
        if len(masks) != len(regions):
            raise RunError(
                f"{self.run.path / REGIONS_TABLE}: expected {len(masks)} regions of {image.name}, as manifest.csv and the "
                f"mask say, but found {len(regions)}. Make the run anew with `anomalyncd discover`."
            )
        lost = self.run.mask(image.name) is None
        for found, mask in zip(regions, masks, strict=True):
            if found.label == NORMAL:
                continue
            if lost:
                mask = np.zeros((image.height, image.width), bool)
                mask[found.y : found.y + found.height, found.x : found.x + found.width] = True
            yield found, mask


def _finite(table: pd.DataFrame) -> pd.DataFrame:
    """With all columns of figures, of which JSON takes only finite ones; 0 where the run has nothing to say."""
    figures = table.reindex(columns=["probability", "score", "unknown"]).replace([np.inf, -np.inf], np.nan)
    figures = figures.astype(float).fillna({"probability": 0.0, "score": 0.0})
    return table.assign(**{str(name): figures[name] for name in figures})


def _printable(name: str) -> str:
    """Control characters and halves of characters can stand neither in XML nor in a file name."""
    return "".join(letter if letter.isprintable() else " " for letter in name).strip()
