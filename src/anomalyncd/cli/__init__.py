"""The command line: parse, call, print. Each command ends by saying what to do next."""

from __future__ import annotations

import os
import warnings

import typer

from ..errors import AnomalyNCDError
from . import bench, export, report, review, serve, update
from .commands import app

__all__ = ["app", "export", "main", "report", "review", "serve", "update"]

app.add_typer(bench.app, name="bench")

STOPPED = 130  # what typer exits with on Ctrl-C


def main() -> None:
    """Entry point: errors that a user can mend are one line, not a traceback."""
    warnings.formatwarning = lambda message, *_args, **_kwargs: f"warning: {message}\n"
    try:
        _run()
    except (AnomalyNCDError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from None
    except SystemExit as stop:
        if stop.code == STOPPED:
            typer.echo("\nstopped. What was finished is kept: call the same command again to go on.", err=True)
        raise


def _run() -> None:
    """The command; of several processes that `torchrun` started, the first does it and the others help."""
    if "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        from ..discovery.torchrun import together

        together(app)
    else:
        app()
