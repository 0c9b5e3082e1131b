"""MEBin beside its rivals on the same maps, as in the paper's appendix: where each of them cuts, and what it finds."""

from __future__ import annotations

import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from ..binarize import Binarizer, FixedThreshold, MEBin, Otsu
from ..binarize.prepare import binarizer_for, prepare_map
from ..data.dataset import Sample
from ..errors import BadFileError, DataError
from ..report.canvas import BACKGROUND, EMPTY, FAINT, INK, resized_mask
from ..run.finished import FinishedRun
from .style import to_png

INCHES = 1.6  # of a picture in the sheet
LABEL, HEADER, CAPTION = 1.8, 1.0, 0.3  # inches
FIXED = (0.3, 0.5, 0.7)  # the paper's
FOUND, FALSE_ALARM, MISSED = (255, 255, 255), (255, 122, 26), (64, 140, 255)
DIMMED = 0.55  # of the image's brightness under a mask
HEAT = matplotlib.colormaps["inferno"].with_extremes(bad="black")
Picture = NDArray[np.uint8]


@dataclass(frozen=True)
class MapRow:
    """One image to compare on.

    title : its name, and more on further lines
    image : (H, W, 3) uint8 RGB, or None where it is gone
    truth : (h, w) bool, all False for a normal product; None where nobody knows
    anomaly_map : (h, w) floats
    """

    title: str
    image: Picture | None
    truth: NDArray[np.bool_] | None
    anomaly_map: NDArray[np.floating]


