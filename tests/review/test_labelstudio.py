"""Corrections of Label Studio: an export of its own shape, made from the tasks that were given to it."""

from __future__ import annotations

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anomalyncd.errors import DataError, RunError
from anomalyncd.export import export_run
from anomalyncd.export.formats import brush_rle
from anomalyncd.labels import NORMAL
from anomalyncd.review.labelstudio import Taken, brush_mask, take_corrections
from anomalyncd.review.session import Session
from anomalyncd.run.finished import FinishedRun
from scenes import KINDS, fit, write_scenes

Task = dict[str, Any]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_scenes(tmp_path_factory.mktemp("labelstudio"), KINDS, seed=0)
    fit(folder, folder / "run", "masks")
    return folder / "run"


@pytest.fixture
def run(base: Path, tmp_path: Path) -> Path:
    from anomalyncd import AnomalyNCD

    AnomalyNCD.load(base).save(tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def tasks(run: Path, tmp_path: Path) -> list[Task]:
    """As exported by Label Studio where every image was accepted as it was shown, the boxes or the masks of it."""
    folder = export_run(run, "labelstudio", tmp_path / "export").folder
    tasks = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    for index, task in enumerate(tasks):
        task["annotations"] = [{"result": deepcopy(task["predictions"][index % 2]["result"]), "was_cancelled": False}]
    return tasks  # type: ignore[no-any-return]


def take(run: Path, tasks: list[Task], *, apply: bool = False) -> Taken:
    path = run.parent / "corrected.json"
    path.write_text(json.dumps(tasks), encoding="utf-8")
    return take_corrections(run, path, apply=apply)


def answers(task: Task) -> list[Task]:
    """What was drawn in a task."""
    return [one for one in task["annotations"][0]["result"] if one["type"] != "choices"]


def labels(run: Path) -> dict[tuple[str, int], int]:
    """As corrected, waiting ones too."""
    session = Session(run)
    try:
        classes = session.refresh()
        return dict(zip(classes.before.keys, classes.labels.tolist(), strict=True))
    finally:
        session.close()


def with_defect(tasks: list[Task], count: int) -> list[Task]:
    return [task for task in tasks if answers(task)][:count]


def test_what_was_accepted_changes_nothing(run: Path, tasks: list[Task]) -> None:
    before = labels(run)
    assert take(run, tasks) == Taken(n_tasks=len(KINDS))
    assert labels(run) == before


def test_labels_are_changed_regions_taken_away_and_classes_opened(run: Path, tasks: list[Task]) -> None:
    before = labels(run)
    moved, gone, opened = with_defect(tasks, 3)
    value = answers(moved)[0]["value"]
    kind = answers(moved)[0]["type"]
    other = "class 2" if value[kind] != ["class 2"] else "class 1"
    value[kind] = [other]
    gone["annotations"][0]["result"] = [one for one in gone["annotations"][0]["result"] if one["type"] == "choices"]
    gone["annotations"][0]["result"][0]["value"]["choices"] = ["normal"]
    answers(opened)[0]["value"][answers(opened)[0]["type"]] = ["Riß"]
    found = take(run, tasks)
    assert (found.n_moved, found.n_false_alarms, found.opened, found.nowhere) == (2, 1, ["Riß"], [])
    after = labels(run)
    assert after[moved["data"]["name"], 0] == int(other[-1])
    assert after[gone["data"]["name"], 0] == NORMAL
    new = after[opened["data"]["name"], 0]
    assert new not in before.values()
    changed = {key[0] for key in after if after[key] != before[key]}
    assert changed == {task["data"]["name"] for task in (moved, gone, opened)}
    assert FinishedRun(run).regions["label"].tolist() == list(before.values()), "nothing is learned before Apply"
    assert take(run, tasks).n_moved == 0, "the same export again says nothing new"


def test_applied_at_once(run: Path, tasks: list[Task]) -> None:
    (task,) = with_defect(tasks, 1)
    answers(task)[0]["value"][answers(task)[0]["type"]] = ["blister"]
    assert take(run, tasks, apply=True).applied
    finished = FinishedRun(run)
    row = finished.regions[finished.regions["image"] == task["data"]["name"]]
    assert row["class_name"].tolist() == ["blister"]
    assert (task["data"]["name"], 0) in finished.corrections


def test_what_was_drawn_anew_is_found_by_where_it_lies(run: Path, tasks: list[Task]) -> None:
    """Without the names that the export gave: a box or a brush of the same region, a box elsewhere, and a polygon."""
    found = with_defect(tasks, 4)
    size = FinishedRun(run).size(found[0]["data"]["name"])
    for task in found:
        answers(task)[0].update(id="drawn")
        answers(task)[0]["value"][answers(task)[0]["type"]] = ["blister"]
    box = next(one for task in found for one in answers(task) if one["type"] == "rectanglelabels")["value"]
    x, y, w, h = (box[name] for name in ("x", "y", "width", "height"))
    task = next(task for task in found if answers(task)[0]["value"] is box)
    points = [[x, y], [x + w, y], [x + w, y + h], [x, y + h]]
    answers(task)[0].update(type="polygonlabels", value={"points": points, "polygonlabels": ["blister"]})
    elsewhere = {"x": 90.0, "y": 90.0, "width": 5.0, "height": 5.0, "rectanglelabels": ["blister"]}
    task["annotations"][0]["result"].append({"id": "n", "type": "rectanglelabels", "value": elsewhere})
    taken = take(run, tasks)
    assert size == (64, 64) and taken.n_moved == 4 and taken.nowhere == [(task["data"]["name"], "blister")]


def test_a_choice_alone_is_said_of_the_strongest_region(run: Path, tasks: list[Task]) -> None:
    (task,) = with_defect(tasks, 1)
    choice = {"type": "choices", "value": {"choices": ["burr"]}}
    task["annotations"] = [{"result": [], "was_cancelled": True}, {"result": [choice]}]
    assert (taken := take(run, tasks)).n_moved == 1 and taken.opened == ["burr"]


def test_other_images_are_named_and_left_out(run: Path, tasks: list[Task]) -> None:
    tasks[0]["data"]["name"] = "elsewhere.png"
    assert take(run, tasks).strangers == ["elsewhere.png"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read as one"),
        ("{}", "a list of tasks"),
        ('[{"image": "/a.png", "class": "x"}]', "not JSON-MIN"),
        ('[{"data": {"name": 3}, "annotations": []}]', "not JSON-MIN"),
    ],
)
def test_other_files_are_refused(content: str, words: str, run: Path, tmp_path: Path) -> None:
    (tmp_path / "export.json").write_text(content)
    with pytest.raises(DataError, match=words):
        take_corrections(run, tmp_path / "export.json")
    with pytest.raises(DataError, match="no such file"):
        take_corrections(run, tmp_path / "nowhere.json")


