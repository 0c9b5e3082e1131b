"""`watch` that is killed while files arrive, half-written and over each other: each content once, in the table and told."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.scenes import recipes, small_line
from faults.server import ForkServer

from watch import disk, kills

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForkServer, Path]]:
    place = tmp_path_factory.mktemp("watched")
    with ForkServer() as server:
        assert server.run(*recipes(small_line(place / "line"))[2].command(place / "run")).code == 0
        yield server, place / "run"


def test_each_content_once_whenever_it_is_killed(made: tuple[ForkServer, Path], tmp_path: Path) -> None:
    pytest.importorskip("paho")
    assert kills(*made, tmp_path, images=40, n_kills=3, seed=0, pause=0.1) == []


def test_a_full_disk_and_a_dead_receiver_lose_nothing(made: tuple[ForkServer, Path], tmp_path: Path) -> None:
    assert disk(*made, tmp_path, images=60, seed=0, seconds=8, kinds=("csv",)) == []
