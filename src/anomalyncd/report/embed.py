"""Pictures inside a page: WebP as data URIs, up to a limit of bytes for the whole page."""

from __future__ import annotations

import base64
from dataclasses import dataclass

import cv2
import numpy as np

from .canvas import Picture

QUALITY = 78
LIMIT = 22_000_000  # characters of all data URIs: with text and charts a report stays well under 30 MB
WEBP_SIDE = 16_383  # the format's own limit


@dataclass(frozen=True)
class Shot:
    """A picture of a page: its data URI (None: gone, or left out), what it shows, and lines under it."""

    uri: str | None
    alt: str
    title: str = ""
    lines: tuple[str, ...] = ()


class Album:
    """Encodes pictures one by one and counts their bytes; past the limit it leaves them out and counts those.

    Examples
    --------
    >>> album = Album(limit=600)
    >>> uri = album.add(np.zeros((8, 8, 3), np.uint8))
    >>> uri.startswith("data:image/webp;base64,"), album.add(None), album.left_out
    (True, None, 0)
    >>> noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    >>> album.add(noise), album.left_out
    (None, 1)
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self.size = 0
        self.left_out = 0

    def add(self, picture: Picture | None, quality: int = QUALITY) -> str | None:
        """(H, W, 3) uint8 RGB as a data URI; None for no picture, or where the page would become too large."""
        if picture is None:
            return None
        _, data = cv2.imencode(".webp", picture[..., ::-1], [cv2.IMWRITE_WEBP_QUALITY, quality])
        uri = "data:image/webp;base64," + base64.b64encode(data.tobytes()).decode("ascii")
        if self.size + len(uri) > self.limit:
            self.left_out += 1
            return None
        self.size += len(uri)
        return uri


def sprite(tiles: list[Picture], side: int) -> tuple[Picture, int]:
    """Tiles of (side, side, 3) uint8 in one picture, row by row, and how many there are in a row.

    Examples
    --------
    >>> sheet, columns = sprite([np.full((4, 4, 3), k, np.uint8) for k in range(5)], 4)
    >>> sheet.shape, columns, int(sheet[4, 0, 0])
    ((8, 12, 3), 3, 3)
    """
    columns = max(1, min(WEBP_SIDE // side, int(np.ceil(np.sqrt(len(tiles))))))
    rows = max(1, -(-len(tiles) // columns))
    sheet = np.zeros((rows * side, columns * side, 3), np.uint8)
    for number, tile in enumerate(tiles):
        y, x = (side * place for place in divmod(number, columns))
        sheet[y : y + side, x : x + side] = tile
    return sheet, columns
