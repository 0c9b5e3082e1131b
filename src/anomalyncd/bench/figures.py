"""Pictures of an experiment, drawn from stored results: t-SNE of what each method clustered, scores as lines and bars."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.manifold import TSNE

from ..data.dataset import NORMAL_NAMES
from ..data.images import read_image
from ..errors import DataError
from ..report.canvas import BACKGROUND, FAINT, INK, RULE
from ..run.folder import RunFolder
from .experiment import METRICS
from .measure import file_name
from .pictures import confused, draw_pair
from .runner import Column, Outcome
from .style import COLOURS, DASHED, DPI, MARKERS, to_png
from .table import Entry

PER_ROW = 4  # panels


def draw(outcome: Outcome, folder: Path) -> list[Path]:
    """Write the pictures that the experiment asks for, as far as its cells were run."""
    experiment, made = outcome.experiment, {}
    if experiment.figure == "lines":
        points, levels = lines_of(outcome)
        if not points[experiment.metrics].isna().all(axis=None):
            name = next((row.name for row in experiment.rows if row.x is None), "")
            made[experiment.name] = draw_lines(points, levels, name, experiment.x_name, experiment.title)
    if experiment.figure == "bars" and len(bars := bars_of(outcome)):
        made[experiment.name] = draw_bars(bars)
    for column in outcome.columns if experiment.figure == "tsne" else ():
        panels, labels = _clustered(outcome, column)
        if len(labels) > 1:
            made[_stem(outcome, column)] = draw_tsne(panels, labels)
    if experiment.figure == "scatter" and len(points := scatter_of(outcome)):
        made[experiment.name] = draw_scatter(points, *(METRICS[experiment.metrics[end]][1] for end in (0, -1)))
    for column in outcome.columns if experiment.figure == "pair" else ():
        if (pair := _pair(outcome, column)) is not None:
            made[_stem(outcome, column)] = pair
    contents = {name: to_png(figure) for name, figure in made.items()}
    for column in outcome.columns if experiment.figure == "pictures" else ():
        for row in experiment.rows:
            for picture in (path for cell in outcome.cells_of(row, column)[:1] for path in cell.pictures):
                own = [row.name] * (len(experiment.rows) > 1)
                with suppress(OSError):
                    contents["-".join([_stem(outcome, column), *map(file_name, own)])] = picture.read_bytes()
    for name, content in contents.items():
        RunFolder(folder).write(f"{name}.png", content)
    return [folder / f"{name}.png" for name in contents]


def _stem(outcome: Outcome, column: Column) -> str:
    return "-".join(filter(None, (outcome.experiment.name, *column))).replace(":", "-")


def scatter_of(outcome: Outcome) -> pd.DataFrame:
    """The first and the last metric of every row that was run, means over seeds, as `draw_scatter` takes them."""
    points = []
    first, last = outcome.experiment.metrics[0], outcome.experiment.metrics[-1]
    for row in outcome.experiment.rows:
        for data, source in outcome.columns:
            entry = Entry(outcome, row, (data, source))
            if (x := entry.values(first)) and (y := entry.values(last)):
                points.append((data, source or row.name, float(np.mean(x)), float(np.mean(y))))
    return pd.DataFrame(points, columns=["panel", "name", "x", "y"])


def draw_scatter(points: pd.DataFrame, x_name: str, y_name: str) -> Figure:
    """Draw one score against another: a panel for each value of `panel`, a point for each `name`.

    Examples
    --------
    >>> one = {"panel": "mtd", "name": "musc", "x": 0.9, "y": 0.5}
    >>> [axis.get_title() for axis in draw_scatter(pd.DataFrame([one]), "AUPRO", "F1").axes]
    ['mtd']
    """
    names, panels = (list(dict.fromkeys(points[column])) for column in ("name", "panel"))
    styles = {
        name: {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        for place, name in enumerate(names)
    }
    keys = [Line2D([], [], linestyle="", markersize=7, label=name, **style) for name, style in styles.items()]  # type: ignore[arg-type]
    figure, axes = _panels(panels, keys, height=3.0)
    for axis, panel in zip(axes, panels, strict=True):
        for point in points[points["panel"] == panel].itertuples():
            axis.scatter(point.x, point.y, s=50, zorder=3, **styles[str(point.name)])
        axis.set_ylim(0, 1)
        axis.set_xlabel(x_name, color=FAINT, fontsize=9)
        axis.set_ylabel(y_name, color=FAINT, fontsize=9)
        axis.grid(color=RULE, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _pair(outcome: Outcome, column: Column) -> Figure | None:
    """The two kinds of defect that the first row takes for each other most, and where all rows have put their images."""
    data = outcome.data[column[0]]
    truth = {name: label for name, label in data.labels.items() if label.lower() not in NORMAL_NAMES}
    found: dict[str, dict[str, int]] = {}
    for row in outcome.experiment.rows:
        for cell in outcome.cells_of(row, column)[:1]:
            with suppress(OSError, ValueError, KeyError):
                table = pd.read_csv(cell.predictions or "")
                found[row.name] = dict(zip(table["image"], table["label"].astype(int), strict=True))
    if not found:
        return None
    first = next(iter(found.values()))
    known = [name for name in truth if name in first]
    pair = confused([truth[name] for name in known], [first[name] for name in known])
    if pair is None:
        return None
    examples: dict[str, Any] = {}
    for sample in data.dataset:
        if sample.label in pair and sample.label not in examples:
            examples[sample.label] = read_image(sample.image)
    counts = {}
    for row_name, labels in found.items():
        numbers = sorted({labels[name] for name in truth if truth[name] in pair and name in labels})
        of_pair = [[labels.get(name) for name in truth if truth[name] == kind] for kind in pair]
        counts[row_name] = np.array([[own.count(number) for number in numbers] for own in of_pair])
    return draw_pair({kind: examples.get(kind) for kind in pair}, counts)


def lines_of(outcome: Outcome) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Points and levels as `draw_lines` takes them, a panel for each data set and source; rows without `x` are levels."""
    experiment, points, levels = outcome.experiment, [], []
    for column in outcome.columns:
        panel = ", ".join(filter(None, column))
        for row in experiment.rows:
            found = [[cell.metrics.get(name) for name in experiment.metrics] for cell in outcome.cells_of(row, column)]
            if row.x is not None:
                points += [[panel, row.x, *values] for values in found]
            else:
                levels.append([panel, *np.array(found or [[None] * len(experiment.metrics)], float).mean(axis=0)])
    kinds = dict.fromkeys(experiment.metrics, float)
    return (
        pd.DataFrame(points, columns=["panel", "x", *experiment.metrics]).astype(kinds),
        pd.DataFrame(levels, columns=["panel", *experiment.metrics]).astype(kinds),
    )


