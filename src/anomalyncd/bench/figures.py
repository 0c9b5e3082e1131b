"""Pictures of the benchmark: t-SNE of what each method clustered, and scores against a setting."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.manifold import TSNE

from ..errors import DataError
from ..report.canvas import BACKGROUND, FAINT, INK, RULE

# Okabe and Ito's colours, which colour-blind readers can tell apart, without their pale yellow.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#6b4c9a", "#1f2933")
MARKERS = "os^DvPX*"
NAMES = {"nmi": "NMI", "ari": "ARI", "f1": "F1", "fpr": "FPR", "fnr": "FNR", "aupro": "AUPRO"}
DPI = 150
PER_ROW = 4  # panels


def draw_tsne(panels: Mapping[str, NDArray[np.floating]], labels: Sequence[str], path: Path, *, seed: int = 0) -> Path:
    """Draw what each method clustered as points in the plane, coloured by true class.

    Args:
        panels: features (N, d) floats by the name of the method; N is the same for all, d need not be.
        labels: true class of each of the N points.
        path: the PNG to write, whole or not at all.
        seed: of t-SNE.

    Returns:
        path

    Example:
        >>> from tempfile import mkdtemp
        >>> features = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0)
        >>> draw_tsne({"ours": features}, ["a", "a", "b", "b", "c", "c"], Path(mkdtemp()) / "tsne.png").name
        'tsne.png'
    """
    if not panels or not len(labels):
        raise DataError("t-SNE: expected features of at least one method and one image, but got none.")
    for name, features in panels.items():
        if features.ndim != 2 or len(features) != len(labels) or not features.shape[1]:
            raise DataError(f"t-SNE: features of {name} must be ({len(labels)}, d), but got {features.shape}.")
        if not np.isfinite(features).all():
            raise DataError(f"t-SNE: features of {name} must be finite, but {(~np.isfinite(features)).sum()} are not.")
    truth = np.asarray(labels, dtype=object)
    styles: dict[str, dict[str, Any]] = {
        label: {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place // len(COLOURS) % len(MARKERS)]}
        for place, label in enumerate(sorted(set(labels)))
    }
    keys = [Line2D([], [], linestyle="", markersize=7, label=label, **style) for label, style in styles.items()]
    figure, axes = _panels(len(panels), keys, height=3.3)
    size = float(np.clip(6000 / len(labels), 8, 40))  # few points large, many small
    for axis, (name, features) in zip(axes, panels.items(), strict=True):
        points = _embed(features, seed)
        for label, style in styles.items():
            x, y = points[truth == label].T
            axis.scatter(x, y, s=size, alpha=0.8, linewidths=0.4, edgecolors=BACKGROUND, **style)
        axis.set_title(name, color=INK, fontsize=11)
        axis.set(xticks=[], yticks=[])  # t-SNE has no units
        axis.margins(0.08)
    return _save(figure, path)


def draw_lines(
    table: pd.DataFrame,
    x: str,
    series: str,
    values: Sequence[str],
    path: Path,
    *,
    marked: pd.DataFrame | None = None,
    marked_name: str = "MEBin",
    x_name: str | None = None,
    title: str = "",
) -> Path:
    """Draw scores against a setting: one panel for each value of `series`, one line for each score.

    Args:
        table: a row for each point. Rows alike in `x` and `series`, such as those of several seeds, are drawn as their mean
            and a band from lowest to highest. NaN is a point that has not been run: it is left out.
        x: column of the setting, numbers. Powers of two are evenly spaced.
        series: column that names the panel, such as the detector.
        values: columns of the scores, shares of 1.
        path: the PNG to write, whole or not at all.
        marked: what to compare with, as dashed horizontal lines: `series` and `values` as in `table`, without `x`.
        marked_name: what the dashed lines are.
        x_name: what to write under the panels; `x` without.
        title: heading of the picture.

    Returns:
        path

    Example:
        >>> from tempfile import mkdtemp
        >>> fixed = pd.DataFrame({"threshold": [0.3, 0.5, 0.7], "detector": "musc", "nmi": [0.499, 0.567, 0.495]})
        >>> mebin = pd.DataFrame({"detector": ["musc"], "nmi": [0.613]})
        >>> draw_lines(fixed, "threshold", "detector", ["nmi"], Path(mkdtemp()) / "fixed.png", marked=mebin).name
        'fixed.png'
    """
    missing = [column for column in (x, series, *values) if column not in table]
    if marked is not None:
        missing += [f"{column} of {marked_name}" for column in (series, *values) if column not in marked]
    if missing or table.empty or not values:
        problem = f"there is no column {', '.join(missing)}" if missing else "there is nothing to draw"
        raise DataError(f"lines against {x}: expected a table with {x}, {series} and scores, but {problem}.")
    groups = list(dict.fromkeys(table[series]))
    keys = [
        Line2D([], [], color=colour, marker="o", markersize=5, label=NAMES.get(value, value))
        for colour, value in zip(_cycle(len(values)), values, strict=True)
    ]
    if marked is not None:
        keys.append(Line2D([], [], color=FAINT, linestyle=(0, (5, 3)), label=marked_name))
    figure, axes = _panels(len(groups), keys, height=3.0)
    ticks = np.unique(table[x].to_numpy(np.float64))
    scores = pd.concat([frame[list(values)] for frame in (table, marked) if frame is not None])
    heights = scores.fillna(0).to_numpy(np.float64)  # all panels share one scale, from 0 unless an ARI is below
    low, high = min(0.0, 1.06 * heights.min()), max(0.05, 1.06 * heights.max())
    for axis, group in zip(axes, groups, strict=True):
        points = table[table[series] == group]
        _draw_scores(axis, points, x, values)
        if marked is not None:
            for colour, value in zip(_cycle(len(values)), values, strict=True):
                for level in marked.loc[marked[series] == group, value].dropna():
                    axis.axhline(level, color=colour, linestyle=(0, (5, 3)), linewidth=1.3)
        if points[list(values)].isna().all(axis=None):
            axis.text(0.5, 0.5, "not run", color=FAINT, ha="center", va="center", transform=axis.transAxes)
        _scale(axis, ticks, low, high)
        axis.set_title(str(group), color=INK, fontsize=11)
        axis.set_xlabel(x_name or x, color=FAINT, fontsize=9)
    if title:
        figure.suptitle(title, color=INK, fontsize=13, fontweight="bold")
    return _save(figure, path)


def _draw_scores(axis: Any, points: pd.DataFrame, x: str, values: Sequence[str]) -> None:
    for colour, value in zip(_cycle(len(values)), values, strict=True):
        spread = points.dropna(subset=[value]).groupby(x)[value].agg(["mean", "min", "max"])
        axis.plot(spread.index, spread["mean"], color=colour, marker="o", markersize=4.5, linewidth=1.8, zorder=3)
        if (spread["min"] < spread["max"]).any():
            axis.fill_between(spread.index, spread["min"], spread["max"], color=colour, alpha=0.15, linewidth=0)


def _scale(axis: Any, ticks: NDArray[np.float64], low: float, high: float) -> None:
    if len(ticks) > 1 and (np.frexp(ticks)[0] == 0.5).all():  # powers of two
        axis.set_xscale("log", base=2)
    axis.plot(ticks, np.full(len(ticks), low), alpha=0)  # so that a panel with points left out is as wide
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.minorticks_off()
    axis.set_ylim(low, high)
    axis.grid(axis="y", color=RULE, linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def _embed(features: NDArray[np.floating], seed: int) -> NDArray[np.float64]:
    """(N, d) → (N, 2) by t-SNE; points that are all alike lie on one spot."""
    features = np.asarray(features, dtype=np.float64)
    n_points, width = features.shape
    if (features == features[0]).all():
        return np.zeros((n_points, 2))
    perplexity = min(30.0, max(1.0, (n_points - 1) / 3))
    start = "pca" if min(n_points, width) >= 2 else "random"
    model = TSNE(perplexity=perplexity, init=start, random_state=seed)
    return np.asarray(model.fit_transform(features), dtype=np.float64)


def _panels(count: int, keys: list[Line2D], *, height: float) -> tuple[Figure, list[Any]]:
    """A figure of `count` panels, at most PER_ROW side by side, over one legend that is no wider than they are."""
    rows = math.ceil(count / PER_ROW)
    columns = math.ceil(count / rows)
    width = max(4.2, 3.3 * columns)
    longest = max(len(str(key.get_label())) for key in keys)
    per_line = max(1, min(len(keys), int(width / (0.55 + 0.08 * longest))))
    legend_height = 0.3 + 0.2 * math.ceil(len(keys) / per_line)
    figure = Figure(figsize=(width, height * rows + legend_height), dpi=DPI, facecolor=BACKGROUND)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    for axis in axes[:count]:
        axis.tick_params(colors=FAINT, labelsize=9, length=0)
        axis.spines[:].set_color(RULE)
    figure.legend(
        handles=keys, loc="outside lower center", ncols=per_line, frameon=False, labelcolor=INK, fontsize=9
    )  # fmt: skip
    return figure, axes[:count]


def _cycle(count: int) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(count)]


def _save(figure: Figure, path: Path) -> Path:
    data = BytesIO()
    FigureCanvasAgg(figure).print_png(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_bytes(data.getvalue())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
