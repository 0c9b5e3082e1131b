"""Images that deserve a look: with several classes, unsure ones, unknown ones, and those in a class of another label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..labels import NORMAL
from ..metrics import Evaluation
from .source import Look, ReportSource, Shot, image_chances

MOST = 24  # images shown of a list
MOST_PAIRS, MOST_OF_A_PAIR = 8, 6  # of a true label and a class that is not matched to it
UNSURE = 0.6  # an image whose class is less probable is uncertain
FAR = 0.5  # unknown score above which an image is further off than known regions should be
SIDE = 240
Row = dict[Any, Any]


@dataclass(frozen=True)
class ImageList:
    """The first images of a list, and how many there are in all."""

    shots: list[Shot]
    total: int


def mistakes(source: ReportSource, found: Evaluation) -> list[tuple[str, Look, str, ImageList]]:
    """Where classes and labels differ, the commonest pairs first, the surest images of each.

    Returns
    -------
    True label, class that is matched to another one, kind (missed, false alarm or confused), and images
    """
    images = source.images[source.images["true_label"].notna()]
    wrong = images[images["label"].map(found.matching) != images["true_label"]]
    pairs = sorted(wrong.groupby(["true_label", "label"]), key=lambda pair: (-len(pair[1]), pair[0]))
    out = []
    for (name, label), rows in pairs[:MOST_PAIRS]:
        false_alarm = found.matching.get(NORMAL) == name
        kind = "missed" if label == NORMAL else "false alarm" if false_alarm else "confused"
        rows = rows.sort_values(["probability", "image"], ascending=[False, True], kind="stable")
        shown = _listed(source, rows, lambda row: _doubt(source, row), most=MOST_OF_A_PAIR)
        out.append((str(name), source.look(int(str(label))), kind, shown))
    return out


def several_classes(source: ReportSource) -> ImageList:
    """Images with regions of more than one defect class, those with the most first; their contours in class colours."""
    found = source.images["classes"].fillna("").map(_labels)
    chosen = source.images.assign(found=found, count=found.map(len))
    chosen = chosen[chosen["count"] > 1].sort_values(["count", "image"], ascending=[False, True], kind="stable")
    return _listed(source, chosen, lambda row: [" + ".join(source.look(k).name for k in row["found"])], heat=False)


def uncertain(source: ReportSource) -> ImageList:
    """Images whose class is not much more probable than another, the least sure first."""
    chosen = source.images[(source.images["probability"] < UNSURE) & (source.images["label"] >= NORMAL)]
    chosen = chosen.sort_values(["probability", "image"], kind="stable")
    return _listed(source, chosen, lambda row: _doubt(source, row))


def unknown(source: ReportSource) -> ImageList:
    """Images that lie far from every class: labelled unknown, or further off than known regions should be."""
    images = source.images
    chosen = images.assign(far=images["unknown"].fillna(0.0), known=images["label"] >= NORMAL)
    chosen = chosen[~chosen["known"] | ((chosen["far"] > FAR) & (chosen["label"] != NORMAL))]
    chosen = chosen.sort_values(["known", "far", "image"], ascending=[True, False, True], kind="stable")
    return _listed(source, chosen, lambda row: [_class(source, row), f"unknown {row['far']:.2f}" if row["far"] else ""])


def _listed(
    source: ReportSource, rows: pd.DataFrame, words: Callable[[Row], list[str]], *, heat: bool = True, most: int = 0
) -> ImageList:
    shown = rows.head(most or MOST).to_dict("records")
    shots = [source.whole(str(row["image"]), filter(None, words(row)), heat=heat, side=SIDE) for row in shown]
    return ImageList(shots, len(rows))


def _doubt(source: ReportSource, row: Row) -> list[str]:
    return [_class(source, row), source.runner_up(image_chances(row), int(row["label"]))]


def _class(source: ReportSource, row: Row) -> str:
    return f"{source.look(int(row['label'])).name} ({row['probability']:.2f})"


def _labels(classes: str) -> list[int]:
    """`2;1` as numbers, normal left out."""
    return [int(label) for label in str(classes).split(";") if label.lstrip("-").isdigit() and label != "0"]
