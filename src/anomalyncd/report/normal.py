"""How normal images score, how the images of a run do, and the score from which on an image is called a defect."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from ..labels import NORMAL
from ..run.finished import FinishedRun
from ..run.folder import NORMAL_SCORES
from .canvas import PICTURES, save_figure

NORMAL_PICTURE = f"{PICTURES}/normal.png"
TITLE = "How normal images score, and where the line is"
BINS = 40
WIDTH, HEIGHT = 640.0, 200.0  # of the chart, in units of its own
LEARNED, OWN = "#8b96a3", "#1769c2"  # normal images that the detector learned from, images of the run
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scores:
    """What a run noted about normal images.

    line : score from which on an image is called a defect by its score alone; None where there is no such
    rate : promised share of normal images above it
    source : where the line comes from: normal images, or mixture (of the run's own scores); where there is no line, looks
        (of a kind that scores like images without a region), or none
    learned : (M,) scores of normal images, perhaps none; own : (N,) scores of the images of the run
    n_defects : images of the run that were called a defect
    """

    source: str
    rate: float
    line: float | None
    learned: Array
    own: Array
    n_defects: int

    @property
    def names(self) -> dict[str, tuple[Array, str]]:
        """Name of each group that has scores, with these and its colour."""
        learned, own = (self.learned, LEARNED), (self.own, OWN)
        groups = {"normal images that the detector learned from": learned, "images of this run": own}
        return {name: group for name, group in groups.items() if len(group[0])}

    @property
    def edges(self) -> Array:
        """(BINS + 1,) ends of the bars; the line lies within."""
        everything = np.concatenate([self.learned, self.own, [] if self.line is None else [self.line]])
        return np.histogram_bin_edges(everything, BINS)

    @property
    def line_text(self) -> str:
        """What stands beside the line."""
        about = "about " if self.source == "mixture" else ""
        return f"{about}{100 * self.rate:g} % of normal images score higher"

    @property
    def sentence(self) -> str:
        """The chart in words."""
        above = (
            ""
            if self.line is None
            else f"{int((self.own >= self.line).sum())} of the {len(self.own)} images of this run"
        )
        if self.source == "looks":
            return (
                "The scores show no two groups, so there is no line: a kind of region that scores like images without one "
                f"was taken as normal, and every other one as a defect: {self.n_defects} of the {len(self.own)} images of "
                "this run."
            )
        if self.source == "none":
            return (
                "The scores show no two groups, so every image with a region was taken as a defect: "
                f"{self.n_defects} of the {len(self.own)} images of this run."
            )
        if self.source == "mixture":
            given = "Too few" if len(self.learned) else "No"
            return (
                f"{given} normal images were given, so the lowest group of scores was taken as normal. An image to the "
                f"right of the line is called a defect: {above}."
            )
        return (
            f"An image to the right of the line scores higher than {100 - 100 * self.rate:g} % of the normal images do and "
            f"is called a defect: {above}."
        )


def read_scores(run: FinishedRun) -> Scores | None:
    """None where the run noted nothing that can be drawn, or normal was a class like all others (`learn.normal`)."""
    if run.config.learn.normal != "calibrated":
        return None
    noted = run.folder.read_json(NORMAL_SCORES)
    try:
        lists = ([np.inf if n is None else n for n in noted[name]] for name in ("normal_scores", "scores"))
        learned, own = (np.array(numbers, np.float64).ravel() for numbers in lists)
        source, rate = str(noted["source"]), float(noted["rate"])
        line = None if source in ("none", "looks") else float(noted["line"])
        n_defects = sum(int(label) != NORMAL for label in noted["labels"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    learned, own = learned[np.isfinite(learned)], own[~np.isnan(own)]
    if not np.isfinite(own).any():
        return None
    line = line if line is not None and np.isfinite(line) else None
    highest = own[np.isfinite(own)].max(initial=-np.inf if line is None else line)
    return Scores(source, rate, line, learned, np.minimum(own, highest), n_defects)


def shares(values: Array, edges: Array) -> Array:
    """Share of the values in each bar, so that groups of different size compare.

    Examples
    --------
    >>> shares(np.array([0.1, 0.2, 0.9]), np.array([0, 0.5, 1])).round(2).tolist()
    [0.67, 0.33]
    """
    return np.histogram(values, edges)[0] / len(values)


def score_chart(run: FinishedRun) -> dict[str, Any] | None:
    """For the page: `groups` of bars (x, y, width, height, what it counts) on WIDTH × HEIGHT with their name and colour,
    `line` 0 … 1 of the width or None, its `text`, `low` and `high` under the ends of the axis, and `about` all.
    """
    found = read_scores(run)
    if found is None:
        return None
    edges = found.edges
    heights = {name: shares(values, edges) for name, (values, _) in found.names.items()}
    tallest, step = max(each.max() for each in heights.values()), WIDTH / BINS
    groups = []
    for name, (_, colour) in found.names.items():
        bars = []
        for k, share in enumerate(heights[name].tolist()):
            if share:
                height = round(max(2.0, share / tallest * HEIGHT), 1)
                words = f"{edges[k]:.3g} to {edges[k + 1]:.3g}: {100 * share:.1f} % of {name}"
                bars.append((round(k * step, 1), round(HEIGHT - height, 1), step, height, words))
        groups.append((name, colour, bars))
    place = None if found.line is None else round(float((found.line - edges[0]) / (edges[-1] - edges[0])), 4)
    ends = {"low": f"{edges[0]:.3g}", "high": f"{edges[-1]:.3g}"}
    return {"groups": groups, "line": place, "text": found.line_text, **ends, "about": found.sentence}


def draw_normal(run: FinishedRun) -> Path | None:
    """Draw the same as a picture in the run; None where the run noted nothing."""
    return save_figure(score_figure(run), run, NORMAL_PICTURE)


def score_figure(run: FinishedRun) -> Figure | None:
    """The same as a figure; None where the run noted nothing."""
    found = read_scores(run)
    if found is None:
        return None
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes, edges = figure.subplots(), found.edges
    for name, (values, colour) in found.names.items():
        heights = 100 * shares(values, edges)
        axes.bar(
            edges[:-1], heights, np.diff(edges), align="edge", color=colour, alpha=0.6, label=f"{len(values)} {name}"
        )
    if found.line is not None:
        axes.axvline(found.line, color="#b3261e")
        left = found.line < (edges[0] + edges[-1]) / 2
        axes.annotate(
            found.line_text, (found.line, 0.93), (5 if left else -5, 0), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="left" if left else "right", color="#b3261e",
        )  # fmt: skip
    axes.set_ylim(top=axes.get_ylim()[1] * 1.1)  # room for the words
    axes.set_title(TITLE, pad=24)
    axes.set_xlabel("score of an image\n\n" + "\n".join(textwrap.wrap(found.sentence, 85)))
    axes.set_ylabel("% of these images")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=2, fontsize=9)
    return figure
