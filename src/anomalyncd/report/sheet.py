"""Pictures of the classes found: a sheet with a row of crops for each, and a page about one with whole images."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from . import canvas
from .canvas import Mask, Picture, centred, colours, fitted, font, overlay, shorten, wrap

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
