"""Drawn defects become regions: in every table, with crops, masks and features, and the model learns from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.data.gather import gather
from anomalyncd.demo import make_line
from anomalyncd.discovery.relearn import relearn
from anomalyncd.errors import DataError
from anomalyncd.export import export_run
from anomalyncd.progress import Silent
from anomalyncd.regions.drawn import Drawn, Stroke
from anomalyncd.run.finished import FinishedRun
from scenes import content

BOX = Stroke(((0.25, 0.25), (0.5, 0.25), (0.5, 0.5), (0.25, 0.5)))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("line")
    make_line(folder / "line", kinds=("hole", "stain"), n_per_class=4, n_normal=3, n_combined=0, size=96)
    inputs = gather(folder / "line/images", maps=folder / "line/maps")
    AnomalyNCD(3, backbone="tiny", features={"views": 2}, learn={"epochs": 0}).fit(inputs, run=folder / "run")
    return folder / "run"


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "run"))


def bare(run: FinishedRun) -> str:
    """An image in which nothing was found."""
    return str(run.images["image"][(run.images["n_regions"] == 0)].iloc[0])


def draw(run: Path, image: str, region: int, label: int = 1) -> None:
    drawn = [Drawn(image, region, (BOX,))]
    relearn(run, {(image, region): label}, {(image, region)}, {}, Silent(), drawn=drawn)


def test_a_missed_defect_is_a_region_everywhere(run: Path) -> None:
    before = FinishedRun(run)
    name, old = bare(before), before.regions
    draw(run, name, 0)
    after = FinishedRun(run)
    assert len(after.regions) == len(old) + 1 == len(after.store.regions) == len(after.features["patches"])
    row = after.regions.iloc[after.rows[name, 0]]
    height, width = after.size(name)
    assert (row["x"], row["y"], row["width"], row["height"]) == (width // 4, height // 4, width // 4, height // 4)
    assert row["label"] == 1 and row["probability"] == 1 and after.corrections[name, 0] == 1
    image = after.images.set_index("image").loc[name]
    assert image["label"] == 1 and image["n_regions"] == 1
    crop, mask = after.crop(after.rows[name, 0])
    assert crop is not None and mask is not None and mask.any() and not mask.all()
    (own,) = after.region_masks(name)
    assert own.sum() == (height // 4) * (width // 4) and after.mask(name).mean() == own.mean()  # type: ignore[union-attr]
    rest = after.regions.drop(after.rows[name, 0]).reset_index(drop=True)
    assert (rest[["image", "region", "x", "area"]] == old[["image", "region", "x", "area"]]).all(axis=None)
    assert {key for key in after.rows if key != (name, 0)} == set(before.rows)


def test_features_of_other_regions_stay_where_they_were(run: Path) -> None:
    before = FinishedRun(run)
    name, features, keys = bare(before), before.features["patches"].copy(), list(before.rows)
    draw(run, name, 0)
    after = FinishedRun(run)
    assert np.array_equal(after.features["patches"][[after.rows[key] for key in keys]], features)
    assert np.isfinite(after.features["patches"][after.rows[name, 0]]).all()


def test_it_comes_behind_what_was_found_in_the_image_and_twice_is_two(run: Path) -> None:
    name = FinishedRun(run).regions["image"].iloc[0]
    before = FinishedRun(run)
    own = before.region_masks(name)
    draw(run, name, len(own))
    draw(run, name, len(own) + 1, label=2)
    after = FinishedRun(run)
    masks = after.region_masks(name)
    assert len(masks) == len(own) + 2 and all((a == b).all() for a, b in zip(own, masks, strict=False))
    assert [after.regions["label"].iloc[after.rows[name, len(own) + k]] for k in (0, 1)] == [1, 2]


def test_the_model_and_what_comes_after_know_it(run: Path, made: Path, tmp_path: Path) -> None:
    name, label = bare(FinishedRun(run)), 7
    draw(run, name, 0, label)
    assert label in FinishedRun(run).model.classes.tolist()
    found = AnomalyNCD.load(run).predict(made.parent / "line/images", maps=made.parent / "line/maps")
    assert len(found.labels) == 11
    out = export_run(run, "coco", tmp_path / "coco").folder
    own = [
        one for one in json.loads(next(out.rglob("*.json")).read_text())["annotations"] if one["category_id"] == label
    ]
    assert len(own) == 1 and own[0]["area"] == 24 * 24


def test_discover_again_keeps_it(run: Path, made: Path) -> None:
    name = bare(FinishedRun(run))
    draw(run, name, 0)
    inputs = gather(made.parent / "line/images", maps=made.parent / "line/maps")
    settings = {"detect": {"false_alarms": 0.05}}
    AnomalyNCD(3, backbone="tiny", features={"views": 2}, learn={"epochs": 0}, **settings).fit(inputs, run=run)
    after = FinishedRun(run)
    assert after.regions["label"].iloc[after.rows[name, 0]] == 1 and after.config.detect.false_alarms == 0.05


def test_an_image_that_is_gone_changes_nothing(run: Path) -> None:
    before = content(run)
    with pytest.raises(DataError, match="cannot be read"):
        draw(run, "nowhere.png", 0)
    assert content(run) == before


def test_what_a_killed_apply_has_drawn_is_not_drawn_twice(run: Path) -> None:
    name = bare(FinishedRun(run))
    draw(run, name, 0)
    draw(run, name, 0, label=2)
    after = FinishedRun(run)
    assert after.images.set_index("image").loc[name, "n_regions"] == 1
    assert after.regions["label"].iloc[after.rows[name, 0]] == 2
