"""What all drawn pictures share: letters, colours, pictures that fit a square, and maps and masks laid over an image."""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path

import cv2
import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import ImageFont

from ..run.finished import FinishedRun

PICTURES = "pictures"  # folder inside a run
BACKGROUND = "#ffffff"
RULE = "#e4e7eb"
INK = "#1f2933"
FAINT = "#66727f"
EMPTY = "#f3f5f7"
OUTLINE = (0, 229, 255)  # cyan: in no colour of the heat, and rare in products
OUTLINE_EDGE = (0, 0, 0)
STRONGEST = 0.85  # opacity of the highest values, so that the defect still shows
# Without the near-black start of inferno: the more abnormal, the brighter, and nothing gets darker by being normal.
_LEVELS = np.linspace(70, 255, 256).astype(np.uint8)[:, None]
_COLOURS = cv2.applyColorMap(_LEVELS, cv2.COLORMAP_INFERNO)[:, 0, ::-1].astype(np.uint8)  # (256, 3) RGB

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


def to_png(sheet: Picture) -> bytes:
    """A sheet (H, W, 3) uint8 RGB as the content of a PNG file."""
    compression = 4  # 9 is ten times slower, and 7 % smaller
    return cv2.imencode(".png", sheet[..., ::-1], [cv2.IMWRITE_PNG_COMPRESSION, compression])[1].tobytes()


def save_figure(figure: Figure | None, run: FinishedRun, name: str) -> Path | None:
    """Write a figure into a run as PNG; None where there is none."""
    if figure is None:
        return None
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    run.folder.write(name, buffer.getvalue())
    return run.path / name


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


def overlay(
    image: Picture, anomaly_map: NDArray[np.floating] | None, mask: Mask | None, *, low: float = 0, high: float = 0
) -> Picture:
    """Paint an anomaly map over its image and draw a line around its mask.

    Parameters
    ----------
    image : (H, W, 3) uint8 RGB; it is not changed
    anomaly_map : (h, w) floats of any size, or None. The higher the value, the brighter and the more opaque; what is
        at `low` or below, or NaN, is not painted
    mask : (h', w') bool of any size, or None. The line runs just outside, so that the defect stays visible
    low, high : range of values that the colours span: the same for a set of images makes them comparable; without a
        range no map is painted

    Returns
    -------
    (H, W, 3) uint8 RGB

    Examples
    --------
    >>> image, hot = np.full((8, 8, 3), 90, np.uint8), np.zeros((4, 4))
    >>> hot[:2] = 1.0
    >>> painted = overlay(image, hot, None, low=0, high=1)
    >>> bool((painted[0] != 90).all()), bool((painted[-1] == 90).all())
    (True, True)
    """
    painted = image.copy()
    if anomaly_map is not None:
        share = heat(anomaly_map, image.shape[:2], low=low, high=high)
        alpha = STRONGEST * share[..., None] ** 0.75  # faint values stay faint, but not unseen
        painted = np.rint(image * (1 - alpha) + colours(share) * alpha).astype(np.uint8)
    if mask is not None:
        _draw_outline(painted, resized_mask(mask, image.shape[:2]))
    return painted


def heat(anomaly_map: NDArray[np.floating], size: tuple[int, int], *, low: float, high: float) -> NDArray[np.float32]:
    """A map at another size (H, W), float32 from 0 at `low` to 1 at `high` and above; 0 where it is NaN.

    Examples
    --------
    >>> heat(np.array([[1.0, 3.0, np.nan]]), (1, 3), low=1, high=3)
    array([[0., 1., 0.]], dtype=float32)
    """
    values = np.asarray(anomaly_map, np.float64)
    holes = np.isnan(values)
    scaled = np.zeros(values.shape, np.float32)
    if low < high:
        with np.errstate(over="ignore"):  # a range of nearly nothing: what lies above it is 1 all the same
            scaled[~holes] = np.clip((values[~holes] - low) / (high - low), 0, 1)
    height, width = size
    method = cv2.INTER_AREA if height * width < values.size else cv2.INTER_LINEAR
    share = cv2.resize(scaled, (width, height), interpolation=method).astype(np.float32, copy=False)
    if holes.any():  # nothing of their neighbours runs into them
        share[cv2.resize(holes.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST) > 0] = 0
    return share


def colours(share: NDArray[np.floating]) -> Picture:
    """Values 0 … 1 (H, W) in the colours of a map (H, W, 3) uint8 RGB."""
    painted: Picture = _COLOURS[np.rint(share * 255).astype(np.uint8)]
    return painted


def resized_mask(mask: Mask, size: tuple[int, int]) -> Mask:
    """A mask at another size: exact when enlarged, and no defect vanishes when shrunk, however thin.

    Examples
    --------
    >>> resized_mask(np.eye(6, dtype=bool), (2, 3)).astype(int)
    array([[1, 1, 0],
           [0, 1, 1]])
    """
    height, width = size
    larger = (max(width, mask.shape[1]), max(height, mask.shape[0]))
    enlarged = cv2.resize(mask.astype(np.float32), larger, interpolation=cv2.INTER_NEAREST)
    covered: Mask = cv2.resize(enlarged, (width, height), interpolation=cv2.INTER_AREA) > 0
    return covered


def _draw_outline(picture: Picture, mask: Mask) -> None:
    """A bright line around the mask with a dark one around that: one of them shows on any ground."""
    thickness = max(1, round(max(mask.shape) / 400))
    square = np.ones((2 * thickness + 1, 2 * thickness + 1), np.uint8)
    inside = mask.astype(np.uint8)
    near = cv2.dilate(inside, square)
    far = cv2.dilate(near, square)
    # Outside the picture nothing can be drawn: where the mask meets its border the line runs on the mask itself.
    core = cv2.erode(inside, square, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    frame = np.ones_like(mask)
    frame[thickness:-thickness, thickness:-thickness] = False
    picture[(far > near)] = OUTLINE_EDGE
    picture[(near > inside) | ((inside > core) & frame)] = OUTLINE
