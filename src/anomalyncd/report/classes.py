"""The pictures that a run ends with: a row of crops for each class, and a page of whole images for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..labels import NORMAL
from ..run.finished import FinishedRun
from ..run.folder import CLASS_SHEET
from .canvas import PICTURES, to_png
from .cards import choose
from .page import PAIRS, Pair, class_page, make_tiles
from .sheet import CROPS, SheetRow, class_sheet
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
        rows.append(SheetRow(title, f"{counts}\n{source.truth(label, '{}: {:.0f} %')}", crops))
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
        name, subtitle = source.look(label).name, _subtitle(members, source.truth(label, "folders say {}: {:.0f} %"))
        file = f"{PICTURES}/class_{label}_{_safe(name)}".rstrip("_") + ".png"
        run.folder.write(file, to_png(class_page(name, subtitle, sections, run.range)))
        written.append(run.path / file)
    return written


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
    return Pair(name, " · ".join(filter(None, notes)), tiles)


def _subtitle(members: pd.DataFrame, truth: str) -> str:
    sure = members["probability"]
    counts = f"{_count(len(members), 'image')} · {_count(int(members['n_regions'].sum()), 'region')}"
    about = f"{counts} · probability {sure.median():.3f} (median), at least {sure.min():.3f}"
    return f"{about} · {truth}" if truth else about


def _safe(name: str) -> str:
    """What of a class name may stand in a file name on every system; letters of any language may."""
    return re.sub(r"[^\w.-]+", "_", name)[:40].strip("._")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
