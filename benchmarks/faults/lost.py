"""What a second call may cost: names that people gave, images that were replaced, and the work of another process."""

from __future__ import annotations

import csv
import json
import os
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from .scenes import Recipe, content, differences
from .server import ForkServer, Outcome
from .web import Command

NAME = "a dent that a person named"
OTHERS: dict[str, tuple[object, ...]] = {  # that ask for other classes than before
    "other epochs": ("--set", "learn.epochs=11"),
    "another number of classes": ("--classes", 4),
    "another seed": ("--seed", 7),
    "another network": ("--set", "model.image_size=64"),
    "fewer images": ("--exclude", "scratch"),
}
OLD = 978_307_200  # seconds: January 2001


def kept_names(server: ForkServer, recipe: Recipe, work: Path) -> list[str]:
    """`discover` with other settings on a run whose classes have names: refused, and with --force a copy is kept."""
    failures: list[str] = []
    named = work / "named"
    if (made := server.run(*recipe.command(named))).code:
        return [made.output]
    names = json.loads((named / "classes.json").read_text())
    (named / "classes.json").write_text(json.dumps({**names, "1": NAME}))
    for what, options in {"the same call": (), **OTHERS}.items():
        run = Path(shutil.copytree(named, work / "again"))
        before = content(run)
        ended = server.run(*recipe.command(run), *options)
        is_named = NAME in (run / "classes.json").read_text() if (run / "classes.json").exists() else False
        if not options and (ended.code or not is_named):
            failures.append(f"{what}: exit code {ended.code}, name kept: {is_named}")
        if options and (ended.code != 2 or len(ended.errors) != 1 or "--force" not in ended.output):
            failures.append(f"{what}: exit code {ended.code}, name kept: {is_named}: {ended.output.strip()[-300:]}")
        elif options:
            failures += [f"{what}, refused: {wrong}" for wrong in differences(content(run), before)[:3]]
            ended = server.run(*recipe.command(run), *options, "--force")
            copies = [path for path in run.glob("kept/**/classes.json") if NAME in path.read_text()]
            if ended.code or not copies:
                failures.append(f"{what}, forced: exit code {ended.code}, {len(copies)} copies of the names")
        shutil.rmtree(run)
    return failures


def replaced_images(server: ForkServer, recipe: Recipe, line: Path, work: Path) -> list[str]:
    """`update` after an image was replaced by one that is older than the run, as from a camera's card."""
    own = Path(shutil.copytree(line, work / "replaced-line"))
    arguments = tuple(_moved(part, line, own) for part in recipe.arguments)
    run, victim = work / "replaced", "good/000.png"
    failures: list[str] = []
    if (made := server.run(*Recipe(recipe.name, arguments, recipe.out).command(run))).code:
        return [made.output]
    size = _height(run, victim)
    files = {own / "images" / victim: 64, (own / "maps" / victim).with_suffix(".npy"): 64}
    for path, side in files.items():
        if path.suffix == ".npy":
            np.save(path, np.zeros((side, side), np.float32))
        else:
            Image.fromarray(np.full((side, side, 3), 90, np.uint8)).save(path)
        os.utime(path, (OLD, OLD))
    ended = server.run("update", run, own / "images", "--maps", own / "maps", "--quiet")
    if ended.code or _height(run, victim) != "64":
        failures.append(
            f"an image of {size} pixels was replaced by an older one of 64: exit code {ended.code}, and manifest.csv "
            f"still says {_height(run, victim)}"
        )
    return failures


def _moved(part: object, old: Path, new: Path) -> object:
    return new / part.relative_to(old) if isinstance(part, Path) and part.is_relative_to(old) else part


def _height(run: Path, image: str) -> str:
    """Of the last row of a file: what replaced an image stands below it, under a name of its own."""
    with (run / "manifest.csv").open(newline="") as file:
        return [row["height"] for row in csv.DictReader(file) if row["file"].endswith(f"/{image}")][-1]


def two_at_once(servers: Sequence[ForkServer], discover: Recipe, update: Recipe, new: Path, work: Path) -> list[str]:
    """Two processes on one run: one waits or is refused in one line, and what is left is as if they had come in turn.

    update : of a finished run; new : images for `predict`
    """
    parts = {
        "two discover": lambda: _two_discover(servers, discover, work),
        "two review": lambda: _two_review(servers[0], update, work),
        "update beside predict": lambda: _update_and_predict(servers, update, new, work),
        "apply beside update": lambda: _apply_and_update(servers[0], update, work),
    }
    failures = []
    for name, part in parts.items():
        wrong = part()
        print(f"  {name}: {'; '.join(wrong) or 'as it should be'}", flush=True)
        failures += [f"{name}: {text}" for text in wrong]
    return failures


