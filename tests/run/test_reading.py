"""A finished run that was written by hand: what is read from its files, and the words where they do not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd.config import make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.errors import MissingRunError, RunError
from anomalyncd.run.finished import FinishedRun, read_corrections
from anomalyncd.run.tables import is_count

IMAGES = "image,label,class_name,true_label\na.png,0,normal,good\nb.png,1,,dent\n"
REGIONS = (
    "image,region,x,y,width,height,area,score,label,class_name,probability,crop\n"
    "b.png,0,2,2,4,4,16,0.9,1,dent,0.9,crops/b0.png\nb.png,1,10,2,4,4,16,0.8,2,hole,0.7,\n"
)
MANIFEST = (
    "image,status,height,width,n_regions,message,file,map\na.png,ok,16,20,0,,{folder}/a.png,maps/a.npy\n"
    "b.png,ok,16,20,2,,{folder}/b.png,{folder}/stack.npy[1]\nc.png,skipped,0,0,0,is damaged,,\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "maps").mkdir(parents=True)
    (run / "masks" / "000").mkdir(parents=True)
    (run / "crops").mkdir()
    tables = {"images.csv": IMAGES, "regions.csv": REGIONS, "manifest.csv": MANIFEST.format(folder=tmp_path)}
    for name, text in tables.items():
        (run / name).write_text(text)
    (run / "stages.json").write_text(json.dumps({"format": 7, "learn": {"key": "abc", "done": True}}))
    (run / "config.yaml").write_text("n_classes: 3\n")
    np.save(run / "maps" / "a.npy", np.full((4, 5), 0.25, np.float32))
    np.save(tmp_path / "stack.npy", np.stack([np.zeros((4, 5)), np.ones((4, 5))]).astype(np.float32))
    for name, level in (("a.png", 10), ("b.png", 20)):
        cv2.imwrite(str(tmp_path / name), np.full((16, 20, 3), level, np.uint8))
    mask = np.zeros((16, 20), np.uint8)
    mask[2:6, 2:6] = mask[2:6, 10:14] = 255
    cv2.imwrite(str(run / "masks" / "000" / "000001_b.png"), mask)
    cv2.imwrite(str(run / "crops" / "b0.png"), np.full((8, 8, 3), 7, np.uint8))
    cv2.imwrite(str(run / "crops" / "b0_mask.png"), np.full((8, 8), 255, np.uint8))
    return run


def test_tables_and_names(folder: Path) -> None:
    run = FinishedRun(folder)
    assert run.names == {0: "normal", 1: "class 1", 2: "hole", -1: "unknown"}, "images.csv comes first"
    assert run.images["class_name"].tolist() == ["normal", ""] and run.skipped == {"c.png": "is damaged"}
    assert run.truth == {"a.png": "good", "b.png": "dent"} and run.rows == {("b.png", 0): 0, ("b.png", 1): 1}
    assert run.history == [] and run.count is None and run.corrections == {} and run.learned == "abc"
    assert run.config.n_classes == 3 and run.size("b.png") == (16, 20)
    (folder / "classes.json").write_text('{"1": "scratch"}')
    assert FinishedRun(folder).names[1] == "scratch"
    (folder / "images.csv").write_text(IMAGES.replace(",true_label", "").replace(",good", "").replace(",dent", ""))
    assert FinishedRun(folder).truth == {}


def test_pictures_maps_and_masks(folder: Path, tmp_path: Path) -> None:
    run = FinishedRun(folder)
    image, values, mask = run.image("b.png"), run.map("b.png"), run.mask("b.png")
    assert image is not None and image.mean() == 20 and values is not None and values.mean() == 1
    assert mask is not None and mask.sum() == 32 and run.mask("a.png") is None
    heat = run.map("a.png")
    assert heat is not None and heat.mean() == 0.25 and run.map("c.png") is None and run.map("none.png") is None
    assert run.file("a.png") == tmp_path / "a.png" and run.file("c.png") is None and run.image("c.png") is None
    crop, own = run.crop(0)
    assert crop is not None and (crop == 7).all() and own is not None and own.all() and run.crop(1) == (None, None)
    (tmp_path / "b.png").write_bytes(b"damaged")
    assert run.image("b.png") is None


def test_what_was_given_outweighs_what_the_run_noted(folder: Path) -> None:
    picture, values = np.full((3, 3, 3), 9, np.uint8), np.full((3, 3), 5, np.float32)
    samples = [Sample("a.png", picture, values), Sample("b.png", picture, mask=values > 1)]
    run = FinishedRun(folder, given=samples)
    image, heat, other = run.image("a.png"), run.map("a.png"), run.map("b.png")
    assert image is not None and image.mean() == 9 and heat is not None and heat.mean() == 5
    assert other is not None and other.mean() == 1, "none was given, so that of the run"
    normal, defect = run.true_mask("a.png"), run.true_mask("b.png")
    assert normal is not None and normal.tolist() == [[False]] and defect is not None and defect.all()
    assert run.true_mask("c.png") is None
    assert FinishedRun(folder, given=samples[:1]).true_mask("a.png") is None, "nobody gave one"


def test_masks_of_single_regions(folder: Path) -> None:
    first, second = FinishedRun(folder).region_masks("b.png")
    assert first.shape == (16, 20) and first[2:6, 2:6].all() and first.sum() == 16
    assert second[2:6, 10:14].all() and second.sum() == 16 and FinishedRun(folder).region_masks("a.png") == []
    thin = np.zeros((64, 80), np.uint8)
    thin[8:24, 8:24], thin[33, 60] = 255, 255  # at four times the size: one region is thinner than a pixel
    cv2.imwrite(str(folder / "masks" / "000" / "000001_b.png"), thin)
    large, small = FinishedRun(folder).region_masks("b.png")
    assert large[2:6, 2:6].all() and small.any() and small.sum() <= 4
    (folder / "masks" / "000" / "000001_b.png").unlink()
    whole = FinishedRun(folder).region_masks("b.png")
    assert len(whole) == 2 and all(mask.all() and mask.shape == (16, 20) for mask in whole)


@pytest.mark.parametrize(
    ("name", "content", "ask", "words"),
    [
        ("regions.csv", REGIONS.replace("b.png,1,", "b.png,0,"), "rows", "each region of an image once"),
        ("regions.csv", REGIONS.replace("b.png,1,", "z.png,1,"), "regions", r"every image of regions\.csv, none for z\.png"),
        ("tree.json", '{"merges": []}', "tree", "expected the tree of the classes, but it is damaged"),
        ("tree.json", "[]", "tree", "expected the tree of the classes"),
        ("count.json", '{"count": 3}', "count", "expected how the number of classes was estimated"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(name: str, content: str, ask: str, words: str, folder: Path) -> None:
    (folder / name).write_text(content)
    with pytest.raises(RunError, match=words):
        getattr(FinishedRun(folder), ask)


def test_rows_that_are_there_twice_are_numbered_from_one(folder: Path) -> None:
    (folder / "regions.csv").write_text(REGIONS.replace("b.png,1,", "b.png,0,"))
    with pytest.raises(RunError, match=r"region 0 of image 'b\.png' is in rows 1 and 2"):
        _ = FinishedRun(folder).rows


def test_regions_that_are_not_those_of_the_store(folder: Path) -> None:
    with pytest.raises(RunError, match=r"regions\.csv does not fit what the run has stored"):
        _ = FinishedRun(folder).store


def test_files_beside_the_tables(folder: Path) -> None:
    (folder / "tree.json").write_text('{"merges": [1], "splits": []}')
    (folder / "loss.csv").write_text("epoch,loss\n1,0.5\n2,0.25\n")
    (folder / "groups.csv").write_text("group,image,region\n1,b.png,0\n")
    run = FinishedRun(folder)
    assert run.tree == {"merges": [1], "splits": []} and len(run.outliers) == 1
    assert run.history == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    before = run.signature
    assert run.signature == before
    (folder / "corrections.csv").write_text("image,region,label\nb.png,0,2\n")
    assert run.signature != before and FinishedRun(folder).corrections == {("b.png", 0): 2}


def test_corrections_hold_what_was_told_before(folder: Path) -> None:
    assert read_corrections(folder) == {}
    (folder / "known.csv").write_text("image,region,label,class_name,looks_like\nb.png,1,2,hole,\n")
    assert read_corrections(folder) == {("b.png", 1): 2}
    (folder / "corrections.csv").write_text("image,region,label\nb.png,0,1\n")
    assert read_corrections(folder) == {("b.png", 0): 1}


def test_the_model_and_its_range(folder: Path) -> None:
    model = DiscoveryModel(make_config({"n_classes": 3, "model": {"backbone": "tiny"}}))
    (folder / "model.safetensors").write_bytes(model.pack())
    run = FinishedRun(folder, device="cpu", precision="bfloat16")
    assert run.model.config.precision == "bfloat16" and run.model.config.device == "cpu" and run.range is None
    assert FinishedRun(folder).model.config.precision == model.config.precision and run.detector_name is None
    from anomalyncd.binarize import MEBin

    for low, high, expected in ((0.5, 2.0, (0.5, 2.0)), (0.5, np.inf, None), (-np.inf, 2.0, None)):
        model.binarizer = MEBin().set_state({"low": low, "high": high})
        own = FinishedRun(folder)
        own.__dict__["model"] = model
        assert own.range == expected


def test_no_run(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(MissingRunError, match=r"expected a finished run with images\.csv, none found"):
        FinishedRun(tmp_path)
    (folder / "images.csv").unlink()
    with pytest.raises(MissingRunError):
        FinishedRun(folder)


GOOD: dict[str, Any] = {
    "answers": {"a": 3},
    "normal": 1,
    "count": 3,
    "low": 2,
    "high": 4,
    "finer": None,
    "verdict": "agreed",
}


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({}, True), ({"finer": 5}, True), ({"finer": -1}, False), ({"finer": "5"}, False), ({"count": 10**6}, True),
        ({"count": 10**6 + 1}, False), ({"low": -1}, False), ({"high": 2.5}, False), ({"answers": {"a": None}}, False),
        ({"answers": []}, False), ({"answers": {}}, False), ({"answers": {}, "verdict": "too few"}, True),
        ({"answers": {}, "verdict": "one kind"}, True), ({"low": 0}, True),
    ],
)  # fmt: skip
def test_an_estimate_has_numbers_where_they_belong(change: dict[str, Any], right: bool) -> None:
    assert is_count({**GOOD, **change}) is right


@pytest.mark.parametrize("missing", ["normal", "count", "low", "high", "answers"])
def test_an_estimate_lacks_nothing(missing: str) -> None:
    assert not is_count({name: value for name, value in GOOD.items() if name != missing}) and not is_count([1])
