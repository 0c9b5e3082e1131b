"""COCO: the real pycocotools must read back every mask."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO

from anomalyncd import AnomalyNCD
from anomalyncd.export import export_run
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.tables import read_csv
from export.scenes import LABELS, NAMES, SCENES, expected_masks


def load(run: Path, out: Path) -> COCO:
    return COCO(str(export_run(run, "coco", out).folder / "annotations.json"))


def test_every_mask_comes_back_and_nothing_else(run: Path, tmp_path: Path) -> None:
    coco = load(run, tmp_path / "out")
    found = coco.loadImgs(coco.getImgIds())
    assert [image["file_name"] for image in found] == list(SCENES)
    assert [(image["height"], image["width"]) for image in found] == [size for size, _ in SCENES.values()]
    n_masks = 0
    for image in found:
        name = image["file_name"]
        expected = [(k, m) for k, m in zip(LABELS.get(name, []), expected_masks(name), strict=True) if k != 0]
        annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
        assert [annotation["category_id"] for annotation in annotations] == [label for label, _ in expected]
        for annotation, (_, mask) in zip(annotations, expected, strict=True):
            np.testing.assert_array_equal(coco.annToMask(annotation), mask)
            packed = coco_mask.encode(np.asfortranarray(mask.astype(np.uint8)))
            assert annotation["bbox"] == coco_mask.toBbox(packed).tolist()
            assert annotation["area"] == coco_mask.area(packed) == mask.sum()
            assert annotation["iscrowd"] == 1
            n_masks += 1
    assert n_masks == len(coco.getAnnIds()) == 6


def test_categories_are_the_defects_by_label(run: Path, tmp_path: Path) -> None:
    coco = load(run, tmp_path / "out")
    categories = {category["id"]: category["name"] for category in coco.loadCats(coco.getCatIds())}
    assert categories == {**{k: name for k, name in NAMES.items() if k != 0}, -1: "unknown"}


def test_scores_are_the_probabilities(run: Path, tmp_path: Path) -> None:
    coco = load(run, tmp_path / "out")
    regions = read_csv(run / "regions.csv")
    expected = regions.loc[regions["label"] != 0, "probability"].tolist()
    assert [annotation["score"] for annotation in coco.loadAnns(coco.getAnnIds())] == expected


def test_maps_smaller_than_their_images(tmp_path: Path) -> None:
    """Sizes that divide nowhere, and regions that only binarising finds."""
    rng = np.random.default_rng(1)
    images, maps = [], []
    for index in range(6):
        height, width = [(70, 111), (111, 70), (83, 83)][index % 3]
        values = rng.random((31, 37), dtype=np.float32) * 0.05
        if index:
            values[5:12, 4:9] = values[20:25, 22 : 26 + index] = 1
        images.append(rng.integers(0, 255, (height, width, 3), dtype=np.uint8))
        maps.append(cv2.GaussianBlur(values, (3, 3), 0))
    run = tmp_path / "run"
    settings = {"backbone": "tiny", "features": {"views": 1}, "learn": {"epochs": 1}}
    AnomalyNCD(2, has_normal=False, **settings).fit(images, maps=maps, run=run)
    coco, stored, regions = load(run, tmp_path / "out"), FinishedRun(run), read_csv(run / "regions.csv")
    assert len(coco.getAnnIds()) == len(regions) > len(images)
    for image in coco.loadImgs(coco.getImgIds()):
        annotations = coco.loadAnns(coco.getAnnIds(image["id"]))
        rows = regions[regions["image"] == image["file_name"]].to_dict("records")
        masks = [coco.annToMask(annotation).astype(bool) for annotation in annotations]
        whole = stored.mask(image["file_name"])
        assert whole is not None
        if whole.any():
            size = (image["width"], image["height"])
            large = cv2.resize(whole.astype(np.uint8), size, interpolation=cv2.INTER_NEAREST) > 0
            np.testing.assert_array_equal(np.sum(masks, axis=0), large)  # each pixel once
        for mask, row in zip(masks, rows, strict=True):
            box = np.zeros_like(mask)
            box[row["y"] : row["y"] + row["height"], row["x"] : row["x"] + row["width"]] = True
            assert not mask[~box].any() and mask.shape == (image["height"], image["width"])


def test_a_mask_that_is_gone_is_replaced_by_its_box(run: Path, tmp_path: Path) -> None:
    for file in (run / "masks").rglob("*dot_000.png"):
        file.unlink()
    coco = load(run, tmp_path / "out")
    (image,) = [image for image in coco.loadImgs(coco.getImgIds()) if image["file_name"] == "dot/000.png"]
    row = read_csv(run / "regions.csv").query("image == 'dot/000.png' and region == 0").iloc[0]
    annotation = coco.loadAnns(coco.getAnnIds(image["id"]))[0]
    assert annotation["bbox"] == [row["x"], row["y"], row["width"], row["height"]]
    assert annotation["area"] == row["width"] * row["height"] < 96 * 60


def test_the_file_is_json_by_the_letter(run: Path, tmp_path: Path) -> None:
    regions = read_csv(run / "regions.csv")
    regions["probability"] = float("nan")
    regions.to_csv(run / "regions.csv", index=False)
    file = export_run(run, "coco", tmp_path / "out").folder / "annotations.json"

    def refuse(constant: str) -> Any:
        raise AssertionError(constant)

    found = json.loads(file.read_text(encoding="utf-8"), parse_constant=refuse)
    assert {annotation["score"] for annotation in found["annotations"]} == {0}
