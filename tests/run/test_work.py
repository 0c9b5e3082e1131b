"""What people did to the classes of a run is never lost: neither by another `discover` nor by a run saved over it."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anomalyncd import AnomalyNCD
from anomalyncd.discovery.relearn import relearn
from anomalyncd.errors import RunError
from anomalyncd.review.schema import ActionRequest
from anomalyncd.review.session import Session
from anomalyncd.run import work
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.tables import read_names
from command import call
from scenes import TINY, content, regions


def fit(run: Path, line: Path, n_classes: int = 3, **options: Any) -> AnomalyNCD:
    return AnomalyNCD(n_classes, **TINY).fit(line / "images", detector="musc", run=run, **options)


def act(run: Path, *actions: dict[str, Any]) -> Session:
    """Actions of a person on the review page, which is left open."""
    session = Session(run)
    for number, action in enumerate(actions):
        request = {"key": f"number-{number}", "version": session.version, "table": session.classes.before.table}
        session.act(ActionRequest.model_validate({**request, "action": action}))
    return session


def name(run: Path) -> None:
    relearn(run, {}, (), {1: "dent"})


def merge(run: Path) -> None:
    table = regions(run)
    relearn(run, {(row.image, row.region): 1 for row in table.itertuples() if row.label == 2}, (), {})


def wait(run: Path) -> None:
    act(run, {"kind": "name", "label": 1, "name": "dent"}, {"kind": "merge", "from": 2, "into": 1}).close()


WORK = {
    name: r"names of classes \(dent\), classes that were corrected",
    merge: "fit: classes that were corrected",
    wait: "fit: 2 corrections not applied yet",
}


@pytest.mark.parametrize("work", WORK)
def test_is_not_given_up_without_a_word(work: Any, run: Path, line: Path) -> None:
    work(run)
    before = content(run)
    with pytest.raises(RunError, match=WORK[work]) as error:
        fit(run, line, 4)
    assert "--force" in str(error.value) and "kept/" in str(error.value)
    assert content(run) == before, "a run that was refused is as it was"
    fit(run, line)
    labels = content(run, "images.csv", "corrections.csv", "classes.json")
    assert labels == {file: before[file] for file in labels}, "the same call resumes"


@pytest.mark.parametrize("work", WORK)
def test_is_kept_where_it_is_forced(work: Any, run: Path, line: Path, tmp_path: Path) -> None:
    work(run)
    before = content(run)
    call(
        "discover", line / "images", "--out", run, "--detector", "musc", "--classes", 4, "--backbone", "tiny",
        "--quiet", "--force",
    )  # fmt: skip
    after, kept = content(run), FinishedRun(run / "kept/1")
    assert not (run / "corrections.csv").exists() and "dent" not in read_names(run).values()
    for file in ("images.csv", "regions.csv", "classes.json", "config.yaml", "model.safetensors", "stages.json"):
        assert after[f"kept/1/{file}"] == before[file]
    assert kept.names[1] == ("dent" if work is name else "class 1") and len(kept.regions)
    if work is wait:
        with sqlite3.connect(run / "kept/1/review.sqlite") as log:
            assert [kind for (kind,) in log.execute("SELECT kind FROM actions ORDER BY id")] == ["name", "merge"]
    fit(run, line, 5)  # what waits was made on classes that are gone
    assert [path.name for path in (run / "kept").iterdir()] == ["1"]
    name(run)
    fit(run, line, force=True)
    assert sorted(path.name for path in (run / "kept").iterdir()) == ["1", "2"]
    AnomalyNCD.load(run).save(tmp_path / "copy")
    assert not (tmp_path / "copy/kept").exists()


def test_nothing_is_refused_where_nobody_did_anything(run: Path, line: Path) -> None:
    act(run, {"kind": "name", "label": 1, "name": "dent"}, {"kind": "undo", "action": 1}).close()
    fit(run, line, 4)
    assert not (run / "kept").exists()


def test_an_open_review_and_a_killed_one_count(run: Path, line: Path, tmp_path: Path) -> None:
    session = act(run, {"kind": "name", "label": 1, "name": "dent"})
    shutil.copytree(run, tmp_path / "killed", ignore=shutil.ignore_patterns("*.lock", "*-shm"))
    assert (tmp_path / "killed/review.sqlite-wal").stat().st_size
    for place in (run, tmp_path / "killed"):
        with pytest.raises(RunError, match="1 correction not applied yet"):
            fit(place, line, 4)
    fit(run, line, 4, force=True)
    with sqlite3.connect(run / "kept/1/review.sqlite") as log:
        assert log.execute("SELECT count(*) FROM actions").fetchone() == (1,)
    session.close()


def test_where_the_stages_are_damaged_everything_counts(run: Path, line: Path) -> None:
    wait(run)
    (run / "stages.json").write_text("{")
    with pytest.raises(RunError, match="2 corrections not applied yet"):
        fit(run, line)


def test_another_line_between_normal_and_defect_is_no_loss(run: Path, line: Path) -> None:
    name(run)
    AnomalyNCD(3, **TINY, detect={"false_alarms": 0.2}).fit(line / "images", detector="musc", run=run)
    assert read_names(run)[1] == "dent" and not (run / "kept").exists()


def test_a_moved_run_and_a_link_to_it_resume(run: Path, line: Path, tmp_path: Path) -> None:
    name(run)
    moved, link = run.rename(tmp_path / "moved"), tmp_path / "link"
    link.symlink_to(moved)
    for place in (moved, link):
        assert fit(place, line).model_.names[1] == "dent"


def test_a_damaged_model_is_made_again_only_where_that_is_wanted(run: Path, line: Path) -> None:
    (run / "model.safetensors").write_bytes(b"damaged")
    fit(run, line)
    name(run)
    (run / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match=r"or a damaged file.*dent"):
        fit(run, line)
    assert fit(run, line, force=True).model_.names[1] == "class 1" and read_names(run / "kept/1")[1] == "dent"


@pytest.mark.parametrize("given", ["maps", "nothing"])
def test_a_file_that_can_be_read_by_now(given: str, line: Path, tmp_path: Path) -> None:
    """Regions and maps are made again before classes are: neither must change under names that stay."""
    images, run = tmp_path / "images", tmp_path / "run"
    shutil.copytree(line / "images", images)
    whole, file = (images / "005.png").read_bytes(), images / "005.png"
    file.write_bytes(bytes(len(whole)))
    time = file.stat().st_mtime_ns

    def again(**options: Any) -> None:
        more: dict[str, Any] = {"maps": line / "maps"} if given == "maps" else {"detector": "musc"}
        AnomalyNCD(3, **TINY).fit(images, run=run, **more, **options)

    again()
    name(run)
    before = content(run)
    file.write_bytes(whole)
    os.utime(file, ns=(time, time))
    with pytest.raises(RunError, match="dent"):
        again()
    assert content(run) == before
    again(force=True)
    assert len(FinishedRun(run).images) == len(FinishedRun(run / "kept/1").images) + 1


def test_a_killed_call_that_was_forced_goes_on(run: Path, line: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name(run)
    act(run, {"kind": "name", "label": 1, "name": "hole"}).close()
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("anomalyncd.discovery.fit.learn_classes", _stop)
        fit(run, line, 4, force=True)
    fit(run, line, 4)
    assert read_names(run / "kept/1")[1] == "dent" and not (run / "kept/2").exists()


def _stop(*_: object) -> None:
    raise KeyboardInterrupt


def test_no_run_is_saved_over_it(run: Path, finished: Path) -> None:
    AnomalyNCD.load(finished).save(run)
    name(run)
    before = content(run)
    with pytest.raises(RunError, match=r"another run would take the place of this one.*dent"):
        AnomalyNCD.load(finished).save(run)
    assert content(run) == before
    AnomalyNCD.load(finished).save(run, force=True)
    assert read_names(run / "kept/1")[1] == "dent" and read_names(run) == read_names(finished)


@pytest.mark.parametrize("damage", ["noise", "a table that never ends", "no base"])
def test_a_review_that_cannot_be_read_may_hold_work(
    damage: str, run: Path, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait(run)
    if damage == "noise":
        (run / "review.sqlite").write_bytes(np.random.default_rng(0).bytes(9000))
    else:
        monkeypatch.setattr(work, "MOST_STEPS", 10)
        endless = (
            "WITH RECURSIVE n(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM n) SELECT id, '' AS kind, '' AS base FROM n"
        )
        with sqlite3.connect(run / "review.sqlite") as log:
            log.executescript(
                f"DROP TABLE actions; CREATE VIEW actions AS {endless};"
                if damage == "a table that never ends"
                else "UPDATE bases SET labels = 'x'"
            )
    with pytest.raises(RunError, match="a review that cannot be read"):
        fit(run, line, 4)
    fit(run, line, 4, force=True)
    assert (run / "kept/1/review.sqlite").stat().st_size


def test_names_that_nobody_gave(tmp_path: Path) -> None:
    def said(names: object) -> str:
        return work.work_of_people(
            names, tmp_path / "none", tmp_path / "none", "", finished=True, told=tmp_path / "none"
        )

    assert not any(map(said, (None, [], {}, {"0": "normal", "1": "class 1", "2": "", "-1": "unknown"})))
    assert said({"0": "fine", "1": "class 1"}) == "names of classes (fine)"
    assert said({str(k): chr(97 + k) for k in range(5)}) == "names of classes (a, b, c, …)"
    assert said({"x": "class 1"})


def test_a_stranger_cannot_lead_the_copy_out(run: Path, line: Path, tmp_path: Path) -> None:
    name(run)
    (tmp_path / "outside").mkdir()
    (run / "kept").symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match="kept: is a link"):
        fit(run, line, 4, force=True)
    assert not list((tmp_path / "outside").iterdir()) and RunFolder(run).read_json("classes.json")["1"] == "dent"
