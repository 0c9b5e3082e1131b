"""New images folded into a finished run: known classes keep their numbers and names, unknown regions that are alike open new
ones."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..assign.new_kinds import open_classes
from ..blocks.engine import Engine
from ..checksums import stable_hash
from ..data.dataset import Dataset, Sample
from ..errors import DataError
from ..known.given import KnownKinds, decide, with_known
from ..labels import UNKNOWN
from ..learn.rows import block_rows
from ..model.seen import Seen
from ..progress import Silent
from ..regions.extract import is_readable
from ..regions.network import share
from ..regions.records import report_files
from ..run.detector import CHECKSUMS, read_detector
from ..run.finished import FinishedRun
from ..run.folder import MANIFEST, SEEN, STAGES, TRAINING, UPDATE, RunFolder
from ..run.map_files import MapFiles
from ..run.stages import fingerprint
from ..run.store import RegionStore, numbered_maps
from ..run.tables import is_changed, manifest
from .maps import write_maps
from .model import DiscoveryModel
from .relearn import Move, RunState, learn_again


@dataclass(frozen=True)
class Update:
    """What an update changed.

    n_images, n_regions : taken in; known : those that were in the run already
    opened : label → regions of each new class
    unknown : regions that are of no class, old and new
    moved : regions that were there before and are of another class now
    skipped : id → why a file could not be read
    foreign : ids of images that do not show the product: they have label −1 and open no class
    """

    n_images: int
    n_regions: int
    known: list[str] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)
    unknown: int = 0
    moved: list[Move] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    foreign: list[str] = field(default_factory=list)


def update_run(
    run: Path,
    inputs: Dataset,
    progress: Silent | None = None,
    *,
    known: KnownKinds | None = None,
    device: str = "auto",
    engine: Engine | None = None,
) -> Update:
    """Take new images into a run.

    New regions get classes as `predict` gives them. Those of an unknown kind are grouped; a group of at least
    `unknown.group` regions becomes a class of its own, the others stay unknown until more like them come. Then the heads
    learn again, with all classes that are there as a start. Images that do not show the product have no say in any of it.

    Parameters
    ----------
    run : folder of a finished run
    inputs : images as `predict` takes them; files that the run holds already are left out
    known : labels of the images, of those of the run, or of others that are taken in with them
    engine : where work on images is done; here by default
    """
    progress, engine = progress or Silent(), engine or Engine()
    with RunFolder(run).writing() as folder:
        state = RunState.of(FinishedRun(run, device=device))
        model = state.model
        _check(model, inputs)
        samples, there = _new_samples(run, state, inputs)
        samples, told = with_known(known, samples, state.manifest, inputs)
        if not samples and not told.examples:
            return Update(0, 0, there, unknown=_n_unknown(state, state.labels))
        n_images, before, classes = len(state.store.images), state.labels, set(model.classes.tolist())
        if inputs.is_bare:
            samples = _with_maps(folder, model, n_images, samples, progress, engine)
        with progress.task("Regions", len(samples)) as advance:
            store = copy(state.store).append(samples, model.look(progress.say), advance, engine)
        folder.remove(SEEN)
        skipped = report_files(store.images[n_images:], progress)
        larger, n_outside = _joined(state, store, samples), int(state.outside.sum())
        del state  # with a second copy of all features
        wanted, names = _with_new_classes(larger, len(before)), dict(model.names)
        if told.examples:
            found = told.labels(larger.regions, masked=model.binarizer is None)
            names = decide(found, wanted, larger.fixed, names, model.highest)
        files, labels = learn_again(larger, wanted, larger.fixed, names)
        folder.commit(
            {**files, STAGES: folder.stages_with(UPDATE, stable_hash([record.id for record in store.images]))}
        )
    opened = {k: int((labels == k).sum()) for k in model.classes.tolist() if k not in classes and (labels == k).any()}
    moved = [
        Move(region.image, region.region, was, now)
        for region, was, now in zip(store.regions, before.tolist(), labels.tolist(), strict=False)
        if was != now
    ]
    foreign = [record.id for record, out in zip(store.images, larger.outside, strict=True) if out][n_outside:]
    return Update(
        len(samples) - len(skipped), len(labels) - len(before), there, opened, _n_unknown(larger, labels), moved,
        skipped, foreign,
    )  # fmt: skip


def _n_unknown(state: RunState, labels: npt.NDArray[np.int64]) -> int:
    """Regions of no class, but those of images that do not show the product."""
    return sum(
        label < 0 and not state.outside[region.index] for region, label in zip(state.regions, labels, strict=True)
    )


def _check(model: DiscoveryModel, inputs: Dataset) -> None:
    if model.classifier is None or not model.classifier.n_classes:
        raise DataError("this run has no defect classes to add to: call `discover` with all images instead.")
    model.check_maps(inputs)
    if model.classifier.last_block:
        raise DataError(
            "this run has trained the network itself (--preset paper), so its features cannot be added to. Call `discover` "
            "with all images."
        )


def _new_samples(run: Path, state: RunState, dataset: Dataset) -> tuple[list[Sample], list[str]]:
    """Samples that the run does not hold yet, under names that it does not use yet; and names of the others."""
    rows = {row.get("file"): row for row in state.manifest.to_dict("records")}  # the last one of a file counts
    written = (run / MANIFEST).stat().st_mtime_ns
    names = {record.id for record in state.store.images}
    samples, known = [], []
    for sample in dataset:
        row = rows.get(str(sample.image.absolute()), {}) if not isinstance(sample.image, np.ndarray) else {}
        status = row.get("status")
        if not isinstance(sample.image, np.ndarray) and status == "ok" and is_changed(sample.image, row, written):
            status = None  # a camera has used the name again
        if status == "ok" or (status == "skipped" and not is_readable(sample)):
            known.append(sample.id)
            continue
        name, number, path = sample.id, 1, PurePosixPath(sample.id)
        while name in names:  # another folder has an image of the same name
            number += 1
            name = path.with_name(f"{path.stem} ({number}){path.suffix}").as_posix()
        names.add(name)
        samples.append(replace(sample, id=name))
    return samples, known


def _with_maps(
    folder: RunFolder, model: DiscoveryModel, first: int, samples: Sequence[Sample], progress: Silent, engine: Engine
) -> list[Sample]:
    """The samples with maps of the run's own detector, which are kept in the run as those of `discover` are."""
    names, key = numbered_maps(samples, first), stable_hash(folder.read_json(CHECKSUMS), fingerprint(samples))
    files = MapFiles(folder, samples, names, key, engine)
    detector = read_detector(folder.path, model.config)
    model.seen = Seen(RunFolder(folder.path.absolute()), SEEN)
    share(detector, model.seen, model.config)
    write_maps(files, detector, model.config, progress)
    folder.remove(TRAINING)
    return [replace(sample, map=folder.place(name)) for sample, name in zip(samples, names, strict=True)]


