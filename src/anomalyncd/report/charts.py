"""Small charts as numbers: where bars, cells and lines stand. The page's template draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 240.0, 80.0  # of a small chart, in units of its own
LOSS_WIDTH, LOSS_HEIGHT = 640.0, 200.0
CELLS = 12  # of the frame's longer side
MOST_DOTS = 300
Array = npt.NDArray[np.float64]
Floats = npt.ArrayLike


# Histogram: `bars` (x, y, width, height, what it counts) on WIDTH × HEIGHT, `low` and `high` under the ends of its axis,
# `about` all. Places: a frame of `width` × `height`, `cells` (x, y, side, share 0 … 1), `dots` as an SVG path, and `about`.
Chart = dict[str, Any]
Curve = tuple[str, str, float, float]  # name, SVG path on LOSS_WIDTH × LOSS_HEIGHT, first and last value


def confidence(values: Floats) -> Chart:
    """Probabilities 0 … 1 in twenty bars.

    Examples
    --------
    >>> chart = confidence([0.99, 1.0, 0.12])
    >>> [title for *_, title in chart["bars"]], chart["about"]
    (['0.10 to 0.15: 1', '0.95 to 1.00: 2'], 'median 0.99, from 0.12 to 1.00')
    """
    return _histogram(np.asarray(values, float), np.linspace(0, 1, 21), "{:.2f}", ("0", "1"))


def area(values: Floats, low: float, high: float) -> Chart:
    """Areas in pixels on a logarithmic axis from `low` to `high`, the same for all classes so that they compare.

    Examples
    --------
    >>> area([10, 1000], 10, 1000)["about"]
    'median 505 px, from 10 px to 1,000 px'
    """
    first, last = (float(np.log10(max(end, 1e-6))) for end in (low, high))
    if last - first < 1e-3:
        first, last = first - 0.5, last + 0.5
    edges = np.logspace(first, last, 17)
    clipped = np.clip(np.asarray(values, float), edges[0], edges[-1])
    return _histogram(clipped, edges, "{:,.0f} px", (f"{edges[0]:,.0f} px", f"{edges[-1]:,.0f} px"))


def _histogram(values: Array, edges: Array, figure: str, ends: tuple[str, str]) -> Chart:
    names = [figure.format(edge).removesuffix(" px") for edge in edges]
    counts, _ = np.histogram(values, edges)
    step, tallest = WIDTH / len(counts), max(1, int(counts.max(initial=0)))
    bars = [
        (_n(k * step + 0.5), _n(HEIGHT - height), _n(step - 1), _n(height), f"{names[k]} to {names[k + 1]}: {count}")
        for k, count in enumerate(counts.tolist())
        if (height := max(2.0, count / tallest * HEIGHT)) and count
    ]
    about = "no region"
    if len(values):
        median, least, most = (figure.format(value) for value in (np.median(values), values.min(), values.max()))
        about = f"median {median}, from {least} to {most}" if least != most else f"all {median}"
    return {"bars": bars, "low": ends[0], "high": ends[1], "about": about}


def places(x: Floats, y: Floats, aspect: float) -> Chart:
    """Centres 0 … 1 in the image frame; aspect : its width by its height.

    Examples
    --------
    >>> chart = places([0.5, 0.5], [0.25, 0.25], 2.0)
    >>> chart["width"], chart["height"], chart["cells"], chart["about"]
    (120.0, 60.0, [(60, 10, 10, 1.0)], 'centred at 50 % from the left and 25 % from the top')
    """
    across, down = (np.clip(np.asarray(values, float), 0, 1) for values in (x, y))
    aspect = float(np.clip(aspect, 1 / 4, 4))
    side = 120.0 / CELLS
    width, height = (120.0, 120.0 / aspect) if aspect >= 1 else (120.0 * aspect, 120.0)
    columns, rows = max(1, round(width / side)), max(1, round(height / side))
    height, width = rows * side, columns * side
    counts, _, _ = np.histogram2d(down, across, (rows, columns), ((0, 1), (0, 1)))
    share = counts / max(1.0, counts.max(initial=0))
    cells = [(_n(c * side), _n(r * side), _n(side), round(float(share[r, c]), 2)) for r, c in np.argwhere(counts)]
    shown = np.linspace(0, len(across) - 1, min(MOST_DOTS, len(across))).round().astype(int)
    dots = "".join(f"M{_n(across[k] * width)} {_n(down[k] * height)}h0" for k in shown)
    about = "no region"
    if len(across):
        middle = [f"{100 * np.median(values):.0f} %" for values in (across, down)]
        about = f"centred at {middle[0]} from the left and {middle[1]} from the top"
    return {"width": width, "height": height, "cells": cells, "dots": dots, "about": about}


def loss_curves(history: Sequence[Mapping[str, float]]) -> tuple[list[Curve], float, float]:
    """The loss and its terms by epoch, and the ends of the vertical axis; terms that are 0 throughout are left out.

    Examples
    --------
    >>> curves, low, high = loss_curves([{"epoch": 0, "loss": 3.0}, {"epoch": 1, "loss": 1.0}])
    >>> curves, low, high
    ([('loss', 'M0 0L640 200', 3.0, 1.0)], 1.0, 3.0)
    """
    names = [name for name in (history[0] if history else ()) if name not in ("epoch", "n")]
    values = {name: np.array([row[name] for row in history], float) for name in names}
    values = {name: line for name, line in values.items() if np.isfinite(line).all() and line.any()}
    if not values:
        return [], 0.0, 0.0
    low, high = min(line.min() for line in values.values()), max(line.max() for line in values.values())
    scale = LOSS_HEIGHT / (high - low) if high > low else 0.0
    step = LOSS_WIDTH / max(1, len(history) - 1)
    curves = []
    for name, line in values.items():
        points = [f"{_n(k * step)} {_n((high - value) * scale)}" for k, value in enumerate(line)]
        points = points if len(points) > 1 else [points[0], f"{_n(LOSS_WIDTH)} {points[0].split()[1]}"]
        curves.append((name, "M" + "L".join(points), float(line[0]), float(line[-1])))
    return curves, float(low), float(high)


def _n(value: Any) -> float | int:
    """A coordinate with one digit: enough for the eye, and short."""
    rounded = round(float(value), 1)
    return int(rounded) if rounded.is_integer() else rounded
