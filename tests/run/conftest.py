"""A finished run with everything in it, for tests that harm copies of it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from anomalyncd import AnomalyNCD
from scenes import GOOD, TINY, write_scenes


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """images/ and labels.csv."""
    kinds = [GOOD] * 3 + [0] * 4 + [1] * 4
    folder = write_scenes(tmp_path_factory.mktemp("line"), kinds, seed=0)
    rows = "".join(f"{index:03d}.png,{kind}\n" for index, kind in enumerate(kinds))
    (folder / "labels.csv").write_text(f"image,label\n{rows}")
    return folder


@pytest.fixture(scope="session")
def finished(line: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose maps a detector made; do not change it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    AnomalyNCD(3, **TINY).fit(line / "images", detector="musc", run=run)
    return run


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(finished, tmp_path / "run"))
