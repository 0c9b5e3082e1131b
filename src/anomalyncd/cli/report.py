"""`anomalyncd report`: a run as one page to look at, to send and to print."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import RunError
from . import options as opt
from .commands import app
from .show import quoted


@app.command()
def report(
    run: opt.Run,
    no_attention: Annotated[
        bool, typer.Option("--no-attention", help="Without attention pictures, which need the backbone.")
    ] = False,
    browse: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    quiet: opt.Quiet = False,
) -> None:
    """Write report.html into a run folder: one file that needs no network."""
    from ..report.html import write_report
    from ..run.finished import FinishedRun

    try:
        path = write_report(FinishedRun(run), opt.make_progress(quiet), attention=not no_attention)
    except OSError as error:
        raise RunError(
            f"{run}: cannot write the report ({error.strerror or error}). Make room or mend the permission."
        ) from error
    typer.echo(f"{path} ({path.stat().st_size / 1e6:.1f} MB)")
    if browse:
        typer.launch(path.absolute().as_uri())
    typer.echo(f"Next: anomalyncd review {quoted(run)}")
