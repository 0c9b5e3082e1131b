"""What there is to export of a finished run: its images, their regions and the regions' masks, one image at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..discovery.model import read_names
from ..errors import RunError
from ..report.stored import StoredPictures
from ..run.folder import REGIONS_TABLE
from ..run.tables import read_csv

NORMAL, UNKNOWN = 0, -1


@dataclass(frozen=True)
class Finding:
    """One region of an image, as regions.csv has it; box : (x, y, width, height) in image pixels."""

    region: int
    label: int
    class_name: str
    box: tuple[int, int, int, int]
    area: float
    score: float
    probability: float
    unknown: float | None


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
    file: Path | None
    height: int
    width: int
    label: int
    class_name: str
    probability: float
    findings: tuple[Finding, ...]


class Results:
    """A finished run.

    Attributes
    ----------
    image_table, region_table : images.csv and regions.csv as they are
    classes : label → name, ascending, of all classes of the run; −1 `unknown` only where something has this label
    images : the images that could be read
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self.stored = StoredPictures(run)
        self.image_table = self.stored.images
        self.region_table = read_csv(run / REGIONS_TABLE)
        self.classes = _classes(run, self.image_table, self.region_table)
        rows = self.region_table.drop_duplicates(["image", "region"])
        self._regions = {str(name): table.to_dict("records") for name, table in rows.groupby("image", sort=False)}
        table = self.image_table.drop_duplicates("image")
        self.images = [self._image(number, row) for number, row in enumerate(table.to_dict("records"), start=1)]

    @property
    def defects(self) -> dict[int, str]:
        """label → name of all classes but the normal one"""
        return {label: name for label, name in self.classes.items() if label != NORMAL}

    def masks(self, image: Image) -> Iterator[tuple[Finding, NDArray[np.bool_]]]:
        """The findings of an image, each with its mask (H, W) bool; its box where the run's mask is gone."""
        if not image.findings:
            return
        rows = self._regions[image.name]
        masks = self.stored.region_masks(image.name)
        if len(masks) != len(rows):
            raise RunError(
                f"{self.run / REGIONS_TABLE}: expected {len(masks)} regions of {image.name}, as manifest.csv and the mask "
                f"say, but found {len(rows)}. Make the run anew with `anomalyncd discover`."
            )
        of_region = {int(row["region"]): mask for row, mask in zip(rows, masks, strict=True)}
        lost = self.stored.mask(image.name) is None
        for finding in image.findings:
            mask = of_region[finding.region]
            if lost:
                x, y, width, height = finding.box
                mask = np.zeros((image.height, image.width), bool)
                mask[y : y + height, x : x + width] = True
            yield finding, mask

    def _image(self, number: int, row: Mapping[Any, Any]) -> Image:
        name, label = str(row["image"]), int(row["label"])
        height, width = self.stored.size(name)
        findings = tuple(self._finding(r) for r in self._regions.get(name, ()) if int(r["label"]) != NORMAL)
        return Image(
            number, name, self.stored.file(name), height, width, label, self.classes[label],
            _number(row.get("probability")) or 0.0, findings,
        )  # fmt: skip

    def _finding(self, row: Mapping[Any, Any]) -> Finding:
        label = int(row["label"])
        box = (int(row["x"]), int(row["y"]), int(row["width"]), int(row["height"]))
        return Finding(
            int(row["region"]), label, self.classes[label], box, float(row["area"]), _number(row["score"]) or 0.0,
            _number(row["probability"]) or 0.0, _number(row.get("unknown")),
        )  # fmt: skip


def _classes(run: Path, images: pd.DataFrame, regions: pd.DataFrame) -> dict[int, str]:
    """Names of classes.json, and of the tables where it has none."""
    names: dict[int, str] = {}
    for table in (images, regions):
        for label, name in table[["label", "class_name"]].drop_duplicates("label").itertuples(index=False):
            names.setdefault(int(label), name if isinstance(name, str) else "")
    names |= read_names(run)
    if UNKNOWN in names:
        names[UNKNOWN] = "unknown"
    return {label: _printable(names[label]) or f"class {label}" for label in sorted(names)}


def _printable(name: str) -> str:
    """Control characters and halves of characters can stand neither in XML nor in a file name."""
    return "".join(letter if letter.isprintable() else " " for letter in name).strip()


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
