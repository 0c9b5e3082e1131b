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

from anomalyncd.data.dataset import Sample
from anomalyncd.run.folder import RunFolder

MakeRun = Callable[..., tuple[Path, list[Sample]]]


def picture(index: int) -> tuple[Any, Any]:
    """A grey image and its map; images 0 and 1 of five have a defect."""
    mask = np.zeros((20, 30), np.float32)
    if index % 5 < 2:
        mask[4:12, 6:18] = 1
    return np.full((60, 90, 3), 100 + index, np.uint8), cv2.GaussianBlur(mask, (5, 5), 0) + np.float32(
        0.1 + 0.001 * index
    )


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write a run of n images; maps : "own" in the run, "listed" in its manifest, "given" with the samples, or "none"."""

    def make(n_images: int = 20, maps: str = "own") -> tuple[Path, list[Sample]]:
        run = tmp_path / "run"
        samples, places = [], []
        for index in range(n_images):
            image, values = picture(index)
            sample = Sample(f"folder/{index:03d}.png", tmp_path / "images" / f"{index:03d}.png")
            assert isinstance(sample.image, Path)
            map_file = (run / "maps/folder" if maps == "own" else tmp_path / "maps") / f"{index:03d}.npy"
            for path in (sample.image, map_file):
                path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(sample.image), image)
            if maps != "none":
                np.save(map_file, values)
            listed = {"own": map_file.relative_to(run).as_posix() if maps == "own" else "", "listed": str(map_file)}
            places.append(listed.get(maps, ""))
            samples.append(replace(sample, map=map_file if maps == "given" else None))
        images = pd.DataFrame({"image": [sample.id for sample in samples], "label": 0, "class_name": "normal"})
        images["probability"], images["n_regions"] = 1.0, 0
        manifest = images[["image"]].assign(
            status="ok", height=60, width=90, n_regions=0, score=0.5, message="", map=places
        )
        folder = RunFolder(run)
        folder.finish("learn", "")
        folder.write_text("images.csv", images.to_csv(index=False))
        folder.write_text("manifest.csv", manifest.to_csv(index=False))
        folder.write_text("config.yaml", "n_classes: 2\nbinarize:\n  min_map_size: 64\n  erosion: 2\n")
        return run, samples

    return make
