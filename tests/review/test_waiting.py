"""Corrections that wait while another command writes the tables of the run. Covers classes.py and apply.py."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from anomalyncd.run.folder import CLASS_NAMES, CORRECTIONS, REGIONS_TABLE, STAGES, RunFolder
from anomalyncd.run.tables import read_csv, read_names, to_csv


def learn_anew(run: Path) -> None:
    """As `discover` with other settings: other classes under the same numbers."""
    stages = json.loads((run / STAGES).read_text(encoding="utf-8"))
    stages["learn"]["key"] = f"{stages['learn']['key']} anew"
    (run / CORRECTIONS).unlink(missing_ok=True)
    RunFolder(run).write_json(STAGES, stages)
    table = read_csv(run / REGIONS_TABLE)
    table["label"] = [{1: 2, 2: 3, 3: 1}.get(label, label) for label in table["label"]]
    RunFolder(run).write_text(REGIONS_TABLE, to_csv(table))


def open_class(run: Path, label: int) -> None:
    """As `update`: one more region, of a class of its own."""
    table = read_csv(run / REGIONS_TABLE)
    more = table.iloc[[0]].assign(region=90 + label, label=label, class_name=f"class {label}")
    RunFolder(run).write_text(REGIONS_TABLE, to_csv(pd.concat([table, more])))
    names = {str(k): name for k, name in read_names(run).items()}
    RunFolder(run).write_json(CLASS_NAMES, {**names, str(label): f"class {label}"})


def move_region(run: Path) -> None:
    """As `update`, where a head that learned more takes an old region."""
    table = read_csv(run / REGIONS_TABLE)
    table.loc[table.index[table["label"] == 1][0], "label"] = 2
    RunFolder(run).write_text(REGIONS_TABLE, to_csv(table))


def apply(client: Any) -> dict[str, Any]:
    content = {"key": f"apply-base-{next(client.numbers)}", "version": client.state["version"]}
    assert client.http.post("/api/apply", json=content).status_code == 202
    end = time.monotonic() + 20
    while (job := client.http.get("/api/version").json()["job"])["state"] == "running":
        assert time.monotonic() < end, "the apply did not end"
        time.sleep(0.02)
    client.look()
    return dict(job)


def test_a_class_that_update_opened_does_not_meet_one_that_waits_under_its_number(client, review, run):
    one, two, three = client.regions(1)[:3]
    client.act("move", regions=[one], to=None)
    client.act("name", label=4, name="mine")
    client.act("move", regions=[two], to=4)
    client.close()
    open_class(run, 4)
    client = review()
    theirs = client.regions(4)
    assert client.names()[4] == "class 4" and len(theirs) == 1 and one not in theirs
    assert client.names()[5] == "mine" and client.regions(5) == [one, two]
    assert client.state["undo"]["text"] == "move 1 region to mine" and client.state["n_actions"] == 3

    client.act("move", regions=[three], to=5)  # by the numbers of now
    client.act("merge", **{"from": 4, "into": 2})
    client.undo()
    client.close()
    open_class(run, 5)
    client = review()
    assert client.regions(6) == [one, two, three] and client.names()[6] == "mine"
    assert client.regions(4) == theirs and len(client.regions(5)) == 1
    client.act("redo", action=client.state["redo"]["id"])
    assert set(theirs) < set(client.regions(2)) and 4 not in client.counts()
    assert apply(client)["state"] == "done"
    labels, _, names = client.asked()
    assert sorted(labels.values()) == [2, 6, 6, 6] and names == {6: "mine"}


def test_parts_of_a_split_get_other_numbers_too(client, run):
    client.act("split", label=1, parts=3)
    parts = client.regions(4), client.regions(5)
    open_class(run, 4)
    client.look()
    assert (client.regions(6), client.regions(5)) == parts and len(client.regions(4)) == 1


def test_a_class_without_regions_keeps_its_number(client, review, run):
    """It was there when regions were moved to it, so what `update` finds of it is the same."""
    client.close()
    names = {str(k): name for k, name in read_names(run).items()}
    RunFolder(run).write_json(CLASS_NAMES, {**names, "4": "rare"})
    client = review()
    chosen = client.regions(1)[:1]
    client.act("move", regions=chosen, to=4)
    open_class(run, 4)
    client.look()
    assert chosen[0] in client.regions(4) and client.counts()[4] == 2 and 5 not in client.counts()


def test_regions_that_update_moved_leave_waiting_corrections_as_they_are(client, review, run):
    client.act("merge", **{"from": 3, "into": 2})
    count = client.counts()[2]
    client.close()
    move_region(run)
    after = review()
    assert after.state["n_actions"] == 1 and not after.state["notice"] and after.counts()[2] == count + 1


def test_a_run_that_was_learned_anew_sets_waiting_corrections_aside(client, run):
    client.act("merge", **{"from": 3, "into": 2})
    client.act("name", label=2, name="dent")
    client.undo()
    learn_anew(run)
    client.look()
    assert client.counts()[3] > 0 and client.state["n_actions"] == 0 and "1 correction " in client.state["notice"]
    assert client.state["redo"] is None, "what was undone fits no more either"


def test_what_a_person_placed_is_forgotten_when_the_run_is_learned_anew(client, run):
    chosen = client.regions(1)[:1]
    client.act("move", regions=chosen, to=2)
    apply(client)

    def fixed() -> set[int]:
        pages = [client.http.get(f"/api/classes/{label}/regions?limit=500").json() for label in client.counts()]
        return {region["id"] for page in pages for region in page["regions"] if region["fixed"]}

    assert fixed() == set(chosen)
    learn_anew(run)
    client.look()
    assert fixed() == set()
    client.act("name", label=1, name="dent")
    apply(client)
    assert client.asked()[1] == set()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_in_an_apply_and_then_a_run_learned_anew(review, run):
    def crash(*_: Any, **__: Any) -> Any:
        raise SystemExit

    client = review(learner=crash)
    client.act("false_alarm", regions=client.regions(3)[:2])
    client.http.post("/api/apply", json={"key": "apply-crash", "version": client.state["version"]})
    client.http.app.state.applier.wait()
    client.close()
    learn_anew(run)
    after = review()
    assert after.state["n_actions"] == 0 and after.counts()[0] == 0 and "set aside" in after.state["notice"]


def test_a_report_that_cannot_be_drawn_is_a_note_on_an_apply_that_was_done(client, monkeypatch):
    def broken(*_: Any) -> None:
        raise ValueError("no such colour")

    monkeypatch.setattr("anomalyncd.report.classes.draw_classes", broken)
    client.act("merge", **{"from": 3, "into": 2})
    job = apply(client)
    assert job["state"] == "done" and job["message"] == "" and client.state["n_actions"] == 0
    assert job["notes"] == ["The report was not made anew: ValueError: no such colour"]
