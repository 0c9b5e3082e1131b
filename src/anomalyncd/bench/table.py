"""Results as a table: mean ± deviation over seeds, the paper's figures below, and all that is needed to repeat it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

from .experiment import MASKS, METRICS, OURS, PAPER_ONLY, Experiment, Row
from .measure import WHOLE_IMAGE
from .paper import figures
from .runner import PAPER_SETTINGS, Cell, Outcome

MVTEC = (
    "bottle", "cable", "capsule", "carpet", "grid", "hazelnut", "leather", "metal_nut", "pill", "screw", "tile",
    "toothbrush", "transistor", "wood", "zipper",
)  # fmt: skip
SECONDS = ("binarize-and-crop", "network", "merge", "total")
PAPER = "↳ paper"
Column = tuple[str, str | None]  # data set, and source where rows have none of their own


@dataclass(frozen=True)
class Printed:
    """Figures of the paper; tables : whose they are; averaged : over all products of MVTec AD, for want of this one's."""

    metrics: Mapping[str, float]
    tables: tuple[str, ...] = ()
    averaged: bool = False


def printed(experiment: Experiment, row: Row, dataset: str, source: str, base: str | None) -> Printed:
    """What the paper prints for a cell; each figure from the first table that has it.

    Examples
    --------
    >>> from .experiment import load_experiment
    >>> goals = load_experiment("goals")
    >>> printed(goals, goals.rows[0], "mtd", "masks", None).metrics
    {'nmi': 0.829, 'ari': 0.863, 'f1': 0.841}
    """
    if row.paper is None:
        return Printed({})
    detector = "ground-truth" if source == MASKS else source
    wanted = {"dataset": "mvtec" if dataset in MVTEC else dataset, "product": dataset, "base": base}
    if row.source is not None or experiment.sources:
        wanted["detector"] = detector
    metrics: dict[str, float] = {}
    tables: list[str] = []
    averaged = False
    for table in experiment.tables:
        for found in figures(table, **row.paper):
            if any(found.get(key, value) != value for key, value in wanted.items() if key not in row.paper):
                continue
            if source == MASKS and "detector" not in found and row.method not in WHOLE_IMAGE:
                continue  # there the method had no masks
            values = dict(found)
            if "seconds" in found:  # Table 13 has a row for each module
                values[str(found["variant"])] = found["seconds"]
            new = {name: float(values[name]) for name in experiment.metrics if name in values and name not in metrics}
            if new:
                metrics |= new
                tables += [table] * (table not in tables)
                averaged |= dataset in MVTEC and "dataset" in found and "product" not in found
    return Printed({name: metrics[name] for name in experiment.metrics if name in metrics}, tuple(tables), averaged)


def columns_of(outcome: Outcome) -> list[Column]:
    """Columns of the table: data sets, each with every source of the experiment."""
    sources: Sequence[str | None] = outcome.experiment.sources or [None]
    return [(dataset, source) for dataset in outcome.products for source in sources]


def cells_of(outcome: Outcome, row: Row, column: Column) -> list[Cell]:
    """Cells of one row in one column, a seed each."""
    return [
        cell
        for cell in outcome.cells
        if cell.row.name == row.name and cell.dataset == column[0] and column[1] in (None, cell.source)
    ]


def mean_of(cells: Sequence[Cell], metric: str) -> float | None:
    """Mean over seeds; None where a seed is missing or has nothing to measure."""
    known = [value for cell in cells if (value := cell.metrics.get(metric)) is not None]
    return fmean(known) if known and len(known) == len(cells) else None


def to_markdown(outcome: Outcome, command: str = "") -> str:
    """The table and what is to be known about it."""
    header, rows = to_rows(outcome)
    lines = [f"## {outcome.experiment.name}: {outcome.experiment.title}", "", _line(header)]
    lines += [_line(["---"] * len(header)), *map(_line, rows), "", *(f"- {note}" for note in notes(outcome, command))]
    return "\n".join(lines) + "\n"


