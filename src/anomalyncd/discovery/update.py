"""New images folded into a finished run: known classes keep their numbers and names, unknown regions that are alike open new
ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy.cluster.hierarchy import fcluster, linkage

from ..assign.unknown import fit_unknown
from ..checksums import stable_hash
from ..data.dataset import Dataset, Sample
from ..errors import DataError
from ..labels import UNKNOWN
from ..learn.features import FeatureSpace
from ..progress import Silent
from ..regions.extract import Extracted, is_readable
from ..regions.records import report_files
from ..run.detector import read_detector
from ..run.finished import FinishedRun
from ..run.folder import MANIFEST, STAGES, UPDATE, RunFolder
from ..run.store import SHARD, RegionStore, extract, numbered_maps
from ..run.tables import is_changed, manifest
from .maps import write_maps
from .model import DiscoveryModel
from .relearn import Move, RunState, learn_again

MOST = 0.75  # of a group
SUSPECTS = 0.2  # share of known regions as far off as a new one must be to make a new class with others


@dataclass(frozen=True)
class Update:
    """What an update changed.

    n_images, n_regions : taken in; known : those that were in the run already
    opened : label → regions of each new class
    unknown : regions that are of no class, old and new
    moved : regions that were there before and are of another class now
    skipped : id → why a file could not be read
    """

    n_images: int
    n_regions: int
    known: list[str] = field(default_factory=list)
    opened: dict[int, int] = field(default_factory=dict)
    unknown: int = 0
    moved: list[Move] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)


def update_run(run: Path, inputs: Dataset, progress: Silent | None = None, *, device: str = "auto") -> Update:
    """Take new images into a run.

    New regions get classes as `predict` gives them. Those of an unknown kind are grouped; a group of at least
    `unknown.group` regions becomes a class of its own, the others stay unknown until more like them come. Then the heads
    learn again, with all classes that are there as a start.

    Parameters
    ----------
    run : folder of a finished run
    inputs : images as `predict` takes them; files that the run holds already are left out
    """
    progress = progress or Silent()
    with RunFolder(run).writing() as folder:
        state = RunState.of(FinishedRun(run, device=device))
        model = state.model
        _check(model, inputs)
        samples, known = _new_samples(run, state, inputs)
        if not samples:
            return Update(0, 0, known, unknown=int((state.labels < 0).sum()))
        n_images, before, classes = len(state.store.images), state.labels, set(model.classes.tolist())
        if inputs.is_bare:
            samples = _with_maps(folder, model, n_images, samples, progress)
        store = _extract(folder, model, n_images, samples, progress)
        skipped = report_files(store.images[n_images:], progress)
        larger = _joined(state, store, samples)
        wanted = open_classes(larger, len(before))
        files, labels = learn_again(larger, wanted, larger.fixed, model.names)
        folder.commit(
            {**files, STAGES: folder.stages_with(UPDATE, stable_hash([record.id for record in store.images]))}
        )
    opened = {k: int((labels == k).sum()) for k in model.classes.tolist() if k not in classes and (labels == k).any()}
    moved = [
        Move(region.image, region.region, was, now)
        for region, was, now in zip(store.regions, before.tolist(), labels.tolist(), strict=False)
        if was != now
    ]
    return Update(
        len(samples) - len(skipped), len(labels) - len(before), known, opened, int((labels < 0).sum()), moved, skipped
    )


def _check(model: DiscoveryModel, inputs: Dataset) -> None:
    if model.classifier is None:
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
        row = rows.get(str(sample.image.absolute()), {}) if isinstance(sample.image, Path) else {}
        status = row.get("status")
        if isinstance(sample.image, Path) and status == "ok" and is_changed(sample.image, row, written):
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
    folder: RunFolder, model: DiscoveryModel, first: int, samples: Sequence[Sample], progress: Silent
) -> list[Sample]:
    """The samples with maps of the run's own detector, which are kept in the run as those of `discover` are."""
    names = numbered_maps(samples, first)
    write_maps(folder, samples, names, read_detector(folder.path, model.config), progress)
    return [replace(sample, map=folder.place(name)) for sample, name in zip(samples, names, strict=True)]


