"""A picture sheet of the classes found: one row a class, its name at the left, its crops beside it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from ..errors import DataError, SettingsError
from .canvas import BACKGROUND, EMPTY, FAINT, INK, RULE, centred, fitted, font, shorten, wrap

THUMB = 128
GAP = 8
MARGIN = 32
ROW_PADDING = 18
LABEL_WIDTH = 250
MAX_COLUMNS = 12  # keeps the sheet under 2000 px wide; more crops go on to the next line

OUTLINE = (255, 0, 200)  # magenta: rare in products, clear on dark, light, grey and brown


@dataclass(frozen=True)
class SheetRow:
    """One class: its name, a few words (count, main true label, purity) and pictures of its regions.

    `subtitle` may have several lines. `crops` holds pairs of a crop (H, W, 3) uint8 RGB of any size and its
    mask (H, W) bool, or None.
    """

    title: str
    subtitle: str = ""
    crops: Sequence[tuple[NDArray[np.uint8], NDArray[np.bool_] | None]] = field(default_factory=list)


def class_sheet(
    classes: Sequence[SheetRow],
    out: str | os.PathLike[str] | None = None,
    *,
    per_class: int = 8,
    title: str = "Classes found",
) -> NDArray[np.uint8]:
    """Draw the first `per_class` crops of every class, with their masks outlined, and save the sheet as PNG.

    Args:
        classes: one row each, drawn in this order.
        out: the file to write, whole or not at all; None writes nothing.
        per_class: crops shown of a class, at least 1.
        title: heading of the sheet.

    Returns:
        (H, W, 3) uint8 RGB, at most 2000 px wide.

    Example:
        >>> crop, mask = np.zeros((64, 64, 3), np.uint8), np.eye(64, dtype=bool)
        >>> class_sheet([SheetRow("scratch", "1 region", [(crop, mask)])], per_class=4).shape
        (276, 866, 3)
    """
    if per_class < 1:
        raise SettingsError(f"per_class must be at least 1, but got {per_class}.")
    columns = min(per_class, MAX_COLUMNS)
    left = MARGIN + LABEL_WIDTH + 2 * GAP
    width = left + columns * (THUMB + GAP) - GAP + MARGIN
    shown = [list(row.crops[:per_class]) for row in classes]
    heights = [_grid_height(len(crops), columns) + 2 * ROW_PADDING for crops in shown]
    top = MARGIN + 56
    sheet = Image.new("RGB", (width, top + (sum(heights) or 60) + MARGIN - GAP), BACKGROUND)
    draw = ImageDraw.Draw(sheet)

    heading = font(26, bold=True)
    draw.text((MARGIN, MARGIN), shorten(title, heading, width - 2 * MARGIN), INK, heading, anchor="lt")
    if not classes:
        draw.text((MARGIN, top + ROW_PADDING), "No classes.", FAINT, font(16), anchor="lt")
    for row, crops, height in zip(classes, shown, heights, strict=True):
        draw.line([(MARGIN, top), (width - MARGIN, top)], RULE)
        first = top + ROW_PADDING
        _draw_label(draw, row, first, height - 2 * ROW_PADDING)
        if not crops:
            draw.rectangle([left, first, width - MARGIN - 1, first + THUMB - 1], EMPTY)
            middle = ((left + width - MARGIN) // 2, first + THUMB // 2)
            draw.text(middle, "no pictures", FAINT, font(16), anchor="mm")
        for position, (crop, mask) in enumerate(crops):
            line, column = divmod(position, columns)
            place = (left + column * (THUMB + GAP), first + line * (THUMB + GAP))
            sheet.paste(Image.fromarray(_thumbnail(crop, mask, row.title)), place)
        top += height

    if out is not None:
        _save(sheet, Path(out))
    return np.array(sheet)


def _grid_height(n_crops: int, columns: int) -> int:
    lines = max(1, -(-n_crops // columns))
    return lines * (THUMB + GAP) - GAP


def _draw_label(draw: ImageDraw.ImageDraw, row: SheetRow, top: int, height: int) -> None:
    """The class name on at most two lines, then as many lines of the subtitle as fit."""
    name_font, text_font = font(19, bold=True), font(15)
    y = top
    for line in wrap(row.title, name_font, LABEL_WIDTH, max_lines=2):
        draw.text((MARGIN, y), line, INK, name_font)
        y += 25
    y += 4
    for line in wrap(row.subtitle, text_font, LABEL_WIDTH, max_lines=max(1, (top + height - y) // 21)):
        draw.text((MARGIN, y), line, FAINT, text_font)
        y += 21


def _thumbnail(crop: NDArray[np.uint8], mask: NDArray[np.bool_] | None, class_title: str) -> NDArray[np.uint8]:
    """(THUMB, THUMB, 3) uint8: the crop fitted in without distortion, its mask outlined."""
    if crop.ndim != 3 or crop.shape[2] != 3 or crop.dtype != np.uint8 or 0 in crop.shape:
        raise DataError(f"{class_title}: a crop must be (H, W, 3) uint8, but got {crop.dtype} {crop.shape}.")
    if mask is not None and mask.shape != crop.shape[:2]:
        raise DataError(f"{class_title}: the mask must be {crop.shape[:2]} as its crop is, but got {mask.shape}.")
    picture = fitted(crop, THUMB)
    if mask is not None:
        # Any trace of the mask counts, so that a thin scratch survives shrinking; one pixel of dilation keeps
        # the line beside the defect rather than on it.
        covered = cv2.resize(mask.astype(np.float32), picture.shape[1::-1], interpolation=cv2.INTER_AREA) > 0
        region = cv2.dilate(covered.astype(np.uint8), np.ones((3, 3), np.uint8))
        contours, _ = cv2.findContours(region, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
        cv2.drawContours(picture, contours, -1, OUTLINE, 1)
    return centred(picture, THUMB)


def _save(sheet: Image.Image, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        sheet.save(unfinished, format="PNG")
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)
