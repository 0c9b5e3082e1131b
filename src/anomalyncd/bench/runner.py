"""Run the cells of an experiment one by one: what is stored is not done again, what fails is noted, and the rest goes on."""

from __future__ import annotations

import io
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from .. import __version__
from ..checksums import stable_hash
from ..config import Config, make_config, merge_layers
from ..detect import DETECTORS
from ..discovery.maps import pinned
from ..errors import AnomalyNCDError, DataError, SettingsError
from ..model.backbone import resolve_name
from ..progress import Silent
from ..run.folder import FORMAT as RUN_FORMAT
from ..run.folder import RunFolder
from ..run.store import file_identity
from ..run.tables import to_csv
from .experiment import IMAGES_ONLY, MASKS, OURS, PAPER_ONLY, Experiment, Row
from .measure import Case, Lab, Measured
from .products import Labelled, Product, load_labelled, load_product

FORMAT = 2  # of a stored result
BASE_SETS = ("aebad", "steel")  # are no columns of an experiment that names no data set
PAPER_SETTINGS = {"mtd": {"merge": {"temperature": 50.0}}}  # where the paper departs from its settings for one data set
State = Literal["done", "failed", "not run", "paper only", "left out"]
# Which measurement gives a metric; each is stored by itself, so that experiments share what they have in common.
MEASURES = {
    **dict.fromkeys(("nmi", "ari", "f1", "normal_precision", "normal_recall"), "classes"),
    **dict.fromkeys(("fpr", "fnr", "aupro", "image_auroc", "pixel_auroc"), "boxes"),
    **dict.fromkeys(("binarize-and-crop", "network", "merge", "total"), "modules"),
    "several": "combined",
}


