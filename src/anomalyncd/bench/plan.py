"""A plan: several experiments as one call, in order, each narrowed to what there is time for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from importlib.resources import files
from typing import Any

import yaml
from pydantic import Field

from ..errors import SettingsError
from ..sections import Section
from .experiment import Experiment, load_experiment


class Stage(Section):
    """One experiment of a plan.

    data : how many data sets it runs on, the smallest first; without it on all
    rows : pattern of rows' names → how many data sets these run on; 0 leaves them out of the table
    sources, seeds : instead of the experiment's
    quick : fields that are others in the plan's quick form; null leaves the stage out of it
    plan : name of the plan that it belongs to
    """

    experiment: str
    data: int | None = Field(None, ge=1)
    rows: dict[str, int] = Field(default_factory=dict)
    sources: list[str] | None = None
    seeds: list[int] | None = None
    quick: dict[str, Any] | None = Field(default_factory=dict)
    plan: str = ""

    def narrowed(self, sizes: Mapping[str, int]) -> Experiment:
        """The experiment as this stage runs it; sizes : of the data sets that are there."""
        found = load_experiment(self.experiment)
        given = [name for name in found.data if name in sizes] or list(sizes)
        smallest = sorted(given, key=lambda name: sizes[name])
        chosen = given if self.data is None else [name for name in given if name in smallest[: self.data]]
        rows = []
        for row in found.rows:
            count = min((n for pattern, n in self.rows.items() if fnmatch(row.name, pattern)), default=len(given))
            own = [name for name in chosen if name in smallest[:count]]
            if count:
                rows.append(row if own == chosen else row.model_copy(update={"data": own}))
        changes: dict[str, Any] = {"data": chosen, "rows": rows}
        if self.sources is not None:
            changes["sources"] = self.sources
        if self.seeds is not None:
            changes["seeds"] = self.seeds
            changes["rows"] = [row.model_copy(update={"seeds": None}) for row in rows]
        return found.model_copy(update=changes)

    def left_out(self, sizes: Mapping[str, int]) -> str:
        """What the narrowing takes away, in words; empty where nothing."""
        whole, part = load_experiment(self.experiment), self.narrowed(sizes)
        words = []
        if gone := [row.name for row in whole.rows if row.name not in [kept.name for kept in part.rows]]:
            words.append(f"no row {', '.join(gone)}")
        if few := [row.name for row in part.rows if row.data is not None]:
            words.append(
                f"{', '.join(few)} on {', '.join(dict.fromkeys(n for r in part.rows for n in r.data or []))} only"
            )
        if gone := [name for name in (whole.data or sizes) if name in sizes and name not in part.data]:
            words.append(f"not on {', '.join(gone)}")
        if gone := [name for name in whole.sources if name not in part.sources]:
            words.append(f"not with {', '.join(gone)}")
        if self.seeds is not None:
            words.append(f"seed {', '.join(map(str, self.seeds))} only")
        return "; ".join(words)


class Plan(Section):
    """Stages in order; limit : images of each data set in the quick form."""

    name: str
    title: str
    limit: int
    stages: list[Stage]

    def form(self, quick: bool) -> list[Stage]:
        """The stages, whole or quick."""
        if not quick:
            return self.stages
        return [
            stage.model_copy(update={"seeds": [0], **stage.quick}) for stage in self.stages if stage.quick is not None
        ]


def plan_names() -> list[str]:
    """What can stand where an experiment's name does.

    Examples
    --------
    >>> plan_names()
    ['paper']
    """
    folder = files(__package__).joinpath("plans")
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def stages_of(names: Sequence[str], *, quick: bool = False) -> tuple[list[Stage], int | None]:
    """Experiments and plans by their names as stages, each once; and how many images of a data set to take at most.

    Examples
    --------
    >>> [stage.experiment for stage in stages_of(["goals"])[0]]
    ['goals']
    """
    plans = [load_plan(name) for name in names if name in plan_names()]
    if quick and len(plans) < len(names):
        raise SettingsError(
            f"--quick is for plans only ({', '.join(plan_names())}); experiments have --seeds and --only."
        )
    stages: dict[str, Stage] = {}
    for name in names:
        own = load_plan(name).form(quick) if name in plan_names() else [Stage(experiment=name)]
        for stage in own:
            load_experiment(stage.experiment)  # a wrong name is said before anything is run
            stages.setdefault(stage.experiment, stage.model_copy(update={"plan": name if name in plan_names() else ""}))
    return list(stages.values()), min(plan.limit for plan in plans) if quick else None


def load_plan(name: str) -> Plan:
    """A plan of this package.

    Examples
    --------
    >>> load_plan("paper").stages[0].experiment
    'table-14'
    """
    place = files(__package__).joinpath("plans", f"{name}.yaml")
    return Plan.model_validate(yaml.safe_load(place.read_text(encoding="utf-8")))
