"""What clients send and get. Numbers of regions are those of the run's table, which a request names."""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator

MOST_REGIONS = 100_000
MOST_LEARNED = 1_000  # images of one lesson
LONGEST_NAME = 80
Order = Literal["sure", "unsure", "image"]
Size = Literal["any", "small", "large"]
InImage = Literal["any", "left", "right", "top", "bottom", "middle", "edge"]
JobState = Literal["running", "done", "failed"]

MOST_STROKES, MOST_POINTS = 100, 2_000
Share = Annotated[float, Field(ge=0, le=1)]
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


class Stroke(_Strict):
    """A line of a brush, or the area that points enclose."""

    points: Annotated[list[tuple[Share, Share]], Field(min_length=1, max_length=MOST_POINTS)] = Field(
        description="x and y each, in shares of the image's width and height"
    )
    width: Annotated[float, Field(ge=0, le=0.5)] = Field(
        default=0, description="of the brush, in shares of the image's longer side; 0: the area inside, as of a box"
    )


class Draw(_Strict):
    """A defect that was missed: it becomes a region of the image, of a class or of a new one where `to` is null."""

    kind: Literal["draw"]
    image: Annotated[int, Field(ge=0, le=2**31)]
    strokes: Annotated[list[Stroke], Field(min_length=1, max_length=MOST_STROKES)]
    to: Annotated[int, Field(ge=1, le=1_000_000)] | None


class Undo(_Strict):
    """Take back the last action, which must be the one with this id."""

    kind: Literal["undo"]
    action: Annotated[int, Field(ge=0)]


class Redo(_Strict):
    """Do again what was undone last, which must be the action with this id."""

    kind: Literal["redo"]
    action: Annotated[int, Field(ge=0)]


Action = Annotated[Name | Merge | Split | Move | FalseAlarm | Draw | Undo | Redo, Field(discriminator="kind")]
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


class LessonRequest(_Strict):
    """Show images to the detector as good ones; told what that would change, and done where `apply` says so."""

    key: UniqueKey
    version: Annotated[int, Field(ge=0)]
    images: Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1, max_length=MOST_LEARNED)]
    apply: bool = False


class ClassCard(BaseModel):
    """A class as corrected."""

    label: int = Field(description="0 normal, 1 … defects, −1 unknown")
    name: str
    n_regions: int
    n_images: int = Field(description="images of this class, as the report counts them")
    n_moved: int = Field(description="regions that corrections brought here")
    stamp: int = Field(description="changes when the card does")


class Step(BaseModel):
    """An action that could be undone or redone next."""

    id: int
    text: str


class JobAnswer(BaseModel):
    """An apply under way or the last one."""

    state: JobState
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
    can_learn_normal: bool = Field(description="whether the detector can be shown more normal images")
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
    drawn: bool = Field(description="drawn by a person since the last apply, which makes a region of the run of it")
    probability: float | None
    score: float | None
    unknown: float | None


class RegionsAnswer(BaseModel):
    """Some regions of a class."""

    version: int
    total: int = Field(description="of the class, as filtered")
    regions: list[RegionAnswer]


class LessonAnswer(BaseModel):
    """What the detector says of other images once it has learned some as normal."""

    job: JobAnswer | None
    n_normal: int = Field(description="images that were learned")
    n_defective: int = Field(description="other images that the run calls defective")
    turned: list[str] = Field(description="of these, names of some that would score like normal ones")
    lost: list[str] = Field(
        description="of these, names of some that people placed or named: defects that would be missed"
    )
    applied: bool = Field(description="whether the run has the new detector now")


class CopiedImage(BaseModel):
    """An image that there is nearly the same of."""

    image: int
    name: str


class CopiesAnswer(BaseModel):
    """Groups of images that are nearly the same."""

    groups: list[list[CopiedImage]]


class NextAnswer(BaseModel):
    """What to look at next, the most rewarding first."""

    version: int
    regions: list[RegionAnswer] = Field(description="uncertain and unlike each other, one an image")
    merges: list[dict[str, Any]] = Field(description="two classes each that may be one: `classes`, `names`, `share`")
    splits: list[dict[str, Any]] = Field(description="a class each that may be two: `class`, `name`, `share`, `parts`")


class MoveGroup(BaseModel):
    """Regions that went from one class to another."""

    before: int = Field(description="label, −3 for what was drawn")
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


class SimilarAnswer(BaseModel):
    """Regions that look like one, the likest first."""

    regions: list[RegionAnswer]
    alike: list[float] = Field(description="cosine of their features with that one, −1 … 1")


class MergeHint(BaseModel):
    """Two classes that are most alike."""

    one: int
    other: int
    share: float = Field(description="of what tells regions apart that would be lost")


class SplitHint(BaseModel):
    """A class that is least alike in itself."""

    label: int
    share: float = Field(description="of what tells regions apart that would be gained")
    sizes: list[int]


class HintsAnswer(BaseModel):
    """What suggests itself, of the run as it was applied last."""

    merges: list[MergeHint]
    splits: list[SplitHint]
    rare: list[list[int]] = Field(description="numbers of regions that lie apart from all others, by group")


class HistoryAnswer(BaseModel):
    """Actions that can be undone, the last one first, and redone."""

    done: list[Step]
    undone: list[Step]


class NormalImage(BaseModel):
    """An image without a defect, as corrected."""

    image: int
    image_name: str
    false_alarm: float | None = Field(
        description="chance that a good product looks as suspicious; the lower, the more suspicious"
    )
    regions: list[int] = Field(description="its regions that were taken for false alarms")


class NormalAnswer(BaseModel):
    """Some images without a defect, the most suspicious first."""

    version: int
    total: int
    images: list[NormalImage]
