"""Charts of the page as plain SVG: bars of kinds, bars of groups, and shares with their limits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..metrics.control import ControlChart
from ..report.source import Look
from .figures import Grouping, Kind
from .source import OTHER_COLOUR

WIDTH, HEIGHT = 720.0, 200.0
LEFT, RIGHT, TOP = 44.0, 44.0, 12.0  # room for the numbers of the axes
MOST_BARS = 12  # kinds of the Pareto chart; the rest is one bar
MOST_STACKED = 7  # kinds that are told apart in a chart of groups
MOST_NAMES = 16  # of groups, below an axis
LONGEST_NAME = 14
FEW = 4  # names with which a chart is still read on a phone as a whole, in larger letters
LETTER, LARGE_LETTER = 7.0, 11.0  # widths, then
REST = Look(0, "others", OTHER_COLOUR, "circle", "others")


@dataclass(frozen=True)
class Bar:
    """x, y, width, height, with its colour and what it says when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    colour: str
    title: str


@dataclass(frozen=True)
class Chart:
    """What a chart is drawn of, in a frame of WIDTH × HEIGHT and a line of names below.

    grid : (y, number) of the axis at the left; names : (x, text) below; line : points of a path
    """

    bars: list[Bar]
    grid: list[tuple[float, str]]
    names: list[tuple[float, str]]
    line: str = ""
    dots: tuple[tuple[float, float, str, bool], ...] = ()  # x, y, what it says, whether it is beyond
    band: str = ""
    centre: float = math.nan
    about: str = ""

    @property
    def has_few(self) -> bool:
        return len(self.names) <= FEW


def pareto_chart(kinds: list[Kind]) -> Chart:
    """Counts of kinds, commonest first, and the line of their sum in per cent."""
    shown = [(kind.look, kind.count) for kind in kinds if kind.count]
    if len(shown) > MOST_BARS:
        shown = [*shown[: MOST_BARS - 1], (REST, sum(count for _, count in shown[MOST_BARS - 1 :]))]
    total, top = sum(count for _, count in shown), nice(max([count for _, count in shown], default=1))
    step = (WIDTH - LEFT - RIGHT) / max(1, len(shown))
    bars, names, points, so_far = [], [], [], 0
    for place, (look, count) in enumerate(shown):
        so_far += count
        x, height = LEFT + place * step, _height(count, top)
        width = min(0.72 * step, 90)
        bars.append(Bar(_r(x + (step - width) / 2), _r(HEIGHT - height), _r(width), _r(height), look.colour,
                        f"{look.name}: {count}"))  # fmt: skip
        names.append((_r(x + step / 2), short(look.name, max(6, int(step / _letter(len(shown)))))))
        points.append(
            (_r(x + step / 2), _r(HEIGHT - _height(so_far / total, 1.0)), f"{100 * so_far / total:.0f} %", False)
        )
    line = " ".join(f"{'L' if k else 'M'}{x} {y}" for k, (x, y, _, _) in enumerate(points))
    about = f"{total} images with defects of {len(kinds)} kinds"
    return Chart(bars, grid_of(top), names, line, tuple(points), about=about)


def group_chart(grouping: Grouping) -> Chart:
    """Defects of each group, its kinds on top of each other."""
    looks = sorted(grouping.kinds, key=lambda look: -sum(grouping.kinds[look]))
    stacks = [(look, grouping.kinds[look]) for look in looks[:MOST_STACKED]]
    if rest := looks[MOST_STACKED:]:
        stacks.append((REST, [sum(column) for column in zip(*(grouping.kinds[look] for look in rest), strict=True)]))
    totals = [sum(column) for column in zip(*(counts for _, counts in stacks), strict=True)] or [0]
    top, step = nice(max(totals)), (WIDTH - LEFT - RIGHT) / len(grouping.names)
    bars, floors = [], [0.0] * len(grouping.names)
    for look, counts in stacks:
        for place, count in enumerate(counts):
            if count:
                height = _height(count, top)
                floors[place] += height
                width = min(0.8 * step, 60)
                x = LEFT + place * step + (step - width) / 2
                title = f"{grouping.names[place] or 'none'}: {count} {look.name}"
                bars.append(Bar(_r(x), _r(HEIGHT - floors[place]), _r(width), _r(height), look.colour, title))
    return Chart(bars, grid_of(top), _names(grouping), about=f"defects by {grouping.by}")


