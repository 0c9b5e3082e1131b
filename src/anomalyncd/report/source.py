"""How a run looks in its report: colour, mark and name of each class, and pictures of its regions and images."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ..errors import RunError
from ..labels import NORMAL, UNKNOWN, default_name
from ..large import Rows, at, blocks, is_large, sums_by
from ..learn.rows import vectors
from ..run.finished import FinishedRun
from .canvas import Mask, Picture, fitted, overlay, resized_mask

# Each stands out from the light and from the dark page; grey is for normal images.
COLOURS = ("#2f7ed8", "#d9650f", "#2e9e4f", "#d8434e", "#9467d6", "#1797a6", "#a9713a", "#d0509a", "#8a8f1f")
NORMAL_COLOUR, UNKNOWN_COLOUR = "#7a8796", "#b8860b"
SHAPES = ("circle", "square", "diamond", "triangle")
NOTEWORTHY = 0.05  # probability of another class that is worth a word
CROP_SIDE = 160
IMAGE_SIDE = 320
QUALITY = 78
LIMIT = 22_000_000  # characters of all data URIs: with text and charts a report stays well under 30 MB


@dataclass(frozen=True)
class Shot:
    """A picture of a page: its data URI (None: gone, or left out), what it shows, and lines under it."""

    uri: str | None
    alt: str
    title: str = ""
    lines: tuple[str, ...] = ()


class Album:
    """Encodes pictures one by one and counts their bytes; past the limit it leaves them out and counts those.

    Examples
    --------
    >>> album = Album(limit=600)
    >>> uri = album.add(np.zeros((8, 8, 3), np.uint8))
    >>> uri.startswith("data:image/webp;base64,"), album.add(None), album.left_out
    (True, None, 0)
    >>> noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    >>> album.add(noise), album.left_out
    (None, 1)
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit, self.size, self.left_out = limit, 0, 0

    def add(self, picture: Picture | None, quality: int = QUALITY) -> str | None:
        """(H, W, 3) uint8 RGB as a data URI; None for no picture, or where the page would become too large."""
        if picture is None:
            return None
        _, data = cv2.imencode(".webp", picture[..., ::-1], [cv2.IMWRITE_WEBP_QUALITY, quality])
        uri = "data:image/webp;base64," + base64.b64encode(data.tobytes()).decode("ascii")
        if self.size + len(uri) > self.limit:
            self.left_out += 1
            return None
        self.size += len(uri)
        return uri


@dataclass(frozen=True)
class Look:
    """A class on the page: its number, name, colour, mark, and the anchor of its card."""

    label: int
    name: str
    colour: str
    shape: str
    anchor: str


