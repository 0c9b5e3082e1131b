"""What a report is made from: the tables of a run, its pictures one at a time, and how each class looks on the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from ..data.dataset import Sample
from ..discovery.model import DiscoveryModel, read_names
from ..errors import RunError
from ..run.folder import MANIFEST, REGIONS_TABLE, RETRAINED, RunFolder
from ..run.store import RegionStore, read_crop
from ..run.tables import read_csv
from .canvas import Picture, fitted
from .embed import Album, Shot
from .overlay import overlay, resized_mask
from .stored import StoredPictures

# Each stands out from the light and from the dark page; grey is for normal images.
COLOURS = (
    "#2f7ed8", "#d9650f", "#2e9e4f", "#d8434e", "#9467d6", "#1797a6", "#a9713a", "#d0509a", "#8a8f1f",
)  # fmt: skip
NORMAL_COLOUR, UNKNOWN_COLOUR = "#7a8796", "#b8860b"
SHAPES = ("circle", "square", "diamond", "triangle")
NOTEWORTHY = 0.05  # probability of another class that is worth a word
CROP_SIDE = 160
IMAGE_SIDE = 320


@dataclass(frozen=True)
class Look:
    """A class on the page: its number, name, colour, mark, and the anchor of its card."""

    label: int
    name: str
    colour: str
    shape: str
    anchor: str


@dataclass(frozen=True)
class RegionFeatures:
    """rows : (F,) int, rows of regions.csv; vectors : (F, D) float32 unit features; probabilities : (F, K) over classes"""

    rows: NDArray[np.int64]
    vectors: NDArray[np.float32]
    probabilities: NDArray[np.float64]
    classes: tuple[int, ...]


class ReportSource:
    """A finished run as the report sees it. Missing images, maps and crops are None or left out, never an error.

    Parameters
    ----------
    run : folder of a finished run
    items : see `StoredPictures`
    """

    def __init__(self, run: Path, items: Sequence[Sample] = ()) -> None:
        self.run = run
        self.stored = StoredPictures(run, items)
        self.images = self.stored.images.reset_index(drop=True)
        self.regions = read_csv(run / REGIONS_TABLE).reset_index(drop=True)
        self.album = Album()
        self.names = {-1: "unknown"} | read_names(run)
        for table in (self.images, self.regions):
            table["class_name"] = table["class_name"].fillna("")
            for label, name in table.drop_duplicates("label")[["label", "class_name"]].itertuples(index=False):
                self.names.setdefault(int(label), name)
        self._rows = dict(iter(self.regions.groupby("image", sort=False)))

    def look(self, label: int) -> Look:
        """How a class is shown, the same in all parts of the report."""
        place = max(0, label - 1)
        colour = {0: NORMAL_COLOUR, -1: UNKNOWN_COLOUR}.get(label, COLOURS[place % len(COLOURS)])
        name = self.names.get(label, "") or f"class {label}"
        return Look(label, name, colour, SHAPES[place % len(SHAPES)], f"class-{label}".replace("--", "-unknown-"))

    @cached_property
    def labels(self) -> list[int]:
        """Classes with an image or a region: defects first as numbered, then normal, then unknown."""
        found = {int(label) for table in (self.images, self.regions) for label in table["label"]}
        return sorted(found, key=lambda label: (label <= 0, abs(label)))

    @cached_property
    def features(self) -> RegionFeatures | None:
        """Of the regions, where the run still holds them and a model to read them with."""
        try:
            model = DiscoveryModel.read(self.run, device="cpu")
            if model.classifier is None:
                return None
            store = RegionStore(RunFolder(self.run)).read(len(read_csv(self.run / MANIFEST)))
            retrained = self.run / RETRAINED
            parts: Any = safetensors.numpy.load_file(retrained) if model.classifier.last_block else store.parts
            vectors = model.classifier.space.transform(parts)
            probabilities = model.region_probabilities(parts, store.regions)
        except (RunError, OSError, KeyError, SafetensorError):
            return None
        place = {(region.image, region.region): row for row, region in enumerate(store.regions)}
        known = [place.get(key, -1) for key in zip(self.regions["image"], self.regions["region"], strict=True)]
        rows = np.flatnonzero(np.array(known, dtype=np.int64) >= 0)
        own = np.array(known, dtype=np.int64)[rows]
        return RegionFeatures(rows, vectors[own], probabilities[own], tuple(model.classes.tolist()))

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """(R,) how near each region is to the middle of its class, −1 … 1; 0 where features are not known."""
        out = np.zeros(len(self.regions))
        if self.features is None:
            return out
        labels = self.regions["label"].to_numpy()[self.features.rows]
        for label in np.unique(labels):
            vectors = self.features.vectors[labels == label]
            middle = vectors.mean(axis=0)
            length = float(np.linalg.norm(middle))
            out[self.features.rows[labels == label]] = vectors @ middle / length if length else 0
        return out

    @cached_property
    def second(self) -> dict[int, str]:
        """Row of regions.csv → the next likely class in words, where there is one."""
        if self.features is None:
            return {}
        rows, classes = self.features.rows.tolist(), self.features.classes
        labels = self.regions["label"].to_numpy()
        found = (
            (row, self.runner_up(dict(zip(classes, chances, strict=True)), int(labels[row])))
            for row, chances in zip(rows, self.features.probabilities.tolist(), strict=True)
        )
        return {row: words for row, words in found if words}

    def runner_up(self, chances: Mapping[int, float], label: int) -> str:
        """`or dent (0.31)`: the likeliest class but `label`, empty where it has next to no chance."""
        others = {other: chance for other, chance in chances.items() if other != label}
        best = max(others, key=others.__getitem__, default=None)
        if best is None or not others[best] >= NOTEWORTHY:  # nor for NaN
            return ""
        return f"or {self.look(best).name} ({others[best]:.2f})"

    def crop(self, row: int) -> Shot:
        """A region of regions.csv: its stored crop with the region's contour."""
        region = self.regions.iloc[row]
        picture, mask = (
            read_crop(self.run / str(region["crop"])) if isinstance(region.get("crop"), str) else (None, None)
        )
        drawn = None
        if picture is not None:
            small = fitted(picture, CROP_SIDE)
            drawn = overlay(small, None, mask if mask is None or mask.any() else None, low=0, high=1)
        name = self.look(int(region["label"])).name
        chance = f"{region['probability']:.2f}"
        alt = f"Region {region['region']} of {region['image']}: {name}, probability {chance}"
        lines = [chance] + [words for words in (self.second.get(row, ""),) if words]
        return Shot(self.album.add(drawn), alt, str(region["image"]), tuple(lines))

    def whole(self, name: str, lines: Iterable[str], *, heat: bool = True, side: int = IMAGE_SIDE) -> Shot:
        """An image with its map, unless `heat` is False, and the contour of each region in the colour of its class."""
        image, mask = self.stored.image(name), self.stored.mask(name)
        drawn = None
        if image is not None:
            low, high = self.stored.range or (0.0, 0.0)
            values = self.stored.map(name) if heat and self.stored.range is not None else None
            drawn = overlay(fitted(image, side), values, None, low=low, high=high)
            if mask is not None:
                rows = self._rows.get(name, self.regions.iloc[:0])
                scale = drawn.shape[1] / image.shape[1], drawn.shape[0] / image.shape[0]
                boxes = rows[["x", "y", "width", "height"]].to_numpy(float) * np.tile(scale, 2)
                _outline(drawn, mask, boxes, [self.look(int(label)).colour for label in rows["label"]])
        return Shot(self.album.add(drawn), f"Image {name} with the regions found in it", name, tuple(lines))

    def truth(self, label: int) -> str:
        """Where folders tell: the commonest true label of a class's images, and its share."""
        if "true_label" not in self.images:
            return ""
        counts = self.images.loc[self.images["label"] == label, "true_label"].value_counts()
        return f"{counts.index[0]} ({100 * counts.iloc[0] / counts.sum():.0f} %)" if len(counts) else ""


