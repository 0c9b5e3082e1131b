"""FiftyOne's two simple JSON formats, as its documentation describes them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from anomalyncd.export import export_run
from anomalyncd.run.tables import read_csv
from export.scenes import IMAGE_LABELS, NAMES, SCENES


@pytest.fixture
def folder(run: Path, tmp_path: Path) -> Path:
    return export_run(run, "fiftyone", tmp_path / "out").folder


def load(folder: Path, name: str) -> Any:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def files(folder: Path) -> dict[str, str]:
    """Key of an image → file, as FiftyOne reads data.json: without the key's ending, from its own folder on."""
    return {os.path.splitext(key)[0]: os.path.join(folder, file) for key, file in load(folder, "data.json").items()}


def test_every_image_is_found(folder: Path, fitted: Path) -> None:
    found = files(folder)
    assert list(found.values()) == [str(fitted / "images" / name) for name in SCENES]
    assert (
        list(found) == list(load(folder, "labels.json")["labels"]) == list(load(folder, "image_labels.json")["labels"])
    )


def test_boxes_are_shares_of_the_image(folder: Path, run: Path, fitted: Path) -> None:
    labels, names = load(folder, "labels.json"), {**NAMES, -1: "unknown"}
    assert set(labels) == {"classes", "labels"}
    assert labels["classes"] == ["unknown", "a/b", "CON", ".."]
    regions = read_csv(run / "regions.csv")
    n_boxes = 0
    for key, detections in labels["labels"].items():
        name = Path(files(folder)[key]).relative_to(fitted / "images").as_posix()
        (height, width), _ = SCENES[name]
        rows = regions[(regions["image"] == name) & (regions["label"] != 0)].to_dict("records")
        for detection, row in zip(detections, rows, strict=True):
            assert set(detection) == {"label", "bounding_box", "confidence", "attributes"}
            assert labels["classes"][detection["label"]] == names[row["label"]]
            x, y, w, h = detection["bounding_box"]
            assert 0 <= x < x + w <= 1 and 0 <= y < y + h <= 1
            assert [x * width, y * height] == pytest.approx([row["x"], row["y"]])
            assert [w * width, h * height] == pytest.approx([row["width"], row["height"]])
            assert detection["confidence"] == row["probability"]
            assert detection["attributes"]["area"] == row["area"]
            n_boxes += 1
    assert n_boxes == 6


def test_classes_of_images(folder: Path) -> None:
    labels, names = load(folder, "image_labels.json"), {**NAMES, -1: "unknown"}
    found = [labels["classes"][target["label"]] for target in labels["labels"].values()]
    assert found == [names[label] for label in IMAGE_LABELS]


def test_files_that_are_gone_are_said(moved: Path, tmp_path: Path) -> None:
    (moved / "images/dot/001.png").unlink()
    found = export_run(moved / "run", "fiftyone", tmp_path / "out")
    assert found.missing == ["dot/001.png"] and found.n_images == 7
    assert load(found.folder, "export.json")["missing"] == ["dot/001.png"]