def _joined(state: RunState, store: RegionStore, samples: Sequence[Sample]) -> RunState:
    """The run with the new images behind its own; new regions have the classes that the model gives them, or −1."""
    model, n_images, n_regions = state.model, len(state.store.images), len(state.regions)
    new, parts = store.regions[n_regions:], {name: values[n_regions:] for name, values in store.parts.items()}
    probabilities, *_ = model.recognize(parts, new, store.images)
    foreign = None if store.scenes is None else model.foreign(store.scenes[n_images:])
    outside = np.append(state.outside, np.zeros(len(samples), bool) if foreign is None else foreign > 0.5)
    nothing = np.isnan(probabilities).any(axis=1) | outside[[region.index for region in new]]
    labels = np.where(nothing, UNKNOWN, model.classes[np.nan_to_num(probabilities).argmax(axis=1)])
    rows = manifest(store.images[n_images:], samples, store.run.path)
    return RunState(
        model, store, store.parts, np.concatenate([state.labels, labels.astype(np.int64)]),
        np.concatenate([state.fixed, np.zeros(len(new), bool)]), outside,
        state.truth | {sample.id: sample.label for sample in samples if sample.label is not None},
        pd.concat([state.manifest, rows], ignore_index=True),
    )  # fmt: skip


def _with_new_classes(state: RunState, n_before: int) -> npt.NDArray[np.int64]:
    """Classes (R,) of all regions, where those that are far off and alike have new numbers.

    n_before : regions that were in the run already; behind them are the new ones
    """
    model, labels = state.model, state.labels
    assert model.classifier is not None
    if not model.config.unknown.false_rate:
        return labels
    images = np.array([region.index for region in state.regions])
    chance = model.false_alarm_probability(state.features, state.regions, state.store.images)
    silent = (chance > model.config.detect.false_alarms) | state.outside[images]
    blocks, weights = block_rows(model.classifier.space, state.features)
    least, seed = model.config.unknown.group, model.config.random_state
    return open_classes(blocks, weights, images, labels, n_before, silent, least, above=model.highest, seed=seed)
