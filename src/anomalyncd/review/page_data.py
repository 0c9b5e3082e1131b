"""What the page shows: the classes as corrected, some regions of a class, and what the last apply moved."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from ..labels import NORMAL, UNKNOWN, default_name
from . import schema
from .action_log import Row
from .apply import Applier
from .corrected import CorrectedClasses
from .session import Session
from .uncorrected import Key

SHOWN_MOVES = 60  # of one kind, as thumbnails


def state_answer(session: Session, applier: Applier) -> schema.StateAnswer:
    """Everything but the regions."""
    with session.lock:
        classes = session.refresh()
        moved, before = classes.moved(), classes.before
        cards = [
            schema.ClassCard(
                label=label, name=classes.title(label), n_regions=len(rows), n_moved=int(moved[rows].sum()),
                n_images=len(np.unique(before.image_of[rows])), stamp=classes.changed_by.get(label, 0),
            )
            for label in sorted(classes.names, key=_place)
            for rows in [classes.members(label)]
        ]  # fmt: skip
        return schema.StateAnswer(
            version=session.version, table=before.table, run=session.run.resolve().name, n_images=len(before.images),
            classes=cards, n_actions=len(classes.done), n_changed=int(moved.sum()), undo=_step(classes, classes.done),
            redo=_step(classes, classes.undone), notice=session.notice,
            applied=session.applied.id if session.applied else 0, job=applier.job and applier.job.answer(),
        )  # fmt: skip


def regions_answer(
    session: Session, label: int, *, offset: int, limit: int, order: schema.Order, contains: str
) -> schema.RegionsAnswer:
    """Some regions of a class, in order; contains : part of the image's name, whatever its case"""
    with session.lock:
        classes = session.refresh()
        classes.check_class(label)
        before, rows = classes.before, classes.members(label)
        if contains:
            rows = rows[[contains.lower() in before.keys[row][0].lower() for row in rows]]
        if order != "image":
            sure = np.nan_to_num(before.regions["probability"].to_numpy(np.float64)[rows], nan=-1.0)
            rows = rows[np.argsort(-sure if order == "sure" else sure, kind="stable")]
        chosen = rows[offset : offset + limit].tolist()
        cells = before.regions.iloc[chosen].to_dict("records")
        regions = [_region(classes, row, figures) for row, figures in zip(chosen, cells, strict=True)]
        return schema.RegionsAnswer(version=session.version, total=len(rows), regions=regions)


def moves_answer(session: Session) -> schema.MovesAnswer:
    """What the last apply changed, the largest groups first."""
    with session.lock:
        classes, row = session.refresh().before, session.applied
        if row is None:
            return schema.MovesAnswer(id=0, total=0, groups=[])
        asked = {(image, region): label for image, region, label in row.body["labels"]}
        names = {int(label): name for label, name in row.body["names"].items()} | classes.names  # old classes as well
        groups: dict[tuple[int, int], list[Key]] = {}
        for image, region, before, after in row.body["moves"]:
            groups.setdefault((before, after), []).append((image, region))
        shown = [
            schema.MoveGroup(
                before=before, before_name=names.get(before, default_name(before)), after=after,
                after_name=names.get(after, default_name(after)), count=len(keys),
                asked=sum(asked.get(key) == after for key in keys),
                regions=[classes.rows[key] for key in keys if key in classes.rows][:SHOWN_MOVES],
            )
            for (before, after), keys in groups.items()
        ]  # fmt: skip
        shown.sort(key=lambda group: -group.count)
        return schema.MovesAnswer(id=row.id, total=len(row.body["moves"]), groups=shown)


def _region(classes: CorrectedClasses, row: int, cells: dict[Hashable, Any]) -> schema.RegionAnswer:
    before, columns = classes.before, ("probability", "score", "unknown")
    figures = {column: cells[column] if math.isfinite(cells.get(column, math.nan)) else None for column in columns}
    return schema.RegionAnswer(
        id=row, image=int(before.image_of[row]), image_name=before.keys[row][0], region=before.keys[row][1],
        label=int(classes.labels[row]), before=int(before.labels[row]), fixed=bool(classes.fixed[row]), **figures,
    )  # fmt: skip


def _step(classes: CorrectedClasses, stack: list[Row]) -> schema.Step | None:
    return schema.Step(id=stack[-1].id, text=classes.describe(stack[-1])) if stack else None


def _place(label: int) -> tuple[int, int]:
    """Unknown first, because it is waiting; normal last, because it is the largest and the least news."""
    return (0 if label == UNKNOWN else 2 if label == NORMAL else 1, label)
