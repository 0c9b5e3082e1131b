"""What the page asks for, as commands: the studio does nothing that the command line could not."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..demo import DEFECT_KINDS
from ..errors import RunError
from .jobs import Job, Jobs
from .roots import Roots
from .schema import NewPrediction, NewRun, NewSensitivity, Place
from .workspace import Workspace, needs_of


class Orders:
    """Makes jobs of requests.

    Parameters
    ----------
    workspace, roots, jobs : of the studio
    options : of `discover` and `demo`, for every run
    """

    def __init__(self, workspace: Workspace, roots: Roots, jobs: Jobs, options: list[str]) -> None:
        self.workspace, self.roots, self.jobs, self.options = workspace, roots, jobs, options

    def new_run(self, request: NewRun) -> Job:
        """`discover` into a new folder of the workspace."""
        images = self._folder(request.images)
        arguments = ["discover", str(images)]
        if request.normal is not None:
            arguments += ["--normal", str(self._folder(request.normal))]
        if request.kinds is not None:
            arguments += ["--classes", str(request.kinds + (not request.all_defective))]
        if request.all_defective:
            arguments += ["--no-normal"]
        name = self.workspace.new_name(request.name or images.name)
        order = {"kind": "discover", "run": name, "title": name}
        return self._add(order, [*arguments, "--out", str(self.workspace.path / name), *self.options], name)

    def demo(self) -> Job:
        """`demo` into a new folder of the workspace."""
        name = self.workspace.new_name("demo")
        order = {"kind": "demo", "run": name, "title": "demo"}
        return self._add(order, ["demo", "--out", str(self.workspace.path / name), *self.options], name)

    def predict(self, name: str, run: Path, request: NewPrediction) -> Job:
        """`predict` into the folder of the job."""
        needs = needs_of(run)
        images = self._folder(request.images)
        arguments = ["predict", str(run), str(images), "--out", "{job}/images.csv"]
        if needs != "image":
            if request.maps is None:
                raise RunError(f"{name} was made with {needs}s, so new images need {needs}s too: choose their folder.")
            arguments += [f"--{needs}s", str(self._folder(request.maps))]
        order = {"kind": "predict", "run": name, "title": images.name, "images": str(images)}
        return self.jobs.add(order, arguments)

    def move_line(self, name: str, request: NewSensitivity) -> Job:
        """The command that made the run, with another `--sensitivity`: it re-labels and learns nothing anew."""
        made = self.known().get(name)
        if made is None:
            raise RunError(f"{name} was not made in this studio, so it does not know from what to make it again.")
        return self.jobs.add(
            {"kind": "discover", "run": name, "title": name}, [*made, "--sensitivity", repr(request.share)]
        )

    def known(self) -> dict[str, list[str]]:
        """Run → the command that finds its classes, without its sensitivity, of the runs that were made here."""
        found = {}
        for job in self.jobs.all():
            said, name = list(job.order["arguments"]), str(job.order.get("run"))
            if job.order.get("kind") == "demo":
                found[name] = self._of_demo(name)
            elif job.order.get("kind") == "discover":
                at = said.index("--sensitivity") if "--sensitivity" in said else len(said)
                found[name] = said[:at] + said[at + 2 :]
        return found

    def _of_demo(self, name: str) -> list[str]:
        """What `demo` does after it has made its images, as it says itself."""
        folder = self.workspace.path / name
        return [
            "discover", str(folder / "line/images"), "--maps", str(folder / "line/maps"), "--classes",
            str(len(DEFECT_KINDS) + 1), "--exclude", "combined", "--out", str(folder / "run"), *self.options,
        ]  # fmt: skip

    def forget(self, job: Job) -> None:
        """Take a job that has ended off the list; the folder of a run that never began goes with it."""
        self.jobs.forget(job)
        if (name := str(job.order.get("run", ""))) and job.order.get("kind") != "predict":
            with suppress(OSError):  # not empty: a run stays
                (self.workspace.path / Path(name).name).rmdir()

    def _add(self, order: dict[str, Any], arguments: list[str], name: str) -> Job:
        try:
            return self.jobs.add(order, arguments)
        except OSError:
            shutil.rmtree(self.workspace.path / name, ignore_errors=True)  # empty: nothing will come
            raise

    def _folder(self, place: Place) -> Path:
        return self.roots.folder(place.root, place.path)