def fit_binarizers(maps: Iterable[NDArray[np.floating]], mebin: Binarizer | None = None) -> dict[str, Binarizer]:
    """The paper's binarisers by the name of their column, fitted to a set of maps.

    Parameters
    ----------
    maps : (h, w) floats each, of the whole set; gone through twice, so no generator
    mebin : with settings of one's own, to be fitted; the paper's without

    Examples
    --------
    >>> list(fit_binarizers([np.eye(9)]))
    ['Otsu', 'fixed 0.3', 'fixed 0.5', 'fixed 0.7', 'MEBin']
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of holes in maps, which are black in the picture
        otsu = Otsu().fit(maps)
        mebin = (mebin or MEBin()).fit(maps)
    # Both scale by the ends of all maps: no need to read them again.
    rivals = {f"fixed {level}": FixedThreshold(level).set_state(otsu.get_state()) for level in FIXED}
    return {"Otsu": otsu, **rivals, "MEBin": mebin}


def compare_binarizers(
    rows: Sequence[MapRow], binarizers: Mapping[str, Binarizer], *, low: float, high: float
) -> Figure:
    """Draw a row an image: the image, its true mask, its map, and the mask of each binariser with its threshold.

    Parameters
    ----------
    rows : at least one; where no row knows the truth, that column is left out
    binarizers : fitted, by the heading of their column, such as `fit_binarizers` gives
    low, high : the scale of the picture, usually the ends of all maps: colours span it, and thresholds are on it

    Examples
    --------
    >>> row = MapRow("a.png", np.zeros((9, 9, 3), np.uint8), np.eye(9, dtype=bool), np.eye(9))
    >>> len(compare_binarizers([row], fit_binarizers([np.eye(9)]), low=0, high=1).axes)
    8
    """
    if not rows:
        raise DataError("expected at least one image to compare binarisers on, but got none.")
    has_truth = any(row.truth is not None for row in rows)
    headings = ["image", *["truth"] * has_truth, "map", *binarizers]
    width, height = LABEL + INCHES * len(headings), HEADER + (INCHES + CAPTION) * len(rows)
    figure = Figure(figsize=(width, height), dpi=100, facecolor=BACKGROUND)
    axes = figure.subplots(len(rows), len(headings), squeeze=False)
    figure.subplots_adjust(LABEL / width, CAPTION / height, 0.99, 1 - HEADER / height, 0.05, 1.2 * CAPTION / INCHES)
    about = f"Thresholds are on the scale of all maps: 0 is {low:.3g}, 1 is {high:.3g} in the map's own units."
    figure.suptitle(f"Where to cut an anomaly map\n{about}", x=0.01, y=1 - 0.1 / height, ha="left", color=INK)
    if has_truth:
        meaning = {"found": FOUND, "false alarm": FALSE_ALARM, "missed": MISSED}
        keys = [
            Patch(facecolor=f"#{bytes(colour).hex()}", edgecolor=INK, label=name) for name, colour in meaning.items()
        ]
        figure.legend(handles=keys, loc="upper right", ncols=3, frameon=False)
    for axis, heading in zip(axes[0], headings, strict=True):
        axis.set_title(heading, color=INK, fontsize=12, fontweight="bold")
    for line, row in zip(axes, rows, strict=True):
        words = [part for text in row.title.splitlines() for part in textwrap.wrap(text, 20)]
        line[0].set_ylabel("\n".join(words[:6]), rotation=0, ha="right", va="center", color=INK, fontsize=9)
        for axis, (picture, caption) in zip(line, _tiles(row, binarizers, has_truth, low, high), strict=True):
            axis.set(xticks=[], yticks=[], facecolor=EMPTY)
            axis.spines[:].set_visible(False)
            axis.set_xlabel(caption, color=FAINT, fontsize=9)
            if picture is not None:
                axis.imshow(picture)
    return figure


def draw_binarizers(run: Path, samples: Sequence[Sample] = (), *, n_images: int = 8) -> Path | None:
    """Compare MEBin with its rivals on images of a run, spread evenly over its list.

    Parameters
    ----------
    run : folder of a finished run
    samples : the images as the run got them, if they have moved since. Their masks, if there are any, are the truth.
    n_images : rows of the picture

    Returns
    -------
    The file, `pictures/binarizers.png` in the run folder, or None where the run has no maps.
    """
    finished = FinishedRun(run, given=samples)
    settings = finished.config.binarize
    ends = {}  # of each map: all that a binariser learns from it, and small enough to keep
    for name in finished.images["image"]:
        if (values := _prepared(finished.map(name), settings.min_map_size)) is not None:
            finite = values[np.isfinite(values)]
            ends[name] = np.array([[*([finite.min(), finite.max()] if finite.size else []), np.nanmax(values)]])
    if not ends:
        return None
    mebin = binarizer_for(settings.model_copy(update={"method": "mebin"}), has_normal=finished.config.has_normal)
    binarizers = fit_binarizers(list(ends.values()), mebin)
    names, n_rows = list(ends), min(n_images, len(ends))
    found = dict(zip(finished.images["image"], finished.images["class_name"], strict=True))
    rows = []
    for name in (names[(2 * place + 1) * len(names) // (2 * n_rows)] for place in range(n_rows)):
        values = _prepared(finished.map(name), settings.min_map_size)
        assert values is not None
        title = f"{name}\nfound: {found[name]}"
        rows.append(MapRow(title, finished.image(name), finished.true_mask(name), values))
    scale = binarizers["Otsu"]
    sheet = compare_binarizers(rows, binarizers, low=scale.low_, high=scale.high_)
    finished.folder.write("pictures/binarizers.png", to_png(sheet))
    return run / "pictures/binarizers.png"


def _prepared(values: NDArray[np.float32] | None, min_size: int) -> NDArray[np.float32] | None:
    """A map as the run binarised it; None where there is none or nothing in it is finite."""
    try:
        return None if values is None else prepare_map(values, min_size)
    except BadFileError:
        return None


def _tiles(
    row: MapRow, binarizers: Mapping[str, Binarizer], has_truth: bool, low: float, high: float
) -> Iterator[tuple[Picture | None, str]]:
    """Pictures and captions of one row; masks are as large as the map."""
    size = row.anomaly_map.shape
    ground = np.zeros((*size, 3), np.uint8)
    if row.image is not None:
        ground = cv2.resize(row.image, size[::-1], interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
    yield row.image, "" if row.image is not None else "not found"
    truth = None if row.truth is None else resized_mask(row.truth, size)
    if truth is not None:
        yield _painted(ground, truth, truth), "" if truth.any() else "normal"
    elif has_truth:
        yield None, "not known"
    span = (high - low) or 1.0
    share = (row.anomaly_map - low) / span
    finite = share[np.isfinite(share)]
    peak = f"highest {finite.max():.2f}" if finite.size else "no value"
    yield HEAT(np.ma.masked_where(np.isnan(share), share), bytes=True)[..., :3], peak
    for binarizer in binarizers.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of holes: they are black in the map beside it
            result = binarizer.binarize(row.anomaly_map)
        count = f"{result.n_regions} region{'' if result.n_regions == 1 else 's'}"
        caption = f"at {(result.threshold - low) / span:.2f} · {count}" if result.n_regions else "nothing found"
        yield _painted(ground, result.mask, truth), caption


def _painted(ground: Picture, mask: NDArray[np.bool_], truth: NDArray[np.bool_] | None) -> Picture:
    """The mask over the dimmed grey image; where the truth is known, false alarms and misses have their colours."""
    picture = np.repeat((ground.mean(axis=2, keepdims=True) * DIMMED).astype(np.uint8), 3, axis=2)
    picture[mask] = FOUND
    if truth is not None:
        picture[mask & ~truth] = FALSE_ALARM
        picture[truth & ~mask] = MISSED
    return picture
