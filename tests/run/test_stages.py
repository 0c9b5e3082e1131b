"""What the stages of a run are made from. That a stopped run goes on where it ended is in tests/discovery/test_fit.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from anomalyncd.config import make_config
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.progress import Silent
from anomalyncd.run import stages
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.stages import Stages


def begun(folder: Path) -> Stages:
    return Stages(RunFolder(folder / "run"), make_config({"model": {"backbone": "tiny"}}), Silent())


def files(folder: Path) -> Dataset:
    for name in ("a.png", "a.npy", "b.png"):
        (folder / name).write_bytes(b"1")
    return Dataset([Sample("a", folder / "a.png", folder / "a.npy"), Sample("b", folder / "b.png", folder / "a.npy")])


def test_all_stages_of_a_call_are_of_the_same_files(tmp_path: Path) -> None:
    """A file that changes while a run works on it is seen by the next call, and then by every stage."""
    images, now = files(tmp_path), begun(tmp_path)
    before = now.range_key(images), begun(tmp_path).regions_key(images)
    os.utime(tmp_path / "a.png", (1, 1))
    assert (now.range_key(images), now.regions_key(images)) == before
    after = begun(tmp_path)
    assert after.range_key(images) != before[0] and after.regions_key(images) != before[1]


def test_files_are_looked_at_once_in_a_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, looked_at = files(tmp_path), []
    base = Dataset([Sample("b", tmp_path / "b.png", mask=tmp_path / "a.npy", label="x")])
    fingerprint = stages.fingerprint
    monkeypatch.setattr(
        stages, "fingerprint", lambda samples, *run: looked_at.append(samples) or fingerprint(samples, *run)
    )
    now = begun(tmp_path)
    keys = {now.range_key(images), now.regions_key(images), now.base_key(base), now.base_key(base), now.base_key(None)}
    assert len(keys) == 4 and len(looked_at) == 3  # the images, the normal ones, the base set
