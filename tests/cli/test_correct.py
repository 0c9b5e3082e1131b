"""`anomalyncd correct`, as a user calls it after Label Studio."""

from __future__ import annotations

import json
from pathlib import Path

from anomalyncd.export import export_run
from command import call, fail
from scenes import KINDS, fit, write_scenes


def test_corrections_wait_and_are_applied(tmp_path: Path) -> None:
    data = write_scenes(tmp_path, KINDS, seed=0)
    fit(data, tmp_path / "run", "masks")
    folder = export_run(tmp_path / "run", "labelstudio", tmp_path / "out").folder
    tasks = json.loads((folder / "tasks.json").read_text(encoding="utf-8"))
    for task in tasks:
        task["annotations"] = [{"result": task["predictions"][1]["result"]}]
    drawn = next(one for task in tasks for one in task["annotations"][0]["result"] if one["type"] == "rectanglelabels")
    drawn["value"]["rectanglelabels"] = ["dent"]
    tasks[0]["data"]["name"] = "elsewhere.png"
    export = tmp_path / "project.json"
    export.write_text(json.dumps(tasks), encoding="utf-8")
    said = call("correct", tmp_path / "run", export)
    assert f"{len(KINDS)} annotated images: 1 region moved, 0 false alarms\nNew: dent\n" in said.stdout
    assert "They wait in the review" in said.stdout and "elsewhere.png" in said.stderr
    assert "Applied" in call("correct", tmp_path / "run", export, "--apply").stdout
    assert "dent" in (tmp_path / "run/classes.json").read_text(encoding="utf-8")
    assert "no such file" in fail("correct", tmp_path / "run", tmp_path / "nowhere.json")
