"""Jobs outlive browser and server: their processes, queue, stop and resume. Covers as_job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from anomalyncd.studio.as_job import END, as_job, is_alive, read_json
from anomalyncd.studio.jobs import BEGUN, Job, Jobs
from studio.conftest import until


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    found = Jobs(tmp_path / "jobs")
    yield found
    found.close()


def add(jobs: Jobs, *arguments: str) -> Job:
    return jobs.add({"kind": "demo", "run": "r", "title": "t"}, arguments)


def test_jobs_run_one_after_another_and_say_how_they_ended(jobs: Jobs) -> None:
    first, second = add(jobs, "--version"), add(jobs, "report", "{job}/nowhere")
    assert [jobs.state(job) for job in jobs.all()] == ["waiting", "waiting"]
    jobs.start()
    until(lambda: jobs.state(second) == "failed")
    assert jobs.state(first) == "done" and "anomalyncd" in first.log
    assert "error: " in second.log and "Traceback" not in second.log and read_json(second.folder / END) == {"code": 2}
    assert (first.folder / END).stat().st_mtime <= (second.folder / BEGUN).stat().st_mtime


def test_a_job_outlives_the_server_and_is_stopped_and_resumed_by_the_next(jobs: Jobs, tmp_path: Path) -> None:
    job = add(jobs, "demo", "--out", "{job}/demo", "--backbone=tiny", "--images-per-class=40")
    jobs.start()
    until(lambda: job.progress.get("stage"))
    jobs.close()
    later = Jobs(tmp_path / "jobs")  # as after a kill: it knows nothing but the folder
    (found,) = later.all()
    assert later.state(found) == "running" and is_alive(found.folder)
    later.stop(found)
    until(lambda: later.state(found) == "stopped")
    assert not is_alive(found.folder) and "stopped" in found.log
    later.resume(found)
    assert later.state(found) == "waiting"


def test_what_was_killed_with_the_server_waits_again(jobs: Jobs, tmp_path: Path) -> None:
    job = add(jobs, "demo", "--out", "{job}/demo", "--backbone=tiny", "--images-per-class=40")
    jobs.start()
    until(lambda: job.pid)
    jobs.close()
    os.kill(job.pid or 0, signal.SIGKILL)
    until(lambda: not is_alive(job.folder))
    until(lambda: jobs.state(job) == "failed")
    assert Jobs(tmp_path / "jobs").state(job) == "waiting"


def test_a_job_that_is_under_way_is_not_begun_twice(tmp_path: Path) -> None:
    with as_job(tmp_path):
        assert is_alive(tmp_path)
    assert not is_alive(tmp_path) and read_json(tmp_path / END) == {"code": 0}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"arguments": 3}', '{"arguments": null}'])
def test_a_damaged_order_is_no_job(jobs: Jobs, content: str) -> None:
    job = add(jobs, "--version")
    (job.folder / "job.json").write_text(content)
    assert jobs.all() == [] and add(jobs, "--version").number == 2


def test_the_token_is_not_handed_to_jobs(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANOMALYNCD_TOKEN", "secret-of-the-server")
    given = []
    monkeypatch.setattr("subprocess.Popen", lambda *_, env, **__: given.append(env))
    jobs._launch(add(jobs, "--version"))
    assert "ANOMALYNCD_TOKEN" not in given[0] and given[0]["ANOMALYNCD_JOB"]
