"""Kill a command at random moments, call it again, and compare what is left with an undisturbed run."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from .scenes import Recipe, content, differences
from .server import ForkServer

MORE_THAN_ONE = 0.3  # share of the runs that are killed again while they go on
TRIES = 30  # a kill that comes when all is done disturbs nothing and is drawn anew


def kill_runs(
    server: ForkServer,
    recipes: Sequence[Recipe],
    count: int,
    rng: np.random.Generator,
    work: Path,
    *,
    each: bool = False,
) -> list[str]:
    """Disturb `count` runs; returns what went wrong, a line each.

    each : print a line for each run
    """
    failures: list[str] = []
    moments: Counter[str] = Counter()
    n_kills = 0
    wholes: dict[str, tuple[dict[str, bytes], float]] = {}
    temporary = work / "tmp"
    temporary.mkdir(parents=True)
    environment = {"TMPDIR": str(temporary)}
    for number in range(count):
        recipe = recipes[number % len(recipes)]
        if recipe.name not in wholes:
            wholes[recipe.name] = _whole(server, recipe, work / f"whole-{recipe.name}", environment)
            print(f"  {recipe.name}: {wholes[recipe.name][1]:.1f} s undisturbed", flush=True)
        expected, duration = wholes[recipe.name]
        run = work / f"run-{number}"
        delays: list[float] = []
        wanted = 1 + (int(rng.integers(1, 4)) if rng.random() < MORE_THAN_ONE else 0)
        for _ in range(TRIES):
            if not delays:
                shutil.rmtree(run, ignore_errors=True)
                recipe.prepare(run)
            delay = duration * float(rng.beta(1, 1.6))  # pictures are drawn last: rather before that
            ended = server.run(*recipe.command(run), kill_after=delay, environment=environment)
            if ended.problem and not ended.killed:
                failures.append(f"run {number} ({recipe.name}): {ended.problem}")
            if ended.killed:
                delays.append(delay)
                moments[_moment(run, recipe)] += 1
            elif delays:
                break  # it got through before the second kill
            if len(delays) == wanted:
                break
        n_kills += len(delays)
        ended = server.run(*recipe.command(run), environment=environment)
        words = (
            f"run {number} ({recipe.name}), killed after {', '.join(f'{delay:.3f}' for delay in delays) or 'nothing'} s"
        )
        if ended.code or ended.problem:
            failures.append(f"{words}: does not finish: {ended.problem or ended.output.strip()}")
        wrong = differences(content(run), expected)
        wrong += [f"{path.name} left in the folder of temporary files" for path in temporary.iterdir()]
        failures += [f"{words}: {what}" for what in wrong[:5]]
        if each:
            print(f"  {words}: {'; '.join(wrong) or 'same bytes'}, {ended.seconds:.0f} s to finish", flush=True)
        if not wrong:
            shutil.rmtree(run)
    when = ", ".join(f"{k} {n}" for k, n in moments.most_common())
    print(f"  {count} runs, {n_kills} kills, {len(failures)} failures; when: {when}", flush=True)
    if n_kills < count:
        failures.append(f"only {n_kills} kills came in time for {count} runs")
    return failures


def _whole(
    server: ForkServer, recipe: Recipe, run: Path, environment: dict[str, str]
) -> tuple[dict[str, bytes], float]:
    """Content and seconds of an undisturbed run; the second of two, because the first one may compile."""
    for _ in range(2):
        shutil.rmtree(run, ignore_errors=True)
        recipe.prepare(run)
        ended = server.run(*recipe.command(run), environment=environment)
        if ended.code:
            raise RuntimeError(f"{recipe.name}: {ended.output}")
        if ended.seconds > 30:
            break
    return content(run), ended.seconds


def _moment(run: Path, recipe: Recipe) -> str:
    """In which part of the run the kill came, as its folder tells."""
    if recipe.arguments[0] not in ("discover", "update"):
        return f"in {recipe.name}"
    try:
        stages = json.loads((run / "stages.json").read_text())
        stages.pop("format", None)
    except (OSError, ValueError):
        return "before the first stage"
    if recipe.name == "update":
        return "in update, committed" if "update" in stages else "in update"
    open_stages = [name for name, state in stages.items() if not state["done"]]
    if open_stages:
        return f"in {open_stages[-1]}"
    if not stages:
        return "before the first stage"
    if (run / "images.csv").exists():
        return "after the tables"
    return "while tables are written" if "learn" in stages else "between stages"
