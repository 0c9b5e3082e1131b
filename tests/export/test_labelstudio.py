"""Label Studio: the import format of its documentation, and masks that its brush format gives back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from anomalyncd.errors import DataError, SettingsError
from anomalyncd.export import export_run
from anomalyncd.export.formats import brush_rle
from anomalyncd.run.tables import read_csv
from export.scenes import LABELS, NAMES, SCENES, expected_masks


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


# As documented: guide/predictions, guide/task_format, tags/rectanglelabels, tags/brushlabels, tags/choices.
Percent = Annotated[float, Field(ge=0, le=100)]
Share = Annotated[float, Field(ge=0, le=1)]
Label = Annotated[list[str], Field(min_length=1, max_length=1)]


class Rectangle(Strict):
    x: Percent
    y: Percent
    width: Percent
    height: Percent
    rotation: Annotated[float, Field(ge=0, lt=360)]
    rectanglelabels: Label


class Brush(Strict):
    format: Literal["rle"]
    rle: list[Annotated[int, Field(ge=0, le=255)]]
    brushlabels: Label


class Choice(Strict):
    choices: Label


class Result(Strict):
    id: str
    from_name: str
    to_name: str
    score: Share


class Drawn(Result):
    original_width: Annotated[int, Field(gt=0)]
    original_height: Annotated[int, Field(gt=0)]
    image_rotation: Literal[0]


class RectangleResult(Drawn):
    type: Literal["rectanglelabels"]
    value: Rectangle


class BrushResult(Drawn):
    type: Literal["brushlabels"]
    value: Brush


class ChoiceResult(Result):
    type: Literal["choices"]
    value: Choice


class Prediction(Strict):
    model_version: str
    score: Share
    result: list[Annotated[RectangleResult | BrushResult | ChoiceResult, Field(discriminator="type")]]


class Data(Strict):
    image: str
    name: str


class Task(Strict):
    data: Data
    predictions: list[Prediction]


def load(folder: Path) -> list[Any]:
    return list(json.loads((folder / "tasks.json").read_text(encoding="utf-8")))


def decode(rle: list[int]) -> Any:
    """The brush's bytes → all values, bit by bit as the format is described."""
    bits = iter("".join(f"{byte:08b}" for byte in rle))

    def read(size: int) -> int:
        return int("".join(next(bits) for _ in range(size)), 2)

    n_values, word = read(32), read(5) + 1
    sizes = [read(4) + 1 for _ in range(4)]
    values: list[int] = []
    while len(values) < n_values:
        is_run = read(1)
        length = read(sizes[read(2)]) + 1
        values += [read(word)] * length if is_run else [read(word) for _ in range(length)]
    assert len(values) == n_values
    assert len(list(bits)) < 8
    return np.array(values)


def test_tasks_fit_the_documented_format_and_the_interface(run: Path, tmp_path: Path) -> None:
    folder = export_run(run, "labelstudio", tmp_path / "out").folder
    tasks = load(folder)
    TypeAdapter(list[Task]).validate_python(tasks)
    ids = [result["id"] for task in tasks for prediction in task["predictions"] for result in prediction["result"]]
    assert len(set(ids)) == len(ids)

    view = ElementTree.fromstring((folder / "interface.xml").read_text(encoding="utf-8"))
    controls = {element.get("name"): element for element in view}
    tags = {"rectanglelabels": "RectangleLabels", "brushlabels": "BrushLabels", "choices": "Choices"}
    assert controls["image"].tag == "Image" and controls["image"].get("value") == "$image"
    for task in tasks:
        for result in (r for prediction in task["predictions"] for r in prediction["result"]):
            control = controls[result["from_name"]]
            assert control.tag == tags[result["type"]] and control.get("toName") == result["to_name"] == "image"
            assert result["value"][result["type"]][0] in [label.get("value") for label in control]
    assert [label.get("value") for label in controls["box"]] == ["unknown", "a/b", "CON", ".."]
    assert [label.get("value") for label in controls["class"]] == ["unknown", "normal", "a/b", "CON", ".."]


