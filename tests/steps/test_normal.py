"""Normal images that a run's detector learns afterwards: said first, then kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from anomalyncd import AnomalyNCD
from anomalyncd.cli import app
from anomalyncd.data.gather import gather_normal
from anomalyncd.discovery.relearn import relearn
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.steps.normal import learn_normal
from scenes import content, images, write_scenes

SETTINGS = {
    "backbone": "tiny", "model": {"input_size": 64, "image_size": 96}, "crop": {"size": 64},
    "detect": {"settings": {"size": 64, "map_size": 64, "bank_size": 200}},
}  # fmt: skip


def picture(rng: np.random.Generator, colour: tuple[int, int, int] | None) -> np.ndarray:
    image = rng.integers(95, 105, (64, 64, 3), dtype=np.uint8)
    if colour:
        image[20:40, 20:40] = colour
    return image


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Normal images, red defects, and green labels that are none; a run of all of them."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("line")
    kinds = {
        "normal": (None, 10),
        "images/red": ((30, 30, 220), 6),
        "images/green": ((30, 220, 30), 6),
        "more": ((30, 220, 30), 4),
    }
    for name, (colour, count) in kinds.items():
        (folder / name).mkdir(parents=True)
        for index in range(count):
            cv2.imwrite(str(folder / name / f"{index}.png"), picture(rng, colour))
    model = AnomalyNCD(3, **SETTINGS)
    model.fit(folder / "images", detector="patchcore", normal=folder / "normal", run=folder / "run")
    assert (model.labels_ > 0).all()
    return folder


def test_it_says_what_would_change_and_changes_nothing(line: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(line / "run", tmp_path / "run"))
    before = content(run)
    found = learn_normal(run, gather_normal(line / "more"))
    assert found.turned == [f"green/{index}.png" for index in range(6)] and found.n_defective == 12
    assert not found.lost and not found.applied and content(run) == before


def test_known_defects_that_would_be_lost_are_named(line: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(line / "run", tmp_path / "run"))
    label = int(images(run).set_index("image")["label"]["green/2.png"])
    relearn(run, {}, [("green/2.png", 0)], {})
    assert learn_normal(run, gather_normal(line / "more")).lost == ["green/2.png"]
    relearn(run, {}, [], {label: "scratch"})
    assert len(learn_normal(run, gather_normal(line / "more")).lost) == 6


def test_applied_it_counts_for_new_images_and_for_those_that_were_shown(line: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(line / "run", tmp_path / "run"))
    (tmp_path / "shown").mkdir()
    rng = np.random.default_rng(7)
    new = [picture(rng, (30, 220, 30)), picture(rng, (220, 30, 30))][:1]
    new = [image[..., ::-1].copy() for image in new]
    assert (AnomalyNCD.load(run).predict(new).labels != 0).all()
    found = learn_normal(run, gather_normal([line / "images" / "green" / f"{i}.png" for i in range(4)]), apply=True)
    assert found.applied and found.n_defective == 8
    table = images(run).set_index("image")["label"]
    assert (table[[f"green/{i}.png" for i in range(4)]] == 0).all() and (
        table[[f"red/{i}.png" for i in range(6)]] > 0
    ).all()
    assert (AnomalyNCD.load(run).predict(new).labels == 0).all()


def test_the_command_says_it_first(line: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(line / "run", tmp_path / "run"))
    answer = CliRunner().invoke(app, ["update", str(run), "--normal", str(line / "more"), "--quiet"])
    assert (
        answer.exit_code == 0
        and "6 would score like normal ones" in answer.output
        and "Nothing was changed" in answer.output
    )
    assert CliRunner().invoke(app, ["update", str(run)]).exit_code != 0


def test_what_cannot_learn_says_so(line: Path, tmp_path: Path) -> None:
    scenes = write_scenes(tmp_path / "line", [0, 0, 1, 1], seed=0)
    AnomalyNCD(3, backbone="tiny").fit(scenes / "images", masks=scenes / "masks", run=tmp_path / "masks")
    with pytest.raises(DataError, match="this run has none"):
        learn_normal(tmp_path / "masks", gather_normal(line / "more"))
    from anomalyncd.detect import MuSc

    with pytest.raises(SettingsError, match="cannot learn more normal images"):
        MuSc().learn_more([])
