"""Parts of the report: a card for each class with its pictures and charts, and lists of images that deserve a look."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..labels import NORMAL
from ..metrics import Evaluation
from .source import Look, ReportSource, Shot, image_chances

REPRESENTATIVE, BORDERLINE, WHOLE = 12, 6, 3
MOST_PICTURES = 1_200  # of all cards together: with many classes each shows fewer
MOST_LISTED = 24  # images shown of a list
MOST_PAIRS, MOST_OF_A_PAIR = 8, 6  # of a true label and a class that is not matched to it
UNSURE = 0.6  # an image whose class is less probable is uncertain
FAR = 0.5  # unknown score above which an image is further off than known regions should be
SIDE = 240  # px, of a listed image
Row = dict[Any, Any]
ImageList = tuple[list[Shot], int]  # the first images of a list, and how many there are in all
WIDTH, HEIGHT = 240.0, 80.0  # of a small chart, in units of its own
LOSS_WIDTH, LOSS_HEIGHT = 640.0, 200.0
CELLS = 12  # of the frame's longer side
MOST_DOTS = 300
Array = npt.NDArray[np.float64]
Floats = npt.ArrayLike
# Histogram: `bars` (x, y, width, height, what it counts) on WIDTH × HEIGHT, `low` and `high` under the ends of its axis,
# `about` all. Places: a frame of `width` × `height`, `cells` (x, y, side, share 0 … 1), `dots` as an SVG path, and `about`.
Chart = dict[str, Any]
Curve = tuple[str, str, float, float]  # name, SVG path on LOSS_WIDTH × LOSS_HEIGHT, first and last value


class Card:
    """One class, its pictures read one by one.

    Attributes
    ----------
    share : of all images, 0 … 1
    truth : the commonest true label, where folders tell
    note : what is special about the class
    representative, borderline, whole : pictures of regions, of doubtful regions, and of images
    area, place, confidence : charts
    median_probability : of its regions, or of its images where they are normal
    """

    def __init__(self, source: ReportSource, label: int) -> None:
        members = source.regions[source.regions["label"] == label]
        own = source.images[source.images["label"] == label]
        n_first, n_last, n_whole = shares(len(source.labels))
        first, last = choose(members, source.typical[members.index], n_first, n_last)
        areas = source.regions["area"].to_numpy(float)
        smallest, largest = (areas.min(), areas.max()) if len(areas) else (1.0, 1.0)
        sure = (own if label == NORMAL else members)["probability"].to_numpy(float)
        self.look, self.truth = source.look(label), source.truth(label)
        self.n_images, self.n_regions = len(own), len(members)
        self.share = len(own) / max(1, len(source.images))
        self.note = _note(label, len(own), len(members))
        self.representative = [source.crop(row) for row in first]
        self.borderline = [source.crop(row) for row in last]
        self.whole = _whole_images(source, own, label, n_whole)
        self.area = area(areas[members.index], smallest, largest)
        self.place = places(*_centres(source, members))
        self.confidence = confidence(sure)
        self.median_probability = float(np.median(sure)) if len(sure) else None


def shares(n_classes: int) -> tuple[int, int, int]:
    """Representative, borderline and whole pictures of each card.

    Examples
    --------
    >>> shares(5), shares(300), shares(2000)
    ((12, 6, 3), (3, 1, 0), (0, 0, 0))
    """
    each = MOST_PICTURES // max(1, n_classes)
    borderline = min(BORDERLINE, each // 3)
    return min(REPRESENTATIVE, each - borderline), borderline, min(WHOLE, each // 6)


def choose(members: pd.DataFrame, typical: npt.ArrayLike, n_first: int, n_last: int) -> tuple[list[int], list[int]]:
    """Rows of the surest regions, one of an image as long as there are enough, and of the least sure ones, worst first.

    Among equally sure regions the nearest to the middle of the class comes first. No region is in both lists, and with
    few of them all are in the first.

    Parameters
    ----------
    members : rows of regions.csv; typical : (R,) nearness of each

    Examples
    --------
    >>> table = pd.DataFrame({"image": list("aab"), "region": [0, 1, 0], "probability": [0.9, 0.8, 0.3]})
    >>> choose(table, [0, 0, 0], 2, 1), choose(table, [0, 0, 0], 5, 1)
    (([0, 1], [2]), ([0, 2, 1], []))
    """
    ranked = members.assign(typical=np.asarray(typical, float)).sort_values(
        ["probability", "typical", "image", "region"], ascending=[False, False, True, True], kind="stable"
    )
    n_last = max(0, min(n_last, len(ranked) - n_first))
    last = ranked.index[::-1][:n_last].tolist()
    rest = ranked.drop(index=last)
    again = rest["image"].duplicated()
    return [*rest.index[~again], *rest.index[again]][:n_first], last


def _whole_images(source: ReportSource, own: pd.DataFrame, label: int, most: int) -> list[Shot]:
    """Whole images with a few words: the surest of a defect, the most doubtful of the normal ones."""
    key, words = ("score", "highest map value {:.2f}") if label == NORMAL else ("probability", "{:.2f}")
    ranked = own.sort_values([key, "image"], ascending=[False, True], kind="stable").head(most)
    return [source.whole(name, [words.format(value)]) for name, value in zip(ranked["image"], ranked[key], strict=True)]


def _centres(source: ReportSource, members: pd.DataFrame) -> tuple[pd.Series, pd.Series, float]:
    """Centres of the regions on 0 … 1 of their images, and the usual aspect of an image."""
    read = source.files[source.files[["height", "width"]].min(axis=1) > 0]
    aspect = float((read["width"] / read["height"]).median()) if len(read) else 1.0
    width, height = (read[side].reindex(members["image"]).fillna(np.inf).to_numpy() for side in ("width", "height"))
    x = (members["x"] + members["width"] / 2) / width
    y = (members["y"] + members["height"] / 2) / height
    return x, y, aspect


def _note(label: int, n_images: int, n_regions: int) -> str:
    if label == NORMAL and n_regions:
        return "Regions of this class are taken for false alarms; most normal images have no region at all."
    if label == NORMAL:
        return "No region was found in these images."
    if label < NORMAL:
        return "Far from every class: look at these, they may be a class of their own."
    if not n_images and n_regions:
        return "It shows beside other classes only: no image is of this class as a whole."
    return ""


def mistakes(source: ReportSource, found: Evaluation) -> list[tuple[str, Look, str, ImageList]]:
    """Where classes and labels differ, the commonest pairs first, the surest images of each.

    Returns
    -------
    True label, class that is matched to another one, kind (missed, false alarm or confused), and images
    """
    images = source.images[source.images["true_label"].notna()]
    wrong = images[images["label"].map(found.matching) != images["true_label"]]
    pairs = sorted(wrong.groupby(["true_label", "label"]), key=lambda pair: (-len(pair[1]), pair[0]))
    out = []
    for (name, label), rows in pairs[:MOST_PAIRS]:
        false_alarm = found.matching.get(NORMAL) == name
        kind = "missed" if label == NORMAL else "false alarm" if false_alarm else "confused"
        rows = rows.sort_values(["probability", "image"], ascending=[False, True], kind="stable")
        shown = _listed(source, rows, lambda row: _doubt(source, row), most=MOST_OF_A_PAIR)
        out.append((str(name), source.look(int(str(label))), kind, shown))
    return out


def several_classes(source: ReportSource) -> ImageList:
    """Images with regions of more than one defect class, those with the most first; their contours in class colours."""
    found = source.images["classes"].fillna("").map(_labels)
    chosen = source.images.assign(found=found, count=found.map(len))
    chosen = chosen[chosen["count"] > 1].sort_values(["count", "image"], ascending=[False, True], kind="stable")
    return _listed(source, chosen, lambda row: [" + ".join(source.look(k).name for k in row["found"])], heat=False)


def uncertain(source: ReportSource) -> ImageList:
    """Images whose class is not much more probable than another, the least sure first."""
    chosen = source.images[(source.images["probability"] < UNSURE) & (source.images["label"] >= NORMAL)]
    chosen = chosen.sort_values(["probability", "image"], kind="stable")
    return _listed(source, chosen, lambda row: _doubt(source, row))


def unknown(source: ReportSource) -> ImageList:
    """Images that lie far from every class: labelled unknown, or further off than known regions should be."""
    images = source.images
    chosen = images.assign(far=images["unknown"].fillna(0.0), known=images["label"] >= NORMAL)
    chosen = chosen[~chosen["known"] | ((chosen["far"] > FAR) & (chosen["label"] != NORMAL))]
    chosen = chosen.sort_values(["known", "far", "image"], ascending=[True, False, True], kind="stable")
    return _listed(source, chosen, lambda row: [_class(source, row), f"unknown {row['far']:.2f}" if row["far"] else ""])


def _listed(
    source: ReportSource, rows: pd.DataFrame, words: Callable[[Row], list[str]], *, heat: bool = True, most: int = 0
) -> ImageList:
    shown = rows.head(most or MOST_LISTED).to_dict("records")
    shots = [source.whole(str(row["image"]), filter(None, words(row)), heat=heat, side=SIDE) for row in shown]
    return shots, len(rows)


def _doubt(source: ReportSource, row: Row) -> list[str]:
    return [_class(source, row), source.runner_up(image_chances(row), int(row["label"]))]


def _class(source: ReportSource, row: Row) -> str:
    return f"{source.look(int(row['label'])).name} ({row['probability']:.2f})"


def _labels(classes: str) -> list[int]:
    """`2;1` as numbers, normal left out."""
    return [int(label) for label in str(classes).split(";") if label.lstrip("-").isdigit() and label != "0"]


def confidence(values: Floats) -> Chart:
    """Probabilities 0 … 1 in twenty bars.

    Examples
    --------
    >>> chart = confidence([0.99, 1.0, 0.12])
    >>> [title for *_, title in chart["bars"]], chart["about"]
    (['0.10 to 0.15: 1', '0.95 to 1.00: 2'], 'median 0.99, from 0.12 to 1.00')
    """
    return _histogram(np.asarray(values, float), np.linspace(0, 1, 21), "{:.2f}", ("0", "1"))


def area(values: Floats, low: float, high: float) -> Chart:
    """Areas in pixels on a logarithmic axis from `low` to `high`, the same for all classes so that they compare.

    Examples
    --------
    >>> area([10, 1000], 10, 1000)["about"]
    'median 505 px, from 10 px to 1,000 px'
    """
    first, last = (float(np.log10(max(end, 1e-6))) for end in (low, high))
    if last - first < 1e-3:
        first, last = first - 0.5, last + 0.5
    edges = np.logspace(first, last, 17)
    clipped = np.clip(np.asarray(values, float), edges[0], edges[-1])
    return _histogram(clipped, edges, "{:,.0f} px", (f"{edges[0]:,.0f} px", f"{edges[-1]:,.0f} px"))


def _histogram(values: Array, edges: Array, figure: str, ends: tuple[str, str]) -> Chart:
    names = [figure.format(edge).removesuffix(" px") for edge in edges]
    counts, _ = np.histogram(values, edges)
    step, tallest = WIDTH / len(counts), max(1, int(counts.max(initial=0)))
    bars = [
        (_n(k * step + 0.5), _n(HEIGHT - height), _n(step - 1), _n(height), f"{names[k]} to {names[k + 1]}: {count}")
        for k, count in enumerate(counts.tolist())
        if (height := max(2.0, count / tallest * HEIGHT)) and count
    ]
    about = "no region"
    if len(values):
        median, least, most = (figure.format(value) for value in (np.median(values), values.min(), values.max()))
        about = f"median {median}, from {least} to {most}" if least != most else f"all {median}"
    return {"bars": bars, "low": ends[0], "high": ends[1], "about": about}


def places(x: Floats, y: Floats, aspect: float) -> Chart:
    """Centres 0 … 1 in the image frame; aspect : its width by its height.

    Examples
    --------
    >>> chart = places([0.5, 0.5], [0.25, 0.25], 2.0)
    >>> chart["width"], chart["height"], chart["cells"], chart["about"]
    (120.0, 60.0, [(60, 10, 10, 1.0)], 'centred at 50 % from the left and 25 % from the top')
    """
    across, down = (np.clip(np.asarray(values, float), 0, 1) for values in (x, y))
    aspect = float(np.clip(aspect, 1 / 4, 4))
    side = 120.0 / CELLS
    width, height = (120.0, 120.0 / aspect) if aspect >= 1 else (120.0 * aspect, 120.0)
    columns, rows = max(1, round(width / side)), max(1, round(height / side))
    height, width = rows * side, columns * side
    counts, _, _ = np.histogram2d(down, across, (rows, columns), ((0, 1), (0, 1)))
    share = counts / max(1.0, counts.max(initial=0))
    cells = [(_n(c * side), _n(r * side), _n(side), round(float(share[r, c]), 2)) for r, c in np.argwhere(counts)]
    shown = np.linspace(0, len(across) - 1, min(MOST_DOTS, len(across))).round().astype(int)
    dots = "".join(f"M{_n(across[k] * width)} {_n(down[k] * height)}h0" for k in shown)
    about = "no region"
    if len(across):
        middle = [f"{100 * np.median(values):.0f} %" for values in (across, down)]
        about = f"centred at {middle[0]} from the left and {middle[1]} from the top"
    return {"width": width, "height": height, "cells": cells, "dots": dots, "about": about}


def loss_curves(history: Sequence[Mapping[str, float]]) -> tuple[list[Curve], float, float]:
    """The loss and its terms by epoch, and the ends of the vertical axis; terms that are 0 throughout are left out.

    Examples
    --------
    >>> curves, low, high = loss_curves([{"epoch": 0, "loss": 3.0}, {"epoch": 1, "loss": 1.0}])
    >>> curves, low, high
    ([('loss', 'M0 0L640 200', 3.0, 1.0)], 1.0, 3.0)
    """
    names = [name for name in (history[0] if history else ()) if name not in ("epoch", "n")]
    values = {name: np.array([row[name] for row in history], float) for name in names}
    values = {name: line for name, line in values.items() if np.isfinite(line).all() and line.any()}
    if not values:
        return [], 0.0, 0.0
    low, high = min(line.min() for line in values.values()), max(line.max() for line in values.values())
    scale = LOSS_HEIGHT / (high - low) if high > low else 0.0
    step = LOSS_WIDTH / max(1, len(history) - 1)
    curves = []
    for name, line in values.items():
        points = [f"{_n(k * step)} {_n((high - value) * scale)}" for k, value in enumerate(line)]
        points = points if len(points) > 1 else [points[0], f"{_n(LOSS_WIDTH)} {points[0].split()[1]}"]
        curves.append((name, "M" + "L".join(points), float(line[0]), float(line[-1])))
    return curves, float(low), float(high)


def _n(value: Any) -> float | int:
    """A coordinate with one digit: enough for the eye, and short."""
    rounded = round(float(value), 1)
    return int(rounded) if rounded.is_integer() else rounded
