"""Sheets of images for the paper's figures: where the network looks, what regions vote for, which values maps have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from ..report.canvas import BACKGROUND, FAINT, INK, overlay
from .style import COLOURS, DASHED

INCHES = 1.9  # of a tile
MOST_VOTES = 4  # regions of an image that are drawn
Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class AttentionRow:
    """One region; views : name → attention (h, w) and its share inside the mask, on the crop or on the whole image."""

    title: str
    crop: Picture
    whole: Picture
    views: Mapping[str, tuple[NDArray[np.float32], float]]


@dataclass(frozen=True)
class Vote:
    """What a region says: box : x, y, width, height in the image; probabilities : (K,)."""

    box: tuple[int, ...]
    probabilities: NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """An image, its regions, and its probabilities (K,) by each way of merging them."""

    title: str
    image: Picture
    votes: Sequence[Vote]
    merged: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class ValuesOf:
    """Map values of an image, as shares of the range of all maps, inside and outside its defect."""

    title: str
    inside: NDArray[np.floating]
    outside: NDArray[np.floating]

    @property
    def mean(self) -> float:
        """Of the defect."""
        return float(np.nanmean(self.inside))


def draw_attention(rows: Sequence[AttentionRow]) -> Figure:
    """A row a region: the crop, then where the class token looks in each of the views."""
    headings = ["crop", *(rows[0].views if rows else ())]
    figure, axes = _sheet(max(len(rows), 1), len(headings))
    for line, row in zip(axes, rows, strict=False):
        line[0].imshow(row.crop)
        line[0].set_ylabel(row.title, color=INK, fontsize=9)
        for axis, (name, (attention, inside)) in zip(line[1:], row.views.items(), strict=True):
            ground = row.whole if name.startswith("whole") else row.crop
            grey = np.repeat(ground.mean(axis=2, keepdims=True) * 0.8, 3, axis=2).astype(np.uint8)
            axis.imshow(overlay(grey, attention, None, low=0.0, high=float(attention.max())))
            axis.set_xlabel(f"{inside:.0%} inside", color=FAINT, fontsize=8)
    for axis, heading in zip(axes[0], headings, strict=True):
        axis.set_title(heading, color=INK, fontsize=9)
    return figure


def draw_votes(cases: Sequence[Case], classes: Sequence[str]) -> Figure:
    """A row an image: the image with its regions, what each of them says, and what they say together."""
    ways = list(cases[0].merged) if cases else []
    most = min(MOST_VOTES, max((len(case.votes) for case in cases), default=0))
    figure, axes = _sheet(max(len(cases), 1), 1 + most + len(ways), width=2.4)
    for line, case in zip(axes, cases, strict=False):
        line[0].imshow(case.image)
        line[0].set_xlabel(case.title, color=FAINT, fontsize=8)
        for number, vote in enumerate(case.votes[:most], start=1):
            x, y, width, height = vote.box
            colour = COLOURS[(number - 1) % len(COLOURS)]
            line[0].add_patch(Rectangle((x, y), width, height, fill=False, edgecolor=colour, linewidth=1.5))
            _bars(line[number], vote.probabilities, classes, f"region {number}", colour)
        for spare in line[1 + min(len(case.votes), most) : 1 + most]:
            spare.set_axis_off()
        for axis, way in zip(line[1 + most :], ways, strict=True):
            _bars(axis, case.merged[way], classes, f"image, by {way}", INK)
    return figure


def draw_values(images: Sequence[ValuesOf], detector: str) -> Figure:
    """A panel an image: how often each map value occurs on normal and on defective pixels; dashed: their means."""
    figure = Figure(figsize=(3.6 * len(images), 3.2), dpi=150, facecolor=BACKGROUND)
    figure.set_layout_engine("constrained")
    bins = [float(edge) for edge in np.linspace(0, 1, 51)]
    for place, image in enumerate(images):
        axis = figure.add_subplot(1, len(images), place + 1)
        for name, values, colour in (("normal", image.outside, COLOURS[0]), ("defect", image.inside, COLOURS[1])):
            axis.hist(np.clip(values, 0, 1), bins, density=True, color=colour, alpha=0.6, label=name)
            if np.isfinite(values).any():
                mean = float(np.nanmean(values))
                axis.axvline(mean, color=colour, linestyle=DASHED)
                axis.text(mean, 0.97, f"{mean:.2f}", color=colour, fontsize=8, transform=axis.get_xaxis_transform())
        axis.set_title(f"{detector}: {image.title}", color=INK, fontsize=9)
        axis.set_xlabel("share of the range of all maps", color=FAINT, fontsize=8)
        axis.tick_params(colors=FAINT, labelsize=8)
        axis.legend(loc="upper right", frameon=False, fontsize=8)
    return figure


def draw_pair(examples: Mapping[str, Picture | None], counts: Mapping[str, NDArray[np.int64]]) -> Figure:
    """Two classes that look alike: an image of each, and a panel a row: into which clusters their images fell.

    Parameters
    ----------
    examples : the two classes, with an image of each
    counts : row → (2, clusters)
    """
    figure, axes = _sheet(1, 2 + len(counts), width=2.4)
    for axis, (name, picture) in zip(axes[0], examples.items(), strict=False):
        if picture is not None:
            axis.imshow(picture)
        axis.set_title(name, color=INK, fontsize=9)
    for axis, (name, found) in zip(axes[0][2:], counts.items(), strict=True):
        left = np.zeros(2)
        for cluster, numbers in enumerate(found.T):
            colour = COLOURS[cluster % len(COLOURS)]
            axis.barh([0, 1], numbers, left=left, color=colour, edgecolor=BACKGROUND)
            for line in np.flatnonzero(numbers):
                axis.text(
                    left[line] + numbers[line] / 2, line, str(numbers[line]), color="white", ha="center", va="center"
                )
            left += numbers
        axis.set_yticks([0, 1], list(examples), fontsize=8)
        axis.invert_yaxis()
        axis.set_title(name, color=INK, fontsize=9)
        axis.set_xlabel("images, a colour a cluster", color=FAINT, fontsize=8)
    return figure


def confused(truth: Sequence[str], found: Sequence[int]) -> tuple[str, str] | None:
    """The two true classes that share the most images of clusters; None where there are not two.

    Examples
    --------
    >>> confused(["cut", "cut", "poke", "poke", "hole"], [1, 1, 1, 2, 3])
    ('cut', 'poke')
    """
    true, cluster = np.array(truth, object), np.array(found)
    names, numbers = sorted(set(truth)), np.unique(cluster)
    counts = {name: np.array([(cluster[true == name] == number).sum() for number in numbers]) for name in names}
    pairs = [(a, b) for place, a in enumerate(names) for b in names[place + 1 :]]
    return max(pairs, key=lambda pair: np.minimum(counts[pair[0]], counts[pair[1]]).sum(), default=None)


def _bars(axis: Any, values: NDArray[np.float64], names: Sequence[str], title: str, colour: str) -> None:
    axis.barh(range(len(values)), values, color=colour)
    axis.set_yticks(range(len(values)), names, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlim(0, 1)
    axis.set_title(title, color=INK, fontsize=8)


def _sheet(rows: int, columns: int, *, width: float = INCHES) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width * columns, INCHES * rows + 0.4), dpi=120, facecolor=BACKGROUND)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set(xticks=[], yticks=[])
        axis.spines[:].set_visible(False)
    return figure, axes
