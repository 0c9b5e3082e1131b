"""The pictures that a run ends with: a row of crops for each class, and a page of whole images for each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..data.dataset import Sample
from ..run.folder import CLASS_SHEET, IMAGES_TABLE, REGIONS_TABLE, RunFolder
from ..run.store import read_crop
from ..run.tables import read_csv
from .canvas import to_png
from .page import PAIRS, Pair, class_page, make_pair
from .sheet import SheetRow, class_sheet
from .stored import PICTURES, StoredPictures

PER_CLASS = 10
PER_PAGE = 12
NOTEWORTHY = 0.01  # probability of another class that a page mentions


def draw_classes(run: Path) -> Path | None:
    """Draw the surest regions of each class of a run, one of an image as long as there are enough.

    Returns the picture, or None where the run has no region.
    """
    images, regions = read_csv(run / IMAGES_TABLE), read_csv(run / REGIONS_TABLE)
    if regions.empty:
        return None
    rows = []
    for label, members in regions.groupby("label", sort=True):
        sure = members.sort_values(["probability", "image", "region"], ascending=[False, True, True], kind="stable")
        order = pd.concat([sure[~sure["image"].duplicated()], sure[sure["image"].duplicated()]])
        crops = [_picture(run / crop) for crop in order["crop"].head(PER_CLASS)]
        n_images = int((images["label"] == label).sum())
        subtitle = f"{_count(n_images, 'image')}, {_count(len(members), 'region')}"
        if "true_label" in images and (truth := _truth(images.loc[images["label"] == label, "true_label"])):
            subtitle += f"\n{truth}"
        title = str(members["class_name"].iloc[0]) + (" (false alarms)" if label == 0 else "")
        rows.append(SheetRow(title, subtitle, crops))
    sheet = class_sheet(rows, per_class=PER_CLASS, title=f"Classes found in {len(images)} images")
    RunFolder(run).write(CLASS_SHEET, to_png(sheet))
    return run / CLASS_SHEET


def draw_class_sheets(run: Path, items: Sequence[Sample] = ()) -> list[Path]:
    """Draw a page for each class of a run: whole images, the same with map and mask, the surest first, the least sure last.

    Parameters
    ----------
    run : folder of a finished run
    items : the images as the run got them, with their maps if these came from outside; the run keeps only their names

    Returns
    -------
    The files, `pictures/class_<number>_<name>.png` in the run folder, in the order of the classes. Earlier pages are
    removed.
    """
    stored = StoredPictures(run, items)
    scores = stored.manifest.drop_duplicates("image").set_index("image")["score"]
    table = stored.images.assign(score=scores.reindex(stored.images["image"]).to_numpy())
    names = dict(zip(table["label"], table["class_name"].fillna(""), strict=True))
    pictures = RunFolder(run).place(PICTURES)
    for old in list(pictures.glob("class_*.png")):  # of classes that may be no more, or have another name
        old.unlink(missing_ok=True)
    written = []
    for label, members in table.groupby("label", sort=True):
        # Images without a region are all surely normal; the higher its map, the more doubtful is one of them.
        keys = ["probability", "score", "image"]
        members = members.sort_values(keys, ascending=[False, label == 0, True], kind="stable")
        surest, least = _choose(len(members))
        pairs = [_pair(stored, row, names) for row in members.iloc[[*surest, *least]].to_dict("records")]
        sections = [("Surest first" if least else "All images, surest first", pairs[: len(surest)])]
        if least:
            sections.append(("Least sure: look here first for mistakes", pairs[len(surest) :]))
        page = class_page(names[label], _subtitle(members), sections, scale=stored.range)
        file = f"{PICTURES}/class_{label}_{_safe(names[label])}".rstrip("_") + ".png"
        RunFolder(run).write(file, to_png(page))
        written.append(run / file)
    return written


def _choose(n_images: int) -> tuple[range, range]:
    """Places of the surest and of the least sure of images in order; the latter fill at most the last line."""
    n_least = min(PAIRS, max(0, n_images - PAIRS))
    return range(min(PER_PAGE, n_images) - n_least), range(n_images - n_least, n_images)


def _pair(stored: StoredPictures, row: Mapping[Any, Any], names: dict[int, str]) -> Pair:
    name, label = str(row["image"]), row["label"]
    low, high = stored.range or (0.0, 0.0)
    anomaly_map = None if stored.range is None else stored.map(name)
    others = {int(key[2:]): float(p) for key, p in row.items() if str(key).startswith("p_") and key != f"p_{label}"}
    notes = [f"probability {row['probability']:.3f}", _count(int(row["n_regions"]), "region")]
    if stored.range is not None:
        notes.append(f"score {row['score']:.2f}")
    second = max(others, key=others.__getitem__, default=None)
    if second is not None and others[second] >= NOTEWORTHY:
        notes.append(f"or {names.get(second, f'class {second}')} ({others[second]:.2f})")
    return make_pair(name, " · ".join(notes), stored.image(name), anomaly_map, stored.mask(name), low=low, high=high)


def _subtitle(members: pd.DataFrame) -> str:
    sure = members["probability"]
    n_regions = int(members["n_regions"].sum())
    words = [
        _count(len(members), "image"),
        _count(n_regions, "region"),
        f"probability {sure.median():.3f} (median), at least {sure.min():.3f}",
    ]
    if "true_label" in members and (truth := _truth(members["true_label"])):
        words.append(f"folders say {truth}")
    return " · ".join(words)


def _safe(name: str) -> str:
    """What of a class name may stand in a file name on every system; letters of any language may."""
    return re.sub(r"[^\w.-]+", "_", name)[:40].strip("._")


def _picture(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """A stored crop and its mask; a grey field where the file is gone."""
    crop, mask = read_crop(path)
    return (np.full((64, 64, 3), 200, np.uint8), None) if crop is None else (crop, mask)


def _truth(labels: pd.Series) -> str:
    """Where folders tell: the commonest true class and its share."""
    counts = labels.value_counts()
    return f"{counts.index[0]}: {100 * counts.iloc[0] / counts.sum():.0f} %" if len(counts) else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
