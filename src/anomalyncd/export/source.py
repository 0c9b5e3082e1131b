"""What there is to export of a finished run: its images, their regions and the regions' masks, one image at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import RunError
from ..labels import NORMAL, UNKNOWN, default_name
from ..run.finished import FinishedRun
from ..run.folder import REGIONS_TABLE


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
        regions = run.regions.drop_duplicates(["image", "region"])
        self._regions = {str(name): table.to_dict("records") for name, table in regions.groupby("image", sort=False)}
        rows = run.images.drop_duplicates("image").to_dict("records")
        self.images = [self._image(number, row) for number, row in enumerate(rows, start=1)]

    @property
    def defects(self) -> dict[int, str]:
        """Label → name of all classes but the normal one."""
        return {label: name for label, name in self.classes.items() if label != NORMAL}

    def masks(self, image: Image) -> Iterator[tuple[Finding, NDArray[np.bool_]]]:
        """The findings of an image, each with its mask (H, W) bool; its box where the run's mask is gone."""
        if not image.findings:
            return
        rows = self._regions[image.name]
        masks = self.run.region_masks(image.name)
        if len(masks) != len(rows):
            raise RunError(
                f"{self.run.path / REGIONS_TABLE}: expected {len(masks)} regions of {image.name}, as manifest.csv and the "
                f"mask say, but found {len(rows)}. Make the run anew with `anomalyncd discover`."
            )
        of_region = {int(row["region"]): mask for row, mask in zip(rows, masks, strict=True)}
        lost = self.run.mask(image.name) is None
        for finding in image.findings:
            mask = of_region[finding.region]
            if lost:
                x, y, width, height = finding.box
                mask = np.zeros((image.height, image.width), bool)
                mask[y : y + height, x : x + width] = True
            yield finding, mask

    def _image(self, number: int, row: Mapping[Any, Any]) -> Image:
        name, label = str(row["image"]), int(row["label"])
        height, width = self.run.size(name)
        findings = tuple(self._finding(r) for r in self._regions.get(name, ()) if int(r["label"]) != NORMAL)
        probability = _number(row.get("probability")) or 0.0
        return Image(
            number, name, self.run.file(name), height, width, label, self.classes[label], probability, findings
        )

    def _finding(self, row: Mapping[Any, Any]) -> Finding:
        label = int(row["label"])
        box = (int(row["x"]), int(row["y"]), int(row["width"]), int(row["height"]))
        score, probability = (_number(row[name]) or 0.0 for name in ("score", "probability"))
        return Finding(
            int(row["region"]), label, self.classes[label], box, float(row["area"]), score, probability,
            _number(row.get("unknown")),
        )  # fmt: skip


def _printable(name: str) -> str:
    """Control characters and halves of characters can stand neither in XML nor in a file name."""
    return "".join(letter if letter.isprintable() else " " for letter in name).strip()


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
