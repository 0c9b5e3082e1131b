"""What people do on the review page, and what follows. Covers session.py, classes.py and action_log.py."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from anomalyncd.errors import RunError
from anomalyncd.review.app import make_app
from anomalyncd.review.session import Session
from anomalyncd.run.folder import APPLIED, CLASS_NAMES, COMMIT, REGIONS_TABLE, RunFolder
from anomalyncd.run.tables import read_csv, to_csv


def wait_for_apply(client: Any) -> dict[str, Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        job = client.http.get("/api/version").json()["job"]
        if job["state"] != "running":
            return job
        time.sleep(0.02)
    raise AssertionError("the apply did not end")


def apply(client: Any) -> dict[str, Any]:
    key = f"apply-key-{next(client.numbers)}"
    answer = client.http.post("/api/apply", json={"key": key, "version": client.state["version"]})
    assert answer.status_code == 202, answer.text
    job = wait_for_apply(client)
    client.look()
    return job


def test_the_first_look_is_what_the_run_says(client, run):
    table = read_csv(run / REGIONS_TABLE)
    assert client.counts() == {**table["label"].value_counts().to_dict(), 0: 0}
    assert client.state["n_images"] == 20 and client.state["undo"] is None
    for label in (1, 2, 3):
        assert client.regions(label) == table.index[table["label"] == label].tolist()


def test_name_stores_and_survives_a_restart(client, review):
    client.act("name", label=1, name="  kleine\nDelle ")
    assert client.names()[1] == "kleine Delle"
    client.close()
    assert review().names()[1] == "kleine Delle"


def test_two_classes_cannot_have_one_name(client):
    client.act("name", label=1, name="Dent")
    answer = client.send("name", label=2, name="dent")
    assert answer.status_code == 409 and "merge" in answer.json()["detail"]
    assert answer.json()["state"]["version"] == client.state["version"]


def test_merge_moves_all_and_undo_brings_all_back(client):
    before, members = client.counts(), client.regions(2)
    after = client.act("merge", **{"from": 2, "into": 1})
    assert client.counts() == {0: 0, 1: before[1] + before[2], 3: before[3]}
    assert set(members) < set(client.regions(1)) and after["n_changed"] == len(members)
    client.undo()
    assert client.counts() == before and client.regions(2) == members
    client.act("redo", action=client.state["redo"]["id"])
    assert 2 not in client.counts()


def test_split_keeps_the_largest_part_and_gives_a_new_number_to_the_other(client, review):
    client.act("merge", **{"from": 2, "into": 1})
    together, kind = client.regions(1), client.regions(3)
    state = client.act("split", label=1, parts=2)
    counts = client.counts()
    assert counts[1] + counts[4] == len(together) and counts[1] >= counts[4] > 0
    parts = client.regions(1), client.regions(4)
    assert sorted(parts[0] + parts[1]) == together and client.regions(3) == kind
    assert state["undo"]["text"] == "split class 1 into 2"
    client.close()
    again = review()  # replay has no choice left
    assert (again.regions(1), again.regions(4)) == parts


def test_move_to_a_class_and_to_a_new_one(client):
    first, second, third = client.regions(1)[:3]
    client.act("move", regions=[first, second], to=2)
    assert {first, second} < set(client.regions(2))
    client.act("move", regions=[third, third], to=None)
    assert client.regions(4) == [third] and client.names()[4] == "class 4"
    client.undo()
    assert 4 not in client.counts()
    client.act("move", regions=[second], to=None)
    assert client.regions(5) == [second], "the number of an undone class is not used again"


def test_false_alarms_are_normal(client):
    chosen = client.regions(3)[:2]
    client.act("false_alarm", regions=chosen)
    assert client.regions(0) == chosen


def test_undo_goes_back_step_by_step_and_ends(client):
    start = client.counts()
    client.act("merge", **{"from": 1, "into": 2})
    client.act("move", regions=client.regions(3)[:1], to=None)
    client.act("name", label=2, name="dent")
    for _ in range(3):
        client.undo()
    assert client.counts() == start and client.names()[2] == "class 2" and client.state["undo"] is None
    assert client.send("undo", action=1).status_code == 409
    for _ in range(3):
        client.act("redo", action=client.state["redo"]["id"])
    assert client.names()[2] == "dent" and client.state["redo"] is None
    client.undo()
    client.act("name", label=2, name="scratch")
    assert client.state["redo"] is None, "a new action ends what could be redone"


def test_the_same_key_is_done_once(client):
    chosen = client.regions(1)[:1]
    answers = [client.send("move", key="only-once", regions=chosen, to=None).json() for _ in range(3)]
    assert len({answer["id"] for answer in answers}) == 1
    assert answers[-1]["state"]["n_actions"] == 1
    other = client.send("name", key="only-once", label=1, name="dent")
    assert other.status_code == 409 and "key" in other.json()["detail"]


def test_a_split_sent_again_is_done_once_even_if_it_could_not_be_done_now(client):
    client.act("move", regions=client.regions(1)[:2], to=None)
    first, second = (client.send("split", key="split-once", label=4, parts=2) for _ in range(2))
    assert first.status_code == second.status_code == 200 and first.json()["id"] == second.json()["id"]


@pytest.mark.parametrize(
    "action",
    [
        {"kind": "merge", "from": 3, "into": 2}, {"kind": "name", "label": 2, "name": "hole"}, {"kind": "split", "label": 2},
        {"kind": "move", "regions": [0], "to": None}, {"kind": "false_alarm", "regions": [0]}, {"kind": "undo", "action": 1},
    ],
)  # fmt: skip
def test_an_action_on_an_old_state_is_a_conflict_and_is_not_done(client, action):
    other = type(client)(client.http)
    client.act("name", label=1, name="dent")
    late = other.send(**action)
    assert late.status_code == 409 and "changed since you looked" in late.json()["detail"]
    assert late.json()["state"] == client.look() == client.state and client.state["n_actions"] == 1
    other.state = late.json()["state"]  # as the page does
    assert other.send(**action).status_code == 200


def test_what_was_done_is_answered_again_whatever_has_happened_since(client):
    seen = dict(client.state)
    first = client.send("name", key="lost-answer", label=1, name="dent").json()
    client.look()
    client.act("name", label=2, name="hole")
    client.state = seen  # the answer was lost: the page sends the same again
    again = client.send("name", key="lost-answer", label=1, name="dent")
    assert again.status_code == 200 and again.json()["id"] == first["id"] and again.json()["state"]["n_actions"] == 2


def test_a_page_that_saw_a_log_which_is_gone_is_in_the_past_too(client, review, run):
    for name in ("dent", "hole"):
        client.act("name", label=1, name=name)
    seen = client.state
    client.close()
    for file in run.glob("review.sqlite*"):
        file.unlink()
    client = review()
    client.state = seen
    assert client.send("name", label=1, name="scratch").status_code == 409


def test_cards_have_a_new_stamp_only_where_something_changed(client):
    stamps = {c["label"]: c["stamp"] for c in client.state["classes"]}
    client.act("move", regions=client.regions(1)[:1], to=2)
    now = {c["label"]: c["stamp"] for c in client.state["classes"]}
    assert {label for label in now if now[label] != stamps[label]} == {1, 2}


def test_apply_asks_for_just_what_changed_and_shows_what_moved(client, run, review):
    one, two = client.regions(1)[:2]
    merged = client.regions(3)
    client.act("merge", **{"from": 3, "into": 2})
    client.act("name", label=2, name="Kratzer")
    client.act("move", regions=[one], to=2)
    client.act("false_alarm", regions=[two])
    assert apply(client)["state"] == "done"
    labels, fixed, names = client.asked()
    table = read_csv(run / REGIONS_TABLE)
    keys = list(zip(table["image"], table["region"], strict=True))
    assert labels == {**{keys[row]: 2 for row in [*merged, one]}, keys[two]: 0}
    assert fixed == {keys[one], keys[two]} and names == {2: "Kratzer"}
    assert client.state["n_actions"] == 0 and client.state["undo"] is None and client.state["n_changed"] == 0
    moves = client.http.get("/api/moves").json()
    found = {(g["before"], g["after"]): (g["count"], g["asked"], set(g["regions"])) for g in moves["groups"]}
    assert found[3, 2] == (len(merged), len(merged), set(merged)) and found[1, 0] == (1, 1, {two})
    assert {g["after_name"] for g in moves["groups"] if g["after"] == 2} == {"Kratzer"}

    client.act("name", label=1, name="Loch")
    apply(client)
    assert client.asked()[1] == {keys[one], keys[two]}, "what a person placed stays placed in later applies"
    assert client.asked()[0] == {} and client.asked()[2] == {1: "Loch"}
    client.close()
    assert review().names() == client.names()


def test_nothing_to_apply_and_unseen_changes_are_refused(client):
    def send(version: int) -> Any:
        return client.http.post("/api/apply", json={"key": f"apply-no-{next(client.numbers)}", "version": version})

    assert send(0).status_code == 409
    client.act("name", label=1, name="dent")
    assert send(client.state["version"] - 1).status_code == 409


def test_an_apply_that_fails_says_why_and_keeps_the_corrections(review):
    def broken(run: Path, *_: Any, **__: Any) -> Any:
        raise RunError(f"{run}: no room left")

    client = review(learner=broken)
    client.act("merge", **{"from": 3, "into": 2})
    job = apply(client)
    assert job["state"] == "failed" and job["message"] == "The corrections were not applied: run: no room left"
    assert client.state["n_actions"] == 1 and 3 not in client.counts()
    client.undo()
    assert 3 in client.counts()


def test_actions_wait_while_an_apply_is_under_way(review, obeying):
    go = threading.Event()

    def slow(*arguments: Any, **also: Any) -> Any:
        assert go.wait(30)
        return obeying(*arguments, **also)

    client = review(learner=slow)
    client.act("merge", **{"from": 3, "into": 2})
    content = {"key": "apply-slow", "version": client.state["version"]}
    assert client.http.post("/api/apply", json=content).json()["state"] == "running"
    client.look()
    refused = client.send("name", label=1, name="dent")
    again = client.http.post("/api/apply", json=content)
    go.set()
    assert refused.status_code == 409 and "applied" in refused.json()["detail"]
    assert again.status_code == 202, "the same request is the same apply"
    assert wait_for_apply(client)["state"] == "done"
    assert client.look()["n_actions"] == 0


def crashed(client: Any) -> None:
    """An apply whose learner raises SystemExit, as if the process were gone: nothing after it is stored."""
    client.http.post("/api/apply", json={"key": "apply-crash", "version": client.state["version"]})
    client.http.app.state.applier.wait()
    client.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("committed", [True, False], ids=["after the tables", "before the tables"])
@pytest.mark.parametrize("what", ["labels", "names", "nothing", "labels that the heads do not give"])
def test_a_crash_in_the_middle_of_an_apply_neither_loses_nor_repeats(review, run, obeying, committed, what):
    def crash(run: Path, labels: Any, *arguments: Any, **also: Any) -> Any:
        if committed:
            obeying(run, {} if what.endswith("not give") else labels, *arguments, **also)
        raise SystemExit

    client = review(learner=crash)
    merged, size = client.regions(3), client.counts()[2]
    if what.startswith("labels"):
        client.act("merge", **{"from": 3, "into": 2})
    if what == "nothing":  # what is there is confirmed: neither labels nor names can tell whether it was done
        client.act("move", regions=client.regions(2)[:1], to=2)
    else:
        client.act("name", label=2, name="dent")
    waiting = client.state["n_actions"]
    crashed(client)

    after = review()
    if committed:
        assert after.state["n_actions"] == 0 and after.state["applied"] > 0 and not after.state["notice"]
        moves = after.http.get("/api/moves").json()
        assert moves["total"] == (len(merged) if what == "labels" else 0)
        assert after.counts()[2] == size + moves["total"]
    else:
        assert after.state["n_actions"] == waiting and "not applied" in after.state["notice"]
        assert after.counts()[2] == size + (len(merged) if what.startswith("labels") else 0)
        assert apply(after)["state"] == "done" and after.counts()[2] >= size
    assert what == "nothing" or after.names()[2] == "dent"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_mark_of_an_earlier_apply_is_not_taken_for_that_of_another(review, run):
    """Numbers of actions begin anew where the log was moved away, and applies of both logs may have the same."""

    def crash(*_: Any, **__: Any) -> Any:
        raise SystemExit

    first = review()
    first.act("name", label=1, name="dent")
    assert apply(first)["state"] == "done"
    first.close()
    for file in run.glob("review.sqlite*"):
        file.unlink()
    second = review(learner=crash)
    second.act("name", label=1, name="hole")
    crashed(second)
    third = review()
    assert third.state["n_actions"] == 1 and "not applied" in third.state["notice"] and third.names()[1] == "hole"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_crash_while_the_tables_are_being_replaced_is_an_apply_that_was_done(review, run, obeying, tmp_path):
    def crash(source: Path, *arguments: Any, **also: Any) -> Any:
        copy = Path(shutil.copytree(source, tmp_path / "copy", ignore=shutil.ignore_patterns("review.*")))
        obeying(copy, *arguments, **also)
        (source / COMMIT).mkdir()  # all new files are there, none is in its place yet
        for name in (REGIONS_TABLE, CLASS_NAMES, APPLIED):
            shutil.copy(copy / name, source / COMMIT / name)
        raise SystemExit

    client = review(learner=crash)
    client.act("merge", **{"from": 3, "into": 2})
    expected = client.counts()
    crashed(client)
    after = review()
    assert after.counts()[2] == expected[2] and after.state["n_actions"] == 0 and after.state["applied"] > 0


def test_an_error_after_the_tables_were_written_is_an_apply_that_was_done(review, obeying):
    def late(*arguments: Any, **also: Any) -> Any:
        obeying(*arguments, **also)
        raise OSError("the lock cannot be let go")

    client = review(learner=late)
    client.act("merge", **{"from": 3, "into": 2})
    job = apply(client)
    assert job["state"] == "done" and job["message"] == "Applied, but: the lock cannot be let go"
    assert client.state["n_actions"] == 0 and client.state["applied"] > 0


def test_images_that_were_added_meanwhile_leave_waiting_corrections_as_they_are(client, review, run):
    client.act("merge", **{"from": 3, "into": 2})
    count = client.counts()[2]
    table = read_csv(run / REGIONS_TABLE)
    more = table.iloc[[0]].assign(image=table["image"].iloc[0], region=99, label=2)
    manifest = read_csv(run / "manifest.csv")
    assert more["image"].iloc[0] in set(manifest["image"])
    RunFolder(run).write_text(REGIONS_TABLE, to_csv(pd.concat([table, more])))
    client.look()  # the server notices by itself
    assert client.counts()[2] == count + 1 and client.state["n_actions"] == 1


def test_a_region_that_is_there_twice_is_an_error_of_the_table_and_not_of_the_log(client, run):
    client.act("name", label=1, name="dent")
    client.close()
    table = read_csv(run / REGIONS_TABLE)
    RunFolder(run).write_text(REGIONS_TABLE, to_csv(pd.concat([table, table.iloc[[2]]])))
    rows = f"rows 3 and {len(table) + 1}"
    with pytest.raises(
        RunError, match=rf"regions\.csv: expected each region of an image once.*002\.png.*{rows}"
    ) as error:
        Session(run)
    assert "log" not in str(error.value)
    RunFolder(run).write_text(REGIONS_TABLE, to_csv(table))
    Session(run).close()


def test_a_damaged_log_is_an_error_with_a_way_out(client, run):
    client.act("name", label=1, name="dent")
    client.close()
    content = bytearray((run / "review.sqlite").read_bytes())
    content[4096:6000] = b"\xff" * (6000 - 4096)
    (run / "review.sqlite").write_bytes(bytes(content))
    with pytest.raises(RunError, match=r"review\.sqlite.*move this file"):
        Session(run)
    (run / "review.sqlite").write_bytes(b"not a database at all, but long enough to have a header" * 100)
    with pytest.raises(RunError, match="move this file"):
        Session(run)
    (run / "review.sqlite").unlink()
    Session(run).close()


@pytest.mark.parametrize("version", [1, 99])
def test_a_log_of_another_version_is_left_alone(run, version):
    with sqlite3.connect(run / "review.sqlite") as database:
        database.execute(f"PRAGMA user_version = {version}")
    with pytest.raises(RunError, match="newer version"):
        Session(run)


def test_a_run_has_one_review_at_a_time(client, run):
    with pytest.raises(RunError, match="another process is reviewing"):
        make_app(run)


def test_a_folder_that_is_no_run_is_an_error(tmp_path: Path):
    with pytest.raises(RunError, match="finished run"):
        make_app(tmp_path)


def test_the_database_holds_what_was_done(client, run):
    client.act("name", label=1, name="dent")
    client.act("merge", **{"from": 2, "into": 1})
    client.undo()
    with sqlite3.connect(run / "review.sqlite") as database:
        rows = database.execute("SELECT kind, body FROM actions ORDER BY id").fetchall()
        assert database.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    assert [kind for kind, _ in rows] == ["name", "merge", "undo"]
    assert json.loads(rows[1][1]) == {"from": 2, "into": 1}
    assert json.loads((run / CLASS_NAMES).read_text(encoding="utf-8"))["1"] == "class 1", "not before it is applied"
