"""What all drawn pictures share: letters, colours, and pictures that fit a square."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

PICTURES = "pictures"  # folder inside a run
BACKGROUND = "#ffffff"
RULE = "#e4e7eb"
INK = "#1f2933"
FAINT = "#66727f"
EMPTY = "#f3f5f7"

Picture = NDArray[np.uint8]  # (H, W, 3) RGB
Mask = NDArray[np.bool_]  # (H, W)


def fitted(picture: Picture, side: int) -> Picture:
    """(H, W, 3) uint8 scaled without distortion so that its longer side is `side`.

    Examples
    --------
    >>> fitted(np.zeros((30, 60, 3), np.uint8), 20).shape
    (10, 20, 3)
    """
    scale = side / max(picture.shape[:2])
    height, width = (max(1, round(length * scale)) for length in picture.shape[:2])
    method = cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR
    return cv2.resize(picture, (width, height), interpolation=method).astype(np.uint8, copy=False)


def centred(picture: Picture, side: int) -> Picture:
    """(side, side, 3) uint8: a picture that is no larger, in the middle of an empty square."""
    tile = np.full((side, side, 3), 243, np.uint8)
    height, width = picture.shape[:2]
    y, x = (side - height) // 2, (side - width) // 2
    tile[y : y + height, x : x + width] = picture
    return tile


def message_tile(text: str, side: int) -> Picture:
    """(side, side, 3) uint8: a few words in the place of a picture."""
    tile = Image.new("RGB", (side, side), EMPTY)
    draw, letters = ImageDraw.Draw(tile), font(14)
    lines = wrap(text, letters, side - 24, max_lines=4)
    for number, line in enumerate(lines):
        y = side / 2 + 20 * (number - (len(lines) - 1) / 2)
        draw.text((side / 2, y), line, FAINT, letters, anchor="mm")
    return np.array(tile)


def to_png(sheet: Picture) -> bytes:
    """A sheet (H, W, 3) uint8 RGB as the content of a PNG file."""
    compression = 4  # 9 is ten times slower, and 7 % smaller
    return cv2.imencode(".png", sheet[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, compression])[1].tobytes()


def wrap(text: str, letters: ImageFont.FreeTypeFont, width: int, max_lines: int) -> list[str]:
    """Break text between words; what is left over on the last line is shortened."""
    lines: list[str] = []
    for paragraph in text.splitlines():
        line = ""
        for word in paragraph.split():
            longer = f"{line} {word}".strip()
            if line and len(lines) < max_lines - 1 and letters.getlength(longer) > width:
                lines.append(line)
                longer = word
            line = longer
        if line:
            lines.append(line)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], " ".join(lines[max_lines - 1 :])]
    return [shorten(line, letters, width) for line in lines]


def shorten(text: str, letters: ImageFont.FreeTypeFont, width: int, *, keep_end: bool = False) -> str:
    """Text on one line that is no wider than `width`; `keep_end` cuts the beginning, as of a path."""
    text = " ".join(text.split())
    if letters.getlength(text) <= width:
        return text
    for cut in range(1, len(text)):
        shorter = f"…{text[cut:].lstrip()}" if keep_end else f"{text[:-cut].rstrip()}…"
        if letters.getlength(shorter) <= width:
            return shorter
    return "…"


@cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans, which matplotlib brings along: the same letters, accents and symbols on every machine."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name, size)