class ReportSource:
    """A finished run as the report shows it. Missing images, maps and crops are None or left out, never an error.

    Attributes
    ----------
    images : images.csv, with the highest map value of each image in the column `score`
    regions : regions.csv
    files : manifest.csv by the name of the image
    album : of all pictures on the page
    """

    def __init__(self, run: FinishedRun) -> None:
        for table, columns in (
            ("images", ("probability", "classes", "n_regions", "unknown")),
            ("manifest", ("score",)),
        ):
            if missing := [column for column in columns if column not in getattr(run, table)]:
                raise RunError(
                    f"{run.path / table}.csv: expected the table of a run, but it has no column {missing[0]}."
                )
        self.run, self.album, self.regions = run, Album(), run.regions
        self.files = run.manifest.drop_duplicates("image").set_index("image")
        self.images = run.images.assign(score=self.files["score"].reindex(run.images["image"]).to_numpy())
        self._rows = self.regions.groupby("image", sort=False).indices  # image → places of its regions

    def look(self, label: int) -> Look:
        """How a class is shown, the same in all parts of the report."""
        place = max(0, label - 1)
        colour = {NORMAL: NORMAL_COLOUR, UNKNOWN: UNKNOWN_COLOUR}.get(label, COLOURS[place % len(COLOURS)])
        name = self.run.names.get(label, default_name(label))
        return Look(label, name, colour, SHAPES[place % len(SHAPES)], f"class-{label}".replace("--", "-unknown-"))

    @cached_property
    def labels(self) -> list[int]:
        """Classes with an image or a region: defects first as numbered, then normal, then unknown."""
        found = {int(label) for table in (self.images, self.regions) for label in table["label"]}
        return sorted(found, key=lambda label: (label <= 0, abs(label)))

    @cached_property
    def scale(self) -> tuple[float, float] | None:
        """(low, high) of the colours of all maps; None where there are no maps, or no model that knows their range."""
        with suppress(RunError):
            return self.run.range
        return None

    @cached_property
    def vectors(self) -> Rows | None:
        """(R, D) unit features of the regions, where the run still holds them and a model to read them with."""
        with suppress(RunError, KeyError):
            classifier = self.run.model.classifier
            return None if classifier is None else vectors(classifier.space, self.run.features)
        return None

    @cached_property
    def typical(self) -> NDArray[np.float64]:
        """(R,) how near each region is to the middle of its class, −1 … 1; 0 where features are not known."""
        out = np.zeros(len(self.regions))
        if self.vectors is None:
            return out
        labels = self.regions["label"].to_numpy()
        for label in np.unique(labels):
            own = np.flatnonzero(labels == label)
            members = at(self.vectors, own)
            if is_large(members):
                middle = np.float32(sums_by(members, np.zeros(len(own), np.int64), 1)[0] / len(own))
                cosines = np.concatenate([members[rows] @ middle for rows in blocks(len(own))])
            else:
                some = members[:]
                middle = some.mean(axis=0)
                cosines = some @ middle
            length = float(np.linalg.norm(middle))
            out[own] = cosines / length if length else 0
        return out

    @cached_property
    def _chances(self) -> NDArray[np.float64] | None:
        """(R, K) probabilities; None where features are not known."""
        if self.vectors is None:
            return None
        return self.run.model.region_probabilities(self.run.features, self.run.store.regions, self.run.store.images)

    def chances(self, row: int) -> dict[int, float]:
        """Class → probability for a row of regions.csv; empty where features are not known."""
        if self._chances is None:
            return {}
        return dict(zip(self.run.model.classes.tolist(), self._chances[row].tolist(), strict=True))

    def runner_up(self, chances: Mapping[int, float], label: int, at_least: float = NOTEWORTHY) -> str:
        """`or dent (0.31)`: the likeliest class but `label`, empty where it has next to no chance."""
        others = {other: chance for other, chance in chances.items() if other != label}
        best = max(others, key=others.__getitem__, default=None)
        if best is None or not others[best] >= at_least:  # nor for NaN
            return ""
        return f"or {self.look(best).name} ({others[best]:.2f})"

    def crop(self, row: int) -> Shot:
        """A region of regions.csv: its stored crop with the region's contour."""
        region = self.regions.iloc[row]
        label, chance = int(region["label"]), f"{region['probability']:.2f}"
        picture, mask = self.run.crop(row)
        drawn = None if picture is None else overlay(fitted(picture, CROP_SIDE), None, mask)
        alt = f"Region {region['region']} of {region['image']}: {self.look(label).name}, probability {chance}"
        lines = filter(None, (chance, self.runner_up(self.chances(row), label)))
        return Shot(self.album.add(drawn), alt, str(region["image"]), tuple(lines))

    def whole(self, name: str, lines: Iterable[str], *, heat: bool = True, side: int = IMAGE_SIDE) -> Shot:
        """An image with its map, unless `heat` is False, and the contour of each region in the colour of its class."""
        image, mask = self.run.image(name), self.run.mask(name)
        drawn = None
        if image is not None:
            low, high = self.scale or (0, 0)
            drawn = overlay(fitted(image, side), self.run.map(name) if heat else None, None, low=low, high=high)
            if mask is not None:
                rows = self.regions.iloc[self._rows.get(name, [])]
                scale = drawn.shape[1] / image.shape[1], drawn.shape[0] / image.shape[0]
                boxes = rows[["x", "y", "width", "height"]].to_numpy(float) * np.tile(scale, 2)
                outline(drawn, mask, boxes, [self.look(int(label)).colour for label in rows["label"]])
        return Shot(self.album.add(drawn), f"Image {name} with the regions found in it", name, tuple(lines))

    def truth(self, label: int, words: str = "{} ({:.0f} %)") -> str:
        """Where folders tell: the commonest true label of a class's images, and its share."""
        if "true_label" not in self.images:
            return ""
        counts = self.images.loc[self.images["label"] == label, "true_label"].value_counts()
        return words.format(counts.index[0], 100 * counts.iloc[0] / counts.sum()) if len(counts) else ""


def image_chances(row: Mapping[Any, Any]) -> dict[int, float]:
    """Class → probability of a row of images.csv."""
    return {int(key[2:]): float(value) for key, value in row.items() if str(key).startswith("p_")}


def outline(picture: Picture, mask: Mask, boxes: NDArray[np.float64], colours: Sequence[str]) -> None:
    """A line around each part of the mask, in the colour of the smallest box (x, y, width, height) that holds its middle."""
    covered = resized_mask(mask, picture.shape[:2])
    n_parts, parts, _, middles = cv2.connectedComponentsWithStats(covered.astype(np.uint8), connectivity=8)
    by_size = np.argsort(boxes[:, 2] * boxes[:, 3], kind="stable")
    corners, sizes = boxes[by_size, :2], boxes[by_size, 2:]
    for part in range(1, n_parts):
        inside = (middles[part] >= corners - 1) & (middles[part] <= corners + sizes + 1)
        holds = by_size[inside.all(axis=1)]
        colour = colours[holds[0]] if len(holds) else UNKNOWN_COLOUR
        near = cv2.dilate((parts == part).astype(np.uint8), np.ones((5, 5), np.uint8))
        contours, _ = cv2.findContours(near, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(picture, contours, -1, (0, 0, 0), 4)  # whatever the ground, one of the two lines shows
        cv2.drawContours(picture, contours, -1, tuple(bytes.fromhex(colour[1:])), 2)
