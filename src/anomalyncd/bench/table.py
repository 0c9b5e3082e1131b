"""Results as a table: mean ± deviation over seeds, the paper's figures below, and all that is needed to repeat it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any, NamedTuple

import pandas as pd

from .experiment import BEST, MASKS, METRICS, OURS, PAPER_ONLY, Experiment, Row, paper_figures
from .rivals import RIVALS
from .runner import PAPER_SETTINGS, Cell, Column, Outcome
from .summary import ranks, variance_lines

MVTEC = (
    "bottle", "cable", "capsule", "carpet", "grid", "hazelnut", "leather", "metal_nut", "pill", "screw", "tile",
    "toothbrush", "transistor", "wood", "zipper",
)  # fmt: skip
NOTHING = "–"


class Printed(NamedTuple):
    """Figures of the paper.

    tables : whose they are
    averaged : over all products of MVTec AD, for want of this one's
    detector : that the best of them are of, where these were asked for
    """

    metrics: Mapping[str, float]
    tables: tuple[str, ...] = ()
    averaged: bool = False
    detector: str = ""


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
    best = row.paper.get("detector") == BEST
    match = {key: text for key, text in row.paper.items() if text != BEST}
    whole_images = row.method in RIVALS and RIVALS[row.method].looks_at == "images"
    fitting = []
    for table in experiment.tables:
        for found in paper_figures(table, **match):
            if any(found.get(key, value) != value for key, value in wanted.items() if key not in row.paper):
                continue
            if source == MASKS and "detector" not in found and not whole_images:
                continue  # there the method had no masks
            if best and found.get("detector", "ground-truth") == "ground-truth":
                continue  # no detector's
            fitting.append((table, found))
    if best:
        fitting = sorted(fitting, key=lambda pair: ("product" in pair[1], pair[1].get("f1", 0)), reverse=True)[:1]
    metrics: dict[str, float] = {}
    tables: list[str] = []
    averaged = False
    for table, found in fitting:
        values = dict(found)
        if "seconds" in found:  # Table 13 has a row for each module
            values[str(found["variant"])] = found["seconds"]
        new = {name: float(values[name]) for name in experiment.metrics if name in values and name not in metrics}
        if new:
            metrics |= new
            tables += [table] * (table not in tables)
            averaged |= dataset in MVTEC and "dataset" in found and "product" not in found
    in_order = {name: metrics[name] for name in experiment.metrics if name in metrics}
    return Printed(in_order, tuple(tables), averaged, fitting[0][1]["detector"] if best and fitting else "")


class Entry:
    """One row in one column of the table: a cell for each seed, and what the paper prints there."""

    def __init__(self, outcome: Outcome, row: Row, column: Column) -> None:
        self.metrics, self.cells = outcome.experiment.metrics, outcome.cells_of(row, column)
        self.done = [cell for cell in self.cells if cell.state == "done"]
        self.printed = Printed({})
        for cell in self.cells[:1]:
            self.printed = printed(outcome.experiment, row, cell.dataset, cell.source, cell.base)

    def values(self, metric: str) -> list[float]:
        """Of the seeds that have one."""
        return [value for cell in self.cells if (value := cell.metrics.get(metric)) is not None]

    @property
    def texts(self) -> list[str]:
        """Mean ± standard deviation of each metric, or why there is none."""
        if not self.cells or self.cells[0].state == "left out":
            return [NOTHING] * len(self.metrics)
        nothing = next((cell.state for cell in self.cells if cell.state != "done"), NOTHING)
        texts = []
        for name in self.metrics:
            values = self.values(name)
            spread = f" ± {_number(name, pstdev(values))}" if len(values) > 1 else ""
            texts.append(_number(name, fmean(values)) + spread if values else nothing)
        return texts

    @property
    def text(self) -> str:
        """All of them in one cell."""
        if not any(cell.metrics for cell in self.cells):
            return self.texts[0]
        some = 0 < len(self.done) < len(self.cells)
        return " / ".join(self.texts) + (f" ({len(self.done)} of {len(self.cells)} seeds)" if some else "")

    @property
    def means(self) -> list[float | None]:
        """Mean over seeds of each metric, None where a seed has none."""
        return [_mean([cell.metrics.get(name) for cell in self.cells]) for name in self.metrics]

    @property
    def paper_text(self) -> str:
        """The paper's figures in one cell."""
        values = [self.printed.metrics.get(name) for name in self.metrics]
        return _joined(self.metrics, values) + ("\\*" if self.printed.averaged else "")

    @property
    def paper_own(self) -> list[float | None]:
        """Those of this data set by itself."""
        return [None if self.printed.averaged else self.printed.metrics.get(name) for name in self.metrics]