@dataclass(frozen=True)
class Cell:
    """One row on one data set with one source of regions and one seed.

    base : name of the labelled base set; message : why there is no figure
    features : file of what was clustered, with the arrays `images` and `features`
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
    result: str = ""


@dataclass(frozen=True)
class Outcome:
    """What there is of an experiment.

    skipped : a line for each data set that is not there
    products : of the columns, by name; bases : name → fingerprint of the base sets in use
    settings : of AnomalyNCD for all rows, where they are not the default
    """

    experiment: Experiment
    cells: list[Cell]
    products: dict[str, Product]
    bases: dict[str, str]
    skipped: list[str]
    backbone: str
    settings: Mapping[str, Any] = field(default_factory=dict)


class Bench:
    """Experiments on data sets of a user.

    Parameters
    ----------
    work : folder that keeps maps, runs and results, so that a second call goes on where the first one ended
    data : name → folder in MVTec AD's layout, or a labelled base set
    maps : (data set, source) → folder of maps that are there already
    settings : of AnomalyNCD, under those of the rows
    """

    def __init__(
        self,
        work: Path,
        data: Mapping[str, Path],
        *,
        maps: Mapping[tuple[str, str], Path] | None = None,
        settings: Mapping[str, Any] | None = None,
        backbone: str | None = None,
        device: str = "auto",
        progress: Silent | None = None,
    ) -> None:
        self.data, self.maps, self.progress = data, maps or {}, progress or Silent()
        self.lab = Lab(work, self.maps, self.progress)
        self.results = RunFolder(work / "results")
        own: dict[str, Any] = {"model": {"backbone": backbone}} if backbone else {}
        own |= {"device": device} if device != "auto" else {}
        self.settings = merge_layers(settings or {}, own)
        make_config(self.settings)  # a wrong one is said now, not once for each cell
        self._products: dict[tuple[str, tuple[str, ...]], Product] = {}
        self._bases: dict[tuple[str, tuple[str, ...]], Labelled] = {}
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
        names, skipped = self._available(experiment)
        for line in skipped:
            self.progress.warn(line)
        experiment = experiment.expanded(names)
        if not any(fnmatch(row.name, only) for row in experiment.rows):
            rows = ", ".join(row.name for row in experiment.rows)
            self.progress.warn(f"{experiment.name}: no row is called like {only!r}, so none is run. It has {rows}.")
        cells = []
        for row, dataset, source, seed in _plan(experiment, names, seeds):
            base = self._base_name(experiment.base_of(row), experiment.excluded(row))
            wanted = not show and fnmatch(row.name, only)
            cells.append(self._cell(experiment, Cell(row, dataset, source, base, seed), wanted))
        products = {name: self._product(name, tuple(sorted(experiment.exclude))) for name in names}
        used = {cell.base for cell in cells}
        bases = {base.name: base.fingerprint for base in self._bases.values() if base.name in used}
        backbone = resolve_name(make_config(self.settings).model.backbone)
        return Outcome(experiment, cells, products, bases, skipped, backbone, self.settings)

    def _cell(self, experiment: Experiment, cell: Cell, wanted: bool) -> Cell:
        """Measure what is not stored yet, if wanted."""
        if cell.row.method == PAPER_ONLY:
            return replace(cell, state="paper only")
        if cell.base == cell.dataset:
            return replace(cell, state="left out")
        if cell.base is None and (names := experiment.base_of(cell.row)):
            return replace(cell, message=f"no base set: give --data {names[-1]}=PATH")
        if not self._has_source(cell):
            hint = f"--maps {cell.dataset}/{cell.source}=DIR"
            return replace(
                cell, state="paper only", message=f"no detector {cell.source} here yet; its maps would do: {hint}"
            )
        metrics: dict[str, float | None] = {}
        seconds: dict[str, float] = {}
        state: State = "done"
        for measure in self._needed(experiment):
            try:
                case = self._case(experiment, cell)
                name = self._name(case, measure)
                stored = self._stored(name)
                if wanted and (stored is None or stored["state"] == "failed"):
                    at = f"{cell.row.name}, {cell.dataset}, {cell.source}, seed {cell.seed}"
                    self.progress.say(f"{experiment.name}: {at}: {measure}")
                    stored = self._do(case, measure, name)
            except AnomalyNCDError as error:
                return replace(cell, state="failed", message=str(error))
            if stored is None or stored["state"] == "failed":
                state = "not run" if stored is None else "failed"
                cell = replace(cell, message="" if stored is None else stored["message"])
                continue
            metrics |= stored["metrics"]
            seconds |= stored["seconds"]
            cell = replace(cell, machine=stored["machine"], result=name)
            if (kept := self.results.path / f"{name}.npz").exists():
                cell = replace(cell, features=kept)
        return replace(cell, state=state, metrics=metrics, seconds=seconds)

    def _needed(self, experiment: Experiment) -> list[str]:
        """Measurements that give the experiment's metrics; classes last, because they fail where maps show too little."""
        needed = {MEASURES[name] for name in experiment.metrics} | (
            {"classes"} if experiment.figure == "tsne" else set()
        )
        return sorted(needed, key=lambda name: (name == "classes", name))

    def _do(self, case: Case, measure: str, name: str) -> dict[str, Any]:
        """Measure and store: predictions and features first, so that where the figures are, all is."""
        about = {
            "row": case.row.name, "method": case.row.method, "dataset": case.product.name, "source": case.source,
            "seed": case.seed, "base": None if case.base is None else case.base.name, "version": __version__,
            "data": case.product.fingerprint, "settings": case.config.model_dump(mode="json"), "machine": machine(),
            "rival_settings": {} if case.row.method == OURS else case.row.settings,
        }  # fmt: skip
        try:
            found: Measured = getattr(self.lab, measure)(case)
        except AnomalyNCDError as error:
            failed = {**about, "state": "failed", "message": str(error)}
            self.results.write_json(f"{name}.json", failed)
            self.progress.warn(f"{case.row.name}, {case.product.name}, {case.source}: failed. {error}")
            return failed
        if found.predictions is not None:
            self.results.write_text(f"{name}.csv", to_csv(found.predictions))
        if found.features:
            buffer = io.BytesIO()
            np.savez(buffer, images=list(found.features), features=np.stack(list(found.features.values())))
            self.results.write(f"{name}.npz", buffer.getvalue())
        done = {**about, "state": "done", "metrics": found.metrics, "seconds": found.seconds}
        self.results.write_json(f"{name}.json", done)
        return done

    def _case(self, experiment: Experiment, cell: Cell) -> Case:
        row = cell.row
        product = self._product(cell.dataset, experiment.excluded(row))
        own = row.settings if row.method == OURS else {}
        fixed: dict[str, Any] = {"n_classes": product.n_classes, "random_state": cell.seed}
        if not product.has_normal:
            fixed["has_normal"] = False
        special = PAPER_SETTINGS.get(cell.dataset, {}) if row.preset == "paper" else {}
        config = make_config(self.settings, special, own, fixed, preset=row.preset)
        base = self._base(cell.base, product.exclude) if cell.base else None
        return Case(row, product, cell.source, base, cell.seed, config)

    def _name(self, case: Case, measure: str) -> str:
        """Where a result is stored: by everything that it depends on."""
        base = None if case.base is None else case.base.fingerprint
        config: Config = pinned(case.config)
        about = config.model_dump(mode="json", exclude={"device", "preset", "random_state"})
        if case.row.method != OURS:
            about = {"backbone": config.model.backbone, "settings": case.row.settings}
        weights = None if config.model.weights is None else file_identity(config.model.weights)
        key: list[Any] = [FORMAT, RUN_FORMAT, __version__, case.product.fingerprint, self.lab.source_key(case), weights]
        if measure == "boxes":  # nothing is learned
            key += [config.binarize.model_dump(), config.has_normal]
        else:
            key += [case.row.method, about, base, case.seed]
        if measure == "combined":  # is about images that the product of this case is without
            key.append(self._product(case.product.name, ()).fingerprint)
        source = case.source if case.uses_source else IMAGES_ONLY
        label = "".join(letter if letter.isalnum() else "-" for letter in f"{case.row.method}-{source}")
        return f"{measure}/{case.product.name}/{label}-{stable_hash(*key)[:20]}"

    def _stored(self, name: str) -> dict[str, Any] | None:
        """None also where it is damaged: then it is measured again."""
        try:
            stored = json.loads((self.results.path / f"{name}.json").read_text(encoding="utf-8"))
            texts, tables = ["state", "machine"], ["metrics", "seconds"]
            if stored["state"] == "failed":
                texts, tables = ["state", "message"], []
            whole = all(isinstance(stored[key], str) for key in texts)
            return stored if whole and all(isinstance(stored[key], dict) for key in tables) else None
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None

    def _available(self, experiment: Experiment) -> tuple[list[str], list[str]]:
        """Data sets of the columns, and a line for each that is not there."""
        bases = {*BASE_SETS, *(name for row in experiment.rows for name in experiment.base_of(row))}
        others = [name for name, path in self.data.items() if name not in bases and not (path / "images").is_dir()]
        wanted = experiment.data or others  # images/ and masks/ are a base set's
        names, skipped = [], []
        for name in wanted:
            if name not in self.data:
                skipped.append(f"{name}: skipped, because it was not given (--data {name}=PATH).")
                continue
            try:
                self._product(name, tuple(sorted(experiment.exclude)))
                names.append(name)
            except (DataError, OSError) as error:
                skipped.append(f"{name}: skipped. {error}")
        if not names:
            raise DataError(f"{experiment.name}: none of its data sets is there. {' '.join(skipped)}".rstrip())
        return names, skipped

    def _base_name(self, names: Sequence[str], exclude: tuple[str, ...]) -> str | None:
        """The first base set that is given and can be read; where none can, the first that is given."""
        given = [name for name in names if name in self.data]
        for name in given if len(given) > 1 else []:
            try:
                self._base(name, exclude)
                return name
            except (AnomalyNCDError, OSError) as error:
                if name not in self._bad_bases:
                    self.progress.warn(f"{name}: not used as a base set. {error}")
                self._bad_bases.add(name)
        return given[0] if given else None

    def _base(self, name: str, exclude: tuple[str, ...]) -> Labelled:
        if (name, exclude) not in self._bases:
            self._bases[name, exclude] = load_labelled(name, self.data[name], exclude)
        return self._bases[name, exclude]

    def _product(self, name: str, exclude: tuple[str, ...]) -> Product:
        if (name, exclude) not in self._products:
            self._products[name, exclude] = load_product(name, self.data[name], exclude)
        return self._products[name, exclude]

    def _has_source(self, cell: Cell) -> bool:
        built_in = cell.source in (MASKS, IMAGES_ONLY, *DETECTORS) or ":" in cell.source
        return built_in or (cell.dataset, cell.source) in self.maps


def _plan(
    experiment: Experiment, names: Sequence[str], seeds: Sequence[int] | None
) -> Iterator[tuple[Row, str, str, int]]:
    for row in experiment.rows:
        for dataset in names:
            for source in experiment.sources_of(row):
                for seed in seeds or row.seeds or experiment.seeds:
                    yield row, dataset, source, seed


def parse_data(texts: Sequence[str]) -> dict[str, Path]:
    """`hazelnut=PATH` … as a dictionary.

    Examples
    --------
    >>> parse_data(["mtd=data/mtd"])["mtd"].as_posix()
    'data/mtd'
    """
    pairs = [text.partition("=") for text in texts]
    if wrong := next((text for text, (name, _, path) in zip(texts, pairs, strict=True) if not name or not path), None):
        raise SettingsError(f"data must be given as NAME=PATH, such as mtd=data/mtd, but got {wrong!r}.")
    return {name: Path(path) for name, _, path in pairs}


def machine() -> str:
    """Versions and machine in one line."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "numpy", "scikit-learn"))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    return (
        f"anomalyncd {__version__}, Python {platform.python_version()}, {versions}; {_processor()}, {cores}, {device}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
