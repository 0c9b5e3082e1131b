"""Small pictures of four kinds of defect that no network can confuse, for the tests of what happens after `discover`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd

from anomalyncd import AnomalyNCD
from anomalyncd.run.folder import IMAGES_TABLE, REGIONS_TABLE
from anomalyncd.run.tables import read_csv
from anomalyncd.run.writer import TableWriter

# A random network knows little of its crops, so whole images weigh more than by default: else classes are so tight that one
# correction pulls a class along.
TINY: dict[str, Any] = {
    "backbone": "tiny", "model": {"image_size": 224}, "features": {"patches": 0.7, "image": 1.0}, "learn": {"epochs": 3},
}  # fmt: skip
COLOURS = ((250, 250, 250), (200, 20, 20), (20, 20, 250), (20, 200, 60))
SIZES = ((20, 20), (6, 36), (36, 6), (12, 28))  # height and width
GOOD = -1
KINDS = [GOOD] * 6 + [0] * 6 + [1] * 7 + [2] * 8  # of the images that a run is made from


def scene(kind: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image, mask, and a map that scores defects high; a good image has a false alarm of a low score in it."""
    image, mask = rng.integers(90, 110, (64, 64, 3), dtype=np.uint8), np.zeros((64, 64), bool)
    if kind != GOOD:
        (height, width), (y, x) = SIZES[kind], rng.integers(4, 24, 2)
        mask[y : y + height, x : x + width] = True
        image[mask] = np.clip(np.array(COLOURS[kind]) + rng.integers(-10, 10, (mask.sum(), 3)), 0, 255)
    soft = cv2.GaussianBlur(mask.astype(np.float32), (5, 5), 0) * np.float32(rng.uniform(0.7, 1))
    if kind == GOOD:
        soft[10:30, 20:44] = rng.uniform(0, 0.3)
    return image, mask, soft + rng.uniform(0, 0.05, mask.shape).astype(np.float32)


def write_scenes(folder: Path, kinds: Sequence[int], seed: int) -> Path:
    """images/, masks/ and maps/ under a folder."""
    rng = np.random.default_rng(seed)
    for index, kind in enumerate(kinds):
        image, mask, anomaly_map = scene(kind, rng)
        for name in ("images", "masks", "maps"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / "images" / f"{index:03d}.png"), image[..., ::-1])
        np.save(folder / "maps" / f"{index:03d}.npy", anomaly_map)
        if mask.any():
            cv2.imwrite(str(folder / "masks" / f"{index:03d}.png"), mask.astype(np.uint8) * 255)
    return folder


def fit(folder: Path, run: Path, given: str, n_classes: int | str = 4, **settings: Any) -> AnomalyNCD:
    """A run of images with their masks or maps."""
    model = AnomalyNCD(n_classes, **{**TINY, **settings})
    return model.fit(folder / "images", **{given: folder / given}, run=run)


def write_table(table: pd.DataFrame, path: Path) -> None:
    """As `predict` writes one, in one piece."""
    with TableWriter(path) as file:
        file.add(table)


def regions(run: Path) -> pd.DataFrame:
    return read_csv(run / REGIONS_TABLE)


def images(run: Path) -> pd.DataFrame:
    return read_csv(run / IMAGES_TABLE)


def content(run: Path, *patterns: str) -> dict[str, bytes]:
    """Files of a run by name, all but the log and the lock unless patterns are given."""
    files = [path for pattern in patterns or ("**/*",) for path in run.glob(pattern) if path.is_file()]
    return {
        path.relative_to(run).as_posix(): path.read_bytes() for path in files if path.name not in ("run.log", ".lock")
    }
