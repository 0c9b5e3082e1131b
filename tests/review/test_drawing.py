"""A missed defect, drawn in the review: stored like any action, and a region of the run after Apply.

Covers lesson.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.review.apply import relearn
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.tables import read_csv

BOX = {"points": [[0.25, 0.25], [0.5, 0.25], [0.5, 0.5], [0.25, 0.5]]}
BRUSH = {"points": [[0.1, 0.8], [0.4, 0.8]], "width": 0.05}


def normal_image(client) -> int:
    return client.http.get("/api/normal").json()["images"][-1]["image"]


def test_a_drawn_defect_is_shown_in_its_class_and_undone(client):
    image, before = normal_image(client), client.counts()
    client.act("draw", image=image, strokes=[BOX, BRUSH], to=1)
    assert client.counts()[1] == before[1] + 1 and client.state["undo"]["text"].startswith("draw a defect of")
    (own,) = [
        one
        for one in client.http.get("/api/classes/1/regions", params={"limit": 500}).json()["regions"]
        if one["drawn"]
    ]
    assert own["image"] == image and own["fixed"] and own["label"] == 1
    for path in (f"/crops/{own['id']}", f"/overlay/{image}", f"/overlay/{image}?region={own['id']}"):
        picture = client.http.get(path)
        assert picture.status_code == 200 and cv2.imdecode(np.frombuffer(picture.content, np.uint8), 1) is not None
    assert image not in [one["image"] for one in client.http.get("/api/normal").json()["images"]]
    assert client.http.get(f"/api/regions/{own['id']}/similar").status_code == 409
    client.undo()
    assert client.counts() == before and client.http.get(f"/crops/{own['id']}").status_code == 404
    client.act("redo", action=client.state["redo"]["id"])
    assert client.counts()[1] == before[1] + 1


def test_it_can_be_moved_merged_and_split_around_like_others(client):
    client.act("draw", image=normal_image(client), strokes=[BOX], to=None)
    new = max(client.counts())
    (own,) = client.regions(new)
    client.act("move", regions=[own], to=2)
    assert own in client.regions(2) and client.counts()[new] == 0
    client.act("merge", **{"from": 2, "into": 3})
    assert own in client.regions(3)
    client.act("split", label=3, parts=2)
    assert own in client.regions(3)
    client.act("false_alarm", regions=[own])
    assert own in client.regions(0)


def test_it_survives_a_crash_and_two_drawings_do_not_share_a_number(client, review):
    image = normal_image(client)
    client.act("draw", image=image, strokes=[BOX], to=1)
    client.undo()
    client.act("draw", image=image, strokes=[BRUSH], to=1)
    client.act("draw", image=image, strokes=[BOX], to=1)
    before = {one for one in client.regions(1) if one >= 2**30}
    client.http.app.state.close()  # as if killed: nothing more is written
    again = review()
    assert {one for one in again.regions(1) if one >= 2**30} == before and len(before) == 2


def test_apply_makes_a_region_of_it(review, run: Path):
    client = review(learner=relearn)
    image = normal_image(client)
    n_before = len(read_csv(run / "regions.csv"))
    client.act("draw", image=image, strokes=[BOX], to=1)
    client.http.post("/api/apply", json={"key": "apply-drawn", "version": client.state["version"]})
    client.http.app.state.applier.wait()
    job = client.http.get("/api/version").json()["job"]
    assert job["state"] == "done", job
    after = FinishedRun(run)
    name = after.manifest["image"].iloc[image]
    assert len(after.regions) == n_before + 1
    assert after.images.set_index("image").loc[name, "label"] == 1
    state = client.look()
    groups = client.http.get("/api/moves").json()["groups"]
    (move,) = [group for group in groups if group["before_name"] == "drawn"]
    assert (move["after"], move["count"], move["asked"]) == (1, 1, 1)
    assert state["n_actions"] == 0 and sum(client.counts().values()) == n_before + 1
    assert max(client.regions(1)) < 2**30


@pytest.mark.parametrize(
    "action",
    [
        {"strokes": []}, {"strokes": [{"points": []}]}, {"strokes": [{"points": [[2, 0]]}]},
        {"strokes": [{"points": [[0.1, float("nan")]]}]}, {"strokes": [BOX] * 101}, {"strokes": [{**BRUSH, "width": 3}]},
        {"strokes": [{"points": [[0.1, 0.2]] * 2001}]}, {"to": 0}, {"to": -1}, {"image": -1}, {"image": "../x"},
    ],
)  # fmt: skip
def test_drawings_that_are_malformed_are_refused(client, action):
    state = client.state
    content = {"kind": "draw", "image": 0, "strokes": [BOX], "to": 1} | action
    body = {"key": "draw-badly", "version": state["version"], "table": state["table"], "action": content}
    answer = client.http.post("/api/actions", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert answer.status_code == 422 and client.look()["version"] == 0


def test_drawings_that_make_no_sense_are_conflicts(client, run: Path):
    assert client.send("draw", image=999, strokes=[BOX], to=1).status_code == 409
    assert client.send("draw", image=0, strokes=[BOX], to=77).status_code == 409
    file = FinishedRun(run).file(FinishedRun(run).manifest["image"].iloc[0])
    assert file is not None
    content = file.read_bytes()
    try:
        file.unlink()
        assert client.send("draw", image=0, strokes=[BOX], to=1).status_code == 409
    finally:
        file.write_bytes(content)


@pytest.mark.parametrize("place", ["left", "right", "top", "bottom", "middle", "edge", "any"])
def test_regions_are_filtered_by_their_place(client, run: Path, place: str):
    table = FinishedRun(run).regions
    x, y = (table["x"] + table["width"] / 2) / 64, (table["y"] + table["height"] / 2) / 64
    right = {
        "left": x < 1 / 3, "right": x > 2 / 3, "top": y < 1 / 3, "bottom": y > 2 / 3, "any": x >= 0,
        "middle": x.between(1 / 3, 2 / 3) & y.between(1 / 3, 2 / 3),
        "edge": (x - table["width"] / 128 <= 0) | (y - table["height"] / 128 <= 0) | (x + table["width"] / 128 >= 1)
        | (y + table["height"] / 128 >= 1),
    }[place]  # fmt: skip
    found = [region for label in client.counts() for region in client.regions(label, place=place)]
    assert sorted(found) == np.flatnonzero(right).tolist()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Normal images, red defects, and green labels that are none; a run of PatchCore's maps."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("line")
    for name, colour, count in (
        ("normal", None, 8),
        ("images/red", (30, 30, 220), 5),
        ("images/green", (30, 220, 30), 5),
    ):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            image = rng.integers(95, 105, (64, 64, 3), dtype=np.uint8)
            if colour:
                image[20:40, 20:40] = colour
            cv2.imwrite(str(folder / name / f"{index}.png"), image)
    settings = {
        "backbone": "tiny", "model": {"input_size": 64, "image_size": 96}, "crop": {"size": 64},
        "detect": {"settings": {"size": 64, "map_size": 64, "bank_size": 200}},
    }  # fmt: skip
    AnomalyNCD(3, **settings).fit(folder / "images", detector="patchcore", normal=folder / "normal", run=folder / "run")
    return folder


def test_a_false_alarm_is_learned_as_normal_after_it_was_told_what_changes(line: Path, tmp_path: Path, review):
    run = Path(shutil.copytree(line / "run", tmp_path / "line-run"))
    client = review(run)
    http = client.http
    assert client.state["can_learn_normal"]
    names = FinishedRun(run).manifest["image"].tolist()
    images = [names.index(f"green/{index}.png") for index in range(3)]
    tables = read_csv(run / "images.csv")

    def learn(key: str, apply: bool):
        body = {"key": key, "version": client.look()["version"], "images": images, "apply": apply}
        answer = http.post("/api/lesson", json=body)
        assert answer.status_code == 202, answer.text
        while (found := http.get("/api/lesson").json())["job"]["state"] == "running":
            pass
        assert found["job"]["state"] == "done", found
        assert http.post("/api/lesson", json=body).json() == found  # sent twice, done once
        return found

    told = learn("lesson-one", False)
    assert told["turned"] == ["green/3.png", "green/4.png"] and not told["lost"] and not told["applied"]
    assert read_csv(run / "images.csv").equals(tables)
    kept = learn("lesson-two", True)
    assert kept["applied"]
    after = read_csv(run / "images.csv").set_index("image")
    assert (after.loc[[f"green/{index}.png" for index in range(3)], "label"] == 0).all()
    assert sorted(client.look()["classes"], key=lambda one: one["label"])[0]["n_images"] >= 3
    assert http.post("/api/lesson", json={"key": "lesson-bad", "version": 0, "images": [999]}).status_code == 409
    assert http.post("/api/lesson", json={"key": "lesson-bad", "version": 9, "images": [0]}).status_code == 409
    assert http.post("/api/lesson", json={"key": "lesson-bad", "version": 0, "images": []}).status_code == 422


def test_a_run_without_a_detector_says_so(client):
    assert not client.state["can_learn_normal"]
    http = client.http
    http.post("/api/lesson", json={"key": "lesson-one", "version": 0, "images": [0]})
    while (found := http.get("/api/lesson").json())["job"]["state"] == "running":
        pass
    assert found["job"]["state"] == "failed" and "this run has none" in found["job"]["message"]


def test_copies_are_told(client):
    assert client.http.get("/api/copies").status_code == 200


def test_counts_of_images_are_those_of_the_report(client, run: Path):
    table = FinishedRun(run).images
    counts = {card["label"]: card["n_images"] for card in client.state["classes"]}
    assert counts == {label: int((table["label"] == label).sum()) for label in counts}
    assert sum(counts.values()) == len(table) == client.state["n_images"]
    client.act("merge", **{"from": 1, "into": 2})
    client.act("false_alarm", regions=client.regions(3)[:2])
    after = {card["label"]: card["n_images"] for card in client.state["classes"]}
    assert after == {0: counts[0] + 2, 2: counts[1] + counts[2], 3: counts[3] - 2}
