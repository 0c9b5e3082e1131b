"""Several experiments in one call: what they will cost before, what is left on the way, what they took afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import make_config
from ..errors import DataError
from ..model.backbone import resolve_name
from ..progress import Silent
from ..run.stages import definite
from .clock import Clock, duration
from .costs import parts_of, seconds_of_a_pass
from .experiment import Experiment, load_experiment
from .plan import Stage
from .runner import Bench, Outcome


class Campaign:
    """Stages one after the other, in a folder that keeps what was done.

    Parameters
    ----------
    stages : experiments, those of a plan narrowed to what there is time for
    work, data, maps, settings, limit : see `Bench`
    seeds, only : see `Bench.run`; stored : run nothing, show what is there

    Attributes
    ----------
    plan : name of the plan that stages belong to, if any; form : "-quick" where only some images are taken, else empty
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        work: Path,
        data: dict[str, Path],
        *,
        settings: dict[str, Any] | None = None,
        progress: Silent | None = None,
        seeds: Sequence[int] | None = None,
        only: str = "*",
        stored: bool = False,
        **options: Any,
    ) -> None:
        self.stages, self.seeds, self.only, self.stored = stages, seeds, only, stored
        self.bench = Bench(work, data, settings=settings, progress=progress, **options)
        self.progress = self.bench.progress
        self.plan = next((stage.plan for stage in stages if stage.plan), "")
        self.work, self.form = work, "" if self.bench.limit is None else "-quick"

    def before(self) -> list[str]:
        """The time that each stage of a plan will take, and what is left out of it, a line each."""
        if not self.plan:
            return []
        config = make_config(self.bench.settings)
        network = f"{resolve_name(config.model.backbone)}, {definite(config).precision}, {config.device}"
        unit = 0.0 if self.stored else seconds_of_a_pass(config)
        clock = self.bench.clock = Clock(self.work, unit, network, name=f"costs{self.form}.json")
        lines = []
        for stage in [] if self.stored else self.stages:
            try:
                pending = self.bench.pending(self._experiment(stage), self.seeds, self.only)
                jobs = {name: parts_of(trial, what, self.bench.laboratory) for name, trial, what in pending}
            except DataError:  # none of its data sets is there, which is said when its turn comes
                continue
            clock.plan(stage.experiment, jobs)
            spare = self._left_out[stage.experiment]
            time = f"about {duration(clock.expected(stage.experiment))}" if jobs else "done"
            lines.append(f"{stage.experiment}: {time}{f'; left out: {spare}' if spare else ''}")
        if self.stored:
            return []
        if self.form:
            lines.append(f"--quick: at most {self.bench.limit} images of each data set, normal image set and base set.")
        return [*lines, f"All together about {duration(clock.expected())} on this machine ({unit:.3f} s a pass)."]

    def run(self) -> Iterator[Outcome]:
        """What there is of each stage, after it was run; a stage without data is skipped with a line."""
        made = 0
        for stage in self.stages:
            try:
                outcome = self.bench.run(self._experiment(stage), seeds=self.seeds, only=self.only, show=self.stored)
            except DataError as error:  # none of its data sets is there; those of the next may be
                if not made and stage is self.stages[-1]:
                    raise
                self.progress.warn(str(error))
                continue
            made += 1
            yield outcome

    def after(self) -> list[str]:
        """What each stage of a plan took, in all calls so far."""
        clock = self.bench.clock
        if clock is None or not clock.stages:
            return []
        took = [f"{stage.experiment}: {duration(clock.took(stage.experiment))}" for stage in self.stages]
        return ["Took, in all calls:", *took, f"All together {duration(sum(clock.stages.values()))}."]

    def heading(self, command: str) -> str:
        """How the page of a plan begins: the command, the times, and what was left out of each stage."""
        clock = self.bench.clock
        form = f", quick form: at most {self.bench.limit} images of each set" if self.form else ""
        lines = [f"# {self.plan}{form}", "", f"    {command}", "", "| stage | took | left out |", "| --- | --- | --- |"]
        for stage in self.stages:
            took = clock.took(stage.experiment) if clock else 0.0
            lines.append(
                f"| {stage.experiment} | {duration(took) if took else '–'} | {self._left_out[stage.experiment] or '–'} |"
            )
        alone = f"A stage by itself, on all data sets and with all its rows: its name in the place of `{self.plan}`."
        return "\n".join([*lines, "", f"What another stage had made already is not counted again. {alone}", ""])

    def _experiment(self, stage: Stage) -> Experiment:
        return stage.narrowed(self._given) if stage.plan else load_experiment(stage.experiment)

    @cached_property
    def _given(self) -> dict[str, int]:
        """Data sets that are there, with their sizes."""
        return self.bench.sizes()

    @cached_property
    def _left_out(self) -> dict[str, str]:
        return {stage.experiment: stage.left_out(self._given) for stage in self.stages}