def to_rows(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Header and rows as text."""
    if outcome.experiment.layout == "long":
        return _long_rows(outcome)
    experiment, columns = outcome.experiment, outcome.columns
    metrics, with_mean, ranked = (
        experiment.metrics,
        len(columns) > 1 and not outcome.skipped,
        experiment.summary == "rank",
    )
    header = ["", *(", ".join(filter(None, column)) for column in columns)]
    header += ["mean of all columns"] * with_mean + ["rank"] * ranked + ["seeds", "s"]
    found = {row.name: [Entry(outcome, row, column) for column in columns] for row in experiment.rows}
    lines = [[mean for entry in entries for mean in entry.means] for entries in found.values()]
    places = dict(zip(found, ranks(lines), strict=True)) if ranked else {}
    rows = []
    for row in experiment.rows:
        entries = found[row.name]
        if row.method != PAPER_ONLY:
            means = [_mean(each) for each in zip(*(entry.means for entry in entries), strict=True)]
            middle = [_joined(metrics, means)] * with_mean
            middle += [NOTHING if (place := places[row.name]) is None else f"{place:.2f}"] if ranked else []
            seeds = sorted({cell.seed for entry in entries for cell in entry.cells})
            done = [cell for entry in entries for cell in entry.done]
            took = {cell.result: _took(cell) for cell in done}  # one that stands in several columns is counted once
            seconds = f"{sum(took.values()) / len({cell.seed for cell in done}):.0f}" if done else NOTHING
            texts = [entry.text for entry in entries]
            rows.append([row.name, *texts, *middle, ", ".join(map(str, seeds)), seconds])
        if tables := dict.fromkeys(table for entry in entries for table in entry.printed.tables):
            texts = [entry.paper_text for entry in entries]
            rank = [
                each["rank"] for table in tables for each in paper_figures(table, **(row.paper or {})) if "rank" in each
            ]
            middle = [NOTHING] * with_mean + [f"{rank[0]:.2f}" if rank else NOTHING] * ranked
            rows.append([f"{_paper_name(row)}, Table {', '.join(tables)}", *texts, *middle, NOTHING, NOTHING])
    if experiment.summary == "variance":
        rows += [[*line, *[NOTHING] * (with_mean + 2)] for line in variance_lines(experiment, columns, lines)]
    return header, rows


def _long_rows(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """A line for each data set, source and row; then means over the data sets for each source, and over everything.

    Of the paper only figures of the data set by itself are shown: means over products would stand there again and again.
    """
    metrics, rows, columns = outcome.experiment.metrics, outcome.experiment.rows, outcome.columns
    entries = {(row.name, column): Entry(outcome, row, column) for column in columns for row in rows}
    lines = []
    for column in columns:
        for row in rows:
            entry = entries[row.name, column]
            if row.method != PAPER_ONLY and entry.cells:
                seeds = ", ".join(str(cell.seed) for cell in entry.done) or NOTHING
                lines.append([column[0], entry.cells[0].source, row.name, *entry.texts, seeds])
            if any(value is not None for value in entry.paper_own):
                name = f"{_paper_name(row)}, Table {', '.join(entry.printed.tables)}"
                source = entry.printed.detector or entry.cells[0].source
                texts = [_figure(*pair) for pair in zip(metrics, entry.paper_own, strict=True)]
                lines.append([column[0], source, name, *texts, NOTHING])
    groups = {source or "": [column for column in columns if column[1] == source] for _, source in columns}
    if len(groups) > 1:
        groups["all"] = columns
    for source, own in groups.items() if len(outcome.data) > 1 else ():
        for row in rows:
            each = [entries[row.name, column] for column in own]
            for name, values in ((row.name, [e.means for e in each]), (_paper_name(row), [e.paper_own for e in each])):
                means = [_mean(of_metric) for of_metric in zip(*values, strict=True)]
                if any(mean is not None for mean in means):
                    texts = [_figure(*pair) for pair in zip(metrics, means, strict=True)]
                    lines.append([f"mean of {len(outcome.data)}", source, name, *texts, NOTHING])
    return ["data", "source", "", *(METRICS[name][1] for name in metrics), "seeds"], lines


def _paper_name(row: Row) -> str:
    return f"{row.name} (paper only)" if row.method == PAPER_ONLY else "↳ paper"


def to_markdown(outcome: Outcome, command: str = "") -> str:
    """The table and what is to be known about it."""
    header, rows = to_rows(outcome)
    lines = [["---"] * len(header), *rows]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in [header, *lines]]
    title = f"## {outcome.experiment.name}: {outcome.experiment.title}"
    return "\n".join([title, "", *table, "", *(f"- {note}" for note in notes(outcome, command))]) + "\n"


def to_csv(outcome: Outcome) -> str:
    """One line for each row, data set and source, with the paper's figures in columns of their own."""
    experiment = outcome.experiment
    lines = []
    for row in experiment.rows:
        for column in outcome.columns:
            entry = Entry(outcome, row, column)
            if not entry.cells:
                continue
            line: dict[str, Any] = {
                "experiment": experiment.name,
                "row": row.name,
                "method": row.method,
                "dataset": column[0],
                "source": entry.cells[0].source,
                "base": entry.cells[0].base or "",
                "state": " and ".join(dict.fromkeys(cell.state for cell in entry.cells)),
                "seeds": " ".join(str(cell.seed) for cell in entry.done),
                "seconds": fmean(map(_took, entry.done)) if entry.done else "",
            }
            for name in experiment.metrics:
                known = entry.values(name)
                line |= {name: fmean(known), f"{name}_std": pstdev(known)} if known else {name: "", f"{name}_std": ""}
                line[f"paper_{name}"] = entry.printed.metrics.get(name, "")
            line["paper_tables"] = " ".join(entry.printed.tables)
            line["message"] = "; ".join(dict.fromkeys(cell.message for cell in entry.cells if cell.message))
            lines.append(line)
    return pd.DataFrame(lines).to_csv(index=False, lineterminator="\n")


def notes(outcome: Outcome, command: str = "") -> list[str]:
    """What stands under the table: how to repeat it, what it was made from, and what is missing."""
    experiment, cells = outcome.experiment, outcome.cells
    measured = " / ".join(METRICS[name][1] for name in experiment.metrics)
    unit = ", seconds an image" if all(METRICS[name][0] == "modules" for name in experiment.metrics) else ""
    lines = [f"Command: `{command}`"] if command else []
    lines.append(f"Cells: {measured}{unit}, mean ± standard deviation over seeds; images, normal counted as one class.")
    if experiment.note:
        lines.append(experiment.note.strip())
    shown = [printed(experiment, cell.row, cell.dataset, cell.source, cell.base) for cell in cells]
    if tables := sorted({table for each in shown for table in each.tables}, key=lambda name: (len(name), name)):
        lines.append(
            f"Paper: Table {', '.join(tables)}, as printed, with its own backbone (DINO ViT-B/8) and base set (AeBAD-S)."
        )
    if experiment.layout == "wide" and any(each.averaged for each in shown):
        lines.append(
            "\\* mean over the 15 products of MVTec AD, because the paper does not print this product by itself."
        )
    lines.append("Labels: only for scoring, and for the number of classes asked for; no method is handed them.")
    seconds = "s: seconds for all columns and one seed, maps not counted. " if experiment.layout == "wide" else ""
    lines.append(f"{seconds}Backbone: {outcome.backbone}.")
    for name, data in outcome.data.items():
        count = f"{len(data.labels)} of {data.total}" if data.limit else f"{len(data.labels)}"
        about = f"{count} images, {data.n_classes} classes, {data.fingerprint[:16]}"
        lines.append(f"Data: {name}, {about}, without {', '.join(data.exclude) or 'nothing'}.")
    lines += [f"Base set: {name}, {fingerprint[:16]}." for name, fingerprint in outcome.bases.items()]
    if outcome.settings:
        lines.append(f"All rows, unless one says otherwise: {', '.join(_flat(outcome.settings))}.")
    for row in experiment.rows:
        if row.method != PAPER_ONLY:
            lines.append(f"{row.name}: {_settings(row, outcome) or 'default settings'}.")
    lines += [f"Machine: {name}." for name in sorted({cell.machine for cell in cells if cell.machine})]
    found = [f"{c.row.name}, {c.dataset}, {c.source}: {c.message}" for c in cells if c.message]
    return [*lines, *outcome.skipped, *dict.fromkeys(found)]


def _settings(row: Row, outcome: Outcome) -> str:
    """What differs from the default."""
    cells = [cell for cell in outcome.cells if cell.row.name == row.name]
    parts = [] if row.method == OURS else [f"method {row.method}"]
    parts += [f"preset {row.preset}"] * bool(row.preset) + _flat(row.settings)
    if row.preset == "paper":
        for dataset in sorted({cell.dataset for cell in cells} & set(PAPER_SETTINGS)):
            parts += [f"{setting} on {dataset}, as there" for setting in _flat(PAPER_SETTINGS[dataset])]
    if row.exclude is not None:
        parts.append(f"without {', '.join(row.exclude) or 'leaving any class out'}")
    return ", ".join(parts + [f"base set {name}" for name in sorted({cell.base for cell in cells if cell.base})])


def _flat(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Nested settings as `learn.epochs=5`."""
    flat = []
    for name, value in settings.items():
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else [f"{prefix}{name}={value}"]
    return flat


def _took(cell: Cell) -> float:
    return sum(seconds for stage, seconds in cell.seconds.items() if stage != "maps")


def _mean(values: Sequence[float | None]) -> float | None:
    """None where one is missing."""
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _joined(names: Sequence[str], values: Sequence[float | None]) -> str:
    if all(value is None for value in values):
        return NOTHING
    return " / ".join(_figure(*pair) for pair in zip(names, values, strict=True))


def _figure(metric: str, value: float | None) -> str:
    return NOTHING if value is None else _number(metric, value)


def _number(metric: str, value: float) -> str:
    digits = {"peak_mb": 0, "true_kinds": 0, "kinds": 1, "learning": 1}.get(metric, 3)
    digits = 4 if METRICS[metric][0] == "modules" else digits
    return f"{value:.{digits}f}"
