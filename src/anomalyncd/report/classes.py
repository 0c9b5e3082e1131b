"""The pictures that a run ends with: crops of all classes, whole images of each, and how their number was estimated."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..labels import NORMAL
from ..run.finished import FinishedRun
from ..run.folder import CLASS_SHEET
from .canvas import PICTURES, to_png
from .cards import choose
from .sheet import CROPS, PAIRS, Pair, class_page, class_sheet, make_tiles
from .source import ReportSource, image_chances

PER_PAGE = 12
NOTEWORTHY = 0.01  # probability of another class that a page mentions


def draw_classes(run: FinishedRun) -> Path | None:
    """Draw the surest regions of each class of a run, one of an image as long as there are enough.

    Returns the picture, or None where the run has no region.
    """
    if run.regions.empty:
        return None
    source, rows = ReportSource(run), []
    for label in sorted(run.regions["label"].unique().tolist()):
        members = run.regions[run.regions["label"] == label]
        n_images = int((run.images["label"] == label).sum())
        counts = f"{_count(n_images, 'image')}, {_count(len(members), 'region')}"
        title = source.look(label).name + (" (false alarms)" if label == NORMAL else "")
        crops = [run.crop(row) for row in choose(members, np.zeros(len(members)), CROPS, 0)[0]]
        rows.append((title, f"{counts}\n{source.truth(label, '{}: {:.0f} %')}", crops))
    run.folder.write(CLASS_SHEET, to_png(class_sheet(rows, f"Classes found in {len(run.images)} images")))
    return run.path / CLASS_SHEET


def draw_class_sheets(run: FinishedRun) -> list[Path]:
    """Draw a page for each class of a run: whole images, the same with map and mask, the surest first, the least sure last.

    Returns
    -------
    The files, `pictures/class_<number>_<name>.png` in the run folder, in the order of the classes. Earlier pages are
    removed.
    """
    source, written = ReportSource(run), []
    # Pages of earlier classes, which may be no more or have another name.
    for old in list(run.folder.place(PICTURES).glob("class_*.png")):
        old.unlink(missing_ok=True)
    for label in sorted(run.images["label"].unique().tolist()):
        # Images without a region are all surely normal; the higher its map, the more doubtful is one of them.
        order = {"probability": False, "score": label == NORMAL, "image": True}
        members = source.images[source.images["label"] == label]
        members = members.sort_values(list(order), ascending=list(order.values()), kind="stable")
        surest, least = _choose(len(members))
        pairs = [_pair(source, row) for row in members.iloc[[*surest, *least]].to_dict("records")]
        sections = [("Surest first" if least else "All images, surest first", pairs[: len(surest)])]
        if least:
            sections.append(("Least sure: look here first for mistakes", pairs[len(surest) :]))
        name, sure = source.look(label).name, members["probability"]
        about = [_count(len(members), "image"), _count(int(members["n_regions"].sum()), "region")]
        about.append(f"probability {sure.median():.3f} (median), at least {sure.min():.3f}")
        subtitle = " · ".join(filter(None, [*about, source.truth(label, "folders say {}: {:.0f} %")]))
        file = f"{PICTURES}/class_{label}_{_safe(name)}".rstrip("_") + ".png"
        run.folder.write(file, to_png(class_page(name, subtitle, sections, run.range)))
        written.append(run.path / file)
    return written


def draw_count(run: FinishedRun) -> Path | None:
    """Draw the evidence for each number of kinds, with the choice marked; None where the number was given."""
    found = run.count
    if not found or not found["candidates"]:
        return None
    candidates = found["candidates"]
    figure = Figure(figsize=(7, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.axvspan(found["low"] - 0.3, found["high"] + 0.3, color="#dbe7f5", label="hardly worse")
    above.plot(candidates, found["score"], "o-", color="#1f4e8c")
    if found["count"] in candidates:
        chosen = candidates.index(found["count"])
        above.plot(found["count"], found["score"][chosen], "o", ms=13, mfc="none", mec="#b3261e", mew=2, label="chosen")
    above.set_ylabel("score")
    above.set_title(f"{found['count']} kinds of region, {found['low']} to {found['high']} are hardly worse")
    above.legend(frameon=False)
    below.plot(candidates, found["silhouette"], "-", label="apart (silhouette)")
    below.plot(candidates, found["stability"], "-", label="the same in other samples")
    below.plot(candidates, found["blob_stability"], ":", label="… in a blob without classes")
    below.plot(candidates, found["agreement"], "--", label="crop and whole image agree")
    below.set_xlabel("number of kinds")
    below.set_ylim(0, 1)
    below.set_xticks(candidates)
    below.legend(frameon=False, fontsize=8, ncols=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    run.folder.write(f"{PICTURES}/count.png", buffer.getvalue())
    return run.path / PICTURES / "count.png"


def _choose(n_images: int) -> tuple[range, range]:
    """Places of the surest and of the least sure of images in order; the latter fill at most the last line."""
    n_least = min(PAIRS, max(0, n_images - PAIRS))
    return range(min(PER_PAGE, n_images) - n_least), range(n_images - n_least, n_images)


def _pair(source: ReportSource, row: Mapping[Any, Any]) -> Pair:
    run, name = source.run, str(row["image"])
    notes = [f"probability {row['probability']:.3f}", _count(int(row["n_regions"]), "region")]
    if run.range is not None:
        notes.append(f"score {row['score']:.2f}")
    notes.append(source.runner_up(image_chances(row), row["label"], NOTEWORTHY))
    tiles = make_tiles(run.image(name), run.map(name), run.mask(name), run.range)
    return name, " · ".join(filter(None, notes)), tiles


def _safe(name: str) -> str:
    """What of a class name may stand in a file name on every system; letters of any language may."""
    return re.sub(r"[^\w.-]+", "_", name)[:40].strip("._")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
