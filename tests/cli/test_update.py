"""`anomalyncd update`, as it is typed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from anomalyncd.discovery.relearn import relearn
from command import call, fail
from scenes import KINDS, content, images, write_scenes

OPTIONS = ["--classes", 4, "--backbone", "tiny", "--set", "features.views=1", "--set", "learn.epochs=3", "--quiet"]
NEW = [0, 3, 1, 3, 3]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("line"), KINDS, seed=0)


@pytest.fixture(scope="module")
def tomorrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scenes(tmp_path_factory.mktemp("tomorrow"), NEW, seed=1)


@pytest.fixture(scope="module")
def fitted(line: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("fitted") / "run"
    call("discover", line / "images", "--masks", line / "masks", "--out", run, *OPTIONS)
    return run


@pytest.fixture
def run(fitted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fitted, tmp_path / "run"))


def test_it_says_what_changed_and_how_to_go_on(run: Path, tomorrow: Path) -> None:
    relearn(run, {}, (), {2: "red line"})
    said = call("update", run, tomorrow / "images", "--masks", tomorrow / "masks", "--quiet").stdout
    assert "5 new images with 5 regions, 0 files skipped" in said
    assert "New: class 4, 3 regions" in said and "red line" in said
    assert f"Next: anomalyncd review {run}" in said.splitlines()[-1]
    assert len(images(run)) == len(KINDS) + len(NEW)
    table = run.parent / "new.csv"
    call("predict", run, tomorrow / "images", "--masks", tomorrow / "masks", "--out", table, "--quiet")
    assert [line.split(",")[1] for line in table.read_text().splitlines()[1:]] == [
        str(label) for label in images(run)["label"].iloc[len(KINDS) :]
    ]
    assert (run / "run.log").read_text().count("finished in") == 2


def test_again_there_is_nothing_to_do(run: Path, tomorrow: Path) -> None:
    arguments = ("update", run, tomorrow / "images", "--masks", tomorrow / "masks", "--quiet")
    call(*arguments)
    before = content(run)
    said = call(*arguments).stdout
    assert "5 images in the run already" in said and "0 new images" in said and "New:" not in said
    assert content(run) == before


def test_few_unknown_regions_are_named(run: Path, tmp_path: Path) -> None:
    folder = write_scenes(tmp_path / "one", [3, 0], seed=5)
    said = call("update", run, folder / "images", "--masks", folder / "masks", "--quiet").stdout
    assert "Unknown still: 1 region, too few alike to be a class" in said and "New:" not in said
    folder = write_scenes(tmp_path / "two", [3, 3], seed=6)
    said = call("update", run, folder / "images", "--masks", folder / "masks", "--quiet").stdout
    assert "New: class 4, 3 regions" in said and "Moved: 1 region from unknown to class 4" in said


def test_mistakes(run: Path, line: Path, tomorrow: Path, tmp_path: Path) -> None:
    before = content(run)
    assert "fitted on masks" in fail("update", run, tomorrow / "images", "--maps", tomorrow / "maps")
    assert "--masks" in fail("update", run, tomorrow / "images")
    both = ("--maps", tomorrow / "maps", "--masks", tomorrow / "masks")
    assert fail("update", run, tomorrow / "images", *both)
    assert "expected a finished run" in fail("update", tmp_path, tomorrow / "images", "--masks", tomorrow / "masks")
    assert "device" in fail("update", run, tomorrow / "images", "--masks", tomorrow / "masks", "--device", "cray")
    assert content(run) == before
    call("update", run, tomorrow / "images", "--masks", tomorrow / "masks", "--quiet")
    message = fail("discover", line / "images", "--masks", line / "masks", "--out", run, *OPTIONS)
    assert "taken in more images since" in message and "Choose another folder" in message


def test_preset_paper_is_refused(line: Path, tomorrow: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    call(
        "discover", line / "images", "--masks", line / "masks", "--out", run, "--classes", 4, "--backbone", "tiny",
        "--preset", "paper", "--set", "learn.epochs=1", "--set", "learn.bank_views=2", "--set", "crop.size=224", "--quiet",
    )  # fmt: skip
    assert "--preset paper" in fail("update", run, tomorrow / "images", "--masks", tomorrow / "masks")