def _outline(picture: Picture, mask: NDArray[np.bool_], boxes: NDArray[np.float64], colours: Sequence[str]) -> None:
    """A line around each part of the mask, in the colour of the smallest box (x, y, width, height) that holds its middle."""
    covered = resized_mask(mask, picture.shape[:2])
    n_parts, parts, _, middles = cv2.connectedComponentsWithStats(covered.astype(np.uint8), connectivity=8)
    by_size = np.argsort(boxes[:, 2] * boxes[:, 3], kind="stable")
    for part in range(1, n_parts):
        x, y = middles[part]
        holds = (
            k for k in by_size if -1 <= x - boxes[k, 0] <= boxes[k, 2] + 1 and -1 <= y - boxes[k, 1] <= boxes[k, 3] + 1
        )
        k = next(holds, None)
        colour = UNKNOWN_COLOUR if k is None else colours[k]
        near = cv2.dilate((parts == part).astype(np.uint8), np.ones((5, 5), np.uint8))
        contours, _ = cv2.findContours(near, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(picture, contours, -1, (0, 0, 0), 4)  # whatever the ground, one of the two lines shows
        cv2.drawContours(picture, contours, -1, tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5)), 2)


def counted(table: pd.DataFrame, label: int) -> int:
    """Rows of a class."""
    return int((table["label"] == label).sum())