def share_chart(grouping: Grouping, chart: ControlChart, what: str) -> Chart:
    """The share of each group in its limits; those beyond are marked."""
    high = float(np.nanmax(np.concatenate([chart.shares, chart.high, [0.01]])))
    top, step = nice(100 * high), (WIDTH - LEFT - RIGHT) / len(grouping.names)
    xs = [LEFT + (place + 0.5) * step for place in range(len(grouping.names))]

    def at(share: float) -> float:
        return _r(HEIGHT - _height(100 * share, top))

    dots = tuple(
        (_r(x), at(share), f"{name or 'none'}: {100 * share:.1f} % {what} of {size} images", bool(beyond))
        for x, share, name, size, beyond in zip(
            xs, chart.shares.tolist(), grouping.names, grouping.sizes, chart.outside.tolist(), strict=True
        )
    )
    line = " ".join(f"{'L' if k else 'M'}{x} {y}" for k, (x, y, _, _) in enumerate(dots))
    upper = [
        f"{_r(x + side * step / 2)} {at(share)}" for x, share in zip(xs, chart.high, strict=True) for side in (-1, 1)
    ]
    lower = [
        f"{_r(x + side * step / 2)} {at(share)}" for x, share in zip(xs, chart.low, strict=True) for side in (-1, 1)
    ]
    band = "M" + " L".join([*upper, *lower[::-1]]) + "Z"
    beyond = int(chart.outside.sum())
    about = f"share of {what} by {grouping.by}, {100 * chart.centre:.1f} % of all; {beyond} beyond the limits"
    return Chart([], grid_of(top, " %"), _names(grouping), line, dots, band, at(chart.centre), about)


def nice(value: float) -> float:
    """The round number at or above a value that an axis ends with.

    Examples
    --------
    >>> nice(0), nice(7), nice(13), nice(101)
    (1.0, 8.0, 16.0, 120.0)
    """
    if value <= 1:
        return next((step for step in (0.1, 0.2, 0.4, 0.8) if 0 < value <= step), 1.0)
    power = 10 ** math.floor(math.log10(value))
    return float(next(step * power for step in (1, 1.2, 1.6, 2, 2.4, 3.2, 4, 6, 8, 10) if value <= step * power))


def grid_of(top: float, unit: str = "") -> list[tuple[float, str]]:
    """Four lines of the axis at the left, with their numbers."""
    return [(_r(HEIGHT - _height(top * part / 4, top)), f"{top * part / 4:g}{unit}") for part in range(5)]


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """A name that fits below an axis."""
    return name if len(name) <= longest else f"{name[: longest - 1]}…"


def axis_name(grouping: Grouping, place: int) -> str:
    """What stands below an axis: of a day, its month and day."""
    name = grouping.names[place] or "none"
    return name[5:] if grouping.by == "day" else name


def _names(grouping: Grouping) -> list[tuple[float, str]]:
    names = [axis_name(grouping, place) for place in range(len(grouping.names))]
    step, every = (WIDTH - LEFT - RIGHT) / len(names), math.ceil(len(names) / MOST_NAMES)
    room = max(5, int(every * step / _letter(len(names))))
    return [
        (_r(LEFT + (place + 0.5) * step), short(name or "none", room))
        for place, name in enumerate(names)
        if not place % every
    ]


def _letter(n_names: int) -> float:
    return LARGE_LETTER if n_names <= FEW else LETTER


def _height(value: float, top: float) -> float:
    return (HEIGHT - TOP) * value / top if top else 0.0


def _r(value: float) -> float:
    return round(value, 1)
