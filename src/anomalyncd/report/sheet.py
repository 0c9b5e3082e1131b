"""A picture sheet of the classes found: one row a class, its name at the left, its crops beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, ImageDraw

from .canvas import BACKGROUND, FAINT, INK, RULE, Mask, Picture, centred, fitted, font, shorten, wrap

CROPS = 10  # of a class
THUMB = 128
GAP = 8
MARGIN = 32
ROW_PADDING = 18
LABEL_WIDTH = 250
LEFT = MARGIN + LABEL_WIDTH + 2 * GAP  # where the crops begin
WIDTH = LEFT + CROPS * (THUMB + GAP) - GAP + MARGIN
TOP = MARGIN + 56
ROW_HEIGHT = THUMB + 2 * ROW_PADDING

OUTLINE = (255, 0, 200)  # magenta: rare in products, clear on dark, light, grey and brown


@dataclass(frozen=True)
class SheetRow:
    """One class: its name, lines of words (count, main true label, purity), and the crops of its regions.

    crops : pairs of a crop (H, W, 3) uint8 RGB of any size and its mask (H, W) bool; None for what is gone
    """

    title: str
    subtitle: str
    crops: Sequence[tuple[Picture | None, Mask | None]]


def class_sheet(classes: Sequence[SheetRow], title: str) -> Picture:
    """Draw the first ten crops of every class, one row each, with their masks outlined: (H, 1682, 3) uint8 RGB.

    Examples
    --------
    >>> crop, mask = np.zeros((64, 64, 3), np.uint8), np.eye(64, dtype=bool)
    >>> class_sheet([SheetRow("scratch", "1 region", [(crop, mask)])], "Classes").shape
    (276, 1682, 3)
    """
    sheet = Image.new("RGB", (WIDTH, TOP + ROW_HEIGHT * len(classes) + MARGIN - GAP), BACKGROUND)
    draw = ImageDraw.Draw(sheet)
    heading = font(26, bold=True)
    draw.text((MARGIN, MARGIN), shorten(title, heading, WIDTH - 2 * MARGIN), INK, heading, anchor="lt")
    for number, row in enumerate(classes):
        top = TOP + number * ROW_HEIGHT
        draw.line([(MARGIN, top), (WIDTH - MARGIN, top)], RULE)
        top += ROW_PADDING
        _draw_label(draw, row, top)
        for column, (crop, mask) in enumerate(row.crops[:CROPS]):
            sheet.paste(Image.fromarray(_thumbnail(crop, mask)), (LEFT + column * (THUMB + GAP), top))
    return np.array(sheet)


def _draw_label(draw: ImageDraw.ImageDraw, row: SheetRow, top: int) -> None:
    """The class name on at most two lines, then as many lines of the subtitle as fit."""
    name_font, text_font = font(19, bold=True), font(15)
    y = top
    for line in wrap(row.title, name_font, LABEL_WIDTH, max_lines=2):
        draw.text((MARGIN, y), line, INK, name_font)
        y += 25
    y += 4
    for line in wrap(row.subtitle, text_font, LABEL_WIDTH, max_lines=(top + THUMB - y) // 21):
        draw.text((MARGIN, y), line, FAINT, text_font)
        y += 21


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
        cv2.drawContours(picture, contours, -1, OUTLINE, 1)
    return centred(picture, THUMB)
