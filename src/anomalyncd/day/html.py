"""The page of a day: one file that needs no network, for the screen, the phone and the printer."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

import jinja2

from .. import __version__
from ..errors import RunError, SettingsError
from ..paths import path_of
from ..report.source import Album, Shot
from ..whole import create
from . import charts
from .figures import DayFigures, day_figures
from .pictures import newest
from .source import HOURS, DayTable

PARTIAL = ".partial"


def write_day(
    table: DayTable,
    out: Path,
    *,
    day: str | None = None,
    by: Sequence[str] = (),
    hours: Sequence[int] = HOURS,
    pdf: Path | None = None,
) -> DayFigures:
    """Write the page of a day, and a PDF if one is wanted; returns its figures.

    day : YYYY-MM-DD, the last one in the table by default
    by, hours : see `day_figures` and `groups_of`
    """
    check_page(out)
    days = table.days
    if day is not None and day not in days:
        known = f"{days[0]} to {days[-1]}" if days[0] else "no times at all"
        raise SettingsError(f"--day {day}: expected a day of the table, as 2026-11-18, which has {known}.")
    figures = day_figures(table, days[-1] if day is None else day, by, hours)
    pictures = newest(table, figures)
    album = Album()
    shots = []
    for look, some in pictures:
        own = [Shot(album.add(shot), f"{look.name}: {name}", name, (at,) if at else ()) for name, at, shot in some]
        shots.append((look, own))
    _write(out, render(table, figures, shots).encode())
    if pdf is not None:
        from .pdf import day_pdf

        _write(pdf, day_pdf(table, figures, pictures))
    return figures


def check_page(path: Path) -> None:
    """Fail before the work where a page would take the place of something else."""
    path_of(path, "page")
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise SettingsError(f"{path}: expected a page that ends in .html.")


def render(table: DayTable, figures: DayFigures, shots: Sequence[object]) -> str:
    """The page as text; every name in it is escaped."""
    report = jinja2.PackageLoader("anomalyncd.report")
    loader = jinja2.ChoiceLoader([jinja2.PackageLoader("anomalyncd.day"), report])
    environment = jinja2.Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.undefined = jinja2.StrictUndefined
    script, style, own = (loader.get_source(environment, name)[0] for name in ("report.js", "report.css", "day.css"))
    environment.filters["percent"] = lambda share: f"{100 * share:.1f} %"
    environment.filters["points"] = lambda share: f"{100 * share:+.1f}".replace("-", "−")
    return environment.get_template("day.html.j2").render(
        figures=figures,
        shots=shots,
        charts=charts,
        title=table.path.stem,
        table=table,
        version=__version__,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        style=style + own,
    )


def _write(path: Path, data: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        create(path.with_name(path.name + PARTIAL), data, becomes=path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}).") from error
