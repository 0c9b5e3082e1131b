"""`day`: the page of a day, of a table that `watch` or `predict` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import DataError, SettingsError
from .show import counted

By = Annotated[
    list[str] | None, typer.Option(metavar="NAME", help="Group by this column too, or by folder. Repeatable.")
]


def day(
    table: Annotated[
        Path,
        typer.Argument(metavar="TABLE", help="Of `watch` or `predict`: .csv, .sqlite, .parquet or a folder of these."),
    ],
    out: Annotated[Path | None, typer.Option(help="Page to write, TABLE-DAY.html by default.")] = None,
    pdf: Annotated[bool, typer.Option("--pdf", help="A PDF beside it.")] = False,
    date: Annotated[
        str | None, typer.Option("--day", metavar="DATE", help="As 2026-11-18; by default the last.")
    ] = None,
    by: By = None,
    shifts: Annotated[str, typer.Option(help="Hours at which shifts begin.")] = "6,14,22",
    begin: Annotated[int, typer.Option(min=0, max=23, help="Hour at which a day begins.")] = 0,
    time: Annotated[str, typer.Option(help="Column of times; `file` asks the files.")] = "time",
    images: Annotated[
        Path | None, typer.Option(help="Folder of the images, for a table of `predict`, which names them by it.")
    ] = None,
    browse: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write the page of a day: kinds of defect, shares with their limits, the day before, drift, newest images."""
    from ..day.html import write_day
    from ..day.source import read_table

    found = read_table(table, time=time, begin=begin, root=images)
    if not found.n_files:
        raise SettingsError(f"{table}: expected images, but the table has no row yet.")
    if images is not None and len(found.images) and found.days == [""]:
        raise DataError(
            f"--images {images}: expected the images of {table}, but there is no {found.images['image'].iloc[0]}."
        )
    name = date or found.days[-1]
    page = out or table.with_name(f"{table.stem}-{name}.html" if name else f"{table.stem}.html")
    paper = page.with_suffix(".pdf") if pdf else None
    figures = write_day(found, page, day=date, by=by or (), hours=hours_of(shifts), pdf=paper)
    share = figures.n_defects / (figures.n_images or 1)
    typer.echo(f"{figures.day or 'All'}: {counted(figures.n_images, 'image')}, {100 * share:.1f} % with a defect")
    others = ((figures.n_other, "of something else"), (figures.n_unreadable, "that could not be read"))
    for line in (
        *(f"{counted(count, 'file')} {what}" for count, what in others if count),
        *figures.warnings[:5], *(shift.words for _, shift in figures.shifts[:5]), *figures.notes,
    ):  # fmt: skip
        typer.echo(f"  {line}")
    if not figures.day and images is None:
        typer.echo("  without times and pictures: --images DIR tells where the images are")
    typer.echo(" and ".join(str(path) for path in (page, paper) if path))
    if browse:
        typer.launch(page.absolute().as_uri())


def hours_of(text: str) -> list[int]:
    """--shifts as hours."""
    try:
        hours = sorted({int(part) for part in text.split(",")})
    except ValueError:
        hours = []
    if not hours or not all(0 <= hour < 24 for hour in hours):
        raise SettingsError(f"--shifts {text}: expected hours from 0 to 23 with commas between, as 6,14,22.")
    return hours
