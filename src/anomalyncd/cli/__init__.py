"""The command line: parse, call, print. Each command ends by saying what to do next."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from .. import __version__
from ..errors import AnomalyNCDError
from ..studio.as_job import JOB, as_job
from .bench import bench
from .commands import binarize, demo, detect, discover, weights
from .correct import correct
from .day import day
from .finished import evaluate, export, predict, report, update
from .servers import review, serve, studio
from .watch import watch

__all__ = ["app", "main"]

STOPPED = 130  # what typer exits with on Ctrl-C
COMMANDS: tuple[Callable[..., None], ...] = (
    correct, day, discover, detect, predict, evaluate, binarize, demo, export, report, review, serve, studio, update, watch,
)  # fmt: skip

app = typer.Typer(
    help="Sort product defects into classes that nobody has named yet.",
    no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)
app.add_typer(weights, name="weights")
app.add_typer(bench, name="bench")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"anomalyncd {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Entry point: errors that a user can mend are one line, not a traceback."""
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files hold what no terminal can show
    if folder := os.environ.get(JOB):
        with as_job(Path(folder)):
            _run()
    else:
        _run()


def _run() -> None:
    try:
        if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            from ..discovery.torchrun import together

            together(app)  # of several processes that `torchrun` started, the first does it and the others help
        else:
            app()
    except (AnomalyNCDError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except SystemExit as stop:
        if stop.code == STOPPED:
            typer.echo("\nstopped. What was finished is kept: call the same command again to go on.", err=True)
        raise