def test_masks_and_boxes_of_all_defects(run: Path, tmp_path: Path) -> None:
    tasks = load(export_run(run, "labelstudio", tmp_path / "out").folder)
    regions = read_csv(run / "regions.csv")
    names = {**NAMES, -1: "unknown"}
    assert [task["data"]["name"] for task in tasks] == list(SCENES)
    for task in tasks:
        name = task["data"]["name"]
        (height, width), _ = SCENES[name]
        expected = [(k, m) for k, m in zip(LABELS.get(name, []), expected_masks(name), strict=True) if k != 0]
        masks, boxes = ([r for r in p["result"] if r["type"] != "choices"] for p in task["predictions"])
        assert len(masks) == len(boxes) == len(expected)
        rows = regions[(regions["image"] == name) & (regions["label"] != 0)].to_dict("records")
        for brush, box, (label, mask), row in zip(masks, boxes, expected, rows, strict=True):
            assert brush["value"]["brushlabels"] == box["value"]["rectanglelabels"] == [names[label]]
            assert brush["score"] == box["score"] == row["probability"]
            assert (brush["original_height"], brush["original_width"]) == (height, width)
            pixels = decode(brush["value"]["rle"]).reshape(height, width, 4)
            assert (pixels == 255 * mask[..., None]).all()
            value = box["value"]
            corner = [value["x"] * width / 100, value["y"] * height / 100]
            size = [value["width"] * width / 100, value["height"] * height / 100]
            np.testing.assert_allclose([*corner, *size], [row["x"], row["y"], row["width"], row["height"]])


def test_urls_lead_to_the_files_below_the_root(run: Path, fitted: Path, tmp_path: Path) -> None:
    found = export_run(run, "labelstudio", tmp_path / "out")
    assert found.root == fitted  # a storage of Label Studio must lie below its root, so this is not `images`
    for task in load(found.folder):
        url = urlsplit(task["data"]["image"])
        assert url.path == "/data/local-files/" and task["data"]["image"].isascii()
        assert fitted / parse_qs(url.query)["d"][0] == fitted / "images" / task["data"]["name"]
    above = export_run(run, "labelstudio", tmp_path / "out", root=fitted.parent)
    assert load(above.folder)[2]["data"]["image"].endswith(f"?d={quote(fitted.name)}/images/dot/000.png")


def test_a_root_that_does_not_hold_the_images(run: Path, fitted: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"5 of 7 lie outside, as .*Riß, grün"):
        export_run(run, "labelstudio", tmp_path / "out", root=fitted / "images/dot")
    assert not (tmp_path / "out").exists()


def test_arrays_have_no_file_to_show(run: Path, tmp_path: Path) -> None:
    manifest = read_csv(run / "manifest.csv")
    manifest.loc[0, "file"] = ""
    manifest.to_csv(run / "manifest.csv", index=False)
    found = export_run(run, "labelstudio", tmp_path / "out")
    assert found.without_file == ["Riß, grün/a 1.png"] and len(load(found.folder)) == found.n_images == 6
    manifest["file"] = ""
    manifest.to_csv(run / "manifest.csv", index=False)
    with pytest.raises(DataError, match="made from arrays"):
        export_run(run, "labelstudio", tmp_path / "out")


@given(arrays(bool, array_shapes(min_dims=2, max_dims=2, max_side=12)), st.sampled_from([1, 3, 40]))
@settings(deadline=None)
def test_brush_of_any_mask(mask: Any, times: int) -> None:
    mask = np.repeat(mask, times, axis=1)  # runs of all lengths
    np.testing.assert_array_equal(decode(brush_rle(mask)), np.repeat(255 * mask.ravel(), 4))


@pytest.mark.parametrize("n_pixels", [1, 4, 5, 32, 33, 512, 513, 2**14 - 1, 2**14, 2**14 + 1, 2**15, 40000])
def test_runs_at_the_edges_of_the_sizes(n_pixels: int) -> None:
    mask = np.ones((1, n_pixels + 1), bool)
    mask[0, 0] = False
    np.testing.assert_array_equal(decode(brush_rle(mask)), np.repeat(255 * mask.ravel(), 4))