def test_values_that_mean_nothing_are_left_out(run: Path, tasks: list[Task]) -> None:
    (task,) = with_defect(tasks, 1)
    odd = [
        {"type": "rectanglelabels", "value": {"x": "a", "y": 0, "width": 1, "height": 1, "rectanglelabels": ["x"]}},
        {"type": "brushlabels", "value": {"rle": [0, 0, 0, 9], "brushlabels": ["x"]}},
        {"type": "brushlabels", "value": {"rle": [300], "brushlabels": ["x"]}},
        {"type": "polygonlabels", "value": {"points": [], "polygonlabels": ["x"]}},
        {"type": "ellipselabels", "value": None},
        {"type": "rectanglelabels", "value": {"rectanglelabels": []}},
    ]
    task["annotations"][0]["result"] += odd
    assert len(take(run, tasks).nowhere) == len(odd)


def test_a_reviewed_run_is_left_to_its_page(run: Path, tasks: list[Task]) -> None:
    session = Session(run)
    try:
        with pytest.raises(RunError, match="another process is reviewing"):
            take(run, tasks)
    finally:
        session.close()


def test_brushes_are_read_as_they_are_written() -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 1), (7, 5), (64, 48)):
        mask = rng.random(shape) < 0.3
        np.testing.assert_array_equal(brush_mask(brush_rle(mask), *shape), mask)
    with pytest.raises(ValueError, match="a drawing of"):
        brush_mask(brush_rle(mask), 3, 3)
