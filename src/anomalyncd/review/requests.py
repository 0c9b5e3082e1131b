"""What a client may ask for. Numbers of regions are those of the run's table, which the request names."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

MOST_REGIONS = 100_000
LONGEST_NAME = 80

Label = Annotated[int, Field(ge=-1, le=1_000_000)]
Regions = Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1, max_length=MOST_REGIONS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)


class Name(_Strict):
    """Give a class a name."""

    kind: Literal["name"]
    label: Label
    name: Annotated[str, StringConstraints(max_length=500)]

    @field_validator("name")
    @classmethod
    def _plain(cls, text: str) -> str:
        """One line of visible text: it goes into tables, file names and pages."""
        shown = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in text)
        shown = " ".join(shown.split())
        if any(unicodedata.category(c) in ("Cf", "Cs") and c not in "\u200c\u200d" for c in shown):
            raise ValueError("a name must be visible text")
        if not 1 <= len(shown) <= LONGEST_NAME:
            raise ValueError(f"a name must have 1 … {LONGEST_NAME} characters")
        return shown


class Merge(_Strict):
    """Make one class of two: all of `from` goes to `into`, which keeps its name."""

    kind: Literal["merge"]
    source: Label = Field(alias="from")
    into: Label


class Split(_Strict):
    """Divide a class by what its regions look like. The largest part keeps number and name."""

    kind: Literal["split"]
    label: Label
    parts: Annotated[int, Field(ge=2, le=10)] = 2


class Move(_Strict):
    """Put regions into a class, or into a new one where `to` is null."""

    kind: Literal["move"]
    regions: Regions
    to: Label | None


class FalseAlarm(_Strict):
    """Say that regions are no defect."""

    kind: Literal["false_alarm"]
    regions: Regions


class Undo(_Strict):
    """Take back the last action, which must be the one with this id."""

    kind: Literal["undo"]
    action: Annotated[int, Field(ge=0)]


class Redo(_Strict):
    """Do again what was undone last, which must be the action with this id."""

    kind: Literal["redo"]
    action: Annotated[int, Field(ge=0)]


Action = Annotated[Name | Merge | Split | Move | FalseAlarm | Undo | Redo, Field(discriminator="kind")]
UniqueKey = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$", description="Unique to this request; sent again it is done once.")
]


class ActionRequest(_Strict):
    """One action by someone who has seen the state `version` of the table `table`."""

    key: UniqueKey
    version: Annotated[int, Field(ge=0)]
    table: Annotated[str, StringConstraints(max_length=64)]
    action: Action


class ApplyRequest(_Strict):
    """Learn from all corrections up to `version`, which must be the last."""

    key: UniqueKey
    version: Annotated[int, Field(ge=0)]