def to_rows(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text."""
    experiment, columns = outcome.experiment, columns_of(outcome)
    with_mean = len(columns) > 1 and not outcome.skipped
    header = ["", *(", ".join(filter(None, column)) for column in columns)]
    header += ["mean of all columns"] * with_mean + ["seeds", "s"]
    rows = []
    for row in experiment.rows:
        of_row = [cells_of(outcome, row, column) for column in columns]
        if row.method != PAPER_ONLY:
            means = [[mean_of(cells, name) for cells in of_row] for name in experiment.metrics]
            middle = [_text(experiment.metrics, [_complete_mean(each) for each in means])] * with_mean
            seeds = {cell.seed for cells in of_row for cell in cells}
            rows.append([row.name, *(_ours(experiment, cells) for cells in of_row), *middle, *_tail(seeds, of_row)])
        theirs = [_printed_for(experiment, cells) for cells in of_row]
        if tables := dict.fromkeys(table for found in theirs for table in found.tables):
            name = f"{row.name} (paper only)" if row.method == PAPER_ONLY else PAPER
            texts = [_theirs(experiment, found) for found in theirs]
            rows.append([f"{name}, Table {', '.join(tables)}", *texts, *["–"] * with_mean, "–", "–"])
    return header, rows


def to_csv(outcome: Outcome) -> str:
    """One line for each row, data set and source, with the paper's figures in columns of their own."""
    experiment = outcome.experiment
    buffer = io.StringIO()
    head = ["experiment", "row", "method", "dataset", "source", "base", "state", "seeds", "seconds"]
    named = [part for name in experiment.metrics for part in (name, f"{name}_std", f"paper_{name}")]
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*head, *named, "paper_tables", "message"])
    for row in experiment.rows:
        for column in columns_of(outcome):
            cells = cells_of(outcome, row, column)
            if not cells:
                continue
            done = [cell for cell in cells if cell.state == "done"]
            theirs = _printed_for(experiment, cells)
            values: list[Any] = []
            for name in experiment.metrics:
                known = [value for cell in cells if (value := cell.metrics.get(name)) is not None]
                values += [fmean(known), pstdev(known)] if known else ["", ""]
                values.append(theirs.metrics.get(name, ""))
            took = fmean(map(_took, done)) if done else ""
            states = " and ".join(dict.fromkeys(cell.state for cell in cells))
            about = [experiment.name, row.name, row.method, column[0], cells[0].source, cells[0].base or "", states]
            messages = dict.fromkeys(cell.message for cell in cells if cell.message)
            seeds = " ".join(str(cell.seed) for cell in done)
            writer.writerow([*about, seeds, took, *values, " ".join(theirs.tables), "; ".join(messages)])
    return buffer.getvalue()


def notes(outcome: Outcome, command: str = "") -> list[str]:
    """What stands under the table: how to repeat it, what it was made from, and what is missing."""
    experiment = outcome.experiment
    measured = " / ".join(METRICS[name] for name in experiment.metrics)
    unit = ", seconds an image" if set(experiment.metrics) <= set(SECONDS) else ""
    lines = [f"Command: `{command}`"] if command else []
    lines.append(f"Cells: {measured}{unit}, mean ± standard deviation over seeds; images, normal counted as one class.")
    if experiment.note:
        lines.append(experiment.note.strip())
    shown = [
        printed(experiment, cell.row, cell.dataset, cell.source, cell.base) for cell in outcome.cells if cell.row.paper
    ]
    if tables := sorted({table for each in shown for table in each.tables}, key=lambda name: (len(name), name)):
        lines.append(
            f"Paper: Table {', '.join(tables)}, as printed, with its own backbone (DINO ViT-B/8) and base set (AeBAD-S)."
        )
    if any(each.averaged for each in shown):
        lines.append(
            "\\* mean over the 15 products of MVTec AD, because the paper does not print this product by itself."
        )
    lines.append("Labels: only for scoring, and for the number of classes asked for; no method is handed them.")
    lines.append(f"s: seconds for all columns and one seed, maps not counted. Backbone: {outcome.backbone}.")
    lines += [f"Data: {name}, {len(p.labels)} images, {p.n_classes} classes, {p.fingerprint[:16]}, without "
              f"{', '.join(p.exclude) or 'nothing'}." for name, p in outcome.products.items()]  # fmt: skip
    lines += [f"Base set: {name}, {fingerprint[:16]}." for name, fingerprint in outcome.bases.items()]
    if outcome.settings:
        given = ", ".join(f"{name}={value}" for name, value in _flat(outcome.settings))
        lines.append(f"All rows, unless one says otherwise: {given}.")
    for row in experiment.rows:
        if row.method != PAPER_ONLY:
            lines.append(f"{row.name}: {_settings(row, outcome) or 'default settings'}.")
    lines += [f"Machine: {name}." for name in sorted({cell.machine for cell in outcome.cells if cell.machine})]
    lines += outcome.skipped
    found = [f"{c.row.name}, {c.dataset}, {c.source}: {c.message}" for c in outcome.cells if c.message]
    return lines + list(dict.fromkeys(found))


