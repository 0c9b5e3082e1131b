"""What helps to decide: regions that look alike, rare kinds, merges and splits that suggest themselves, the history."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RunError
from ..guide.copies import copies
from ..labels import NORMAL
from ..large import BLOCK, blocks, is_large
from ..learn.rows import vectors
from ..run.finished import FinishedRun
from . import schema
from .classes import ConflictError, CorrectedClasses, UncorrectedClasses
from .page_data import region_answer
from .session import Session

MOST_RARE = 60  # groups
MOST_COPIES = 500  # groups
MOST_HINTS = 4  # merges, and splits
LOST_AT_MOST = 0.25  # share of the spread up to which two classes may be one kind
DAMAGED = (RunError, KeyError, TypeError, ValueError, OverflowError)  # of a stranger's run: the page does without


class Likeness:
    """Unit vectors (R, D) of all regions of one state of the tables, read when first asked for: of very many in 16 bits."""

    def __init__(self) -> None:
        self._vectors = lru_cache(1)(self._read)
        self._copies = lru_cache(1)(self._read_copies)

    def nearest(self, classes: UncorrectedClasses, region: int, count: int) -> list[tuple[int, float]]:
        """Regions most like this one, and how alike they are (cosine), the likest first; itself left out."""
        known = self._vectors(classes.run.path, classes.table, classes.learned)
        own = known[region].astype(np.float32)
        # 32 bits where they are few: then these are the vectors themselves, and nothing is copied.
        step = BLOCK if is_large(known) else len(known)
        pieces = (known[start : start + step] for start in range(0, len(known), step))
        alike = np.concatenate([piece.astype(np.float32, copy=False) @ own for piece in pieces])
        alike[region] = -np.inf
        best = np.argsort(-alike, kind="stable")[: min(count, len(alike) - 1)]
        return [(int(row), float(alike[row])) for row in best]

    def copies(self, classes: UncorrectedClasses) -> list[list[int]]:
        """Numbers of images that are nearly the same, by group."""
        return self._copies(classes.run.path, classes.learned, len(classes.images))

    @staticmethod
    def _read_copies(path: Path, _learned: str, n_images: int) -> list[list[int]]:
        store = FinishedRun(path, device="cpu").store
        return [] if store.scenes is None or len(store.scenes) != n_images else copies(store.scenes)

    @staticmethod
    def _read(path: Path, _table: str, _learned: str) -> npt.NDArray[np.floating]:
        run = FinishedRun(path, device="cpu")  # one that is let go afterwards: its features are larger than these
        classifier = run.model.classifier
        if classifier is None:
            raise RunError(
                f"{path}: nothing was learned in this run, so nothing is known of what its regions look like."
            )
        rows = vectors(classifier.space, run.features)
        out = np.empty(rows.shape, np.float16 if is_large(rows) else np.float32)
        for block in blocks(len(rows)):
            some = rows[block]
            out[block] = some / np.maximum(np.linalg.norm(some, axis=1, keepdims=True), 1e-12)
        return out


def similar_answer(session: Session, likeness: Likeness, region: int, limit: int) -> schema.SimilarAnswer:
    """The regions that are most like one, whatever class they have."""
    with session.lock:
        classes = session.refresh()
    before = classes.before
    row = classes.row(region)
    if classes.drawing(row) is not None:
        raise ConflictError("What a drawn defect looks like is known after the next Apply.")
    found = likeness.nearest(before, row, limit)
    return schema.SimilarAnswer(
        regions=[region_answer(classes, row) for row, _ in found],
        alike=[round(share, 3) for _, share in found],
    )


def hints_answer(session: Session) -> schema.HintsAnswer:
    """Of the run as it was applied last: what is not there any more is left out."""
    with session.lock:
        classes = session.refresh()
        merges: list[schema.MergeHint] = []
        splits: list[schema.SplitHint] = []
        rare: list[list[int]] = []
        with suppress(*DAMAGED):
            merges, splits = _steps(classes, classes.before.run.tree)
        with suppress(*DAMAGED):
            rare = _rare(classes)
        return schema.HintsAnswer(merges=merges, splits=splits, rare=rare)


def normal_answer(session: Session, offset: int, limit: int) -> schema.NormalAnswer:
    """Images of which no region has a defect or is unknown, the most suspicious first."""
    with session.lock:
        classes = session.refresh()
        before, table = classes.before, classes.before.run.images
        abnormal, number = set(classes.image_of[classes.labels != NORMAL].tolist()), before.numbers
        chances = table["false_alarm"].tolist() if "false_alarm" in table else [math.nan] * len(table)
        # An image without regions has the label that the run gave it: all of a run without normal ones are defects.
        bare = set(range(len(before.images))) - set(before.image_of.tolist())
        found = [
            (number[name], chance)
            for name, label, chance in zip(table["image"], table["label"], chances, strict=True)
            if number[name] not in abnormal and (number[name] not in bare or label == NORMAL)
        ]
        found.sort(key=lambda each: each[1] if math.isfinite(each[1]) else math.inf)
        chosen = found[offset : offset + limit]
        rows: dict[int, list[int]] = {image: [] for image, _ in chosen}
        for row in np.flatnonzero(np.isin(before.image_of, list(rows))).tolist():
            rows[int(before.image_of[row])].append(row)
        images = [
            schema.NormalImage(
                image=image, image_name=before.shown[image], regions=rows[image],
                false_alarm=chance if math.isfinite(chance) else None,
            )
            for image, chance in chosen
        ]  # fmt: skip
        return schema.NormalAnswer(version=session.version, total=len(found), images=images)


def copies_answer(session: Session, likeness: Likeness) -> schema.CopiesAnswer:
    """Groups of images that are nearly the same; none where the run does not tell."""
    with session.lock:
        before = session.refresh().before
    groups: list[list[int]] = []
    with suppress(*DAMAGED):
        groups = likeness.copies(before)
    return schema.CopiesAnswer(
        groups=[
            [schema.CopiedImage(image=image, name=before.shown[image]) for image in group]
            for group in groups[:MOST_COPIES]
        ]
    )


def history_answer(session: Session) -> schema.HistoryAnswer:
    """Actions since the last apply, the last one first."""
    with session.lock:
        classes = session.refresh()
        done = [schema.Step(id=row.id, text=classes.describe(row)) for row in reversed(classes.done)]
        undone = [schema.Step(id=row.id, text=classes.describe(row)) for row in classes.undone]
        return schema.HistoryAnswer(done=done, undone=undone)


def _steps(classes: CorrectedClasses, tree: dict[str, Any]) -> tuple[list[schema.MergeHint], list[schema.SplitHint]]:
    merges = [
        schema.MergeHint(one=int(one[0]), other=int(other[0]), share=float(step["share"]))
        for step in tree["merges"]
        for one, other in [step["classes"]]
        if len(one) == len(other) == 1 and float(step["share"]) <= LOST_AT_MOST
    ]
    splits = [
        schema.SplitHint(
            label=int(step["class"]),
            share=float(step["share"]),
            sizes=[int(part["n_regions"]) for part in step["parts"]],
        )
        for step in tree["splits"]
    ]
    there = {label for label in classes.names if label > NORMAL and len(classes.members(label))}
    return (
        [hint for hint in merges if {hint.one, hint.other} <= there][:MOST_HINTS],
        [hint for hint in splits if hint.label in there][:MOST_HINTS],
    )


def _rare(classes: CorrectedClasses) -> list[list[int]]:
    """Numbers of the regions of each group, the largest first."""
    before, groups = classes.before, dict[int, list[int]]()
    table = before.run.outliers
    for image, region, group in zip(table["image"], table["region"], table["group"], strict=True):
        if (row := before.rows.get((str(image), int(region)))) is not None:
            groups.setdefault(int(group), []).append(row)
    return sorted(groups.values(), key=lambda rows: -len(rows))[:MOST_RARE]
