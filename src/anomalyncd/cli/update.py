"""`anomalyncd update`: new images into a finished run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ..run.folder import IMAGES_TABLE, REPORT
from . import options as opt
from .commands import app
from .show import counted, draw, quoted, show_counts


@app.command()
def update(
    run: opt.Run,
    images: opt.Images,
    maps: opt.Maps = None,
    masks: opt.Masks = None,
    exclude: opt.Exclude = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, …")] = "auto",
    quiet: opt.Quiet = False,
) -> None:
    """Take new IMAGES into RUN: its classes keep their numbers and names, and new ones open where unknowns gather."""
    from ..estimator import AnomalyNCD
    from ..run.finished import FinishedRun

    opt.not_both(maps, masks)
    progress = opt.make_progress(quiet)
    model = AnomalyNCD.load(run, device=device, progress=progress)
    inputs = model.run_.gather(images, maps, masks, exclude or ())
    for note in inputs.notes:
        progress.warn(note)
    opt.warn_of_unknown(exclude, images, progress)
    inputs.check_outside(run)
    found = model.update(inputs)
    if found.known:
        typer.echo(f"{counted(len(found.known), 'image')} in the run already, left as they are")
    typer.echo(
        f"{counted(found.n_images, 'new image')} with {counted(found.n_regions, 'region')}, "
        f"{counted(len(found.skipped), 'file')} skipped"
    )
    names = model.model_.names
    for label, size in found.opened.items():
        typer.echo(f"New: {names[label]}, {counted(size, 'region')}")
    for (before, after), count in Counter((move.before, move.after) for move in found.moved).most_common():
        was, now = (names.get(label, "unknown" if label < 0 else f"class {label}") for label in (before, after))
        typer.echo(f"Moved: {counted(count, 'region')} from {was} to {now}")
    if found.unknown:
        typer.echo(f"Unknown still: {counted(found.unknown, 'region')}, too few alike to be a class")
    if not found.n_images and _is_drawn(run):
        return
    typer.echo("\nThe run now holds:")
    show_counts(model.images_["class_name"])
    draw(FinishedRun(run), progress)
    typer.echo(f"Next: anomalyncd review {quoted(run)}   (look at what is new, and name it)")


def _is_drawn(run: Path) -> bool:
    """Whether the pictures are of the tables: a call that was killed in between leaves those of before."""
    tables, last = run / IMAGES_TABLE, run / REPORT
    return last.exists() and last.stat().st_mtime_ns >= tables.stat().st_mtime_ns