def _settings(row: Row, outcome: Outcome) -> str:
    """What differs from the default."""
    bases = {cell.base for cell in outcome.cells if cell.row.name == row.name and cell.base}
    parts = [] if row.method == OURS else [f"method {row.method}"]
    parts += [f"preset {row.preset}"] * bool(row.preset)
    parts += [f"{name}={value}" for name, value in _flat(row.settings)]
    if row.preset == "paper":
        for dataset in sorted({cell.dataset for cell in outcome.cells} & set(PAPER_SETTINGS)):
            parts += [f"{name}={value} on {dataset}, as there" for name, value in _flat(PAPER_SETTINGS[dataset])]
    if row.exclude is not None:
        parts.append(f"without {', '.join(row.exclude) or 'leaving any class out'}")
    parts += [f"base set {name}" for name in sorted(bases)]
    return ", ".join(parts)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat = []
    for name, value in settings.items():
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [(prefix + name, value)]
    return flat


def _ours(experiment: Experiment, cells: Sequence[Cell]) -> str:
    if not cells or cells[0].state == "left out":
        return "–"
    states = list(dict.fromkeys(cell.state for cell in cells if cell.state != "done"))
    texts = []
    for name in experiment.metrics:
        values = [value for cell in cells if (value := cell.metrics.get(name)) is not None]
        spread = f" ± {pstdev(values):{_form(name)}}" if len(values) > 1 else ""
        nothing = "–" if not states else states[0]
        texts.append(f"{fmean(values):{_form(name)}}{spread}" if values else nothing)
    if not any(cell.metrics for cell in cells):
        return texts[0]
    done = sum(cell.state == "done" for cell in cells)
    return " / ".join(texts) + (f" ({done} of {len(cells)} seeds)" if 0 < done < len(cells) else "")


def _printed_for(experiment: Experiment, cells: Sequence[Cell]) -> Printed:
    if not cells:
        return Printed({})
    first = cells[0]
    return printed(experiment, first.row, first.dataset, first.source, first.base)


def _theirs(experiment: Experiment, found: Printed) -> str:
    mark = "\\*" if found.averaged else ""
    return _text(experiment.metrics, [found.metrics.get(name) for name in experiment.metrics]) + mark


def _tail(seeds: set[int], of_row: Sequence[Sequence[Cell]]) -> list[str]:
    """Seeds, and seconds of one seed; a result that stands in several columns is counted once."""
    took = {cell.result: _took(cell) for cells in of_row for cell in cells if cell.state == "done"}
    done = {cell.seed for cells in of_row for cell in cells if cell.state == "done"}
    return [", ".join(map(str, sorted(seeds))), f"{sum(took.values()) / len(done):.0f}" if done else "–"]


def _took(cell: Cell) -> float:
    return sum(seconds for stage, seconds in cell.seconds.items() if stage != "maps")


def _complete_mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _text(names: Sequence[str], values: Sequence[float | None]) -> str:
    if all(value is None for value in values):
        return "–"
    pairs = zip(names, values, strict=True)
    return " / ".join("–" if value is None else f"{value:{_form(name)}}" for name, value in pairs)


def _form(metric: str) -> str:
    return ".4f" if metric in SECONDS else ".3f"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
