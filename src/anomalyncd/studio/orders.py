"""What the page asks for, as commands: the studio does nothing that the command line could not."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..demo import DEFECT_KINDS
from ..errors import RunError
from ..labels import default_name
from ..run.finished import FinishedRun
from .jobs import Job, Jobs
from .roots import Roots
from .schema import NewIgnored, NewPrediction, NewRun, NewSensitivity, Place
from .workspace import OWN, Workspace, needs_of


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
        if request.known is not None and request.known_run is not None:
            raise RunError("Known kinds come from a folder or from a run, not from both: choose one.")
        if request.known is not None:
            arguments += ["--known", str(self._folder(request.known))]
        if request.known_run is not None:
            arguments += ["--known", str(self._run(request.known_run))]
        name = self.workspace.new_name(request.name or images.name)
        arguments += self._ignoring(name, request.ignore)
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

    def ignore(self, name: str, run: Path, request: NewIgnored) -> Job:
        """The command that made the run, into another one, with parts that are ignored; names are taken over."""
        made = self.known().get(name)
        if made is None:
            raise RunError(f"{name} was not made in this studio, so it does not know from what to make it again.")
        new = self.workspace.new_name(name)
        said, at = list(made), made.index("--out")
        said[at + 1] = str(self.workspace.path / new)
        while "--ignore" in said:
            del said[said.index("--ignore") : said.index("--ignore") + 2]
        found = FinishedRun(run, device="cpu")
        is_named = any(label > 0 and title != default_name(label) for label, title in found.names.items())
        if "--known" not in said and (is_named or found.corrections):
            said += ["--known", str(run)]
        return self._add(
            {"kind": "discover", "run": new, "title": new}, [*said, *self._ignoring(new, request.ignore)], new
        )

    def _ignoring(self, name: str, shapes: list[list[tuple[float, float]]]) -> list[str]:
        """As options of `discover`, with a file beside the runs: the command may be called again."""
        if not shapes:
            return []
        file = self.workspace.path / OWN / "ignored" / f"{name}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(shapes), encoding="utf-8")
        return ["--ignore", str(file)]

    def _run(self, name: str) -> Path:
        run = self.workspace.runs().get(name)
        if run is None:
            raise RunError("There is no run of this name to take known kinds from.")
        return run

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
