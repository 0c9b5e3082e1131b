"""A finished run of files on disk, with odd names and sizes, whose classes were then renamed and corrected by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from anomalyncd import AnomalyNCD
from anomalyncd.run.tables import read_csv
from export.scenes import IMAGE_LABELS, LABELS, NAMES, SCENES, small_mask

FAST: dict[str, Any] = {"backbone": "tiny", "features": {"views": 1}, "learn": {"epochs": 2}}


@pytest.fixture(scope="session")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The parent of `images` and `run`; do not change it."""
    place = tmp_path_factory.mktemp("a line")
    rng = np.random.default_rng(0)
    for name, ((height, width), _) in SCENES.items():
        image = rng.integers(90, 110, (height, width, 3), dtype=np.uint8)
        mask = small_mask(name)
        image[np.kron(mask, np.ones((2, 2), bool)).astype(bool)] = 250
        for folder, picture in (("images", image), ("masks", mask.astype(np.uint8) * 255)):
            if folder == "images" or mask.any():
                (place / folder / name).parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(picture).save(place / folder / name)
    model = AnomalyNCD(4, **FAST)
    model.fit(place / "images", masks=place / "masks", run=place / "run")
    rename(place / "run")
    return place


def rename(run: Path) -> None:
    """As a person would: other labels, which leave a gap, and other names."""
    (run / "classes.json").write_text(json.dumps({str(k): name for k, name in NAMES.items()}), encoding="utf-8")
    names = {**NAMES, -1: "unknown"}
    regions, images = read_csv(run / "regions.csv"), read_csv(run / "images.csv")
    regions["label"] = [
        LABELS[image][region] for image, region in zip(regions["image"], regions["region"], strict=True)
    ]
    regions["probability"] = np.linspace(0.5, 1, len(regions)).round(3)
    assert images["image"].tolist() == list(SCENES)
    images["label"] = IMAGE_LABELS
    for table, file in ((regions, "regions.csv"), (images, "images.csv")):
        table["class_name"] = table["label"].map(names)
        table.to_csv(run / file, index=False)


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    """A copy to change; the images stay where they were, as the tables say."""
    shutil.copytree(fitted / "run", tmp_path / "my run")
    return tmp_path / "my run"


@pytest.fixture
def moved(fitted: Path, tmp_path: Path) -> Path:
    """The run of a copy of the images, which may be changed too."""
    shutil.copytree(fitted, tmp_path / "line")
    manifest = tmp_path / "line/run/manifest.csv"
    table = pd.read_csv(manifest, keep_default_na=False)
    table["file"] = table["file"].str.replace(str(fitted), str(tmp_path / "line"), regex=False)
    table.to_csv(manifest, index=False)
    return tmp_path / "line"