def _extract(
    folder: RunFolder, model: DiscoveryModel, first: int, samples: Sequence[Sample], progress: Silent
) -> RegionStore:
    """Regions and features of the new images, in shards behind those of the run."""
    extractor = model.extractor(progress.say)

    def shards() -> Iterator[Extracted]:
        for start in range(0, len(samples), SHARD):
            yield extract(extractor, samples[start : start + SHARD], first + start)
            advance(len(samples[start : start + SHARD]))

    with progress.task("Regions", len(samples)) as advance:
        return RegionStore(folder).read(first).extend(shards())


def _joined(state: RunState, store: RegionStore, samples: Sequence[Sample]) -> RunState:
    """The run with the new images behind its own; new regions have the classes that the model gives them, or −1."""
    model, n_images, n_regions = state.model, len(state.store.images), len(state.regions)
    new, parts = store.regions[n_regions:], {name: values[n_regions:] for name, values in store.parts.items()}
    probabilities, *_ = model.recognize(parts, new, store.images)
    nothing = np.isnan(probabilities).any(axis=1)
    labels = np.where(nothing, UNKNOWN, model.classes[np.nan_to_num(probabilities).argmax(axis=1)])
    rows = manifest(store.images[n_images:], samples, store.run.path)
    return RunState(
        model, store, store.parts, np.concatenate([state.labels, labels.astype(np.int64)]),
        np.concatenate([state.fixed, np.zeros(len(new), bool)]),
        state.truth | {sample.id: sample.label for sample in samples if sample.label is not None},
        pd.concat([state.manifest, rows], ignore_index=True),
    )  # fmt: skip


def open_classes(state: RunState, n_before: int) -> npt.NDArray[np.int64]:
    """Classes (R,) of all regions, where those that are far off and alike have new numbers.

    One region must be very far off to be called unknown; several that are alike need less: new ones count from where a
    fifth of the run's own regions lie. Average linkage, by features from which the mean of all regions was taken off:
    there, groups whose cosine is below 0 in the mean have nothing in common. Groups that are too small, or nearer to known
    regions than to themselves, keep the classes they had, or −1.

    Parameters
    ----------
    n_before : regions that were in the run already; behind them are the new ones
    """
    model, labels = state.model, state.labels.copy()
    assert model.classifier is not None
    if not model.config.unknown.false_rate:
        return labels
    apart = (labels < 0) | (_suspicion(state, n_before) > 0.5)
    places = np.flatnonzero(apart)
    if len(places) < max(model.config.unknown.group, 2):
        return labels
    space = FeatureSpace(model.classifier.space.weights).fit(state.features, center=not apart.all())
    features = space.transform(state.features)
    known = features[:n_before][labels[:n_before] >= 0]
    groups = fcluster(linkage(features[places], "average", metric="cosine"), 1.0, "distance")
    following = max(int(labels.max()), model.highest) + 1
    sizes = np.bincount(groups)
    for group in np.argsort(-sizes, kind="stable"):  # the largest gets the lowest number
        members = places[groups == group]
        if sizes[group] >= model.config.unknown.group and _is_kind(features[members], known):
            labels[members] = following
            following += 1
    return labels


def _suspicion(state: RunState, n_before: int) -> npt.NDArray[np.float64]:
    """Unknown scores (R,) that a fifth of the run's own regions exceed; 0 for these themselves and for false alarms."""
    assert state.model.classifier is not None
    features = state.model.classifier.space.transform(state.features)
    images = np.array([region.index for region in state.regions])
    known = np.flatnonzero(state.labels[:n_before] >= 0)
    wary, _ = fit_unknown(features[known], images[known], SUSPECTS)
    scores = np.zeros(len(features))
    scores[n_before:] = wary(features[n_before:])
    chance = state.model.false_alarm_probability(state.features, state.regions, state.store.images)
    scores[chance > state.model.config.detect.false_alarms] = 0
    return scores


def _is_kind(members: npt.NDArray[np.float32], known: npt.NDArray[np.float32]) -> bool:
    """Whether most of a group are more like another of it than like anything known; others are odd ones of known kinds."""
    if not len(known):
        return True
    own = members @ members.T
    np.fill_diagonal(own, -1)
    return bool((own.max(axis=1) > (members @ known.T).max(axis=1)).mean() >= MOST)