def _at_once(servers: Sequence[ForkServer], *commands: Sequence[object]) -> list[Outcome]:
    with ThreadPoolExecutor(len(commands)) as pool:
        return list(pool.map(lambda server, command: server.run(*command), servers, commands))


def _unclear(ended: Sequence[Outcome], words: str) -> list[str]:
    """Those that neither did their work nor said in one line that another process is at it."""
    wrong = [one for one in ended if one.problem or (one.code and words not in one.output)]
    return [f"exit code {one.code}: {one.problem or one.output.strip()[-300:]}" for one in wrong]


def _two_discover(servers: Sequence[ForkServer], discover: Recipe, work: Path) -> list[str]:
    alone, run = work / "alone", work / "both"
    if (made := servers[0].run(*discover.command(alone))).code:
        return [made.output]
    ended = _at_once(servers, discover.command(run), discover.command(run))
    wrong = _unclear(ended, "another process is writing")
    if all(one.code for one in ended):
        wrong.append("both were refused")
    return wrong + differences(content(run), content(alone))[:3]


def _two_review(server: ForkServer, update: Recipe, work: Path) -> list[str]:
    run = work / "reviewed"
    update.prepare(run)
    with Command("review", run) as web:
        second = server.run("review", run, "--no-browser", "--port", 0, limit=60)
        first = web.ask("/api/state").status
    wrong = _unclear([second], "another process is reviewing")
    if not second.code or first != 200:
        wrong.append(f"the second ended with exit code {second.code}, the first answers {first}")
    return wrong


def _update_and_predict(servers: Sequence[ForkServer], update: Recipe, new: Path, work: Path) -> list[str]:
    """`predict` sees the run before the update or after it, and nothing between."""
    run, out = work / "updated", work / "predicted"
    update.prepare(run)
    out.mkdir()

    def predict(name: str) -> list[object]:
        return ["predict", run, new / "images", "--maps", new / "maps", "--out", out / f"{name}.csv", "--quiet"]

    wrong = _unclear([servers[0].run(*predict("before"))], "")
    wrong += _unclear(_at_once(servers, update.command(run), predict("beside")), "another process is writing")
    wrong += _unclear([servers[0].run(*predict("after"))], "")
    tables = [path.read_bytes() for name in ("before", "beside", "after") if (path := out / f"{name}.csv").exists()]
    if len(tables) == 3 and tables[1] not in (tables[0], tables[2]):
        wrong.append("the table is neither that of the run before the update nor that of the run after it")
    return wrong


def _apply_and_update(server: ForkServer, update: Recipe, work: Path) -> list[str]:
    """Whichever comes first: the correction is in the tables or still waits, and the new images are in or were refused."""
    run = work / "applied"
    update.prepare(run)
    n_before = len((run / "images.csv").read_text().splitlines())
    with Command("review", run) as web:
        state = web.ask("/api/state").json
        label = next(card["label"] for card in state["classes"] if card["n_regions"])
        region = web.ask(f"/api/classes/{label}/regions").json["regions"][0]["id"]
        state = web.act(state, kind="move", regions=[region], to=label).json["state"]
        started = web.post("/api/apply", version=state["version"]).status
        ended = server.run(*update.command(run))
        deadline = time.monotonic() + 300
        while (job := web.ask("/api/version").json["job"])["state"] == "running" and time.monotonic() < deadline:
            time.sleep(0.2)
        state = web.ask("/api/state").json
    wrong = _unclear([ended], "another process is writing")
    if started != 202 or job["state"] == "running":
        wrong.append(f"the apply was answered with {started} and is {job['state']}")
    if job["state"] == "failed" and "another process is writing" not in job["message"]:
        wrong.append(f"the apply failed: {job['message']}")
    if (state["n_actions"] == 0) != (job["state"] == "done"):
        wrong.append(f"the apply is {job['state']}, and {state['n_actions']} corrections wait")
    is_larger = len((run / "images.csv").read_text().splitlines()) > n_before
    if is_larger != (ended.code == 0):
        wrong.append(f"update ended with exit code {ended.code}, new images in the table: {is_larger}")
    return wrong
