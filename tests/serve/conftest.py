"""Runs for the service, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from anomalyncd import AnomalyNCD
from scenes import GOOD, TINY, fit, write_scenes
from scenes import KINDS as SCENES


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs for the service, by what must come with each image, and under "scenes" the pictures that they were made from."""
    folder = tmp_path_factory.mktemp("served")
    scenes, normal = write_scenes(folder / "scenes", SCENES, 0), write_scenes(folder / "normal", [GOOD] * 6, 5)
    for given in ("map", "mask"):
        fit(scenes, folder / given, f"{given}s")
    small = {"settings": {"size": 64, "map_size": 64, "bank_size": 200}}
    model = AnomalyNCD(4, **TINY, detect=small)
    model.fit(scenes / "images", detector="patchcore", normal=normal / "images", run=folder / "image")
    return {name: folder / name for name in ("map", "mask", "image", "scenes")}
