"""A fitted model as matplotlib figures, for notebooks and scripts.

Each function takes a fitted `AnomalyNCD`, a `FinishedRun`, or the folder of a run, and returns a `matplotlib.figure.Figure`:
a notebook shows it, `figure.savefig("classes.png")` keeps it. Nothing is drawn twice: these are the pictures of the report.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from .errors import DataError
from .run.finished import FinishedRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .estimator import AnomalyNCD

    Model = AnomalyNCD | FinishedRun | str | Path

__all__ = ["class_map", "classes", "confusion", "count", "scores"]

MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^"}
DPI = 100


def classes(model: Model) -> Figure:
    """The surest regions of each class, a row each, as `classes.png` of a run."""
    from matplotlib.figure import Figure

    from .report.classes import classes_picture

    sheet = classes_picture(run := _run(model))
    if sheet is None:
        raise DataError(f"{run.path}: no image has a region, so there is nothing to draw.")
    height, width = sheet.shape[:2]
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(sheet)
    axes.set_axis_off()
    return figure


def count(model: Model) -> Figure:
    """What four ways of counting say about the number of kinds, where it was `auto`."""
    from .report.classes import count_figure

    figure = count_figure(run := _run(model))
    if figure is None:
        raise DataError(f'{run.path}: the number of classes was given, not estimated. Fit with n_classes="auto".')
    return figure


def scores(model: Model) -> Figure:
    """Histogram of the scores of all images, of normal ones beside it, and the line from which on an image is defective."""
    from .report.normal import score_figure

    figure = score_figure(run := _run(model))
    if figure is None:
        raise DataError(f"{run.path}: masks have no scores. Fit with maps or with a detector.")
    return figure


def class_map(model: Model) -> Figure:
    """All regions on a plane where those that look alike lie together (t-SNE), coloured by class; at most 2,000."""
    from matplotlib.figure import Figure

    from .report.network import MOST, project, subsample
    from .report.source import ReportSource

    source = ReportSource(run := _run(model))
    if source.vectors is None or not len(source.vectors):
        raise DataError(f"{run.path}: no image has a region, so there is nothing to draw.")
    labels = source.regions["label"].to_numpy()
    kept = subsample(labels, MOST)
    places = project(source.vectors[kept])
    figure = Figure(figsize=(7, 6), layout="constrained")
    axes = figure.subplots()
    for label in source.labels:
        of_class, look = places[labels[kept] == label], source.look(label)
        if len(of_class):
            axes.scatter(
                of_class[:, 0],
                of_class[:, 1],
                s=30,
                alpha=0.8,
                c=look.colour,
                marker=MARKERS[look.shape],
                label=look.name,
            )
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_aspect("equal")
    axes.set_title("Regions that look alike lie together")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def confusion(model: Model, labels: str | Path | None = None) -> Figure:
    """How many images of each true class have which label, with NMI, ARI and F1.

    labels : CSV with the columns `image` and `label`; without it the folder names that the run noted
    """
    from matplotlib.figure import Figure

    from .run.evaluate import evaluate_run

    run = _run(model)
    found, _ = evaluate_run(run, None if labels is None else Path(labels))
    names = [run.names.get(label, str(label)) if isinstance(label, int) else str(label) for label in found.pred_names]
    n_rows, n_columns = found.confusion.shape
    figure = Figure(figsize=(2.5 + 0.6 * n_columns, 2 + 0.45 * n_rows), layout="constrained")
    axes = figure.subplots()
    shares = found.confusion / np.maximum(found.confusion.sum(axis=1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for (row, column), number in np.ndenumerate(found.confusion):
        if number:
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(number), ha="center", va="center", color=colour)
    axes.set_xticks(range(n_columns), names, rotation=45, ha="right")
    axes.set_yticks(range(n_rows), [str(name) for name in found.true_names])
    axes.set_xlabel("found")
    axes.set_ylabel("true")
    axes.set_title(f"NMI {found.nmi:.3f}  ARI {found.ari:.3f}  F1 {found.f1:.3f}", fontsize=10)
    return figure


def _run(model: Model) -> FinishedRun:
    from sklearn.utils.validation import check_is_fitted

    from .estimator import AnomalyNCD

    if isinstance(model, AnomalyNCD):
        check_is_fitted(model)
        return model.run_
    return model if isinstance(model, FinishedRun) else FinishedRun(model)
