"""The pictures that a run ends with: crops of all classes, whole images of each, and how their number was estimated."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..labels import NORMAL
from ..run.finished import FinishedRun
from ..run.folder import CLASS_SHEET
from . import canvas
from .canvas import PICTURES, Mask, Picture, centred, colours, fitted, font, overlay, save_figure, shorten, to_png, wrap
from .cards import choose
from .source import ReportSource, image_chances

PER_PAGE = 12
NOTEWORTHY = 0.01  # probability of another class that a page mentions
MARGIN = 32
CROPS = 10  # of a class on the sheet
THUMB = 128
GAP = 8
ROW_PADDING = 18
LABEL_WIDTH = 250
LEFT = MARGIN + LABEL_WIDTH + 2 * GAP  # where the crops begin
SHEET_WIDTH = LEFT + CROPS * (THUMB + GAP) - GAP + MARGIN
TOP = MARGIN + 56
ROW_HEIGHT = THUMB + 2 * ROW_PADDING
CROP_OUTLINE = (255, 0, 200)  # magenta: rare in products, clear on dark, light, grey and brown

SIDE = 224  # of a whole image on a page
PAIRS = 3  # side by side: an image, and the same with map and mask
PAIR_WIDTH = 2 * SIDE + 4
PAIR_GAP = 28
CAPTION = 46
ROW_GAP = 16
SECTION = 50
HEADER = 104
WIDTH = 2 * MARGIN + PAIRS * PAIR_WIDTH + (PAIRS - 1) * PAIR_GAP

Crop = tuple[Picture | None, Mask | None]  # (H, W, 3) uint8 RGB of any size and its mask (H, W) bool; None: gone
Pair = tuple[str, str, tuple[Picture, Picture]]  # name of an image, a few words, and what `make_tiles` returns
Scale = tuple[float, float] | None  # low and high of the maps


def draw_classes(run: FinishedRun) -> Path | None:
    """Draw the surest regions of each class of a run into it; None where the run has no region."""
    sheet = classes_picture(run)
    if sheet is None:
        return None
    run.folder.write(CLASS_SHEET, to_png(sheet))
    return run.path / CLASS_SHEET


def classes_picture(run: FinishedRun) -> Picture | None:
    """The surest regions of each class, one of an image as long as there are enough; None where the run has no region."""
    if run.regions.empty:
        return None
    source, rows = ReportSource(run), []
    for label in sorted(run.regions["label"].unique().tolist()):
        members = run.regions[run.regions["label"] == label]
        n_images = int((run.images["label"] == label).sum())
        counts = f"{_count(n_images, 'image')}, {_count(len(members), 'region')}"
        title = source.look(label).name + (" (false alarms)" if label == NORMAL else "")
        crops = [run.crop(row) for row in choose(members, np.zeros(len(members)), CROPS, 0)[0]]
        rows.append((title, f"{counts}\n{source.truth(label, '{}: {:.0f} %')}", crops))
    return class_sheet(rows, f"Classes found in {len(run.images)} images")


def draw_class_sheets(run: FinishedRun) -> list[Path]:
    """Draw a page for each class of a run: whole images, the same with map and mask, the surest first, the least sure last.

    Returns
    -------
    The files, `pictures/class_<number>_<name>.png` in the run folder, in the order of the classes. Earlier pages are
    removed.
    """
    source, written = ReportSource(run), []
    # Pages of earlier classes, which may be no more or have another name.
    for old in list(run.folder.place(PICTURES).glob("class_*.png")):
        old.unlink(missing_ok=True)
    for label in sorted(run.images["label"].unique().tolist()):
        # Images without a region are all surely normal; the higher its map, the more doubtful is one of them.
        order = {"probability": False, "score": label == NORMAL, "image": True}
        members = source.images[source.images["label"] == label]
        members = members.sort_values(list(order), ascending=list(order.values()), kind="stable")
        surest, least = _choose(len(members))
        pairs = [_pair(source, row) for row in members.iloc[[*surest, *least]].to_dict("records")]
        sections = [("Surest first" if least else "All images, surest first", pairs[: len(surest)])]
        if least:
            sections.append(("Least sure: look here first for mistakes", pairs[len(surest) :]))
        name, sure = source.look(label).name, members["probability"]
        about = [_count(len(members), "image"), _count(int(members["n_regions"].sum()), "region")]
        about.append(f"probability {sure.median():.3f} (median), at least {sure.min():.3f}")
        subtitle = " · ".join(filter(None, [*about, source.truth(label, "folders say {}: {:.0f} %")]))
        file = f"{PICTURES}/class_{label}_{_safe(name)}".rstrip("_") + ".png"
        run.folder.write(file, to_png(class_page(name, subtitle, sections, run.range)))
        written.append(run.path / file)
    return written


def count_sentence(found: Mapping[str, Any]) -> str:
    """The estimate of the number of kinds (count.json) in words.

    Examples
    --------
    >>> count_sentence({"verdict": "agreed", "count": 4, "finer": 5, "answers": {"a": 4, "b": 5, "c": 4, "d": 5}})[:60]
    'Estimated: 4 kinds; four ways of counting say 4, 4, 5 and 5.'
    """
    count, finer, verdict = found["count"], found["finer"], found["verdict"]
    said = f"Estimated: {count} kind{'s' * (count != 1)}"
    next_finer = "" if finer is None else f" If a class looks mixed, {finer} is the next finer answer (--classes)."
    if verdict == "too few":
        return f"{said}, because there are too few regions to tell more apart (--classes)."
    if verdict == "one kind":
        return f"{said}, because the regions fall into groups no more than a single cloud does.{next_finer}"
    *first, last = map(str, sorted(found["answers"].values()))
    answers = f"four ways of counting say {', '.join(first)} and {last}"
    if verdict == "cannot tell":
        return f"The regions cannot tell how many kinds there are: {answers}. {count} is a coarse answer.{next_finer}"
    if len({*first, last}) == 1:
        return f"{said}; four ways of counting say the same."
    return f"{said}; {answers}.{next_finer}"


def count_range(found: Mapping[str, Any] | None) -> str:
    """How far the estimate may be off, in words; empty where it was not estimated or all ways of counting agree.

    Examples
    --------
    >>> count_range({"count": 6, "low": 5, "high": 8})
    ' There may be as few as 5 and as many as 8.'
    >>> count_range({"count": 6, "low": 6, "high": 6})
    ''
    """
    if found is None or found["low"] == found["high"]:
        return ""
    return f" There may be as few as {found['low']} and as many as {found['high']}."


def draw_count(run: FinishedRun) -> Path | None:
    """Draw what each way of counting says about the number of kinds into a run; None where it was given."""
    return save_figure(count_figure(run), run, f"{PICTURES}/count.png")


def count_figure(run: FinishedRun) -> Figure | None:
    """What each way of counting says about the number of kinds, with the choice marked; None where it was given."""
    found = run.count
    if not found or not found["answers"]:
        return None
    ways, answers = list(found["answers"]), list(found["answers"].values())
    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axis = figure.subplots()
    axis.axvspan(found["low"] - 0.3, found["high"] + 0.3, color="#dbe7f5", label="range")
    axis.axvline(found["count"], color="#b3261e", linewidth=2, label="chosen")
    axis.plot(answers, range(len(ways)), "o", ms=9, color="#1f4e8c", label="answers")
    axis.set_yticks(range(len(ways)), ways)
    axis.set_ylim(len(ways) - 0.5, -0.5)
    axis.set_xlim(0.5, max(*answers, found["high"]) + 1.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_xlabel("number of kinds of region")
    axis.set_title(textwrap.fill(count_sentence(found), 80), fontsize=10)
    axis.legend(frameon=False, fontsize=8)
    return figure


def _choose(n_images: int) -> tuple[range, range]:
    """Places of the surest and of the least sure of images in order; the latter fill at most the last line."""
    n_least = min(PAIRS, max(0, n_images - PAIRS))
    return range(min(PER_PAGE, n_images) - n_least), range(n_images - n_least, n_images)


def _pair(source: ReportSource, row: Mapping[Any, Any]) -> Pair:
    run, name = source.run, str(row["image"])
    notes = [f"probability {row['probability']:.3f}", _count(int(row["n_regions"]), "region")]
    if run.range is not None:
        notes.append(f"score {row['score']:.2f}")
    notes.append(source.runner_up(image_chances(row), row["label"], NOTEWORTHY))
    tiles = make_tiles(run.image(name), run.map(name), run.mask(name), run.range)
    return name, " · ".join(filter(None, notes)), tiles


def _safe(name: str) -> str:
    """What of a class name may stand in a file name on every system; letters of any language may."""
    return re.sub(r"[^\w.-]+", "_", name)[:40].strip("._")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def class_sheet(classes: Sequence[tuple[str, str, Sequence[Crop]]], title: str) -> Picture:
    """Draw the first ten crops of every class, one row each, with their masks outlined: (H, 1682, 3) uint8 RGB.

    Parameters
    ----------
    classes : name, lines of words (count, main true label, purity), and the crops of its regions

    Examples
    --------
    >>> crop, mask = np.zeros((64, 64, 3), np.uint8), np.eye(64, dtype=bool)
    >>> class_sheet([("scratch", "1 region", [(crop, mask)])], "Classes").shape
    (276, 1682, 3)
    """
    sheet = Image.new("RGB", (SHEET_WIDTH, TOP + ROW_HEIGHT * len(classes) + MARGIN - GAP), canvas.BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    heading, name_font, text_font = font(26, bold=True), font(19, bold=True), font(15)
    draw.text((MARGIN, MARGIN), shorten(title, heading, SHEET_WIDTH - 2 * MARGIN), canvas.INK, heading, anchor="lt")
    for number, (name, words, crops) in enumerate(classes):
        top = TOP + number * ROW_HEIGHT
        draw.line([(MARGIN, top), (SHEET_WIDTH - MARGIN, top)], canvas.RULE)
        y = top = top + ROW_PADDING
        for line in wrap(name, name_font, LABEL_WIDTH, max_lines=2):
            draw.text((MARGIN, y), line, canvas.INK, name_font)
            y += 25
        y += 4
        for line in wrap(words, text_font, LABEL_WIDTH, max_lines=(top + THUMB - y) // 21):  # as many as fit
            draw.text((MARGIN, y), line, canvas.FAINT, text_font)
            y += 21
        for column, (crop, mask) in enumerate(crops[:CROPS]):
            sheet.paste(Image.fromarray(_thumbnail(crop, mask)), (LEFT + column * (THUMB + GAP), top))
    return np.array(sheet)


def _thumbnail(crop: Picture | None, mask: Mask | None) -> Picture:
    """(THUMB, THUMB, 3) uint8: the crop fitted in without distortion, its mask outlined; a grey field without a crop."""
    if crop is None:
        return np.full((THUMB, THUMB, 3), 200, np.uint8)
    picture = fitted(crop, THUMB)
    if mask is not None:
        # Any trace of the mask counts, so that a thin scratch survives shrinking; one pixel of dilation keeps
        # the line beside the defect rather than on it.
        covered = cv2.resize(mask.astype(np.float32), picture.shape[1::-1], interpolation=cv2.INTER_AREA) > 0
        region = cv2.dilate(covered.astype(np.uint8), np.ones((3, 3), np.uint8))
        contours, _ = cv2.findContours(region, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(picture, contours, -1, CROP_OUTLINE, 1)
    return centred(picture, THUMB)


def make_tiles(
    image: Picture | None, anomaly_map: NDArray[np.floating] | None, mask: Mask | None, scale: Scale
) -> tuple[Picture, Picture]:
    """Tiles (SIDE, SIDE, 3) of one image: plain, and with its map on the scale (None: no map) and its mask.

    Where the image is gone the first tile says so, and grey stands for it in the other.
    """
    if image is not None:
        ground = fitted(image, SIDE)
        plain = centred(ground, SIDE)
    else:
        shape = next((known.shape for known in (anomaly_map, mask) if known is not None), (SIDE, SIDE))
        ground = fitted(np.full((*shape, 3), 110, np.uint8), SIDE)
        plain = _message_tile("The image was not found: moved, removed or damaged.")
    low, high = scale or (0, 0)
    return plain, centred(overlay(ground, anomaly_map, mask, low=low, high=high), SIDE)


def _message_tile(text: str) -> Picture:
    """(SIDE, SIDE, 3) uint8: a few words in the place of a picture."""
    tile = Image.new("RGB", (SIDE, SIDE), canvas.EMPTY)
    draw, letters = ImageDraw.Draw(tile), font(14)
    lines = wrap(text, letters, SIDE - 24, max_lines=4)
    for number, line in enumerate(lines):
        y = SIDE / 2 + 20 * (number - (len(lines) - 1) / 2)
        draw.text((SIDE / 2, y), line, canvas.FAINT, letters, anchor="mm")
    return np.array(tile)


def class_page(title: str, subtitle: str, sections: Sequence[tuple[str, Sequence[Pair]]], scale: Scale) -> Picture:
    """Lay out the images of a class.

    Parameters
    ----------
    title : name of the class
    subtitle : how many images, how sure, … on one line
    sections : heading and pairs, such as the surest and the least sure
    scale : values of the map at the two ends of the colour bar; None draws none

    Returns
    -------
    (H, 1476, 3) uint8 RGB

    Examples
    --------
    >>> pair = ("a.png", "0.98", make_tiles(np.zeros((9, 9, 3), np.uint8), None, None, None))
    >>> class_page("scratch", "1 image", [("All images", [pair])], None).shape
    (464, 1476, 3)
    """
    row_height = SIDE + CAPTION + ROW_GAP
    lines = [-(-len(pairs) // PAIRS) for _, pairs in sections]
    height = HEADER + sum(SECTION + count * row_height for count in lines) + MARGIN - ROW_GAP // 2
    page = Image.new("RGB", (WIDTH, height), canvas.BACKGROUND)
    draw = ImageDraw.Draw(page)
    legend_left = _draw_legend(page, draw, scale)
    big, small, letters = font(26, bold=True), font(15), font(14)
    draw.text((MARGIN, MARGIN), shorten(title, big, legend_left - 2 * MARGIN), canvas.INK, big)
    draw.text((MARGIN, MARGIN + 40), shorten(subtitle, small, WIDTH - 2 * MARGIN), canvas.FAINT, small)
    top = HEADER
    for (heading, pairs), count in zip(sections, lines, strict=True):
        draw.line([(MARGIN, top), (WIDTH - MARGIN, top)], canvas.RULE)
        draw.text((MARGIN, top + 14), heading, canvas.INK, font(17, bold=True))
        top += SECTION
        for position, (name, note, tiles) in enumerate(pairs):
            x, y = MARGIN + position % PAIRS * (PAIR_WIDTH + PAIR_GAP), top + position // PAIRS * row_height
            for number, tile in enumerate(tiles):
                page.paste(Image.fromarray(tile), (x + number * (PAIR_WIDTH - SIDE), y))
            draw.text((x, y + SIDE + 5), shorten(name, letters, PAIR_WIDTH, keep_end=True), canvas.INK, letters)
            draw.text((x, y + SIDE + 25), shorten(note, letters, PAIR_WIDTH), canvas.FAINT, letters)
        top += count * row_height
    return np.array(page)


def _draw_legend(page: Image.Image, draw: ImageDraw.ImageDraw, scale: Scale) -> int:
    """What line and colours mean, at the upper right; returns where it begins."""
    letters, y = font(14), MARGIN + 16
    x = WIDTH - MARGIN - round(letters.getlength("mask"))
    draw.text((x, y), "mask", canvas.INK, letters, anchor="lm")
    x -= 34
    draw.rectangle([x, y - 8, x + 26, y + 8], canvas.OUTLINE_EDGE)
    draw.rectangle([x + 1, y - 7, x + 25, y + 7], canvas.OUTLINE)
    draw.rectangle([x + 3, y - 5, x + 23, y + 5], canvas.BACKGROUND)
    if scale is not None:
        low, high = scale
        after = f"1    (map: {low:.3g} to {high:.3g})"
        x -= 30 + round(letters.getlength(after))
        draw.text((x, y), after, canvas.INK, letters, anchor="lm")
        x -= 8 + 160
        ramp = colours(np.tile(np.linspace(0, 1, 160), (16, 1)))
        page.paste(Image.fromarray(ramp), (x, y - 8))
        before = "score  0"
        x -= 8 + round(letters.getlength(before))
        draw.text((x, y), before, canvas.INK, letters, anchor="lm")
    return x
