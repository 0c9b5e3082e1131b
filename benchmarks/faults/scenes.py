"""Small sets of images, and the commands whose bad days are tried on them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anomalyncd.demo import make_line
from anomalyncd.run.folder import STAGES

FAST = ("--backbone", "tiny", "--set", "features.views=1", "--set", "learn.bank_views=2", "--quiet")
OWN_TIME = (".lock", "run.log", "report.html")  # they say when and in which folder the run was made


@dataclass(frozen=True)
class Recipe:
    """A command that fills a folder; start : what it begins with, None for nothing; file : in it, that --out names."""

    name: str
    arguments: tuple[object, ...]
    out: tuple[str, ...] = ("--out",)
    start: Path | None = None
    file: str = ""

    def command(self, run: Path) -> list[object]:
        first, *rest = self.arguments
        return [first, *self.out, run / self.file, *rest]

    def prepare(self, run: Path) -> None:
        """The folder as the command is to find it."""
        if self.start is not None:
            shutil.copytree(self.start, run)
        elif self.file:
            run.mkdir()


def small_line(folder: Path, seed: int = 0) -> Path:
    """13 images of 96 px: two kinds of defect and normal ones, with maps and masks."""
    return make_line(folder, n_per_class=5, n_normal=3, n_combined=0, size=96, kinds=["hole", "scratch"], seed=seed)


def discover(line: Path, *more: object) -> Recipe:
    """`discover` of a line with its maps, with the tiny network."""
    given = ("--maps", line / "maps", "--classes", 3, *FAST, "--set", "learn.epochs=10")
    return Recipe("maps", ("discover", line / "images", *given, *more))


def recipes(line: Path) -> list[Recipe]:
    """Ways to make a run that write different files: maps given, the network trained too, maps made by a detector."""
    images = line / "images"
    paper = ("--maps", line / "maps", "--classes", 3, *FAST, "--preset", "paper", "--set", "learn.epochs=2")
    made = ("--classes", 3, *FAST, "--detector", "patchcore", "--normal", images / "good", "--set", "learn.epochs=4")
    return [
        discover(line),
        Recipe("paper", ("discover", images, *paper)),
        Recipe("detector", ("discover", images, *made, "--set", "detect.settings.size=64")),
    ]


def update(run: Path, line: Path) -> Recipe:
    """`update` of a finished run with a second line."""
    return Recipe("update", ("update", line / "images", "--maps", line / "maps", "--quiet"), (), start=run)


def beside(run: Path, line: Path) -> list[Recipe]:
    """Commands that read a finished run and write elsewhere."""
    exports = [
        Recipe(f"export {kind}", ("export", run, "--format", kind, "--quiet"))
        for kind in ("csv", "coco", "folders", "labelstudio")
    ]
    return [*exports, _predict("predict", run, line)]


def predict_with_ray(run: Path, line: Path) -> Recipe:
    """`predict` in processes of Ray, which are started for it."""
    return _predict("predict with Ray", run, line, "--engine", "ray", "--workers", 1)


def discover_with_ray(line: Path) -> Recipe:
    """`discover` in processes of Ray: a detector is fitted, maps and regions are made by a worker."""
    images = line / "images"
    made = ("--classes", 3, *FAST, "--detector", "patchcore", "--normal", images / "good", "--set", "learn.epochs=4")
    size = ("--set", "detect.settings.size=64", "--engine", "ray", "--workers", 1)
    return Recipe("discover with Ray", ("discover", images, *made, *size))


def _predict(name: str, run: Path, line: Path, *more: object) -> Recipe:
    given = ("predict", run, line / "images", "--maps", line / "maps", "--quiet")
    return Recipe(name, (*given, *more), file="new.csv")


def content(run: Path, left_out: Sequence[str] = OWN_TIME) -> dict[str, bytes]:
    """Bytes of all files of a run but those that differ by nature; of the stages only which are done.

    Their keys hold the times of the maps, which a detector writes anew in every run.
    """
    files = {path.relative_to(run).as_posix(): path for path in run.rglob("*") if path.is_file()}
    found = {name: path.read_bytes() for name, path in files.items() if path.name not in left_out}
    for name in [name for name in found if files[name].name == STAGES]:
        stages = json.loads(found[name])
        found[name] = repr(
            sorted((stage, state["done"]) for stage, state in stages.items() if stage != "format")
        ).encode()
    return found


def differences(found: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Files that are missing, surplus or other, a word each."""
    return (
        [f"{name} missing" for name in expected.keys() - found.keys()]
        + [f"{name} left over" for name in found.keys() - expected.keys()]
        + [f"{name} differs" for name in expected.keys() & found.keys() if found[name] != expected[name]]
    )
