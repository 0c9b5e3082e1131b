"""What the API answers, made from the state of a session."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import BaseModel, Field

from .apply import Applier
from .session import Session
from .state import Row, State
from .tables import UNKNOWN

Order = Literal["sure", "unsure", "image"]
SHOWN_MOVES = 60  # of one kind, as thumbnails


class ClassCard(BaseModel):
    """A class as corrected."""

    label: int = Field(description="0 normal, 1 … defects, −1 unknown")
    name: str
    n_regions: int
    n_images: int = Field(description="images with a region of this class")
    n_moved: int = Field(description="regions that corrections brought here")
    stamp: int = Field(description="changes when the card does")


class Step(BaseModel):
    """An action that could be undone or redone next."""

    id: int
    text: str


class JobAnswer(BaseModel):
    """An apply under way or the last one."""

    state: Literal["running", "done", "failed"]
    stage: str
    step: int
    total: int
    message: str
    notes: list[str]
    seconds: float


class StateAnswer(BaseModel):
    """Everything the page shows but the regions."""

    version: int = Field(description="id of the last row of the log")
    table: str = Field(description="tells whether numbers of regions still mean the same")
    run: str
    n_images: int
    classes: list[ClassCard]
    n_actions: int = Field(description="corrections that are not applied yet")
    n_changed: int = Field(description="regions whose class they change")
    undo: Step | None
    redo: Step | None
    notice: str
    applied: int = Field(description="id of the last apply, 0 for none")
    job: JobAnswer | None


class VersionAnswer(BaseModel):
    """Little enough to ask for every second."""

    version: int
    job: JobAnswer | None


class RegionAnswer(BaseModel):
    """A region."""

    id: int
    image: int
    image_name: str
    region: int
    label: int
    before: int = Field(description="label in the run's table")
    fixed: bool = Field(description="placed by a person")
    probability: float | None
    score: float | None
    unknown: float | None


class RegionsAnswer(BaseModel):
    """Some regions of a class."""

    version: int
    total: int = Field(description="of the class, as filtered")
    regions: list[RegionAnswer]


class MoveGroup(BaseModel):
    """Regions that went from one class to another."""

    before: int
    before_name: str
    after: int
    after_name: str
    count: int
    asked: int = Field(description="of these, moved by corrections; the others followed")
    regions: list[int]


class MovesAnswer(BaseModel):
    """What the last apply changed."""

    id: int
    total: int
    groups: list[MoveGroup]


class ActionAnswer(BaseModel):
    """An action that is stored, and what follows from it."""

    id: int
    state: StateAnswer


def state_answer(session: Session, applier: Applier) -> StateAnswer:
    """The whole state."""
    with session.lock:
        state = session.refresh()
        moved = state.changed()
        cards = [
            ClassCard(
                label=label, name=state.title(label), n_regions=len(rows), n_moved=int(moved[rows].sum()),
                n_images=len(np.unique(state.base.image_of[rows])), stamp=state.touched.get(label, 0),
            )
            for label in sorted(state.names, key=_place)
            for rows in [state.members(label)]
        ]  # fmt: skip
        return StateAnswer(
            version=session.version, table=state.base.table, run=session.run.resolve().name,
            n_images=len(state.base.images), classes=cards, n_actions=len(state.done), n_changed=int(moved.sum()),
            undo=_step(state, state.done), redo=_step(state, state.undone), notice=session.notice,
            applied=session.applied.id if session.applied else 0, job=job_answer(applier),
        )  # fmt: skip


def job_answer(applier: Applier) -> JobAnswer | None:
    return None if applier.job is None else JobAnswer(**applier.job.shown())


def regions_answer(
    session: Session, label: int, *, offset: int, limit: int, order: Order, contains: str
) -> RegionsAnswer | None:
    """A page of a class's regions; None where there is no such class."""
    with session.lock:
        state = session.refresh()
        if label not in state.names:
            return None
        rows = state.members(label)
        table = state.base.regions
        if contains:
            names = table["image"].iloc[rows]
            rows = rows[names.str.contains(contains, case=False, regex=False).to_numpy(bool)]
        if order != "image":
            sure = np.nan_to_num(table["probability"].to_numpy(np.float64)[rows], nan=-1.0)
            rows = rows[np.argsort(-sure if order == "sure" else sure, kind="stable")]
        chosen = rows[offset : offset + limit]
        return RegionsAnswer(version=session.version, total=len(rows), regions=_regions(state, chosen))


def moves_answer(session: Session) -> MovesAnswer:
    """What the last apply changed, the largest groups first."""
    with session.lock:
        base, row = session.refresh().base, session.applied
        if row is None:
            return MovesAnswer(id=0, total=0, groups=[])
        asked = {(image, region): label for image, region, label in row.body["labels"]}
        names = {int(label): name for label, name in row.body["names"].items()} | base.names  # of old classes as well
        groups: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for image, region, before, after in row.body["moves"]:
            groups.setdefault((before, after), []).append((image, region))
        shown = [
            MoveGroup(
                before=before, before_name=names.get(before, f"class {before}"), after=after,
                after_name=names.get(after, f"class {after}"), count=len(keys),
                asked=sum(asked.get(key) == after for key in keys),
                regions=[base.rows[key] for key in keys if key in base.rows][:SHOWN_MOVES],
            )
            for (before, after), keys in groups.items()
        ]  # fmt: skip
        shown.sort(key=lambda group: -group.count)
        return MovesAnswer(id=row.id, total=len(row.body["moves"]), groups=shown)


def _regions(state: State, rows: npt.NDArray[np.int64]) -> list[RegionAnswer]:
    base = state.base
    table = base.regions.iloc[rows]
    figures = {name: _figures(table, name) for name in ("probability", "score", "unknown")}
    return [
        RegionAnswer(
            id=row, image=int(base.image_of[row]), image_name=base.keys[row][0], region=base.keys[row][1],
            label=int(state.labels[row]), before=int(base.labels[row]), fixed=bool(state.fixed[row]),
            **{name: values[place] for name, values in figures.items()},
        )
        for place, row in enumerate(rows.tolist())
    ]  # fmt: skip


def _figures(table: pd.DataFrame, column: str) -> list[Any]:
    if column not in table:
        return [None] * len(table)
    return [float(v) if np.isfinite(v) else None for v in table[column].to_numpy(np.float64)]


def _step(state: State, stack: list[Row]) -> Step | None:
    return Step(id=stack[-1].id, text=state.describe(stack[-1])) if stack else None


def _place(label: int) -> tuple[int, int]:
    """Unknown first, because it is waiting; normal last, because it is the largest and the least news."""
    return (0 if label == UNKNOWN else 2 if label == 0 else 1, label)
