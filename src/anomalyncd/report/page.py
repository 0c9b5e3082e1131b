"""A page about one class: whole images beside the same ones with map and mask, the surest first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from .canvas import BACKGROUND, FAINT, INK, RULE, Mask, Picture, centred, fitted, font, message_tile, shorten
from .overlay import OUTLINE, OUTLINE_EDGE, colours, overlay

SIDE = 224
MARGIN = 32
PAIRS = 3  # side by side
PAIR_WIDTH = 2 * SIDE + 4
PAIR_GAP = 28
CAPTION = 46
ROW_GAP = 16
SECTION = 50
HEADER = 104
Scale = tuple[float, float] | None  # low and high of the maps
WIDTH = 2 * MARGIN + PAIRS * PAIR_WIDTH + (PAIRS - 1) * PAIR_GAP


@dataclass(frozen=True)
class Pair:
    """One image of a class: its name, a few words, and two tiles (SIDE, SIDE, 3) uint8, without and with overlay."""

    name: str
    note: str
    tiles: tuple[Picture, Picture]


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
        plain = message_tile("The image was not found: moved, removed or damaged.", SIDE)
    low, high = scale or (0, 0)
    return plain, centred(overlay(ground, anomaly_map, mask, low=low, high=high), SIDE)


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
    >>> pair = Pair("a.png", "0.98", make_tiles(np.zeros((9, 9, 3), np.uint8), None, None, None))
    >>> class_page("scratch", "1 image", [("All images", [pair])], None).shape
    (464, 1476, 3)
    """
    row_height = SIDE + CAPTION + ROW_GAP
    lines = [-(-len(pairs) // PAIRS) for _, pairs in sections]
    height = HEADER + sum(SECTION + count * row_height for count in lines) + MARGIN - ROW_GAP // 2
    page = Image.new("RGB", (WIDTH, height), BACKGROUND)
    draw = ImageDraw.Draw(page)
    legend_left = _draw_legend(page, draw, scale)
    big, small = font(26, bold=True), font(15)
    draw.text((MARGIN, MARGIN), shorten(title, big, legend_left - 2 * MARGIN), INK, big)
    draw.text((MARGIN, MARGIN + 40), shorten(subtitle, small, WIDTH - 2 * MARGIN), FAINT, small)
    top = HEADER
    for (heading, pairs), count in zip(sections, lines, strict=True):
        draw.line([(MARGIN, top), (WIDTH - MARGIN, top)], RULE)
        draw.text((MARGIN, top + 14), heading, INK, font(17, bold=True))
        top += SECTION
        for position, pair in enumerate(pairs):
            line, column = divmod(position, PAIRS)
            _draw_pair(page, draw, pair, MARGIN + column * (PAIR_WIDTH + PAIR_GAP), top + line * row_height)
        top += count * row_height
    return np.array(page)


def _draw_pair(page: Image.Image, draw: ImageDraw.ImageDraw, pair: Pair, x: int, y: int) -> None:
    for number, tile in enumerate(pair.tiles):
        page.paste(Image.fromarray(tile), (x + number * (PAIR_WIDTH - SIDE), y))
    letters = font(14)
    draw.text((x, y + SIDE + 5), shorten(pair.name, letters, PAIR_WIDTH, keep_end=True), INK, letters)
    draw.text((x, y + SIDE + 25), shorten(pair.note, letters, PAIR_WIDTH), FAINT, letters)


def _draw_legend(page: Image.Image, draw: ImageDraw.ImageDraw, scale: Scale) -> int:
    """What line and colours mean, at the upper right; returns where it begins."""
    letters, y = font(14), MARGIN + 16
    x = WIDTH - MARGIN - round(letters.getlength("mask"))
    draw.text((x, y), "mask", INK, letters, anchor="lm")
    x -= 34
    draw.rectangle([x, y - 8, x + 26, y + 8], OUTLINE_EDGE)
    draw.rectangle([x + 1, y - 7, x + 25, y + 7], OUTLINE)
    draw.rectangle([x + 3, y - 5, x + 23, y + 5], BACKGROUND)
    if scale is not None:
        low, high = scale
        after = f"1    (map: {low:.3g} to {high:.3g})"
        x -= 30 + round(letters.getlength(after))
        draw.text((x, y), after, INK, letters, anchor="lm")
        x -= 8 + 160
        ramp = colours(np.tile(np.linspace(0, 1, 160), (16, 1)))
        page.paste(Image.fromarray(ramp), (x, y - 8))
        before = "score  0"
        x -= 8 + round(letters.getlength(before))
        draw.text((x, y), before, INK, letters, anchor="lm")
    return x
