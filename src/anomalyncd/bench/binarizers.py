"""MEBin beside its rivals on the same maps, as in the paper's appendix: where each of them cuts, and what it finds."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..binarize import Binarizer, BinarizeResult, FixedThreshold, MEBin, Otsu
from ..binarize.prepare import binarizer_for, prepare_map
from ..config import make_config, read_config
from ..data.dataset import Sample
from ..errors import BadFileError, DataError
from ..report.canvas import (
    BACKGROUND,
    FAINT,
    INK,
    RULE,
    Picture,
    centred,
    fitted,
    font,
    message_tile,
    shorten,
    to_png,
    wrap,
)
from ..report.overlay import heat, resized_mask
from ..report.stored import PICTURES, StoredPictures
from ..run.folder import RunFolder

SIDE = 176
GAP = 8
MARGIN = 32
LABEL_WIDTH = 190
CAPTION = 26
HEADER = 134
ROW_PADDING = 8
FIXED = (0.3, 0.5, 0.7)  # the paper's
FOUND = (255, 255, 255)
FALSE_ALARM = (255, 122, 26)
MISSED = (64, 140, 255)
DIMMED = 0.55  # of the image's brightness under a mask picture


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
        warnings.simplefilter("ignore", UserWarning)  # of holes in maps, which `heat` leaves empty
        otsu = Otsu().fit(maps)
        mebin = (mebin or MEBin()).fit(maps)
    # Both scale by the ends of all maps: no need to read them again.
    rivals = {f"fixed {level}": FixedThreshold(level).set_state(otsu.get_state()) for level in FIXED}
    return {"Otsu": otsu, **rivals, "MEBin": mebin}


def compare_binarizers(
    rows: Sequence[MapRow], binarizers: Mapping[str, Binarizer], *, low: float, high: float
) -> Picture:
    """Draw a row an image: the image, its true mask, its map, and the mask of each binariser with its threshold.

    Args:
        rows: at least one. Where no row knows the truth, that column is left out.
        binarizers: fitted, by the heading of their column, such as `fit_binarizers` gives.
        low, high: the scale of the picture, usually the ends of all maps: colours span it, and thresholds are on it.

    Returns:
        (H, W, 3) uint8 RGB, 1734 px wide with the paper's five binarisers and truth.

    Example:
        >>> row = MapRow("a.png", np.zeros((9, 9, 3), np.uint8), np.eye(9, dtype=bool), np.eye(9))
        >>> compare_binarizers([row], fit_binarizers([np.eye(9)]), low=0, high=1).shape
        (376, 1734, 3)
    """
    if not rows:
        raise DataError("expected at least one image to compare binarisers on, but got none.")
    has_truth = any(row.truth is not None for row in rows)
    headings = ["image", *(["truth"] if has_truth else []), "map", *binarizers]
    left = MARGIN + LABEL_WIDTH + 2 * GAP
    row_height = SIDE + CAPTION + 2 * ROW_PADDING
    width = left + len(headings) * (SIDE + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", (width, HEADER + len(rows) * row_height + MARGIN - ROW_PADDING), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN), "Where to cut an anomaly map", INK, font(26, bold=True))
    about = f"Thresholds are on the scale of all maps: 0 is {low:.3g}, 1 is {high:.3g} in the map's own units."
    draw.text((MARGIN, MARGIN + 40), about, FAINT, font(15))
    if has_truth:
        _draw_legend(draw, width)
    for column, heading in enumerate(headings):
        letters = font(16, bold=True)
        middle = left + column * (SIDE + GAP) + SIDE // 2
        draw.text((middle, HEADER - 18), shorten(heading, letters, SIDE), INK, letters, anchor="mm")
    for number, row in enumerate(rows):
        top = HEADER + number * row_height
        draw.line([(MARGIN, top), (width - MARGIN, top)], RULE)
        _draw_title(draw, row.title, top + ROW_PADDING)
        for column, (tile, caption) in enumerate(_tiles(row, binarizers, has_truth, low, high)):
            x, y = left + column * (SIDE + GAP), top + ROW_PADDING
            sheet.paste(Image.fromarray(tile), (x, y))
            draw.text((x + SIDE // 2, y + SIDE + 12), caption, FAINT, font(13), anchor="mm")
    return np.array(sheet)


def draw_binarizers(run: Path, items: Sequence[Sample] = (), *, n_images: int = 8) -> Path | None:
    """Compare MEBin with its rivals on images of a run, spread evenly over its list.

    Parameters
    ----------
    run : folder of a finished run
    items : the images as the run got them, with their maps if these came from outside; the run keeps only their names.
        Their masks, if there are any, are the truth: `gather(images, masks=ground_truth).items`.
    n_images : rows of the picture

    Returns
    -------
    The file, `pictures/binarizers.png` in the run folder, or None where the run has no maps.
    """
    stored = StoredPictures(run, items)
    config = make_config(read_config(run / "config.yaml"))
    min_size = config.binarize.min_map_size
    ends = {}  # of each map: all that a binariser learns from it, and small enough to keep
    for name in stored.images["image"]:
        if (values := _prepared(stored.map(name), min_size)) is not None:
            ends[name] = np.array([[np.nanmin(values), np.nanmax(values)]])
    if not ends:
        return None
    mebin = binarizer_for(config.binarize.model_copy(update={"method": "mebin"}), has_normal=config.has_normal)
    binarizers = fit_binarizers(list(ends.values()), mebin)
    names = list(ends)
    found = dict(zip(stored.images["image"], stored.images["class_name"], strict=True))
    n_rows = min(n_images, len(names))
    rows = []
    for name in (names[(2 * place + 1) * len(names) // (2 * n_rows)] for place in range(n_rows)):
        values = _prepared(stored.map(name), min_size)
        assert values is not None
        rows.append(MapRow(f"{name}\nfound: {found[name]}", stored.image(name), stored.truth(name), values))
    scale = binarizers["Otsu"]
    sheet = compare_binarizers(rows, binarizers, low=scale.low_, high=scale.high_)
    RunFolder(run).write(f"{PICTURES}/binarizers.png", to_png(sheet))
    return run / PICTURES / "binarizers.png"


def _prepared(values: NDArray[np.float32] | None, min_size: int) -> NDArray[np.float32] | None:
    """A map as the run binarised it; None where there is none or nothing in it is finite."""
    try:
        return None if values is None else prepare_map(values, min_size)
    except BadFileError:
        return None


def _draw_title(draw: ImageDraw.ImageDraw, title: str, top: int) -> None:
    name, _, more = title.partition("\n")
    letters = font(14)
    draw.text((MARGIN, top), shorten(name, letters, LABEL_WIDTH, keep_end=True), INK, letters)
    for line, words in enumerate(wrap(more, letters, LABEL_WIDTH, max_lines=5), start=1):
        draw.text((MARGIN, top + 20 * line), words, FAINT, letters)


def _tiles(
    row: MapRow, binarizers: Mapping[str, Binarizer], has_truth: bool, low: float, high: float
) -> list[tuple[Picture, str]]:
    """Tiles (SIDE, SIDE, 3) and captions of one row."""
    if row.image is None:
        ground = fitted(np.zeros((*row.anomaly_map.shape, 3), np.uint8), SIDE)
        tiles = [(message_tile("The image was not found.", SIDE), "")]
    else:
        ground = fitted(row.image, SIDE)
        tiles = [(centred(ground, SIDE), "")]
    size = ground.shape[:2]
    truth = None if row.truth is None else resized_mask(row.truth, size)
    if has_truth and truth is None:
        tiles.append((message_tile("not known", SIDE), ""))
    elif truth is not None:
        tiles.append((_mask_tile(ground, truth, truth), "" if truth.any() else "normal"))
    share, colours = heat(row.anomaly_map, size, low=low, high=high)
    finite = row.anomaly_map[np.isfinite(row.anomaly_map)]
    painted = np.where(np.isnan(share)[..., None], np.uint8(0), colours)
    peak = f"highest {_on_scale(float(finite.max()), low, high):.2f}" if finite.size else "no value"
    tiles.append((centred(painted, SIDE), peak))
    for binarizer in binarizers.values():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of holes: they are black in the map beside it
            result = binarizer.binarize(row.anomaly_map)
        tiles.append((_mask_tile(ground, resized_mask(result.mask, size), truth), _caption(result, low, high)))
    return tiles


def _mask_tile(ground: Picture, mask: NDArray[np.bool_], truth: NDArray[np.bool_] | None) -> Picture:
    """The mask over the dimmed grey image; where the truth is known, false alarms and misses have their colours."""
    grey = (ground.mean(axis=2, keepdims=True) * DIMMED).astype(np.uint8)
    picture = np.repeat(grey, 3, axis=2)
    picture[mask] = FOUND
    if truth is not None:
        picture[mask & ~truth] = FALSE_ALARM
        picture[truth & ~mask] = MISSED
    return centred(picture, SIDE)


def _caption(result: BinarizeResult, low: float, high: float) -> str:
    if result.n_regions == 0:
        return "nothing found"
    regions = f"{result.n_regions} region{'' if result.n_regions == 1 else 's'}"
    return f"at {_on_scale(result.threshold, low, high):.2f} · {regions}"


def _on_scale(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if low < high else 0.0


def _draw_legend(draw: ImageDraw.ImageDraw, width: int) -> None:
    x, y = width - MARGIN, MARGIN + 16
    for words, colour in (("missed", MISSED), ("false alarm", FALSE_ALARM), ("found", FOUND)):
        x -= round(font(14).getlength(words))
        draw.text((x, y), words, INK, font(14), anchor="lm")
        x -= 24
        draw.rectangle([x, y - 8, x + 16, y + 8], colour, outline=INK)
        x -= 22
