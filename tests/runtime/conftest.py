"""Small runs of every kind, exported to ONNX once for all tests."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.export import onnx
from anomalyncd.export.networks import export_networks

SIZES = ((64, 96), (80, 48), (64, 64), (52, 100))
COLOURS = ((250, 250, 250), (200, 20, 20), (20, 20, 250))
FAST: dict[str, Any] = {"backbone": "tiny", "model": {"input_size": 64, "image_size": 96}, "crop": {"size": 64}}
DETECT = {"size": 64, "map_size": 64}


@dataclass
class Exported:
    """A run, its export, and new images with what the run needs beside them."""

    run: Path
    folder: Path
    images: list[np.ndarray]
    given: dict[str, list[np.ndarray]]


def scenes(count: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Images of several sizes and shapes, their masks, and their maps at another resolution."""
    rng = np.random.default_rng(seed)
    images, masks, maps = [], [], []
    for index in range(count):
        height, width = SIZES[index % len(SIZES)]
        image, mask = rng.integers(90, 110, (height, width, 3), dtype=np.uint8), np.zeros((height, width), bool)
        kind = index % 4
        if kind < 3:
            y, x = rng.integers(4, 16, 2)
            mask[y : y + (24, 8, 28)[kind], x : x + (22, 26, 10)[kind]] = True
            image[mask] = np.clip(np.array(COLOURS[kind]) + rng.integers(-10, 10, (mask.sum(), 3)), 0, 255)
        images.append(image)
        masks.append(mask)
        soft = cv2.GaussianBlur(mask.astype(np.float32), (5, 5), 0) + rng.uniform(0, 0.05, mask.shape)
        maps.append(cv2.resize(soft.astype(np.float32), (width * 2, height * 2)))
    return images, masks, maps


SEEN, NEW = scenes(20, 0), scenes(8, 1)
KINDS: dict[str, dict[str, Any]] = {
    "maps": {"given": "maps", "settings": {"features": {"views": 2}}},
    "paper": {"given": "masks", "settings": {"preset": "paper", "learn": {"epochs": 2, "bank_views": 2}}},
    "both": {"given": "masks", "settings": {"features": {"views": 1, "class_token": 1.0}, "learn": {"epochs": 2}}},
    "patchcore": {"detector": "patchcore", "settings": {"detect": {"settings": {**DETECT, "radius": 3, "tile": 48}}}},
    "efficientad": {
        "detector": "efficientad",
        "settings": {"detect": {"settings": {**DETECT, "steps": 20, "tile": 48}}},
    },
    "rd++": {"detector": "rd++", "settings": {"detect": {"settings": {**DETECT, "steps": 20}}}},
    "pni": {
        "detector": "pni",
        "settings": {
            "detect": {"settings": {**DETECT, "epochs": 2, "kinds": 8, "bank_size": 60, "window": 3, "tile": 48}}
        },
    },
    "cpr": {"detector": "cpr", "settings": {"detect": {"settings": {**DETECT, "steps": 20, "views": 4}}}},
    "musc": {"detector": "musc", "settings": {"detect": {"settings": {**DETECT, "windows": [1, 3]}}}},
}


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """kind → what there is of it; made when first asked for."""
    made: dict[str, Exported] = {}
    # Tracing takes seconds, and the frozen network is always the same.
    graphs = {
        name: once(getattr(onnx, name), tmp_path_factory.mktemp("graphs")) for name in ("write_grid", "write_lowest")
    }

    def make(kind: str) -> Exported:
        if kind not in made:
            with pytest.MonkeyPatch.context() as patch:  # no longer than this: other tests trace networks of their own
                for name, write in graphs.items():
                    patch.setattr(onnx, name, write)
                made[kind] = fitted(kind, tmp_path_factory.mktemp(kind))
        return made[kind]

    return make


def once(write: Callable[..., Any], folder: Path) -> Callable[..., Any]:
    said: dict[Path, Any] = {}

    def write_or_copy(path: Path, vit: Any = None, *how: Any) -> Any:
        known = folder / f"{how}.onnx"
        if known not in said:
            said[known] = write(known, vit, *how) if vit is not None else write(known)
        shutil.copyfile(known, path)
        return said[known]

    return write_or_copy


def fitted(kind: str, place: Path) -> Exported:
    how = KINDS[kind]
    images, masks, maps = SEEN
    model = AnomalyNCD(4, **{**FAST, **how["settings"]})
    if "detector" in how:
        normal = place / "normal"
        normal.mkdir()
        for index in range(3, len(images), 4):
            cv2.imwrite(str(normal / f"{index}.png"), images[index])
        wanted = {"normal": normal} if how["detector"] != "musc" else {}
        model.fit(images, detector=how["detector"], run=place / "run", **wanted)
        # The last is one of the references of MuSc, which must not be compared with itself.
        return Exported(place / "run", export(place), [*NEW[0], images[0]], {})
    given = how["given"]
    model.fit(images, **{given: masks if given == "masks" else maps}, run=place / "run")
    return Exported(place / "run", export(place), NEW[0], {given: NEW[1] if given == "masks" else NEW[2]})


def export(place: Path) -> Path:
    return export_networks(place / "run", "onnx", place / "onnx").folder