def bars_of(outcome: Outcome) -> pd.DataFrame:
    """F1 of every row that was run, as `draw_bars` takes it; the paper's is of the first row, of the data set by itself."""
    bars = []
    for place, row in enumerate(outcome.experiment.rows):
        for data, source in outcome.columns:
            entry = Entry(outcome, row, (data, source))
            if values := entry.values("f1"):
                own = None if place or entry.printed.averaged else entry.printed.metrics.get("f1")
                bars.append((source or "", data, row.name, float(np.mean(values)), own))
    return pd.DataFrame(bars, columns=["panel", "group", "name", "value", "paper"]).astype({"paper": float})


def draw_bars(bars: pd.DataFrame) -> Figure:
    """Draw F1 as bars: a panel for each value of `panel`, side by side in each `group` a bar for each `name`.

    Parameters
    ----------
    bars : the columns `panel`, `group`, `name`, `value`, and `paper`: a dash across the bar, NaN where there is none

    Examples
    --------
    >>> one = {"panel": "masks", "group": "mtd", "name": "ours", "value": 0.9, "paper": 0.841}
    >>> [axis.get_title() for axis in draw_bars(pd.DataFrame([one])).axes]
    ['masks']
    """
    names, groups, panels = (list(dict.fromkeys(bars[column])) for column in ("name", "group", "panel"))
    keys = [
        Line2D([], [], color=COLOURS[place % len(COLOURS)], linewidth=7, label=name) for place, name in enumerate(names)
    ]
    keys.append(Line2D([], [], color=INK, linewidth=2, label="printed in the paper"))
    figure, axes = _panels(panels, keys, height=3.2)
    width = 0.8 / len(names)
    for axis, panel in zip(axes, panels, strict=True):
        for place, name in enumerate(names):
            own = bars[(bars["panel"] == panel) & (bars["name"] == name)]
            x = np.array([groups.index(group) for group in own["group"]]) + (place - (len(names) - 1) / 2) * width
            axis.bar(x, own["value"], width=0.92 * width, color=COLOURS[place % len(COLOURS)], zorder=2)
            axis.hlines(own["paper"], x - 0.6 * width, x + 0.6 * width, color=INK, linewidth=2, zorder=3)
        axis.set_xticks(range(len(groups)), groups, rotation=30, ha="right")
        axis.set_ylim(0, 1)
        axis.set_ylabel("F1", color=FAINT, fontsize=9)
        axis.grid(axis="y", color=RULE, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    return figure


def _clustered(outcome: Outcome, column: Column) -> tuple[dict[str, NDArray[np.floating]], list[str]]:
    """By the name of the row, features of the images that all rows have some of, by the first seed; and true labels."""
    stored: dict[str, dict[str, NDArray[np.floating]]] = {}
    for row in outcome.experiment.rows:
        for cell in outcome.cells_of(row, column)[:1]:
            with suppress(OSError, ValueError, KeyError, BadZipFile), np.load(cell.features or "") as arrays:
                stored[row.name] = dict(zip(arrays["images"].tolist(), arrays["features"], strict=True))
    truth = outcome.data[column[0]].labels if stored else {}
    shared = [name for name in truth if all(name in features for features in stored.values())]
    panels = {row: np.stack([features[name] for name in shared]) for row, features in stored.items() if shared}
    return panels, [truth[name] for name in shared]


def draw_tsne(panels: Mapping[str, NDArray[np.floating]], labels: Sequence[str], *, seed: int = 0) -> Figure:
    """Draw what each method clustered as points in the plane, coloured by true class.

    Parameters
    ----------
    panels : features (N, d) floats by the name of the method; N is the same for all, d need not be
    labels : true class of each of the N points
    seed : of t-SNE

    Examples
    --------
    >>> features = np.repeat(np.eye(3, dtype=np.float32), 2, axis=0)
    >>> [axis.get_title() for axis in draw_tsne({"ours": features}, ["a", "a", "b", "b", "c", "c"]).axes]
    ['ours']
    """
    for name, features in panels.items():
        if not np.isfinite(features).all():
            raise DataError(f"t-SNE: features of {name} must be finite, but {(~np.isfinite(features)).sum()} are not.")
    truth = np.asarray(labels, dtype=object)
    styles: dict[str, dict[str, Any]] = {
        label: {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place // len(COLOURS) % len(MARKERS)]}
        for place, label in enumerate(sorted(set(labels)))
    }
    keys = [Line2D([], [], linestyle="", markersize=7, label=label, **style) for label, style in styles.items()]
    figure, axes = _panels(panels, keys, height=3.3)
    size = float(np.clip(6000 / len(labels), 8, 40))  # few points large, many small
    for axis, features in zip(axes, panels.values(), strict=True):
        points = _embed(features, seed)
        for label, style in styles.items():
            x, y = points[truth == label].T
            axis.scatter(x, y, s=size, alpha=0.8, linewidths=0.4, edgecolors=BACKGROUND, **style)
        axis.set(xticks=[], yticks=[])  # t-SNE has no units
        axis.margins(0.08)
    return figure


def draw_lines(
    points: pd.DataFrame, levels: pd.DataFrame, level_name: str = "", x_name: str = "x", title: str = ""
) -> Figure:
    """Draw scores against a setting: one panel for each value of `panel`, one line for each score.

    Parameters
    ----------
    points : the columns `panel`, `x` and one for each score, a share of 1. Rows alike in `panel` and `x`, such as those of
        several seeds, are drawn as their mean and a band from lowest to highest. Powers of two are evenly spaced. NaN is a
        point that has not been run: it is left out.
    levels : the same without `x`, maybe without rows: what to compare with, as dashed horizontal lines
    level_name : what the dashed lines are; x_name : what stands under the panels

    Examples
    --------
    >>> fixed = pd.DataFrame({"panel": "musc", "x": [0.3, 0.5, 0.7], "nmi": [0.499, 0.567, 0.495]})
    >>> mebin = pd.DataFrame({"panel": ["musc"], "nmi": [0.613]})
    >>> [axis.get_title() for axis in draw_lines(fixed, mebin, "MEBin").axes]
    ['musc']
    """
    scores = [str(name) for name in points if name not in ("panel", "x")]
    colours = {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(scores)}
    keys = [
        Line2D([], [], color=colour, marker="o", markersize=5, label=METRICS[name][1])
        for name, colour in colours.items()
    ]
    if len(levels):
        keys.append(Line2D([], [], color=FAINT, linestyle=DASHED, label=level_name))
    names = list(dict.fromkeys(points["panel"]))
    figure, axes = _panels(names, keys, height=3.0)
    ticks = np.unique(points["x"].to_numpy(np.float64))
    heights = pd.concat([points, levels])[scores].fillna(0).to_numpy(np.float64)
    # All panels share one scale, from 0 unless an ARI is below.
    low, high = min(0.0, 1.06 * heights.min()), max(0.05, 1.06 * heights.max())
    for axis, panel in zip(axes, names, strict=True):
        own, own_levels = points[points["panel"] == panel], levels[levels["panel"] == panel]
        for name, colour in colours.items():
            spread = own.dropna(subset=[name]).groupby("x")[name].agg(["mean", "min", "max"])
            axis.plot(spread.index, spread["mean"], color=colour, marker="o", markersize=4.5, linewidth=1.8, zorder=3)
            if (spread["min"] < spread["max"]).any():
                axis.fill_between(spread.index, spread["min"], spread["max"], color=colour, alpha=0.15, linewidth=0)
            for level in own_levels[name].dropna():
                axis.axhline(level, color=colour, linestyle=DASHED, linewidth=1.3)
        if own[scores].isna().all(axis=None):
            axis.text(0.5, 0.5, "not run", color=FAINT, ha="center", va="center", transform=axis.transAxes)
        if len(ticks) > 1 and (np.frexp(ticks)[0] == 0.5).all():  # powers of two
            axis.set_xscale("log", base=2)
        axis.plot(ticks, np.full(len(ticks), low), alpha=0)  # so that a panel with points left out is as wide
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.set_ylim(low, high)
        axis.grid(axis="y", color=RULE, linewidth=0.8)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_xlabel(x_name, color=FAINT, fontsize=9)
    if title:
        figure.suptitle(title, color=INK, fontsize=13, fontweight="bold")
    return figure


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


def _panels(names: Collection[str], keys: list[Line2D], *, height: float) -> tuple[Figure, list[Any]]:
    """A figure of named panels, at most PER_ROW side by side, over one legend that is no wider than they are."""
    rows = math.ceil(len(names) / PER_ROW)
    columns = math.ceil(len(names) / rows)
    width = max(4.2, 3.3 * columns)
    longest = max(len(str(key.get_label())) for key in keys)
    per_line = max(1, min(len(keys), int(width / (0.55 + 0.08 * longest))))
    legend_height = 0.3 + 0.2 * math.ceil(len(keys) / per_line)
    figure = Figure(figsize=(width, height * rows + legend_height), dpi=DPI, facecolor=BACKGROUND)
    figure.set_layout_engine("constrained", w_pad=0.1, h_pad=0.08)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[len(names) :]:
        spare.remove()
    for axis, name in zip(axes, names, strict=False):
        axis.set_title(name, color=INK, fontsize=11)
        axis.tick_params(colors=FAINT, labelsize=9, length=0)
        axis.spines[:].set_color(RULE)
    legend: dict[str, Any] = {"loc": "outside lower center", "ncols": per_line, "frameon": False, "fontsize": 9}
    figure.legend(handles=keys, labelcolor=INK, **legend)
    return figure, axes[: len(names)]
