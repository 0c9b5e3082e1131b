"""Two workers of a real Ray on this machine against the local engine, exactly; and a worker that is killed at work."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pandas as pd
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.data.dataset import Dataset
from anomalyncd.data.gather import gather
from anomalyncd.ray.engine import predict_with_ray
from at_work import Steps, busy_workers
from scenes import GOOD, KINDS, fit, write_scenes, write_table

ray = pytest.importorskip("ray", reason="Ray is not installed")
pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

BROKEN = 37  # the image that cannot be read


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and 70 new images in a list, one of them broken, some with a true label."""
    work = tmp_path_factory.mktemp("ray")
    fit(write_scenes(work / "old", KINDS, seed=0), work / "run", "maps")
    new = write_scenes(work / "new", [(GOOD, 0, 1, 2)[k % 4] for k in range(70)], seed=1)
    (new / "images" / f"{BROKEN:03d}.png").write_bytes(b"no picture")
    names = [f"{k:03d}" for k in range(70)]
    table = pd.DataFrame(
        {
            "image": [f"images/{name}.png" for name in names],
            "map": [f"maps/{name}.npy" for name in names],
            "label": [None if k < 16 else f"kind {k % 4}" for k in range(70)],
        }
    )
    table.to_csv(new / "list.csv", index=False)
    table.to_parquet(new / "list.parquet", index=False)
    return work


@pytest.fixture(scope="module")
def local(work: Path) -> Path:
    """The tables of the local engine."""
    progress = Steps()
    found = AnomalyNCD.load(work / "run", progress=progress).predict(gather(work / "new" / "list.csv"))
    write_table(found.images, work / "local.csv")
    write_table(found.regions, work / "local_regions.csv")
    (work / "local.txt").write_text("\n".join(progress.warnings))
    return work / "local.csv"


@pytest.fixture
def inputs(work: Path) -> Dataset:
    return gather(work / "new" / "list.parquet")


def regions_of(table: Path) -> Path:
    return table.with_name(f"{table.stem}_regions{table.suffix}")


def same(one: Path, other: Path) -> None:
    assert one.read_bytes() == other.read_bytes()
    assert regions_of(one).read_bytes() == regions_of(other).read_bytes()


def test_two_workers_write_the_tables_of_the_local_engine_byte_by_byte(
    cluster: None, work: Path, inputs: Dataset, local: Path
) -> None:
    progress = Steps()
    written = predict_with_ray(work / "run", inputs, work / "two.csv", progress, workers=2)
    same(work / "two.csv", local)
    assert (written.images, written.regions, written.n_skipped) == (work / "two.csv", work / "two_regions.csv", 1)
    assert sum(written.counts.values()) == 69 and not (work / "two.csv.parts").exists()
    assert progress.warnings == [(work / "local.txt").read_text()] and f"{BROKEN:03d}.png" in progress.warnings[0]
    assert sum(progress.steps) == 70 and max(progress.steps) == 16


def test_a_killed_worker_is_replaced_and_its_images_are_done_again(
    cluster: None, work: Path, inputs: Dataset, local: Path
) -> None:
    killed: list[int] = []

    def kill(done: int) -> None:
        if done and not killed:
            killed.append(max(busy_workers()))
            os.kill(killed[0], signal.SIGKILL)

    progress = Steps(kill)
    predict_with_ray(work / "run", inputs, work / "killed.csv", progress, workers=2)
    same(work / "killed.csv", local)
    assert killed and killed[0] not in busy_workers() and sum(progress.steps) == 70
