"""An experiment as YAML says it: which rows on which data, what is measured; and what the paper prints of the same."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from ..config import Preset, make_config
from ..detect.base import misfit, setting_defaults
from ..errors import SettingsError
from ..sections import Section
from ..settings_text import read_yaml
from .rivals import RIVALS

OURS, PAPER_ONLY = "anomalyncd", "none"  # methods that are no rival's name
MASKS, IMAGES_ONLY = "masks", "none"  # sources that are no detector's name
OF_ALL_ROWS = (
    "random_state",
    "backbone",
    "backbone_weights",
    "device",
    "precision",
    "progress",
)  # arguments that no row sets
BEST = "best"  # detector of the paper
EACH = "each"  # base set: every data set that is given, in turn

# What can be measured: the measurement that gives it, and how a table calls it. Measurements are stored one by one, so that
# experiments share what they have in common.
METRICS = {
    "nmi": ("classes", "NMI"),
    "ari": ("classes", "ARI"),
    "f1": ("classes", "F1"),
    "normal_precision": ("classes", "normal precision"),
    "normal_recall": ("classes", "normal recall"),
    "ece": ("classes", "calibration error"),
    "false_alarms": ("classes", "false alarms"),
    "missed": ("classes", "missed"),
    "seconds_image": ("classes", "s an image"),
    "peak_mb": ("classes", "peak MB"),
    "kinds": ("classes", "kinds found"),
    "true_kinds": ("classes", "true kinds"),
    "learning": ("classes", "s to count and learn"),
    "fpr": ("boxes", "box FPR"),
    "fnr": ("boxes", "box FNR"),
    "fpr_defective": ("boxes", "box FPR, defective images"),
    "fnr_images": ("boxes", "images without a match"),
    "aupro": ("boxes", "AUPRO"),
    "image_auroc": ("boxes", "image AUROC"),
    "pixel_auroc": ("boxes", "pixel AUROC"),
    "binarize-and-crop": ("modules", "binarise and crop"),
    "network": ("modules", "network"),
    "merge": ("modules", "merge"),
    "total": ("modules", "total"),
    "several": ("combined", "images with several classes"),
    "inside_plain": ("attention", "in the mask: not guided"),
    "inside_guided": ("attention", "guided"),
    "inside_whole": ("attention", "guided, whole image"),
    "inside_supervised": ("attention", "not guided, trained with labels"),
    "merged_otherwise": ("merging", "images that an average calls otherwise"),
    "lowest_cut": ("sheet", "lowest threshold"),
    "highest_cut": ("sheet", "highest threshold"),
    "normal_value": ("values", "mean map value, normal pixels"),
    "faintest_value": ("values", "defect of the faintest image"),
    "strongest_value": ("values", "defect of the strongest image"),
}


class Row(Section):
    """One line of a table.

    method : `anomalyncd`, a rival's name, or `none` for what only the paper has
    settings : of AnomalyNCD, nested as in its configuration; of a rival, its own arguments
    source, seeds, base, exclude : instead of the experiment's
    data : of the experiment's data sets, those that the row runs on; without it all
    x : where a line figure draws the row; without it the row is a level line
    paper : columns that find the same row in the paper's tables; data set, detector and base set are added. The detector
        `best` is that of the paper's with the highest F1
    """

    name: str
    method: str = OURS
    preset: Preset | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    source: str | None = None
    seeds: list[int] | None = None
    base: list[str] | None = None
    exclude: list[str] | None = None
    data: list[str] | None = None
    x: float | None = None
    paper: dict[str, str] | None = None

    @field_validator("method")
    @classmethod
    def _known(cls, value: str) -> str:
        names = (OURS, PAPER_ONLY, *RIVALS)
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return value

    @model_validator(mode="after")
    def _fits(self) -> Row:
        if self.method == OURS:
            make_config(self.settings, preset=self.preset)
        elif self.preset is not None:
            raise ValueError(f"preset is for {OURS} only")
        elif (kind := RIVALS.get(self.method)) is not None:
            names = [name for name in setting_defaults(kind) if name not in OF_ALL_ROWS]
            if unknown := [name for name in self.settings if name not in names]:
                raise ValueError(f"{self.method} has no setting {unknown[0]}; it has {', '.join(names)}")
            if words := misfit(kind, self.settings):
                raise ValueError(words)
        return self


class Experiment(Section):
    """A named experiment.

    tables : numbers of the paper's tables that print the same; where several tell, the first one counts
    data : data sets it wants; empty = every one that is given
    sources : where regions come from: `masks` (ground truth), a detector, or `none` (whole images). Every row runs with
        each of them; without any, each row has its own `source`
    base : labelled base sets, the first that is given is used; `each` = every data set in turn
    exclude : class folders that are left out
    layout : `wide`: a line for each row, all metrics in one cell; `long`: a line for each data set, source and row, a column
        for each metric, which is easier to read where there are many of them
    summary : what the paper adds to all rows: the mean `rank` of each over all figures, or the `variance` of the rows
    figure : what is drawn beside the table: metrics against the rows' `x` (called `x_name`); F1 of all rows and of the paper
        as bars, a panel for each source; t-SNE of the features; the last metric against the first, a point a data set and
        source; the two classes that the first row takes for each other most, in all rows; or the pictures that were measured
    """

    name: str
    title: str
    tables: list[str] = Field(default_factory=list)
    note: str = ""
    data: list[str] = Field(default_factory=list)
    sources: list[str] = Field(default_factory=list)
    base: list[str] = Field(default_factory=list)
    exclude: list[str] = Field(default_factory=lambda: ["combined"])
    seeds: list[int] = Field(default_factory=lambda: [0, 1, 2], min_length=1)
    metrics: list[str] = Field(default_factory=lambda: ["nmi", "ari", "f1"], min_length=1)
    layout: Literal["wide", "long"] = "wide"
    summary: Literal["rank", "variance"] | None = None
    figure: Literal["lines", "bars", "tsne", "scatter", "pair", "pictures"] | None = None
    x_name: str = "x"
    rows: list[Row] = Field(min_length=1)

    @field_validator("metrics")
    @classmethod
    def _measurable(cls, names: list[str]) -> list[str]:
        if unknown := sorted(set(names) - set(METRICS)):
            raise ValueError(f"{unknown[0]} is not one of {', '.join(METRICS)}")
        return names

    @model_validator(mode="after")
    def _fits(self) -> Experiment:
        names = [row.name for row in self.rows]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two rows are called {twice[0]!r}")
        for table in self.tables:
            paper_table(table)  # raises where the paper has none
        if self.figure == "lines" and all(row.x is None for row in self.rows):
            raise ValueError("a figure of lines needs rows with x")
        for row in self.rows:
            if self.sources and row.source not in (None, *self.sources):
                raise ValueError(f"row {row.name!r}: its source {row.source} is not among the experiment's")
            if not self.sources and row.source is None and row.method != PAPER_ONLY:
                raise ValueError(f"row {row.name!r} needs a source, because the experiment names none")
            if row.method == OURS and IMAGES_ONLY in self.sources_of(row):
                raise ValueError(f"row {row.name!r} needs maps or masks, so its source cannot be {IMAGES_ONLY}")
        return self

    def sources_of(self, row: Row) -> list[str]:
        """Where the regions of a row come from; one entry for each of its columns of a data set."""
        return [row.source] if row.source else self.sources or [IMAGES_ONLY]

    def base_of(self, row: Row) -> list[str]:
        """Base sets that a row can use, the best first."""
        return self.base if row.base is None else row.base

    @property
    def measurements(self) -> list[str]:
        """What has to be measured; classes last, because they fail where maps show too little."""
        needed = {METRICS[name][0] for name in self.metrics} | (
            {"classes"} if self.figure in ("tsne", "pair") else set()
        )
        return sorted(needed, key=lambda name: (name == "classes", name))

    def excluded(self, row: Row) -> tuple[str, ...]:
        """Class folders that a row leaves out."""
        return tuple(sorted(self.exclude if row.exclude is None else row.exclude))

    def expanded(self, products: Iterable[str]) -> Experiment:
        """A row with `each` as base set becomes one row for each of these."""
        rows: list[Row] = []
        for row in self.rows:
            if EACH in self.base_of(row):
                rows += [row.model_copy(update={"name": f"{row.name} {name}", "base": [name]}) for name in products]
            else:
                rows.append(row)
        return self.model_copy(update={"rows": rows})


def experiment_names() -> list[str]:
    """What `anomalyncd bench list` lists.

    Examples
    --------
    >>> "goals" in experiment_names()
    True
    """
    folder = files(__package__).joinpath("experiments")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_experiment(name: str) -> Experiment:
    """An experiment of this package by its name, or one of your own by the path of its YAML file.

    Examples
    --------
    >>> load_experiment("table-14").tables
    ['14']
    """
    own = name.lower().endswith((".yaml", ".yml"))
    if not own and name not in experiment_names():
        near = difflib.get_close_matches(name, experiment_names(), n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        raise SettingsError(
            f"there is no experiment {name!r}.{hint} See `anomalyncd bench list`, or give a .yaml file of your own."
        )
    place = files(__package__).joinpath("experiments", f"{name}.yaml")
    content = read_yaml(Path(name)) if own else yaml.safe_load(place.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise SettingsError(f"{name}: expected an experiment with name, title and rows, but got {content!r}.")
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        raise SettingsError(f"{name}: {' '.join(_in_words(problem) for problem in error.errors())}") from None


def _in_words(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    if problem["type"] == "extra_forbidden":
        return f"there is no field {place}."
    message = problem["msg"].removeprefix("Value error, ").removesuffix(".")
    return f"{place}: {message}." if place else f"{message}."


def paper_table(name: str) -> dict[str, Any]:
    """A table of the paper by its number, `"1"` … `"17"`; `"T"` and `"fixed"` are figures, `"page"` is the page of its code.

    It has a `title`, its `label` in the LaTeX source, perhaps a `note` on what to know before comparing, and what `columns`
    mean. Its `rows` hold what identifies them (text: `dataset`, `method`, `detector`, `variant`, `base`, `product`) and
    figures (floats: `nmi`, `ari`, `f1`, `aupro`, …; scores are shares of 1), none where the paper has only a picture.

    Examples
    --------
    >>> paper_table("4")["title"], len(paper_table("4")["rows"])
    ('Mask mechanism', 4)
    """
    tables = _paper()
    if name not in tables:
        raise SettingsError(f"table of the paper must be one of {', '.join(tables)}, but got {name!r}.")
    found = tables[name]
    return {**found, "rows": [found.get("shared", {}) | row for row in found["rows"]]}


def paper_figures(name: str, **match: str) -> list[dict[str, Any]]:
    """The rows of a table in which every column of `match` has that text; empty where none has.

    Examples
    --------
    >>> paper_figures("1", dataset="mtd", method="anomalyncd")
    [{'dataset': 'mtd', 'method': 'anomalyncd', 'detector': 'musc', 'nmi': 0.268, 'ari': 0.228, 'f1': 0.509}]
    >>> [row["f1"] for row in paper_figures("15", dataset="mtd", detector="patchcore", variant="0.5")]
    [0.715]
    """
    return [row for row in paper_table(name)["rows"] if match.items() <= row.items()]


@cache
def _paper() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("paper.yaml").read_text(encoding="utf-8"))
    return content
