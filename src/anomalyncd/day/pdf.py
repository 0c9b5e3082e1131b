"""The page of a day on paper: A4 pages with the same figures, for the shift meeting."""

from __future__ import annotations

import io
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import __version__
from ..metrics.control import ControlChart
from ..report.canvas import FAINT, INK, RULE, Picture, centred
from ..report.source import Look
from .charts import MOST_BARS, MOST_STACKED, REST, axis_name, short
from .figures import DayFigures, Grouping
from .pictures import SIDE
from .source import DayTable

# The first has no Chinese, Japanese or Korean letters; of the others those that the system has.
FONTS = (
    "DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "WenQuanYi Zen Hei", "Microsoft YaHei",
    "Yu Gothic", "Malgun Gothic", "PingFang SC", "Hiragino Sans", "Apple SD Gothic Neo", "Arial Unicode MS",
)  # fmt: skip
PAPER = (8.27, 11.69)  # A4 in inches
BEYOND = "#d8434e"
LINE = "#1769c2"
MOST_LINES = 22  # kinds in the table of a page
ROWS_OF_PICTURES = 6  # kinds on a page


def day_pdf(
    table: DayTable, figures: DayFigures, pictures: Sequence[tuple[Look, Sequence[tuple[str, str, Picture]]]]
) -> bytes:
    """The content of a PDF file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import font_manager
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    out = io.BytesIO()
    title = f"{table.path.stem}, {figures.day or 'all images'}"
    settings: dict[Any, Any] = {
        "font.family": _fonts(font_manager.get_font_names()), "font.size": 8.5, "text.color": INK,
        "axes.edgecolor": RULE, "axes.labelcolor": FAINT,
        "xtick.color": FAINT, "ytick.color": FAINT, "axes.spines.top": False, "axes.spines.right": False,
        "axes.titlesize": 9.5, "axes.titlelocation": "left", "pdf.fonttype": 42,
    }  # fmt: skip
    about = {"Title": title, "Creator": f"anomalyncd {__version__}"}
    with matplotlib.rc_context(settings), PdfPages(out, metadata=about) as pages:
        drawn = [_first(Figure, figures), *_groups(Figure, figures), *_images(Figure, pictures)]
        for number, page in enumerate(drawn, start=1):
            page.text(0.08, 0.962, _plain(title), fontsize=14, fontweight="bold", va="center")
            page.text(0.92, 0.962, f"{number} / {len(drawn)}", color=FAINT, ha="right", va="center")
            page.text(0.08, 0.025, f"anomalyncd {__version__}", color=FAINT, fontsize=7)
            pages.savefig(page)
    return out.getvalue()


def _fonts(known: Sequence[str]) -> list[str]:
    logging.getLogger("matplotlib.font_manager").setLevel(
        logging.ERROR
    )  # it tells of every weight that one does not have
    return [name for name in FONTS if name in known]


def _first(figure: Any, figures: DayFigures) -> Any:
    """Figures of the day, the Pareto chart, and the kinds beside those of the day before."""
    page = figure(figsize=PAPER)
    n, before = figures.n_images or 1, figures.n_before
    boxes = [
        ("Images of the product", f"{figures.n_images:,}", f"{before:,} on {figures.before}" if before else ""),
        ("With a defect", f"{figures.n_defects:,}", _shares(figures.n_defects / n, figures.n_defects_before, before)),
        (
            "Of an unknown kind",
            f"{figures.n_unknown:,}",
            _shares(figures.n_unknown / n, figures.n_unknown_before, before),
        ),
        ("Not this product", f"{figures.n_other:,}", ""),
        ("Unreadable files", f"{figures.n_unreadable:,}", ""),
    ]
    for place, (name, value, more) in enumerate(boxes):
        x = 0.08 + place * 0.172
        page.text(x, 0.925, name, color=FAINT, fontsize=8)
        page.text(x, 0.897, value, fontsize=17, fontweight="bold")
        page.text(x, 0.88, more, color=FAINT, fontsize=7)
    lines = [*figures.warnings, *(f"{time} {shift.words}" for time, shift in figures.shifts)]
    y = 0.85
    if lines:
        page.text(0.08, y, "Beyond the limits, and drift", fontweight="bold", color=BEYOND)
        for line in [*lines[:8], *([f"and {len(lines) - 8} more, marked in the charts"] if len(lines) > 8 else [])]:
            y -= 0.015
            page.text(0.09, y, _plain(short(line, 125)), fontsize=7.5)
    elif figures.groupings:
        page.text(0.08, y, "Every group is within its limits.")
    for line in figures.notes[:6]:
        y -= 0.015
        page.text(0.08, y, _plain(short(line, 125)), color=FAINT, fontsize=7.5)
    y -= 0.03
    if figures.n_defects:
        _pareto(page.add_axes((0.11, y - 0.25, 0.77, 0.24)), figures)
        y -= 0.32
    _table(page, figures, y)
    return page


def _pareto(axes: Any, figures: DayFigures) -> None:
    kinds = [(kind.look, kind.count) for kind in figures.kinds if kind.count]
    if len(kinds) > MOST_BARS:
        kinds = [*kinds[: MOST_BARS - 1], (REST, sum(count for _, count in kinds[MOST_BARS - 1 :]))]
    counts = [count for _, count in kinds]
    bars = axes.bar(range(len(kinds)), counts, color=[look.colour for look, _ in kinds], width=0.7)
    axes.bar_label(bars, fontsize=7.5, padding=2)
    axes.set_xticks(
        range(len(kinds)), [_plain(short(look.name)) for look, _ in kinds], rotation=0 if len(kinds) < 8 else 20
    )
    axes.set_title("Images of each kind, and their sum")
    axes.set_ylim(0, 1.12 * max(counts))
    axes.locator_params(axis="y", integer=True)
    right = axes.twinx()
    right.plot(range(len(kinds)), 100 * np.cumsum(counts) / sum(counts), color=LINE, marker="o", markersize=4)
    right.set_ylim(0, 112)
    right.set_yticks(range(0, 101, 25), [f"{share} %" for share in range(0, 101, 25)])
    right.spines["right"].set_visible(False)


def _table(page: Any, figures: DayFigures, y: float) -> None:
    if not figures.kinds:
        page.text(0.08, y, "No image has a defect.")
        return
    columns = [("Kind", 0.08, "left"), ("Images", 0.36, "right"), ("Of all", 0.44, "right"), ("Sum", 0.52, "right")]
    columns += [(figures.before, 0.65, "right"), ("Change", 0.74, "right")] if figures.before else []
    columns += [("Area", 0.83, "right"), ("Median px", 0.92, "right")]
    for name, x, side in columns:
        page.text(x, y, name, color=FAINT, fontsize=7.5, ha=side)
    for kind in figures.kinds[:MOST_LINES]:
        y -= 0.019
        cells = [_plain(short(kind.look.name, 30)), f"{kind.count:,}", _percent(kind.share), _percent(kind.cumulative)]
        if figures.before:
            star = " *" if kind.look.label in figures.beyond else ""
            cells += [
                f"{kind.before:,} ({_percent(kind.share_before)})",
                f"{100 * kind.change:+.1f}{star}".replace("-", "−"),
            ]
        cells += ["" if math.isnan(kind.area) else _percent(kind.area)]
        cells += ["" if math.isnan(kind.median_area) else f"{kind.median_area:,.0f}"]
        page.text(0.066, y, "■", color=kind.look.colour, fontsize=8)
        for (_, x, side), cell in zip(columns, cells, strict=True):
            page.text(x, y, cell, fontsize=8, ha=side)
    if len(figures.kinds) > MOST_LINES:
        page.text(0.08, y - 0.02, f"and {len(figures.kinds) - MOST_LINES} more kinds", color=FAINT, fontsize=7.5)
    elif figures.beyond:
        page.text(0.08, y - 0.022, "* more than chance explains (three deviations)", color=FAINT, fontsize=7)


def _groups(figure: Any, figures: DayFigures) -> Iterator[Any]:
    """Two groupings a page."""
    for start in range(0, len(figures.groupings), 2):
        page = figure(figsize=PAPER)
        for place, grouping in enumerate(figures.groupings[start : start + 2]):
            top = 0.92 - 0.45 * place
            page.text(0.08, top, f"By {_plain(grouping.by)}", fontsize=11, fontweight="bold")
            _stack(page.add_axes((0.1, top - 0.19, 0.82, 0.15)), grouping)
            for side, (chart, what) in enumerate(((grouping.defects, "defects"), (grouping.unknown, "unknown"))):
                _control(page.add_axes((0.1 + 0.44 * side, top - 0.39, 0.38, 0.13)), grouping, chart, what)
        yield page


def _stack(axes: Any, grouping: Grouping) -> None:
    looks = sorted(grouping.kinds, key=lambda look: -sum(grouping.kinds[look]))
    stacks = [(look, np.array(grouping.kinds[look])) for look in looks[:MOST_STACKED]]
    if rest := looks[MOST_STACKED:]:
        stacks.append((REST, np.sum([grouping.kinds[look] for look in rest], axis=0)))
    floor, width = np.zeros(len(grouping.names)), min(0.8, 0.1 * len(grouping.names))
    for look, counts in stacks:
        axes.bar(
            range(len(floor)), counts, bottom=floor, color=look.colour, width=width, label=_plain(short(look.name, 15))
        )
        floor += counts
    axes.set_title("Images with a defect")
    axes.set_ylim(0, max(1.0, 1.05 * floor.max(initial=0)))
    axes.locator_params(axis="y", integer=True)
    _names(axes, grouping)
    if stacks:
        axes.legend(fontsize=6.5, ncols=4, frameon=False, loc="lower right", bbox_to_anchor=(1, 0.98), borderpad=0)


def _control(axes: Any, grouping: Grouping, chart: ControlChart, what: str) -> None:
    places = np.arange(len(grouping.names))
    edges = np.arange(len(places) + 1) - 0.5
    low, high = (100 * np.append(limit, limit[-1:]) for limit in (chart.low, chart.high))
    axes.fill_between(edges, low, high, step="post", color="#eaeef2", linewidth=0)
    axes.axhline(100 * chart.centre, color=FAINT, linestyle="--", linewidth=0.8)
    axes.plot(places, 100 * chart.shares, color=LINE, marker="o", markersize=3, linewidth=1)
    beyond = np.flatnonzero(chart.outside)
    axes.plot(beyond, 100 * chart.shares[beyond], "o", color=BEYOND, markersize=5)
    axes.set_title(f"Share of {what}, % ({_percent(chart.centre)} of all)", fontsize=8.5)
    axes.set_ylim(0, max(1.0, 105 * float(np.nanmax([chart.shares, chart.high]))))
    _names(axes, grouping, 8)


def _names(axes: Any, grouping: Grouping, most: int = 16) -> None:
    names = [axis_name(grouping, place) for place in range(len(grouping.names))]
    every = math.ceil(len(names) / most)
    places = range(0, len(names), every)
    axes.set_xticks(places, [_plain(short(names[place], 10)) for place in places], fontsize=6.5)
    axes.set_xlim(-0.6, len(names) - 0.4)


def _images(figure: Any, pictures: Sequence[tuple[Look, Sequence[tuple[str, str, Picture]]]]) -> Iterator[Any]:
    for start in range(0, len(pictures), ROWS_OF_PICTURES):
        page = figure(figsize=PAPER)
        for place, (look, some) in enumerate(pictures[start : start + ROWS_OF_PICTURES]):
            top = 0.925 - 0.148 * place
            page.text(0.08, top, "■", color=look.colour)
            page.text(0.1, top, f"{_plain(look.name)}, newest", fontweight="bold")
            for column, (name, moment, picture) in enumerate(some):
                axes = page.add_axes((0.08 + 0.142 * column, top - 0.107, 0.135, 0.1))
                axes.imshow(centred(picture, SIDE))
                axes.axis("off")
                axes.set_title(_plain(f"{moment} {short(name[::-1], 18)[::-1]}"), fontsize=5.5, color=FAINT, y=-0.14)
        yield page


def _shares(share: float, before: int, n_before: int) -> str:
    return _percent(share) + (f", before {_percent(before / n_before)}" if n_before else "")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _plain(text: str) -> str:
    """Dollars would begin a formula, and the font has no control characters."""
    return "".join(letter if letter.isprintable() else " " for letter in text).replace("$", r"\$")
