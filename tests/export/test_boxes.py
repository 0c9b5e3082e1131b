"""YOLO and Pascal VOC: the boxes of the tables, as readers of each take them."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from anomalyncd.errors import SettingsError
from anomalyncd.export import export_run
from anomalyncd.export.boxes import voc
from anomalyncd.export.source import Results
from anomalyncd.run.finished import FinishedRun


def expected(run: Path) -> dict[str, list[tuple[str, int, int, int, int]]]:
    """Name of an image → its boxes, but those of false alarms."""
    return {
        image.name: [(f.class_name, f.x, f.y, f.width, f.height) for f in image.findings]
        for image in Results(FinishedRun(run)).images
    }


def test_yolo_has_the_boxes_as_shares(run: Path, fitted: Path, tmp_path: Path) -> None:
    found = export_run(run, "yolo", tmp_path / "out")
    settings = yaml.safe_load((tmp_path / "out" / "data.yaml").read_text("utf-8"))
    images = Results(FinishedRun(run)).images
    files = sorted((tmp_path / "out" / "images").iterdir())
    assert found.n_images == len(files) == len(list((tmp_path / "out" / "labels").iterdir())) == len(images)
    read = []
    for file in files:
        height, width = cv2.imdecode(np.fromfile(file, np.uint8), cv2.IMREAD_COLOR).shape[:2]
        for line in (tmp_path / "out" / "labels" / f"{file.stem}.txt").read_text().splitlines():
            number, x, y, w, h = line.split()
            box = [float(x) * width - float(w) * width / 2, float(y) * height - float(h) * height / 2]
            read.append((settings["names"][int(number)], *map(round, [*box, float(w) * width, float(h) * height])))
    assert sorted(read) == sorted(box for boxes in expected(run).values() for box in boxes) and read


def test_voc_is_read_by_torchvision(run: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("torchvision").datasets
    root = tmp_path / "VOCdevkit" / "VOC2012"
    export_run(run, "voc", root)
    (root / "ImageSets" / "Main" / "default.txt").rename(root / "ImageSets" / "Main" / "train.txt")
    for file in (root / "JPEGImages").iterdir():  # which it expects to end so
        file.rename(file.with_suffix(".jpg"))
    found = []
    for image, note in datasets.VOCDetection(tmp_path, year="2012", image_set="train", download=False):
        assert image.size == tuple(int(note["annotation"]["size"][side]) for side in ("width", "height"))
        for one in note["annotation"].get("object", []):
            left, top, right, bottom = (int(one["bndbox"][side]) for side in ("xmin", "ymin", "xmax", "ymax"))
            assert 1 <= left <= right <= image.size[0] and 1 <= top <= bottom <= image.size[1]
            found.append((one["name"], left - 1, top - 1, right - left + 1, bottom - top + 1))
    assert sorted(found) == sorted(box for boxes in expected(run).values() for box in boxes) and found


def test_both_are_read_by_supervision(run: Path, tmp_path: Path) -> None:
    """Which is no dependency of the tests: `pip install supervision` for this one."""
    datasets = pytest.importorskip("supervision").DetectionDataset
    for format in ("yolo", "voc"):
        export_run(run, format, tmp_path / format)
    yolo, pascal = tmp_path / "yolo", tmp_path / "voc"
    for dataset in (
        datasets.from_yolo(str(yolo / "images"), str(yolo / "labels"), str(yolo / "data.yaml")),
        datasets.from_pascal_voc(str(pascal / "JPEGImages"), str(pascal / "Annotations")),
    ):
        found = [
            (dataset.classes[kind], *np.rint([box[0], box[1], box[2] - box[0], box[3] - box[1]]).astype(int).tolist())
            for _, _, boxes in dataset
            for kind, box in zip(boxes.class_id, boxes.xyxy, strict=True)
        ]
        assert len(dataset) == len(Results(FinishedRun(run)).images)
        assert sorted(found) == sorted(box for boxes in expected(run).values() for box in boxes) and found


def test_files_that_are_gone_are_left_out_and_images_may_be_linked(moved: Path, tmp_path: Path) -> None:
    (moved / "images/dot/000.png").unlink()
    for format, folder in (("yolo", "images"), ("voc", "JPEGImages")):
        found = export_run(moved / "run", format, tmp_path / format, link=True)
        files = list((tmp_path / format / folder).iterdir())
        assert found.missing == ["dot/000.png"] and found.n_images == len(files) == 6
        assert any(file.samefile(moved / "images/good/000.png") for file in files)
    with pytest.raises(SettingsError, match="--quote-formulas"):
        export_run(moved / "run", "yolo", tmp_path / "x", quote=True)
    assert voc
