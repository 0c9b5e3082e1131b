"""What the page shows: the classes as corrected, some regions of a class, and what the last apply moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..labels import NORMAL, UNKNOWN, default_name
from .action_log import Row
from .apply import Applier
from .corrected import CorrectedClasses
from .schema import (
    ClassCard,
    MoveGroup,
    MovesAnswer,
    Order,
    RegionAnswer,
    RegionsAnswer,
    StateAnswer,
    Step,
)
from .session import Session

SHOWN_MOVES = 60  # of one kind, as thumbnails


def state_answer(session: Session, applier: Applier) -> StateAnswer:
    """The whole classes."""
    with session.lock:
        classes = session.refresh()
        moved = classes.moved()
        cards = [
            ClassCard(
                label=label, name=classes.title(label), n_regions=len(rows), n_moved=int(moved[rows].sum()),
                n_images=len(np.unique(classes.before.image_of[rows])), stamp=classes.changed_by.get(label, 0),
            )
            for label in sorted(classes.names, key=_place)
            for rows in [classes.members(label)]
        ]  # fmt: skip
        return StateAnswer(
            version=session.version, table=classes.before.table, run=session.run.resolve().name,
            n_images=len(classes.before.images), classes=cards, n_actions=len(classes.done), n_changed=int(moved.sum()),
            undo=_step(classes, classes.done), redo=_step(classes, classes.undone), notice=session.notice,
            applied=session.applied.id if session.applied else 0, job=applier.job and applier.job.answer(),
        )  # fmt: skip


def regions_answer(
    session: Session, label: int, *, offset: int, limit: int, order: Order, contains: str
) -> RegionsAnswer | None:
    """A page of a class's regions; None where there is no such class."""
    with session.lock:
        classes = session.refresh()
        if label not in classes.names:
            return None
        rows = classes.members(label)
        table = classes.before.regions
        if contains:
            names = table["image"].iloc[rows]
            rows = rows[names.str.contains(contains, case=False, regex=False).to_numpy(bool)]
        if order != "image":
            sure = np.nan_to_num(table["probability"].to_numpy(np.float64)[rows], nan=-1.0)
            rows = rows[np.argsort(-sure if order == "sure" else sure, kind="stable")]
        chosen = rows[offset : offset + limit]
        return RegionsAnswer(version=session.version, total=len(rows), regions=_regions(classes, chosen))


def moves_answer(session: Session) -> MovesAnswer:
    """What the last apply changed, the largest groups first."""
    with session.lock:
        base, row = session.refresh().before, session.applied
        if row is None:
            return MovesAnswer(id=0, total=0, groups=[])
        asked = {(image, region): label for image, region, label in row.body["labels"]}
        names = {int(label): name for label, name in row.body["names"].items()} | base.names  # of old classes as well
        groups: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for image, region, before, after in row.body["moves"]:
            groups.setdefault((before, after), []).append((image, region))
        shown = [
            MoveGroup(
                before=before, before_name=names.get(before, default_name(before)), after=after,
                after_name=names.get(after, default_name(after)), count=len(keys),
                asked=sum(asked.get(key) == after for key in keys),
                regions=[base.rows[key] for key in keys if key in base.rows][:SHOWN_MOVES],
            )
            for (before, after), keys in groups.items()
        ]  # fmt: skip
        shown.sort(key=lambda group: -group.count)
        return MovesAnswer(id=row.id, total=len(row.body["moves"]), groups=shown)


def _regions(classes: CorrectedClasses, rows: npt.NDArray[np.int64]) -> list[RegionAnswer]:
    base = classes.before
    table = base.regions.iloc[rows]
    figures = {name: _figures(table, name) for name in ("probability", "score", "unknown")}
    return [
        RegionAnswer(
            id=row, image=int(base.image_of[row]), image_name=base.keys[row][0], region=base.keys[row][1],
            label=int(classes.labels[row]), before=int(base.labels[row]), fixed=bool(classes.fixed[row]),
            **{name: values[place] for name, values in figures.items()},
        )
        for place, row in enumerate(rows.tolist())
    ]  # fmt: skip


def _figures(table: pd.DataFrame, column: str) -> list[Any]:
    if column not in table:
        return [None] * len(table)
    return [float(v) if np.isfinite(v) else None for v in table[column].to_numpy(np.float64)]


def _step(classes: CorrectedClasses, stack: list[Row]) -> Step | None:
    return Step(id=stack[-1].id, text=classes.describe(stack[-1])) if stack else None


def _place(label: int) -> tuple[int, int]:
    """Unknown first, because it is waiting; normal last, because it is the largest and the least news."""
    return (0 if label == UNKNOWN else 2 if label == NORMAL else 1, label)
