"""Lose and damage files of a run and of its inputs: a right answer or one clear line, and `discover` mends what it can."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from anomalyncd.run.tables import read_csv

from .scenes import content, differences, recipes, small_line
from .server import ForkServer, Outcome

Damage = Callable[[Path, np.random.Generator], None]
# People may edit these: a changed number in them is not damage that a program can know.
EDITED = ("images.csv", "regions.csv", "manifest.csv", "classes.json", "config.yaml", "loss.csv", "range.json")
TOLD = "told"
RIGHT = "right"
OTHER = "other, cannot be known"


def _cut(path: Path, rng: np.random.Generator) -> None:
    os.truncate(path, int(rng.integers(path.stat().st_size or 1)))


def _flip(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    for place in rng.integers(len(data), size=8):
        data[place] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def _noise(path: Path, rng: np.random.Generator) -> None:
    path.write_bytes(rng.bytes(max(1, path.stat().st_size)))


def _folder(path: Path, rng: np.random.Generator) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Damage] = {
    "removed": lambda path, _: path.unlink(), "cut": _cut, "emptied": lambda path, _: os.truncate(path, 0),
    "bits flipped": _flip,
    "overwritten": _noise, "made a folder": _folder,
}  # fmt: skip


def hurt_files(
    server: ForkServer, count: int, rng: np.random.Generator, work: Path, only: Sequence[str] = ()
) -> list[str]:
    """`count` times one file of a finished run is damaged and all commands are called; returns what went wrong.

    only : files to choose from, all kinds by default
    """
    line, new, whole = small_line(work / "line"), small_line(work / "new", seed=2), work / "whole"
    recipe = recipes(line)[2]
    if (made := server.run(*recipe.command(whole))).code:
        return [made.output]
    server.call("faults.disk:review", whole, 5)
    expected = content(whole)
    commands = Commands(server, new, work / "out")
    right = commands.all(whole, whole)
    if wrong := [f"{name} of a whole run: {ended.output}" for name, (ended, _) in right.items() if ended.code]:
        return wrong
    failures: list[str] = []
    outcomes: Counter[tuple[str, str]] = Counter()
    names = list(only) or _kinds_of_files(expected, rng)
    order = [(name, damage) for name in names for damage in DAMAGES]
    picked = [order[place] for place in rng.permutation(len(order))[:count]]
    for name, damage in picked:
        run = work / "hurt"
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(whole, run)
        DAMAGES[damage](run / name, rng)
        words = f"{name} {damage}"
        for command, (ended, value) in commands.all(run, whole).items():
            outcome = _judge(ended, value, right[command][1], name)
            outcomes[command, outcome] += 1
            if outcome not in (RIGHT, TOLD, OTHER):
                failures.append(f"{words}, then {command}: {outcome}")
        ended = server.run(*recipe.command(run))
        if ended.problem:
            failures.append(f"{words}, then discover again: {ended.problem}")
        wrong = [] if ended.code else _unmended(content_of(run), expected, name)
        outcomes["discover again", TOLD if ended.code else RIGHT if not wrong else "not mended"] += 1
        failures += [f"{words}, then discover again: {text}" for text in wrong[:3]]
    print(f"  {len(picked)} damaged files: " + "; ".join(f"{c}: {o} {n}" for (c, o), n in sorted(outcomes.items())))
    return failures


def _kinds_of_files(expected: dict[str, bytes], rng: np.random.Generator) -> list[str]:
    """Those at the top of the folder, and one of each subfolder."""
    names = sorted(name for name in expected if "/" not in name)
    for folder in ("detector", "tokens", "crops", "masks", "maps"):
        names.append(str(rng.choice(sorted(name for name in expected if name.startswith(f"{folder}/")))))
    return names


def content_of(run: Path) -> dict[str, bytes]:
    """As `content`, with whatever a damaged stages.json became."""
    try:
        return content(run)
    except (ValueError, TypeError, AttributeError):
        return {}


def _unmended(found: dict[str, bytes], expected: dict[str, bytes], damaged: str) -> list[str]:
    """Files that another `discover` must have made right. The log of a review is nobody's but the reviewer's."""
    left_out = ("review.sqlite", "review.sqlite-wal", "review.sqlite-shm", "review.lock")
    return [text for text in differences(found, expected) if not text.startswith(left_out)]


def _judge(ended: Outcome, value: object, right: object, name: str) -> str:
    if ended.problem:
        return ended.problem
    if ended.code:
        return TOLD
    if value == right:
        return RIGHT
    warned = "warning:" in ended.output
    return TOLD if warned else OTHER if name in EDITED else "another result without a word"


class Commands:
    """What people call on a finished run, with something of each answer to compare."""

    def __init__(self, server: ForkServer, new: Path, out: Path) -> None:
        self.server, self.new, self.out = server, new, out

    def all(self, run: Path, whole: Path) -> dict[str, tuple[Outcome, object]]:
        """Outcome and answer by command; whole : path of the undamaged run, which answers may name"""
        shutil.rmtree(self.out, ignore_errors=True)
        self.out.mkdir()
        found: dict[str, tuple[Outcome, object]] = {}
        ended = self.server.run("evaluate", run, "--json")
        found["evaluate"] = ended, ended.output
        ended = self.server.run("predict", run, self.new / "images", "--out", self.out / "new.csv", "--quiet")
        found["predict"] = ended, self._files("new*.csv")
        ended = self.server.run("export", run, "--format", "csv", "--out", self.out / "csv", "--quiet")
        found["export csv"] = ended, self._files("csv/*.csv")
        ended = self.server.run("export", run, "--format", "coco", "--out", self.out / "coco", "--quiet")
        found["export coco"] = ended, self._files("coco/annotations.json")
        ended = self.server.run("report", run, "--no-attention", "--quiet")
        found["report"] = ended, None  # pictures that are gone are left out, and said so on the page
        ended = self.server.call("faults.disk:review", run, 0)
        found["review"] = ended, None
        copy = self.out / "updated"
        shutil.copytree(run, copy)
        ended = self.server.run("update", copy, self.new / "images", "--quiet")
        found["update"] = (
            ended,
            [(copy / name).read_bytes() for name in ("images.csv", "regions.csv") if not ended.code],
        )
        return found

    def _files(self, pattern: str) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in sorted(self.out.glob(pattern))}


def lose_while_running(server: ForkServer, count: int, rng: np.random.Generator, work: Path) -> list[str]:
    """Remove or damage files of the run folder while `discover` writes it; called again, the result is the same."""
    line = small_line(work / "running-line")
    recipe = recipes(line)[2]
    whole = work / "running-whole"
    made = server.run(*recipe.command(whole))
    if made.code:
        return [made.output]
    expected = content(whole)
    failures: list[str] = []
    ends: Counter[str] = Counter()
    for number in range(count):
        run = work / "running"
        shutil.rmtree(run, ignore_errors=True)
        thief = threading.Thread(
            target=_steal, args=(run, float(rng.uniform(0, made.seconds)), int(rng.integers(2**31)))
        )
        thief.start()
        ended = server.run(*recipe.command(run))
        thief.join()
        if ended.problem:
            failures.append(f"files lost while running, {number}: {ended.problem}")
        ends["finished" if not ended.code else "told"] += 1
        again = server.run(*recipe.command(run))
        if again.code or again.problem:
            failures.append(f"files lost while running, {number}, called again: {again.problem or again.output}")
        else:
            failures += [
                f"files lost while running, {number}, called again: {w}"
                for w in differences(content(run), expected)[:3]
            ]
    print(f"  {count} runs that lost files: " + ", ".join(f"{end} {n}" for end, n in ends.items()))
    return failures


def _steal(run: Path, delay: float, seed: int) -> None:
    """After a while, remove three files, or a whole subfolder."""
    time.sleep(delay)
    rng = np.random.default_rng(seed)
    found = sorted(path for path in run.rglob("*") if path.name not in (".lock", "stages.json"))
    for place in rng.integers(len(found), size=3) if found else ():
        with suppress(OSError):
            shutil.rmtree(found[place]) if found[place].is_dir() else found[place].unlink()


def hurt_inputs(server: ForkServer, count: int, rng: np.random.Generator, work: Path) -> list[str]:
    """Damage some images, maps and masks: these are named or read, all others get the class that they had."""
    line = small_line(work / "inputs")
    run = work / "inputs-run"
    recipe = recipes(line)[0]
    if (made := server.run(*recipe.command(run))).code:
        return [made.output]
    failures: list[str] = []
    command = ("predict", run, line / "images", "--maps", line / "maps", "--quiet", "--out")
    server.run(*command, work / "right.csv")
    right = _rows(work / "right.csv")
    kinds = {"images": "*.png", "maps": "*.npy"}
    n_told = 0
    for _ in range(count):
        kind = str(rng.choice(list(kinds)))
        files = sorted((line / kind).rglob(kinds[kind]))
        path = files[rng.integers(len(files))]
        before, damage = path.read_bytes(), str(rng.choice([name for name in DAMAGES if name != "removed"]))
        DAMAGES[damage](path, rng)
        ended = server.run(*command, work / "hurt.csv")
        if path.is_dir():
            path.rmdir()
        path.write_bytes(before)
        words = f"{kind}/{path.name} {damage}"
        hurt = path.relative_to(line / kind).with_suffix(".png").as_posix()
        if ended.problem:
            failures.append(f"{words}: {ended.problem}")
        elif ended.code:
            n_told += 1
        else:
            found = _rows(work / "hurt.csv")
            n_told += hurt not in found
            failures += [
                f"{words}: {name} has another row" for name in right.keys() - {hurt} if found.get(name) != right[name]
            ]
    print(f"  {count} damaged inputs among good ones: {n_told} told and skipped, the others still readable")
    return failures


def _rows(table: Path) -> dict[str, tuple[object, ...]]:
    """Class and probability of each image; a sum may end in another digit where other images share the batch."""
    rows = read_csv(table)
    return {row.image: (row.label, round(row.probability, 4), row.n_regions) for row in rows.itertuples()}
