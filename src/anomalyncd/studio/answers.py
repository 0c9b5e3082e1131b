"""Runs, jobs and folders as the page gets them."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

from ..checksums import stable_hash
from ..errors import without_folders
from . import schema
from .jobs import Job, Jobs
from .roots import Roots
from .workspace import Workspace, needs_of, signature

LOST = "Its process ended without a word: killed, or the machine was switched off. Resume goes on where it ended."


def run_answer(workspace: Workspace, name: str, run: Path, is_known: bool) -> schema.RunAnswer:
    """A run in short."""
    return schema.RunAnswer(**_run_fields(workspace, name, run, is_known))


def run_details(workspace: Workspace, name: str, run: Path, is_known: bool) -> schema.RunDetails:
    """A finished run with what new images of it need."""
    return schema.RunDetails(**_run_fields(workspace, name, run, is_known), needs=needs_of(run))


def _run_fields(workspace: Workspace, name: str, run: Path, is_known: bool) -> dict[str, Any]:
    found = workspace.summary(run)
    return {
        "name": name, "is_finished": found.finished > 0, "finished": found.finished, "n_images": found.n_images,
        "n_normal": found.n_normal, "n_kinds": found.n_kinds, "n_regions": found.n_regions,
        "classes": [schema.ClassCount(label=k, name=title, n_images=n) for k, title, n in found.classes],
        "has_report": found.has_report, "can_move_line": is_known, "trouble": without_folders(found.trouble, run),
        "stamp": stable_hash(signature(run))[:12],
    }  # fmt: skip


def job_answer(jobs: Jobs, job: Job) -> schema.JobAnswer:
    """A job and how far it is."""
    return schema.JobAnswer(**_job_fields(jobs, job))


def job_details(jobs: Jobs, job: Job, workspace: Path, roots: Roots) -> schema.JobDetails:
    """A job with the end of its log, in which folders of this machine are called by their names."""
    log = job.log
    for place in (workspace, *roots.folders):
        if place.parent != place:
            log = log.replace(f"{place.parent}{os.sep}", "")
    lines = [without_folders(line, workspace) for line in log.split("\n")]
    return schema.JobDetails(**_job_fields(jobs, job), log="\n".join(lines))


def _job_fields(jobs: Jobs, job: Job) -> dict[str, Any]:
    state, now, order = jobs.state(job), job.progress, job.order
    step, total = (_number(now.get(name)) if now.get("stage") else 0.0 for name in ("step", "total"))
    seconds = _number(now.get("seconds"))
    if state == "running" and now.get("at"):
        seconds += max(0.0, time.time() - _number(now.get("at")))
    left = seconds / step * (total - step) if state == "running" and 0 < step <= total else None
    done = [each for each in now.get("done", []) if isinstance(each, dict)] if isinstance(now.get("done"), list) else []
    return {
        "number": job.number, "kind": str(order.get("kind", "")), "run": str(order.get("run", "")),
        "title": str(order.get("title", "")), "state": state, "created": _number(order.get("created")),
        "stage": str(now.get("stage", "")), "step": int(step), "total": int(total), "seconds": round(seconds, 1),
        "left": None if left is None else round(left, 1),
        "done": [
            schema.StageAnswer(stage=str(each.get("stage", "")), seconds=_number(each.get("seconds"))) for each in done
        ],
        "message": _message(job) if state == "failed" else "",
    }  # fmt: skip


def _message(job: Job) -> str:
    """Why it failed: its last line that says so."""
    lines = [line for line in job.log.splitlines() if line.startswith("error: ")]
    return without_folders(lines[-1].removeprefix("error: "), job.folder) if lines else LOST


def folder_answer(roots: Roots, root: int, path: str) -> schema.FolderAnswer:
    """What a folder holds that may be chosen."""
    found, place = roots.list(root, path), Path(path)
    return schema.FolderAnswer(
        root=root, path=place.as_posix() if place.parts else "", name=place.name or roots.names[root],
        folders=found.folders, images=found.images, n_images=found.n_images, more=found.more,
    )  # fmt: skip


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else 0.0
