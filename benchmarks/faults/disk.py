"""Fill the disk under a command, make room again, and compare with an undisturbed run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anomalyncd.errors import AnomalyNCDError
from anomalyncd.review.action_log import LOG_FILE, ActionLog
from anomalyncd.review.schema import ActionRequest
from anomalyncd.review.session import Session

from .scenes import Recipe, content, differences, discover, discover_with_ray, recipes, small_line, update
from .server import ForkServer, Outcome

PAGE = 4096
ROOM = 1 << 30
TRIES = 12


@dataclass
class SmallDisk:
    """A folder that holds only so much: a small file system, or, where none may be mounted, a limit of each file's size."""

    path: Path
    mounted: bool
    free: int = ROOM

    def limit(self, n_bytes: int) -> None:
        """Room for so many bytes in all (mounted), or in each file."""
        self.free = n_bytes
        if self.mounted:
            subprocess.run(["mount", "-o", f"remount,size={max(n_bytes, PAGE)}", self.path], check=True)

    @property
    def used(self) -> int:
        return sum(-(-file.lstat().st_size // PAGE) * PAGE for file in self.path.rglob("*"))

    def run(self, server: ForkServer, *command: object, function: str = "anomalyncd.cli:main") -> Outcome:
        return server.call(function, *command, file_bytes=None if self.mounted else self.free)


@contextmanager
def small_disk(path: Path) -> Iterator[SmallDisk]:
    path.mkdir(parents=True)
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", path], capture_output=True)
    try:
        yield SmallDisk(path, mounted=made.returncode == 0)
    finally:
        if made.returncode == 0:
            subprocess.run(["umount", path], check=True)


def full_disks(server: ForkServer, count: int, rng: np.random.Generator, work: Path, *, ray: bool = False) -> list[str]:
    """Each of the commands in turn, with a random amount of room; returns what went wrong, a line each.

    ray : only `discover` with workers of Ray, whose own files lie on another disk
    """
    line, more, finished = small_line(work / "line"), small_line(work / "more", seed=1), work / "finished"
    if (made := server.run(*discover(line).command(finished))).code:
        return [made.output]
    failures: list[str] = []
    with small_disk(work / "disk") as disk:
        kind = "a file system of its own" if disk.mounted else "RLIMIT_FSIZE, because none may be mounted"
        print(f"  full disk: {kind}", flush=True)
        makers: list[Callable[[], Case]] = [
            *(lambda recipe=recipe: Case(recipe.name, recipe) for recipe in [*recipes(line), update(finished, more)]),
            lambda: Case("predict", _into("predict", finished, more / "images", "--maps", more / "maps", name="new.csv")),
            lambda: Case("export", _into("export", finished, "--format", "coco", name="coco")),
            lambda: Case("export folders", _into("export", finished, "--format", "folders", name="folders")),
            lambda: Case("report", Recipe("report", ("report", "--quiet"), (), start=finished)),
            lambda: Case("review", Recipe("review", ("300",), start=finished), "faults.disk:review"),
        ]  # fmt: skip
        if ray and not disk.mounted:
            return ["no small file system can be mounted, and a limit of each file's size would stop Ray itself"]
        if ray:
            makers = [lambda: Case("discover with Ray", discover_with_ray(line))]
        wholes: dict[str, tuple[dict[str, bytes], int]] = {}
        for number in range(count):
            case = makers[number % len(makers)]()
            words = f"disk {number} ({case.name})"
            if case.name not in wholes:
                case.prepare(disk)
                before = disk.used
                if (ended := case.call(server, disk)).code:
                    return [*failures, f"{words}: fails with room: {ended.output}"]
                wholes[case.name] = content(disk.path), max(PAGE, disk.used - before)
                print(f"  {case.name}: writes {wholes[case.name][1] / 1e6:.2f} MB", flush=True)
            expected, size = wholes[case.name]
            room = int(rng.uniform(0, size if disk.mounted else size / 4))
            for _ in range(TRIES):
                case.prepare(disk)
                disk.limit(disk.used + room if disk.mounted else room)
                ended = case.call(server, disk)
                if ended.code:
                    break
                room //= 2  # all but pictures was written
            said = (ended.errors or ["nothing"])[0].replace(str(disk.path), "…")[:160]
            print(f"  {words}, room for {room / 1e3:.0f} KB: exit code {ended.code}, {said}", flush=True)
            if ended.problem or not ended.code:
                failures.append(f"{words}: {ended.problem or 'was not stopped by a full disk'}")
            disk.limit(ROOM)
            failures += [f"{words}: {wrong}" for wrong in case.check(server, disk, ended, expected)]
    return failures


def _into(command: str, run: Path, *more: object, name: str) -> Recipe:
    """A command that reads a finished run and writes elsewhere."""
    return Recipe(command, (command, run, *more, "--out", name, "--quiet"), ())


@dataclass
class Case:
    """A command on a small disk."""

    name: str
    recipe: Recipe
    function: str = "anomalyncd.cli:main"

    def prepare(self, disk: SmallDisk) -> None:
        disk.limit(ROOM)
        for entry in disk.path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        self.recipe.prepare(disk.path / "run")

    def call(self, server: ForkServer, disk: SmallDisk) -> Outcome:
        arguments = list(self.recipe.arguments)
        if "--out" in arguments:
            place = arguments.index("--out") + 1
            arguments[place] = disk.path / str(arguments[place])
        elif self.name == "review":
            arguments.insert(0, disk.path / "run")
        else:
            arguments = self.recipe.command(disk.path / "run")
        return disk.run(server, *arguments, function=self.function)

    def check(self, server: ForkServer, disk: SmallDisk, full: Outcome, expected: dict[str, bytes]) -> list[str]:
        """What is wrong once there is room again."""
        if self.name == "review":
            told = sum(line.startswith("stored ") for line in full.output.splitlines())
            kept = len(_rows(disk.path / "run"))
            return [] if told == kept else [f"{told} actions were said to be stored, {kept} are there"]
        again = self.call(server, disk)
        if again.code or again.problem:
            return [f"does not finish with room: {again.problem or again.output.strip()}"]
        return differences(content(disk.path), expected)[:5]


def _rows(run: Path) -> list[object]:
    log = ActionLog(run / LOG_FILE)
    try:
        return list(log.rows())
    finally:
        log.close()


def review() -> None:
    """Name a class again and again, as a client of the review does: RUN COUNT."""
    run, count = Path(sys.argv[1]), int(sys.argv[2])
    try:
        session = Session(run)
        try:
            for number in range(count):
                action = {"kind": "name", "label": 1, "name": f"name {number} {'x' * 60}"}
                request = {
                    "key": f"key-{number:06d}",
                    "version": session.version,
                    "table": session.classes.before.table,
                }
                session.act(ActionRequest.model_validate({**request, "action": action}))
                os.write(1, f"stored {number}\n".encode())
        finally:
            session.close()
    except AnomalyNCDError as error:
        os.write(2, f"error: {error}\n".encode())
        raise SystemExit(2) from None
