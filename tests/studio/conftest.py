"""Small workspaces: one empty, one with a run, and folders of images beside them."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from fastapi.testclient import TestClient

from anomalyncd import AnomalyNCD
from anomalyncd.studio.app import make_studio
from anomalyncd.studio.roots import Roots

KINDS, EACH = 2, 5
TINY = ["--backbone=tiny", "--set=features.views=1", "--set=learn.bank_views=2", "--set=learn.epochs=2"]


@pytest.fixture(scope="session")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """images/ and masks/: ten defects of two kinds and two images without; run/ is sorted from them."""
    folder = tmp_path_factory.mktemp("product")
    rng = np.random.default_rng(0)
    for index in range(KINDS * EACH + 2):
        image = rng.integers(90, 110, (64, 64, 3), dtype=np.uint8)
        mask = np.zeros((64, 64), bool)
        y, x = rng.integers(4, 24, 2)
        if (kind := index // EACH) < KINDS:
            height, width = ((20, 20), (4, 36))[kind]
            mask[y : y + height, x : x + width] = True
            image[mask] = ((250, 250, 250), (200, 20, 20))[kind]
        for name, picture in (("images", image), ("masks", mask.astype(np.uint8) * 255)):
            (folder / name).mkdir(exist_ok=True)
            cv2.imwrite(str(folder / name / f"{index:03d}.png"), picture)
    model = AnomalyNCD(KINDS + 1, backbone="tiny", features={"views": 1}, learn={"epochs": 2})
    model.fit(folder / "images", masks=folder / "masks", run=folder / "run")
    return folder


@pytest.fixture
def place(product: Path, tmp_path: Path) -> Path:
    """work/ with the run `plate`, pictures/ to choose from, and private/, which is nobody's business."""
    shutil.copytree(product / "run", tmp_path / "work" / "plate")
    shutil.copytree(product / "images", tmp_path / "pictures" / "plates")
    shutil.copytree(product / "masks", tmp_path / "pictures" / "masks")
    (tmp_path / "private" / "secret").mkdir(parents=True)
    shutil.copy(product / "images" / "000.png", tmp_path / "private" / "secret.png")
    return tmp_path


Open = Callable[..., Any]


@pytest.fixture
def studio(place: Path) -> Iterator[Open]:
    """Opens the studio of work/; what is open is closed at the end."""
    opened: list[TestClient] = []

    def open_studio(name: str = "work", **arguments: Any) -> TestClient:
        arguments = {"options": TINY, **arguments}
        app = make_studio(place / name, Roots([place / "pictures"]), **arguments)
        http = TestClient(app, base_url="http://127.0.0.1:8765", raise_server_exceptions=False)
        http.__enter__()
        opened.append(http)
        return http

    yield open_studio
    for http in opened:
        jobs = http.app.state.jobs  # type: ignore[attr-defined]
        for job in jobs.all():
            jobs.stop(job)
            jobs.stop(job)
        http.__exit__(None, None, None)


def until(condition: Callable[[], Any], seconds: float = 400) -> Any:
    """What a condition says once it holds."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)
    return found
