"""The figures of a day: counts of kinds, shares of groups with their limits, areas, the day before, and drift."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ..labels import NORMAL
from ..metrics.control import SIGMAS, ControlChart, control_chart
from ..report.source import Look
from ..watch.drift import DriftMonitor, Shift
from .source import HOURS, MOST_GROUPS, DayTable, groups_of, look_of

MOST_DAYS = 31  # that the chart of days goes back
TITLES = {"hour": "hour", "shift": "shift", "day": "day", "folder": "folder"}


@dataclass(frozen=True)
class Kind:
    """A kind of defect on a day, and on the day before.

    share : of all images that show the product
    cumulative : of all defects, this kind and all that are commoner
    area : of all area of defects, NaN where nothing tells; image_area : mean share of the image where it is
    change : of the share, in points; is_beyond : more than chance explains
    """

    look: Look
    count: int
    share: float
    cumulative: float
    before: int
    share_before: float
    area: float
    n_regions: int
    median_area: float

    @property
    def change(self) -> float:
        return self.share - self.share_before


@dataclass(frozen=True)
class Grouping:
    """Images by hour, shift, day, folder or a column: how many are defective or unknown, and where the limits are.

    names : (G,) of the groups; sizes : (G,) images; kinds : look → (G,) counts
    """

    by: str
    names: list[str]
    sizes: list[int]
    kinds: dict[Look, list[int]]
    defects: ControlChart
    unknown: ControlChart


@dataclass(frozen=True)
class DayFigures:
    """Everything on the page but pictures.

    day : "" where nothing tells the time, and all images are one day
    before : the last day before it with images; "" where there is none
    beyond : labels of kinds whose share changed by more than chance explains
    notes : what is not on the page, and why
    """

    day: str
    before: str
    n_images: int
    n_defects: int
    n_unknown: int
    n_unreadable: int
    n_other: int
    n_before: int
    n_defects_before: int
    n_unknown_before: int
    kinds: list[Kind]
    beyond: set[int]
    groupings: list[Grouping]
    shifts: list[tuple[str, Shift]]
    watched_drift: bool
    notes: list[str]

    @property
    def warnings(self) -> list[str]:
        """Groups beyond their limits, in words."""
        found = []
        for grouping in self.groupings:
            for what, chart in (("defects", grouping.defects), ("unknown", grouping.unknown)):
                for place in np.flatnonzero(chart.outside):
                    if grouping.by == "day" and grouping.names[place] != self.day:
                        continue
                    share, low, high = chart.shares[place], chart.low[place], chart.high[place]
                    digits = next(
                        (n for n in (1, 2, 3) if _percent(share, n) not in {_percent(x, n) for x in (low, high)}), 4
                    )
                    found.append(
                        f"{grouping.names[place] or 'none'} ({grouping.by}): {_percent(share, digits)} {what} of "
                        f"{grouping.sizes[place]} images, limits {_percent(low, digits)} to {_percent(high, digits)}"
                    )
        return found


def day_figures(table: DayTable, day: str, by: Sequence[str] = (), hours: Sequence[int] = HOURS) -> DayFigures:
    """The figures of one day of a table; by : groupings beside hour, shift, folder and day"""
    images, days = table.images, table.days
    today = images[images["day"] == day] if day else images
    earlier = sorted(other for other in set(images["day"]) if other and other < day)
    before = earlier[-1] if earlier else ""
    yesterday = images[images["day"] == before] if before else images.iloc[:0]
    kinds = _kinds(table, today, yesterday, day)
    has_time = bool(day)
    wanted = [*(("hour", "shift") if has_time else ()), *by]
    if "folder" not in wanted and "folder" not in images and images["image"].str.contains("/").sum() > 1:
        wanted.append("folder")
    by_clock = today.drop(columns=["hour", "shift"], errors="ignore")  # unless these columns were asked for
    groupings = [
        _grouping(today, name, groups_of(today if name in by else by_clock, name, hours, table.begin), kinds)
        for name in dict.fromkeys(wanted)
        if name != "day"
    ]
    if len(days) > 1:
        shown = [other for other in days if other <= day][-MOST_DAYS:]
        recent = images[images["day"].isin(shown)]
        groupings.append(_grouping(recent, "day", recent["day"], kinds))
    notes = [
        f"By {grouping.by}: not shown, because all images are {grouping.names[0] or 'without one'}."
        if len(grouping.names) == 1
        else f"By {grouping.by}: not shown, because {len(grouping.names)} groups are more than {MOST_GROUPS}."
        for grouping in groupings
        if grouping.by in by and grouping.names and not _is_shown(grouping)
    ]
    if table.n_timeless:
        notes.append(f"{table.n_timeless:,} images are on no day, because nothing tells their time.")
    shifts, watched = _drift(images, day)
    return DayFigures(
        day, before, len(today), int(today["is_defect"].sum()), int(today["is_unknown"].sum()),
        _of_day(table.n_unreadable, day), _of_day(table.n_other, day),
        len(yesterday), int(yesterday["is_defect"].sum()), int(yesterday["is_unknown"].sum()),
        kinds, {kind.look.label for kind in kinds if _is_beyond(kind, len(today), len(yesterday))},
        [grouping for grouping in groupings if _is_shown(grouping)], shifts, watched, notes,
    )  # fmt: skip


def _is_shown(grouping: Grouping) -> bool:
    return 1 < len(grouping.names) <= MOST_GROUPS


def _kinds(table: DayTable, today: pd.DataFrame, yesterday: pd.DataFrame, day: str) -> list[Kind]:
    """Kinds of defect of both days, commonest first."""
    names: dict[int, str] = {}
    for images in (yesterday, today):
        names |= dict(zip(images["label"].tolist(), images["class_name"].tolist(), strict=True))
    counts, earlier = (images["label"].value_counts().to_dict() for images in (today, yesterday))
    regions = table.regions[table.regions["day"] == day] if day and len(table.regions) else table.regions
    regions = regions[regions["label"] != NORMAL] if len(regions) else regions
    total_area = float(regions["area"].sum()) if len(regions) else 0.0
    labels = sorted((label for label in names if label != NORMAL), key=lambda label: (-counts.get(label, 0), label))
    n_defects, so_far, found = sum(counts.get(label, 0) for label in labels), 0, []
    for label in labels:
        own = regions.loc[regions["label"] == label, "area"] if len(regions) else pd.Series(dtype=float)
        count = int(counts.get(label, 0))
        so_far += count
        found.append(
            Kind(
                look_of(label, names[label]), count, _share(count, len(today)), _share(so_far, n_defects),
                int(earlier.get(label, 0)), _share(earlier.get(label, 0), len(yesterday)),
                _share(float(own.sum()), total_area) if total_area else math.nan, len(own),
                float(own.median()) if len(own) else math.nan,
            )
        )  # fmt: skip
    return found


def _grouping(images: pd.DataFrame, by: str, groups: pd.Series, kinds: Sequence[Kind]) -> Grouping:
    table = images.groupby(groups, sort=True, observed=True).agg(
        n=("label", "size"), defects=("is_defect", "sum"), unknown=("is_unknown", "sum")
    )
    counts = images.groupby([groups, images["label"]], observed=True).size().unstack(fill_value=0).reindex(table.index)
    of_kinds = {
        kind.look: [int(value) for value in counts[kind.look.label]] for kind in kinds if kind.look.label in counts
    }
    return Grouping(
        by, [str(name) for name in table.index], [int(n) for n in table["n"]], of_kinds,
        control_chart(table["defects"].to_numpy(), table["n"].to_numpy()),
        control_chart(table["unknown"].to_numpy(), table["n"].to_numpy()),
    )  # fmt: skip


def _drift(images: pd.DataFrame, day: str) -> tuple[list[tuple[str, Shift]], bool]:
    """(time, shift) of what was reported on the day; and whether there were enough images to say anything.

    Images of the model that the day ended with, from its first on, as `watch` counts them.
    """
    columns = [name for name in ("score", "brightness", "contrast", "foreign") if name in images]
    if "brightness" not in images or not day:
        return [], False
    seen = images[images["day"] <= day]
    if "model" in seen and len(seen):
        seen = seen[seen["model"] == seen["model"].iloc[-1]]
    figures = seen[columns].apply(pd.to_numeric, errors="coerce").to_numpy(float, copy=True)
    if "score" in columns:
        figures[seen["label"].to_numpy() != NORMAL, columns.index("score")] = np.nan
    monitor, found = DriftMonitor(), []
    times, days = seen["time"].astype(str).tolist(), seen["day"].tolist()
    for row, values in enumerate(figures.tolist()):
        for shift in monitor.add(dict(zip(columns, values, strict=True))):
            if days[row] == day:
                found.append((times[row][11:16], shift))
    return found, monitor.is_ready


def _is_beyond(kind: Kind, n: int, n_before: int) -> bool:
    """Whether two shares differ by more than three deviations of chance."""
    if not n or not n_before:
        return False
    both = (kind.count + kind.before) / (n + n_before)
    return abs(kind.change) > SIGMAS * math.sqrt(both * (1 - both) * (1 / n + 1 / n_before))


def _of_day(counts: dict[str, int], day: str) -> int:
    return int(counts.get(day, 0)) if day else sum(counts.values())


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"
