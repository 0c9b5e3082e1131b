"""The newest images of each kind, small, with a line around what was found."""

from __future__ import annotations

import cv2
import numpy as np
import pandas as pd

from ..data.images import read_image
from ..errors import BadFileError, StoreError
from ..places.names import file_named
from ..report.canvas import Picture, fitted
from ..report.source import Look
from .figures import DayFigures
from .source import DayTable, look_of

MOST_IMAGES = 6  # of a kind
MOST_KINDS = 20
SIDE = 200
MOST_PIXELS = 100_000_000


def newest(table: DayTable, figures: DayFigures) -> list[tuple[Look, list[tuple[str, str, Picture]]]]:
    """(kind, [(name, time, picture)]) of the day's newest images of each kind, commonest kind first; gone files left out."""
    images = table.images[table.images["day"] == figures.day] if figures.day else table.images
    images = images.sort_values("time", kind="stable", ascending=False)
    found = []
    for kind in figures.kinds[:MOST_KINDS]:
        shots: list[tuple[str, str, Picture]] = []
        for row in images[images["label"] == kind.look.label].head(4 * MOST_IMAGES).to_dict("records"):
            if len(shots) < MOST_IMAGES and (picture := _picture(table, row)) is not None:
                moment = "" if pd.isna(row["time"]) else str(row["time"])[11:16]
                shots.append((str(row["image"]), moment, picture))
        if shots:
            found.append((kind.look, shots))
    return found


def _picture(table: DayTable, row: dict[object, object]) -> Picture | None:
    try:
        image = read_image(file_named(str(row["file"])), max_pixels=MOST_PIXELS) if row["file"] else None
    except (BadFileError, StoreError):
        image = None
    if image is None:
        return None
    small = fitted(image, SIDE).copy()
    scale = small.shape[1] / image.shape[1]
    regions = table.regions
    key = "seq" if "seq" in regions and "seq" in row else "image"
    if len(regions) and {"x", "y", "width", "height"} <= set(regions):
        own = regions[(regions[key] == row[key]) & (regions["label"] != 0)].dropna(subset=["x", "y", "width", "height"])
        for x, y, width, height, label, name in own.reindex(
            columns=["x", "y", "width", "height", "label", "class_name"]
        ).itertuples(index=False):
            corner = np.array([x, y, x + width, y + height], float) * scale
            left, top, right, bottom = (int(value) for value in np.clip(np.rint(corner), -4, SIDE + 4))
            colour = tuple(bytes.fromhex(look_of(int(label), str(name)).colour[1:]))
            cv2.rectangle(small, (left - 2, top - 2), (right + 2, bottom + 2), (0, 0, 0), 4)
            cv2.rectangle(small, (left - 2, top - 2), (right + 2, bottom + 2), colour, 2)
    return small
