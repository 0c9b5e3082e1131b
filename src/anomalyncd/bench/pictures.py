"""The figure of an experiment, drawn from stored results."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import pandas as pd

from .figures import draw_lines, draw_tsne
from .runner import Outcome
from .table import cells_of, columns_of, mean_of


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """The pictures that the experiment asks for, as far as its cells were run."""
    if outcome.experiment.figure == "lines":
        return _lines(outcome, folder)
    return _tsne(outcome, folder) if outcome.experiment.figure == "tsne" else []


def _lines(outcome: Outcome, folder: Path) -> list[Path]:
    """One panel for each data set and source; rows without `x` are level lines."""
    experiment = outcome.experiment
    levels = [row for row in experiment.rows if row.x is None]
    points, marked = [], []
    for column in columns_of(outcome):
        panel = ", ".join(filter(None, column))
        for row in experiment.rows:
            cells = cells_of(outcome, row, column)
            if row.x is None:
                means = {name: mean_of(cells, name) for name in experiment.metrics}
                marked.append({"panel": panel, **means})
            else:
                points += [{"panel": panel, "x": row.x, **_known(cell.metrics, experiment.metrics)} for cell in cells]
    table = pd.DataFrame(points).astype(dict.fromkeys(experiment.metrics, float))
    if table[experiment.metrics].isna().all(axis=None):
        return []
    level = pd.DataFrame(marked).astype(dict.fromkeys(experiment.metrics, float)) if marked else None
    path = folder / f"{experiment.name}.png"
    name = levels[0].name if levels else ""
    return [
        draw_lines(
            table, "x", "panel", experiment.metrics, path, marked=level, marked_name=name, x_name=experiment.x_name,
            title=experiment.title,
        )
    ]  # fmt: skip


def _known(metrics: object, names: list[str]) -> dict[str, float | None]:
    return {name: metrics.get(name) for name in names}  # type: ignore[attr-defined]


def _tsne(outcome: Outcome, folder: Path) -> list[Path]:
    """One picture for each data set and source: images that every row has features of, by the first seed."""
    made = []
    for column in columns_of(outcome):
        panels: dict[str, dict[str, npt.NDArray[np.floating]]] = {}
        for row in outcome.experiment.rows:
            cells = cells_of(outcome, row, column)
            if cells and cells[0].features is not None:
                with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(cells[0].features) as stored:
                    panels[row.name] = dict(zip(stored["images"].tolist(), stored["features"], strict=True))
        if not panels:
            continue
        labels = outcome.products[column[0]].labels
        shared = [name for name in labels if all(name in features for features in panels.values())]
        if len(shared) < 2:
            continue
        features = {name: np.stack([of[image] for image in shared]) for name, of in panels.items()}
        stem = "-".join(filter(None, (outcome.experiment.name, *column))).replace(":", "-")
        made.append(draw_tsne(features, [labels[image] for image in shared], folder / f"{stem}.png"))
    return made
