"""A process that is killed at any moment, and called again, leaves what an undisturbed one leaves."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from anomalyncd.demo import make_line
from anomalyncd.run.folder import RunFolder

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.scenes import content
from faults.server import ForkServer

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    with ForkServer() as server:
        yield server


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    return make_line(folder, n_per_class=6, n_normal=4, n_combined=0, size=128, kinds=["hole", "scratch", "print"])


@pytest.mark.parametrize("preset", ["fast", "paper"])
def test_killed_at_random_moments(preset: str, server: ForkServer, line: Path, tmp_path: Path) -> None:
    command = [
        "discover", line / "images", "--maps", line / "maps", "--classes", 4, "--backbone", "tiny", "--preset", preset,
        "--set", "features.views=1", "--set", "learn.bank_views=2", "--set", f"learn.epochs={10 if preset == 'fast' else 2}",
    ]  # fmt: skip
    started = time.perf_counter()
    assert server.run(*command, "--out", tmp_path / "whole").code == 0
    duration = time.perf_counter() - started
    # The first one is too early for any run to be through; the whole run may have been the slow one on a busy machine.
    delays = [0.01, *(np.random.default_rng().uniform(0.02, 0.9, 5) * duration).tolist()]
    killed = [server.run(*command, "--out", tmp_path / "run", kill_after=delay).code for delay in delays]
    assert -signal.SIGKILL in killed, f"no run was killed: {killed}"
    assert server.run(*command, "--out", tmp_path / "run").code == 0
    assert content(tmp_path / "run") == content(tmp_path / "whole"), f"killed after {delays} s"
    assert not list(tmp_path.rglob("*.partial"))


def test_two_writers_at_once(server: ForkServer, line: Path, tmp_path: Path) -> None:
    command = ["discover", line / "images", "--masks", line / "masks", "--classes", 4, "--backbone", "tiny"]
    with RunFolder(tmp_path / "run").writing():
        ended = server.run(*command, "--out", tmp_path / "run", "--set", "learn.epochs=1")
    assert ended.code == 2 and "another process is writing to this run" in ended.output
    assert "Traceback" not in ended.output
