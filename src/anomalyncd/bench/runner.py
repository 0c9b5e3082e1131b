"""Run the cells of an experiment one by one: what is stored is not done again, what fails is noted, and the rest goes on."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .. import __version__
from ..checksums import stable_hash
from ..config import make_config
from ..detect import DETECTORS
from ..errors import AnomalyNCDError, DataError
from ..model.backbone import resolve_name
from ..progress import Silent
from ..run.folder import RunFolder
from ..run.stages import definite
from .clock import Clock
from .datasets import BenchData, load_base_set, load_product
from .experiment import IMAGES_ONLY, MASKS, OURS, PAPER_ONLY, Experiment, Row
from .machine import machine
from .measure import Result, Trial, file_name
from .studio import Studio

FORMAT = 4  # of a stored result
BASE_SETS = ("aebad", "steel")  # are no columns of an experiment that names no data set
PAPER_SETTINGS = {"mtd": {"merge": {"temperature": 50.0}}}  # where the paper departs from its settings for one data set
State = Literal["done", "failed", "not run", "paper only", "left out"]
Column = tuple[str, str | None]  # data set, and source where rows have none of their own


@dataclass(frozen=True)
class Cell:
    """One row on one data set with one source of regions and one seed.

    base : name of the labelled base set; message : why there is no figure
    features : file of what was clustered, with the arrays `images` and `features`; predictions, pictures : files too
    result : name of the stored classes; cells that share a computation have the same
    """

    row: Row
    dataset: str
    source: str
    base: str | None
    seed: int
    state: State = "not run"
    message: str = ""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    machine: str = ""
    features: Path | None = None
    predictions: Path | None = None
    pictures: tuple[Path, ...] = ()
    result: str = ""


@dataclass(frozen=True)
class Outcome:
    """What there is of an experiment.

    data : of the columns, by name; bases : name → fingerprint of the base sets in use
    skipped : a line for each data set that is not there
    settings : of AnomalyNCD for all rows, where they are not the default
    """

    experiment: Experiment
    cells: list[Cell]
    data: dict[str, BenchData]
    bases: dict[str, str]
    skipped: list[str]
    backbone: str
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def columns(self) -> list[Column]:
        """Columns of the table: data sets, each with every source of the experiment."""
        sources: Sequence[str | None] = self.experiment.sources or [None]
        return [(name, source) for name in self.data for source in sources]

    def cells_of(self, row: Row, column: Column) -> list[Cell]:
        """Cells of one row in one column, a seed each."""
        name, source = column
        own = [cell for cell in self.cells if cell.row.name == row.name and cell.dataset == name]
        return [cell for cell in own if source in (None, cell.source)]


class Bench:
    """Experiments on data sets of a user.

    Parameters
    ----------
    work : folder that keeps maps, runs and results, so that a second call goes on where the first one ended
    data : name → folder in MVTec AD's layout, or a labelled base set
    maps : (data set, source) → folder of maps that are there already
    settings : of AnomalyNCD, under those of the rows
    limit : take at most so many images of each data set, and so many normal ones
    clock : is told what each measurement took, and tells how long the rest will take
    """

    def __init__(
        self,
        work: Path,
        data: Mapping[str, Path],
        *,
        maps: Mapping[tuple[str, str], Path] | None = None,
        settings: Mapping[str, Any] | None = None,
        progress: Silent | None = None,
        limit: int | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.data, self.maps, self.settings = data, maps or {}, settings or {}
        self.progress, self.limit, self.clock = progress or Silent(), limit, clock
        self.laboratory = Studio(work, self.maps, self.progress)
        self.results = RunFolder(work / "results")
        make_config(self.settings)  # a wrong one is said now, not once for each cell
        self._loaded: dict[tuple[object, ...], BenchData] = {}
        self._bad_bases: set[str] = set()
        for name in dict.fromkeys(name for name, _ in self.maps if name not in data):
            self.progress.warn(f"maps of {name} are not used, because it was not given (--data {name}=PATH).")

    def run(
        self, experiment: Experiment, *, seeds: Sequence[int] | None = None, only: str = "*", show: bool = False
    ) -> Outcome:
        """All cells, in the order of the rows.

        seeds : instead of those of the experiment and its rows
        only : pattern of the rows to run; what is stored of the others is still shown
        show : run nothing, read what is stored
        """
        data, skipped = self._available(experiment)
        for line in skipped:
            self.progress.warn(line)
        experiment = experiment.expanded(data)
        if not any(fnmatch(row.name, only) for row in experiment.rows):
            rows = ", ".join(row.name for row in experiment.rows)
            self.progress.warn(f"{experiment.name}: no row is called like {only!r}, so none is run. It has {rows}.")
        cells = [
            self._cell(experiment, cell, not show and fnmatch(cell.row.name, only))
            for cell in self._cells(experiment, data, seeds)
        ]
        bases: dict[str, str] = {}
        for cell in cells:
            loaded = self._loaded.get((load_base_set, cell.base, experiment.excluded(cell.row)))
            if loaded is not None:
                bases[loaded.name] = loaded.fingerprint
        backbone = resolve_name(make_config(self.settings).model.backbone)
        return Outcome(experiment, cells, data, bases, skipped, backbone, self.settings)

    def sizes(self) -> dict[str, int]:
        """How many images each data set has that can be read and is no base set."""
        data, skipped = self._available(Experiment(name="sizes", title="", sources=[MASKS], rows=[Row(name="any")]))
        for line in skipped:
            self.progress.warn(line)
        return {name: found.total for name, found in data.items()}

    def pending(
        self, experiment: Experiment, seeds: Sequence[int] | None = None, only: str = "*"
    ) -> Iterator[tuple[str, Trial, str]]:
        """Measurements that `run` would make: where each is stored, what it is made from, and its name."""
        data, _ = self._available(experiment)
        experiment = experiment.expanded(data)
        for cell in self._cells(experiment, data, seeds):
            if cell.state != "not run" or cell.message or not fnmatch(cell.row.name, only):
                continue
            for measurement in experiment.measurements:
                try:
                    trial = self._trial(experiment, cell)
                    name = self._name(trial, measurement)
                except AnomalyNCDError:  # is told when it is run
                    continue
                if (stored := self._stored(name)) is None or stored["state"] == "failed":
                    yield name, trial, measurement

    def _cells(
        self, experiment: Experiment, data: Mapping[str, BenchData], seeds: Sequence[int] | None
    ) -> Iterator[Cell]:
        """All of them, none measured; those that cannot be say why."""
        for row in experiment.rows:
            base = self._base(experiment.base_of(row), experiment.excluded(row))
            for name, source, seed in product(data, experiment.sources_of(row), seeds or row.seeds or experiment.seeds):
                cell = Cell(row, name, source, base, seed)
                built_in = source in (MASKS, IMAGES_ONLY, *DETECTORS) or ":" in source
                if row.method == PAPER_ONLY:
                    cell = replace(cell, state="paper only")
                elif base == name or name not in (row.data or [name]):
                    cell = replace(cell, state="left out")
                elif base is None and (names := experiment.base_of(row)):
                    cell = replace(cell, message=f"no base set: give --data {names[-1]}=PATH")
                elif not built_in and (name, source) not in self.maps:
                    hint = f"its maps would do: --maps {name}/{source}=DIR"
                    cell = replace(cell, state="paper only", message=f"no detector {source} here yet; {hint}")
                yield cell

    def _cell(self, experiment: Experiment, cell: Cell, wanted: bool) -> Cell:
        """Measure what is not stored yet, if wanted."""
        if cell.state != "not run" or cell.message:
            return cell
        metrics: dict[str, float | None] = {}
        seconds: dict[str, float] = {}
        state: State = "done"
        for measurement in experiment.measurements:
            try:
                trial = self._trial(experiment, cell)
                name = self._name(trial, measurement)
                stored = self._stored(name)
                if wanted and (stored is None or stored["state"] == "failed"):
                    at = f"{cell.row.name}, {cell.dataset}, {cell.source}, seed {cell.seed}"
                    left = f" ({self.clock.left()})" if self.clock else ""
                    self.progress.say(f"{experiment.name}: {at}: {measurement}{left}")
                    stored = self._measure(trial, measurement, name)
            except AnomalyNCDError as error:
                return replace(cell, state="failed", message=str(error))
            if stored is None or stored["state"] == "failed":
                state, message = ("not run", "") if stored is None else ("failed", stored["message"])
                cell = replace(cell, message=message)
                continue
            metrics |= stored["metrics"]
            seconds |= stored["seconds"]
            cell = replace(cell, machine=stored["machine"], result=name)
            features, predictions = (self.results.path / f"{name}.{suffix}" for suffix in ("npz", "csv"))
            if predictions.exists():
                cell = replace(cell, predictions=predictions, features=features if features.exists() else None)
            found = [self.results.path / f"{name}-{file_name(each)}.png" for each in stored.get("pictures", [])]
            cell = replace(cell, pictures=(*cell.pictures, *found))
        return replace(cell, state=state, metrics=metrics, seconds=seconds)

    def _measure(self, trial: Trial, measurement: str, name: str) -> dict[str, Any]:
        """Measure and store: predictions and features first, so that where the figures are, all is."""
        row, data = trial.row, trial.data
        about = {
            "row": row.name, "method": row.method, "dataset": data.name, "source": trial.source, "seed": trial.seed,
            "base": None if trial.base is None else trial.base.name, "version": __version__, "data": data.fingerprint,
            "settings": trial.config.model_dump(mode="json"), "machine": machine(),
            "rival_settings": {} if row.method == OURS else row.settings,
        }  # fmt: skip
        began = time.perf_counter()
        try:
            found: Result = getattr(self.laboratory, measurement)(trial)
        except AnomalyNCDError as error:
            failed = {**about, "state": "failed", "message": str(error)}
            self.results.write_json(f"{name}.json", failed)
            self.progress.warn(f"{row.name}, {data.name}, {trial.source}: failed. {error}")
            if self.clock:
                self.clock.failed(name)
            return failed
        if self.clock:
            self.clock.measured(name, time.perf_counter() - began)
        if found.predictions is not None:
            self.results.write_text(f"{name}.csv", found.predictions.to_csv(index=False, lineterminator="\n"))
        if found.features:
            buffer = io.BytesIO()
            np.savez(buffer, images=list(found.features), features=np.stack(list(found.features.values())))
            self.results.write(f"{name}.npz", buffer.getvalue())
        for each, content in found.pictures.items():
            self.results.write(f"{name}-{file_name(each)}.png", content)
        done = {**about, "state": "done", "metrics": found.metrics, "seconds": found.seconds}
        if found.pictures:
            done["pictures"] = list(found.pictures)
        self.results.write_json(f"{name}.json", done)
        return done

    def _trial(self, experiment: Experiment, cell: Cell) -> Trial:
        row, exclude = cell.row, experiment.excluded(cell.row)
        data = self._load(load_product, cell.dataset, exclude)
        own = row.settings if row.method == OURS else {}
        fixed: dict[str, Any] = {"n_classes": own.get("n_classes", data.n_classes), "random_state": cell.seed}
        if not data.has_normal:
            fixed["has_normal"] = False
        special = PAPER_SETTINGS.get(cell.dataset, {}) if row.preset == "paper" else {}
        config = make_config(self.settings, special, own, fixed, preset=row.preset)
        base = self._load(load_base_set, cell.base, exclude) if cell.base else None
        return Trial(row, data, cell.source, base, cell.seed, config)

    def _name(self, trial: Trial, measurement: str) -> str:
        """Where a result is stored: by everything that it depends on."""
        config, row, data = definite(trial.config), trial.row, trial.data
        source = trial.source if trial.uses_source or measurement == "boxes" else IMAGES_ONLY
        key: list[Any] = [FORMAT, __version__, data.fingerprint, self.laboratory.fingerprint(config.model.weights)]
        key.append(self.laboratory.source_key(replace(trial, source=source)))
        if measurement == "boxes":  # nothing is learned
            key += [config.binarize.model_dump(), config.has_normal]
        else:
            settings = config.model_dump(mode="json", exclude={"device", "preset", "random_state"})
            if row.method != OURS:
                network = {"backbone": config.model.backbone, "precision": config.precision}
                settings = {**network, "settings": row.settings}
            key += [row.method, settings, "" if trial.base is None else trial.base.fingerprint, trial.seed]
        if measurement == "combined":  # is about images that the data of this trial is without
            key.append(self._load(load_product, data.name, ()).fingerprint)
        return f"{measurement}/{data.name}/{file_name(f'{row.method}-{source}')}-{stable_hash(*key)[:20]}"

    def _stored(self, name: str) -> dict[str, Any] | None:
        """None also where it is damaged: then it is measured again."""
        try:
            stored = json.loads((self.results.path / f"{name}.json").read_text(encoding="utf-8"))
            kinds = {"state": str, "machine": str, "metrics": dict, "seconds": dict}
            if stored["state"] == "failed":
                kinds = {"message": str}
            return stored if all(isinstance(stored[key], kind) for key, kind in kinds.items()) else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _available(self, experiment: Experiment) -> tuple[dict[str, BenchData], list[str]]:
        """Data sets of the columns, and a line for each that is not there."""
        bases = {*BASE_SETS, *(name for row in experiment.rows for name in experiment.base_of(row))}
        others = [name for name, path in self.data.items() if name not in bases and not (path / "images").is_dir()]
        data, skipped = {}, []
        for name in experiment.data or others:  # images/ and masks/ are a base set's
            if name not in self.data:
                skipped.append(f"{name}: skipped, because it was not given (--data {name}=PATH).")
                continue
            try:
                data[name] = self._load(load_product, name, tuple(sorted(experiment.exclude)))
            except (DataError, OSError) as error:
                skipped.append(f"{name}: skipped. {error}")
        if not data:
            raise DataError(f"{experiment.name}: none of its data sets is there. {' '.join(skipped)}".rstrip())
        return data, skipped

    def _base(self, names: Sequence[str], exclude: tuple[str, ...]) -> str | None:
        """The first base set that is given and can be read; where none can, the first that is given."""
        given = [name for name in names if name in self.data]
        for name in given if len(given) > 1 else []:
            try:
                self._load(load_base_set, name, exclude)
                return name
            except (AnomalyNCDError, OSError) as error:
                if name not in self._bad_bases:
                    self.progress.warn(f"{name}: not used as a base set. {error}")
                self._bad_bases.add(name)
        return given[0] if given else None

    def _load(self, load: Callable[..., BenchData], name: str, exclude: tuple[str, ...]) -> BenchData:
        """Each folder is read once."""
        if (load, name, exclude) not in self._loaded:
            self._loaded[load, name, exclude] = load(name, self.data[name], exclude, self.limit)
        return self._loaded[load, name, exclude]
