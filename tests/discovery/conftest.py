"""Runs that the tests of `update` and of corrections change copies of."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from scenes import KINDS, fit, write_scenes


@pytest.fixture(scope="session")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("line"), KINDS, seed=0)


@pytest.fixture(scope="session")
def runs(line: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run on masks, and one on maps."""
    folder = tmp_path_factory.mktemp("runs")
    for given in ("masks", "maps"):
        model = fit(line, folder / given, given)
        assert len({(kind, label) for kind, label in zip(KINDS, model.labels_.tolist(), strict=True)}) == 4
    return {given: folder / given for given in ("masks", "maps")}


@pytest.fixture(params=["masks", "maps"])
def given(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def run(given: str, runs: dict[str, Path], tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(runs[given], tmp_path / "run"))
