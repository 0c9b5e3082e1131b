"""Images that deserve a look: with several classes, unsure ones, unknown ones; and files that were skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ..metrics import Evaluation
from .embed import Shot
from .source import Look, ReportSource

MOST = 24  # images shown of a list
MOST_SKIPPED = 200
MOST_PAIRS, MOST_OF_A_PAIR = 8, 6  # of a true label and a class that is not matched to it
UNSURE = 0.6  # an image whose class is less probable is uncertain
FAR = 0.5  # unknown score above which an image is further off than known regions should be
SIDE = 240


@dataclass(frozen=True)
class ImageList:
    """The first images of a list, and how many there are in all."""

    shots: list[Shot]
    total: int


@dataclass(frozen=True)
class SkippedFile:
    """A file that was not used, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Mistake:
    """Images of one label in a class that is matched to another one; kind : missed, false alarm or confused."""

    label: str
    look: Look
    kind: str
    images: ImageList


def mistakes(source: ReportSource, found: Evaluation) -> list[Mistake]:
    """Where classes and labels differ, the commonest pairs first, the surest images of each."""
    images = source.images[source.images["true_label"].notna()]
    wrong = images[
        [found.matching.get(k) != name for k, name in zip(images["label"], images["true_label"], strict=True)]
    ]
    pairs = sorted(wrong.groupby(["true_label", "label"]), key=lambda pair: (-len(pair[1]), pair[0]))
    normal = {name for label, name in found.matching.items() if label == 0}
    out = []
    for (name, label), rows in pairs[:MOST_PAIRS]:
        kind = "missed" if label == 0 else "false alarm" if name in normal else "confused"
        rows = rows.sort_values(["probability", "image"], ascending=[False, True], kind="stable")
        shown = _listed(source, rows, lambda row: [_class(source, row), _chances(source, row)], most=MOST_OF_A_PAIR)
        out.append(Mistake(str(name), source.look(int(str(label))), kind, shown))
    return out


def several_classes(source: ReportSource) -> ImageList:
    """Images with regions of more than one defect class, those with the most first; their contours in class colours."""
    if "classes" not in source.images:
        return ImageList([], 0)
    found = source.images["classes"].fillna("").map(_labels)
    chosen = source.images.assign(found=found, count=found.map(len))
    chosen = chosen[chosen["count"] > 1].sort_values(["count", "image"], ascending=[False, True], kind="stable")
    return _listed(source, chosen, lambda row: [" + ".join(source.look(k).name for k in row["found"])], heat=False)


def uncertain(source: ReportSource) -> ImageList:
    """Images whose class is not much more probable than another, the least sure first."""
    chosen = source.images[(source.images["probability"] < UNSURE) & (source.images["label"] >= 0)]
    return _listed(
        source,
        chosen.sort_values(["probability", "image"], kind="stable"),
        lambda row: [_class(source, row), _chances(source, row)],
    )


def unknown(source: ReportSource) -> ImageList:
    """Images that lie far from every class: labelled unknown, or further off than known regions should be."""
    images = source.images
    far = images["unknown"] if "unknown" in images else pd.Series(0.0, index=images.index)
    chosen = images.assign(far=far.fillna(0.0).astype(float), known=images["label"] >= 0)
    chosen = chosen[(chosen["label"] < 0) | ((chosen["far"] > FAR) & (chosen["label"] != 0))]
    order = chosen.sort_values(["known", "far", "image"], ascending=[True, False, True], kind="stable")
    return _listed(source, order, lambda row: [_class(source, row), _distance(row["far"])])


def skipped_files(source: ReportSource) -> tuple[list[SkippedFile], int]:
    """Files that could not be read, the first of many, and how many there are."""
    manifest = source.stored.manifest
    rows = manifest[manifest["status"] == "skipped"]
    first = rows.head(MOST_SKIPPED)
    return [SkippedFile(*pair) for pair in zip(first["image"], first["message"].fillna(""), strict=True)], len(rows)


def _listed(
    source: ReportSource,
    rows: pd.DataFrame,
    words: Callable[[dict[Any, Any]], list[str]],
    *,
    heat: bool = True,
    most: int | None = None,
) -> ImageList:
    shots = []
    for row in rows.head(most or MOST).to_dict("records"):
        lines = [line for line in words(row) if line]
        shots.append(source.whole(str(row["image"]), lines, heat=heat, side=SIDE))
    return ImageList(shots, len(rows))


def _class(source: ReportSource, row: dict[Any, Any]) -> str:
    return f"{source.look(int(row['label'])).name} ({row['probability']:.2f})"


def _distance(far: float) -> str:
    return f"unknown {far:.2f}" if far else ""


def _chances(source: ReportSource, row: dict[Any, Any]) -> str:
    chances = {int(key[2:]): float(value) for key, value in row.items() if str(key).startswith("p_")}
    return source.runner_up(chances, int(row["label"]))


def _labels(classes: str) -> list[int]:
    """`2;1` as numbers, normal left out."""
    return [int(label) for label in str(classes).split(";") if label.lstrip("-").isdigit() and label != "0"]
