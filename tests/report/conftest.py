"""A finished run in miniature, written by hand: no network, no learning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from anomalyncd.binarize.prepare import binarizer_for
from anomalyncd.blocks.shards import file_stem
from anomalyncd.config import make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.tables import REGION_COLUMNS, to_csv

MakeRun = Callable[..., tuple[Path, list[Sample]]]
NAMES = {0: "normal", 1: "Riß/Öl: 3 µm"}


def picture(index: int, size: tuple[int, int] = (60, 90)) -> tuple[Any, Any, Any]:
    """A grey image, its map and its mask; images 0 and 1 of five have a defect."""
    height, width = size
    image = np.full((height, width, 3), 100 + index, np.uint8)
    mask = np.zeros((height // 3, width // 3), bool)
    if index % 5 < 2:
        mask[4:12, 6:18] = True
    values = cv2.GaussianBlur(mask.astype(np.float32), (5, 5), 0) + np.float32(0.1 + 0.001 * index)
    return image, values, mask


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run of n images; maps : "own" numbered in the run, "mirrored" in the run, "given" with the items, or none."""

    def make(n_images: int = 20, maps: str = "own") -> tuple[Path, list[Sample]]:
        run = tmp_path / "run"
        items, all_places = [], []
        for index in range(n_images):
            image, values, mask = picture(index)
            item = Sample(f"folder/{index:03d}.png", tmp_path / "images" / f"{index:03d}.png")
            assert isinstance(item.image, Path)
            stem = file_stem(index, item.id)
            places = {
                "own": run / f"maps/{stem}.npy",
                "mirrored": run / f"maps/folder/{index:03d}.npy",
                "given": tmp_path / f"maps/{index:03d}.npy",
            }
            all_places.append(places)
            mask_file = run / f"masks/{stem}.png"
            for path in (item.image, mask_file, *(places[kind] for kind in places if kind == maps)):
                path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(item.image), image)
            cv2.imwrite(str(mask_file), mask.astype(np.uint8) * 255)
            if maps in places:
                np.save(places[maps], values)
            items.append(replace(item, map=places["given"] if maps == "given" else None))
        defect = np.array([index % 5 < 2 for index in range(n_images)])
        sure = np.where(defect, 0.99 - 0.01 * np.arange(n_images), 1.0)
        images = pd.DataFrame(
            {
                "image": [item.id for item in items],
                "label": defect.astype(int),
                "class_name": [NAMES[int(d)] for d in defect],
                "probability": sure,
                "classes": defect.astype(int).astype(str),
                "n_regions": defect.astype(int),
                "unknown": 0.0,
                "p_0": np.where(defect, 1 - sure, sure),
                "p_1": np.where(defect, sure, 1 - sure),
            }
        )
        manifest = images[["image"]].assign(
            status="ok", height=64, width=64, n_regions=defect.astype(int), score=np.where(defect, 0.9, 0.1), message="",
            map=[places[maps].relative_to(run).as_posix() if maps in ("own", "mirrored") else "" for places in all_places],
        )  # fmt: skip
        config = make_config({"n_classes": 2, "binarize": {"min_map_size": 64, "erosion": 2}})
        model = DiscoveryModel(config)
        if maps != "none":
            model.binarizer = binarizer_for(config.binarize, has_normal=True)
            model.binarizer.low_, model.binarizer.high_ = 0.1, 1.1
        folder = RunFolder(run)
        folder.finish("learn", "")
        folder.write_text("images.csv", to_csv(images))
        folder.write_text("regions.csv", to_csv(pd.DataFrame(columns=REGION_COLUMNS)))
        folder.write_text("manifest.csv", to_csv(manifest))
        folder.write_text("config.yaml", config.to_yaml())
        folder.write("model.safetensors", model.pack())
        return run, items

    return make
