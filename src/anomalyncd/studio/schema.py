"""What the page of the studio sends and gets. Places are a root's number and a path inside it, never paths of the server."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from .jobs import State

MOST_KINDS = 1000
MOST_SHAPES, MOST_POINTS = 50, 200  # of parts to ignore, and points of one
Share = Annotated[float, Field(ge=0, le=1)]
Shape = Annotated[list[tuple[Share, Share]], Field(min_length=3, max_length=MOST_POINTS)]
Shapes = Annotated[list[Shape], Field(max_length=MOST_SHAPES)]
RunName = Annotated[str, StringConstraints(min_length=1, max_length=255)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Place(_Strict):
    """A folder to read images from."""

    root: Annotated[int, Field(ge=0, le=1000)]
    path: Annotated[str, StringConstraints(max_length=4096)] = ""


class NewFolder(_Strict):
    """A folder for images that are about to be sent."""

    name: Annotated[str, StringConstraints(max_length=200)] = ""


class SentImage(BaseModel):
    """An image that was kept."""

    name: str


class NewRun(_Strict):
    """Find kinds of defects in the images of a folder."""

    name: Annotated[str, StringConstraints(max_length=200)] = ""
    images: Place
    normal: Place | None = Field(default=None, description="images of good products")
    kinds: Annotated[int, Field(ge=1, le=MOST_KINDS)] | None = Field(
        default=None, description="of defects, without the good ones; null: estimated"
    )
    all_defective: bool = Field(default=False, description="no image is of a good product")
    known: Place | None = Field(default=None, description="class folders of labelled images: LABELLED/CLASS/IMAGE")
    known_run: RunName | None = Field(default=None, description="a run whose names and corrections are taken over")
    ignore: Shapes = Field(default=[], description="parts of the picture in which nothing is looked for")


class ClassCount(BaseModel):
    """A class of a run."""

    label: int
    name: str
    n_images: int


class NewIgnored(_Strict):
    """Parts of the picture in which nothing is to be looked for."""

    ignore: Shapes


class IgnoredAnswer(BaseModel):
    """What a run would no longer find."""

    n_regions: int = Field(description="with their middle in a part that is ignored")
    n_images: int = Field(description="that have no other region, so that they would be normal")
    classes: list[ClassCount] = Field(description="regions of each class that would go, as n_images")


class NewPrediction(_Strict):
    """Class the images of a folder with a finished run."""

    images: Place
    maps: Place | None = Field(default=None, description="maps or masks, for runs that were made with these")


class NewSensitivity(_Strict):
    """Draw the line between normal and defect elsewhere."""

    share: Annotated[float, Field(gt=0, lt=0.5)] = Field(description="of normal images that may be called defective")


class LineStep(BaseModel):
    """What a share would mean."""

    share: float
    line: float = Field(description="score from which on an image is called a defect by its score alone")
    n_defects: int = Field(description="images that would be called defects, about")


class LineAnswer(BaseModel):
    """How images score, and where the line between normal and defect is."""

    share: float = Field(description="of normal images that may be called defects, now")
    n_images: int
    n_defects: int
    edges: list[float]
    own: list[int] = Field(description="images of the run, by score")
    normal: list[int] = Field(description="good images that the detector learned from, by score")
    steps: list[LineStep]


class Nothing(_Strict):
    """An order without details."""


class StageAnswer(BaseModel):
    """A part of a job that is done."""

    stage: str
    seconds: float


class JobAnswer(BaseModel):
    """A job and how far it is."""

    number: int
    kind: str
    run: str
    title: str
    state: State
    created: float = Field(description="seconds since 1970")
    stage: str
    step: int
    total: int
    seconds: float = Field(description="in this stage, so far")
    left: float | None = Field(description="seconds until this stage ends, about")
    done: list[StageAnswer]
    message: str


class JobDetails(JobAnswer):
    """With what it said."""

    log: str


class RunAnswer(BaseModel):
    """A run in short."""

    name: str
    is_finished: bool
    finished: float = Field(description="seconds since 1970, 0 where it is not")
    n_images: int
    n_normal: int
    n_kinds: int
    n_regions: int
    classes: list[ClassCount]
    has_report: bool
    can_move_line: bool = Field(description="whether the studio knows how the run was made")
    trouble: str
    stamp: str = Field(description="changes when the picture does")


class RunDetails(RunAnswer):
    """With what reading its settings tells."""

    needs: str = Field(description="image, or what new images need beside them: map or mask")


class StateAnswer(BaseModel):
    """Everything the first page shows."""

    workspace: str
    roots: list[str]
    runs: list[RunAnswer]
    jobs: list[JobAnswer]
    tables: list[str] = Field(description="of `watch`, of which there is a page of the day")


class FolderAnswer(BaseModel):
    """What a folder holds that may be chosen."""

    root: int
    path: str
    name: str
    folders: list[str]
    images: list[str] = Field(description="some of them")
    n_images: int
    more: bool = Field(description="there is more than was looked at")


class PredictedImage(BaseModel):
    """A row of a prediction."""

    id: int
    image: str
    label: int
    class_name: str
    probability: float | None


class PredictionAnswer(BaseModel):
    """Some rows of a prediction and the counts of all."""

    total: int
    classes: list[ClassCount]
    images: list[PredictedImage]


class Moved(BaseModel):
    """Images that are in one class here and in another one there."""

    before: str
    after: str
    count: int
    images: list[int] = Field(description="numbers of some of them, in the second run")


class CompareAnswer(BaseModel):
    """Two runs of the same images."""

    first: str
    second: str
    shared: int = Field(description="images that both have")
    only_first: int
    only_second: int
    same: int = Field(description="shared images whose classes are matched to each other")
    rows: list[str]
    columns: list[str]
    matched: list[tuple[int, int]] = Field(description="row and column of classes that are the same")
    table: list[list[int]]
    moved: list[Moved]
