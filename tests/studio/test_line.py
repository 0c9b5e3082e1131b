"""The line between normal and defect: what the tables say, and the command that moves it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.errors import RunError
from anomalyncd.run.tables import read_csv
from anomalyncd.studio.jobs import Jobs
from anomalyncd.studio.line import line_answer
from anomalyncd.studio.orders import Orders
from anomalyncd.studio.roots import Roots
from anomalyncd.studio.schema import NewRun, NewSensitivity
from anomalyncd.studio.workspace import Workspace


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of maps: 16 low ones and 8 with a bright spot."""
    rng = np.random.default_rng(0)
    images = [rng.integers(90, 110, (64, 64, 3), dtype=np.uint8) for _ in range(24)]
    maps = [rng.uniform(0, 0.2, (64, 64)).astype(np.float32) for _ in range(24)]
    for number in range(8):
        maps[number][10:30, 10 : 20 + number] = 0.9
        images[number][10:30, 10 : 20 + number] = 250
    folder = tmp_path_factory.mktemp("line") / "run"
    AnomalyNCD(2, backbone="tiny", features={"views": 1}, learn={"epochs": 2}).fit(images, maps=maps, run=folder)
    return folder


def test_the_answer_agrees_with_the_tables(run: Path) -> None:
    found, table = line_answer(run), read_csv(run / "images.csv")
    assert found.n_images == 24 and found.n_defects == (table["label"] != 0).sum()
    assert sum(found.own) == 24 and len(found.edges) == len(found.own) + 1
    (now,) = [step for step in found.steps if step.share == found.share]
    assert now.n_defects == found.n_defects == 8
    assert [step.n_defects for step in found.steps] == sorted(step.n_defects for step in found.steps)
    assert [step.line for step in found.steps] == sorted((step.line for step in found.steps), reverse=True)


def test_a_run_of_masks_has_no_line(product: Path) -> None:
    with pytest.raises(RunError, match="no line"):
        line_answer(product / "run")


def test_moving_the_line_is_the_same_command_with_another_share(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    workspace, jobs = Workspace(tmp_path / "work"), Jobs(tmp_path / "jobs")
    orders = Orders(workspace, Roots([tmp_path / "images"]), jobs, [])
    first = orders.new_run(NewRun.model_validate({"images": {"root": 0, "path": ""}}))
    for share in (0.05, 0.001):
        moved = orders.move_line("images", NewSensitivity(share=share))
        assert moved.order["arguments"] == [*first.order["arguments"], "--sensitivity", repr(share)]
    with pytest.raises(RunError, match="not made in this studio"):
        orders.move_line("elsewhere", NewSensitivity(share=0.1))
