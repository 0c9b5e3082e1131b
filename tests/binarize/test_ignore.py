"""Parts of the picture in which nothing is looked for: read, drawn, and never reported by any road."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.binarize.ignore import ignored, read_ignored, without
from anomalyncd.binarize.prepare import prepare_map
from anomalyncd.config import make_config
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.errors import DataError
from anomalyncd.export.networks import export_networks
from anomalyncd.progress import Silent
from anomalyncd.run.finished import FinishedRun
from anomalyncd.runtime import Runtime
from anomalyncd.steps.detect import detect_images

FAST = {"backbone": "tiny", "model": {"input_size": 64, "image_size": 96}, "crop": {"size": 64}}
LEFT = [[[(0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)]]]  # the left half
SIDE = 64


def pictures(count: int, seed: int) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Images with a defect in each half, their masks and maps; every fourth has one in the left half only."""
    rng = np.random.default_rng(seed)
    images, masks, maps = [], [], []
    for index in range(count):
        image, mask = rng.integers(90, 110, (SIDE, SIDE, 3), dtype=np.uint8), np.zeros((SIDE, SIDE), bool)
        y = int(rng.integers(8, 24))
        mask[y : y + 16, 6:20] = True
        if index % 4:
            mask[y : y + (24, 10)[index % 2], 42:58] = True
        image[mask] = [(250, 250, 250), (200, 20, 20)][index % 2]
        images.append(image)
        masks.append(mask)
        maps.append((mask * rng.uniform(0.8, 1) + rng.uniform(0, 0.05, mask.shape)).astype(np.float32))
    return images, masks, maps


SEEN, NEW = pictures(12, 0), pictures(6, 1)


def check(regions: object, run: FinishedRun | None = None) -> None:
    """No region has a pixel in the left half."""
    assert len(regions) and (regions["x"] >= SIDE // 2).all()  # type: ignore[arg-type, index]
    if run is not None:
        for name in run.images["image"]:
            mask = run.mask(name)
            assert mask is None or not mask[:, : mask.shape[1] // 2].any()


@pytest.mark.parametrize("given", ["masks", "maps"])
def test_nothing_inside_is_reported_by_any_road(given: str, tmp_path: Path) -> None:
    seen, new = (dict(zip(("masks", "maps"), one[1:], strict=True))[given] for one in (SEEN, NEW))
    model = AnomalyNCD(3, ignore=LEFT, **FAST).fit(SEEN[0], **{given: seen}, run=tmp_path / "run")
    check(model.regions_, model.run_)
    assert model.labels_[::4].tolist() == [0, 0, 0], "a defect in the ignored half only: nothing was found"
    check(AnomalyNCD.load(tmp_path / "run").predict(NEW[0], **{given: new}).regions)
    model.update(NEW[0], **{given: new})
    check(model.regions_, model.run_)
    export_networks(tmp_path / "run", "onnx", tmp_path / "export")
    check(Runtime(tmp_path / "export").predict(NEW[0], **{given: new}).regions)


def test_with_a_detector_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    normal = [rng.integers(90, 110, (SIDE, SIDE, 3), dtype=np.uint8) for _ in range(8)]
    settings = {**FAST, "detect": {"settings": {"size": 64, "map_size": 64}}}
    model = AnomalyNCD(3, ignore=LEFT, **settings)
    model.fit(SEEN[0], detector="patchcore", normal=normal, run=tmp_path / "run")
    check(model.regions_, model.run_)
    check(model.predict(NEW[0]).regions)
    for index, image in enumerate(SEEN[0]):
        (tmp_path / "images").mkdir(exist_ok=True)
        cv2.imwrite(str(tmp_path / "images" / f"{index}.png"), image)
    samples = [Sample(f"{index}.png", tmp_path / "images" / f"{index}.png") for index in range(12)]
    config = make_config(
        {"ignore": LEFT, "model": {"backbone": "tiny"}, "detect": {"name": "musc", "settings": {"size": 64}}}
    )
    detect_images(Dataset(samples), Dataset(samples), config, tmp_path / "maps", Silent())
    for index in range(12):
        values = np.load(tmp_path / "maps" / "maps" / f"{index}.npy")
        assert (values[:, : values.shape[1] // 2] == values.min()).all()


def test_another_part_makes_the_regions_anew(tmp_path: Path) -> None:
    first = AnomalyNCD(3, ignore=LEFT, **FAST).fit(SEEN[0], maps=SEEN[2], run=tmp_path / "run")
    again = AnomalyNCD(3, **FAST).fit(SEEN[0], maps=SEEN[2], run=tmp_path / "run")
    assert len(again.regions_) > len(first.regions_)


def test_shapes_from_a_mask_and_from_polygons_are_the_same(tmp_path: Path) -> None:
    mask = np.zeros((60, 80), np.uint8)
    mask[10:40, 20:61] = 255
    mask[20:30, 30:50] = 0  # a hole
    cv2.imwrite(str(tmp_path / "mask.png"), mask)
    drawn = ignored(read_ignored(tmp_path / "mask.png"), (60, 80))
    assert drawn[mask > 0].all() and not drawn[23:27, 33:47].any() and not drawn[:8].any() and not drawn[:, 64:].any()
    large = ignored(read_ignored(tmp_path / "mask.png"), (240, 320))
    assert large[44:156, 84:116].all() and not large[92:108, 132:188].any()
    polygon = {"width": 80, "height": 60, "polygons": [[[20, 10], [61, 10], [61, 40], [20, 40]]]}
    (tmp_path / "polygons.json").write_text(json.dumps(polygon))
    assert ignored(read_ignored(tmp_path / "polygons.json"), (60, 80))[10:40, 20:61].all()
    overlapping = [[[(0, 0), (0.6, 0), (0.6, 1), (0, 1)]], [[(0.4, 0), (1, 0), (1, 1), (0.4, 1)]]]
    assert ignored(overlapping, (10, 10)).all(), "two shapes that overlap are both ignored"


def test_a_small_map_does_not_bleed() -> None:
    small = np.zeros((8, 8), np.float32)
    small[:, :4] = 9
    assert prepare_map(small, 256, LEFT).max() == 0 and prepare_map(small, 256).max() == 9
    assert without(small, ()) is small


def bad_files() -> Iterator[tuple[str, str, str]]:
    yield "a.json", "{", "cannot be read as such"
    yield "b.json", '{"width": 0, "height": 5, "polygons": []}', "above 0"
    yield "c.json", "[]", "nothing is drawn"
    yield "d.json", "[[[5, 5], [9, 9], [3, 9]]]", "inside the picture"
    yield "e.png", "no picture", "--ignore takes a mask"


@pytest.mark.parametrize(("name", "text", "message"), list(bad_files()))
def test_bad_files_are_said(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=message):
        read_ignored(tmp_path / name)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(
    "text", ['{"width": ' + "9" * 400 + ', "height": 1, "polygons": [[[0, 0]]]}', "[" * 100_000, " " * 10_000_001]
)
def test_polygons_of_others_are_read_or_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match="cannot be read as such"):
        read_ignored(tmp_path / "a.json")


def test_a_pipe_holds_no_polygons(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    with pytest.raises(DataError, match="device or pipe"):
        read_ignored(tmp_path / "a.json")
