"""`correct`: what people corrected in another tool, back into a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from . import options as opt
from .show import counted, quoted

MOST_NAMES = 5  # that are printed


def correct(
    run: opt.Run,
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="JSON export of a Label Studio project.")],
    apply: Annotated[
        bool, typer.Option("--apply", help="Learn from them at once, as Apply of the review does.")
    ] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Take corrections that were made in Label Studio into RUN, where the review shows them."""
    from ..review.labelstudio import take_corrections

    progress = opt.make_progress(quiet)
    found = take_corrections(run, export, apply=apply, progress=progress)
    typer.echo(
        f"{counted(found.n_tasks, 'annotated image')}: {counted(found.n_moved, 'region')} moved, "
        f"{counted(found.n_false_alarms, 'false alarm')}"
    )
    for name in found.opened:
        typer.echo(f"New: {name}")
    if found.strangers:
        progress.warn(f"{counted(len(found.strangers), 'image')} not in this run, left out: {_some(found.strangers)}")
    if found.nowhere:
        drawn = [f"{label} in {image}" for image, label in found.nowhere]
        progress.warn(f"{counted(len(drawn), 'drawing')} where the run has no region, left out: {_some(drawn)}")
    if found.applied:
        typer.echo("Applied: the classes were learned again with them.")
    elif found.n_moved or found.n_false_alarms:
        typer.echo("They wait in the review until they are applied.")
    typer.echo(f"Next: anomalyncd review {quoted(run)}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMES]) + ", …" * (len(names) > MOST_NAMES)
