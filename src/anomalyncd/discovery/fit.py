"""Unlabelled images → classes of defects: the paper's Section 3 in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ..assign.calibrated import calibrated
from ..binarize.prepare import binarizer_for, restore_binarizer
from ..blocks.ranges import fit_range, map_ranges
from ..blocks.shards import Look
from ..data.dataset import Dataset, Sample
from ..detect import Detector
from ..errors import DataError, RunError
from ..known.given import Example, Told, join_known, known_table, warn_of_known
from ..learn.classifier import FeatureParts
from ..learn.distributed import process_group
from ..learn.fit import RegionSet, is_banked
from ..model.device import choose_device
from ..model.seen import Seen
from ..progress import Silent
from ..regions.records import report_files
from ..run.finished import read_corrections
from ..run.folder import KNOWN, SEEN, UPDATE, RunFolder
from ..run.stages import MAP_FIGURES, Stages
from ..run.store import RegionStore
from ..run.tables import manifest, read_names, to_csv
from .learning import learn_classes
from .maps import make_maps, normal_samples
from .model import DiscoveryModel
from .results import Assignment, Key, classify_stored
from .torchrun import labelled_regions

MOSTLY_NORMAL = 0.9  # share of images that is worth a warning
BASE_REGIONS = 2  # crops that an image of the labelled base set gives, as in the paper


@dataclass(frozen=True)
class Discovery:
    """What was found; seconds : time of each stage in this call."""

    model: DiscoveryModel
    result: Assignment
    skipped: dict[str, str]
    seconds: dict[str, float]


def discover(
    stages: Stages,
    dataset: Dataset,
    *,
    base: Dataset | None = None,
    normal: Sequence[Sample] = (),
    detector: Detector | None = None,
    known: Sequence[Example] = (),
) -> Discovery:
    """Find the regions of all images, learn classes of regions, and merge them into classes of images.

    Parameters
    ----------
    stages : of the run; those that were finished from the same inputs and settings are read instead
    base : labelled defects of other products
    normal : images of normal products: for the detector, or with maps, for how normal ones score
    detector : one made by the caller, instead of the configured one
    known : labels of some of the images, or of others that are taken in with them
    """
    folder, progress = stages.folder, stages.progress
    _check(stages, dataset)
    dataset, told = join_known(dataset, known)
    earlier = _Known(read_names(folder.path), read_corrections(folder.path))  # before another result takes their place
    model = DiscoveryModel(stages.config)
    if dataset.is_bare:
        stages.seen = model.seen = Seen(RunFolder(folder.path.absolute()), SEEN)
        with stages.timed("maps"):
            samples, _ = make_maps(stages, dataset.samples, normal=normal, detector=detector)
            dataset = replace(dataset, samples=samples)
            stages.normal = normal_samples(folder, normal)
    else:
        stages.normal = normal
    if told.normal:
        stages.normal = [*stages.normal, *(s for s in dataset if s.id in told.normal and s.map is not None)]
    with stages.timed("range"):
        _fit_range(stages, model, dataset)
    with stages.timed("regions"):
        novel = _find_regions(stages, model, dataset)
    skipped = report_files(novel.images, progress)
    labelled = None
    if base is not None:
        with stages.timed("base set"):
            labelled = _find_base_regions(stages, model, base)
    normal_looks = None
    if model.false_alarms is not None and not model.false_alarms.moved and stages.normal and novel.regions:
        with stages.timed("looks of normal images"):
            normal_looks = _describe_normal(stages, model)
    folder.remove(SEEN)
    with stages.timed("learning"):
        model, features, fixed = stages.learning(
            dataset, base, novel, told.key, lambda: _learned(stages, novel, earlier),
            lambda: _learn(stages, model, novel, labelled, normal_looks, told),
        )  # fmt: skip
    rows = manifest(novel.images, dataset.samples, folder.path)
    result, files = classify_stored(model, novel, features, rows, truth=dataset.truth, fixed=fixed)
    folder.commit({**files, "config.yaml": stages.config.to_yaml().encode()})
    _warn_of_results(model, result, progress)
    return Discovery(model, result, skipped, stages.seconds)


def _check(stages: Stages, dataset: Dataset) -> None:
    device = choose_device(stages.config.device)  # a wrong one is said now, not after the maps were read
    process_group().check(device, banked=is_banked(stages.config.learn, device))
    for note in dataset.notes:
        stages.progress.warn(note)
    if stages.folder.has_begun(UPDATE):
        raise RunError(
            f"{stages.folder.path}: this run has taken in more images since (`anomalyncd update`), which `discover` would "
            "forget. Choose another folder, or go on with `update`."
        )


def _fit_range(stages: Stages, model: DiscoveryModel, dataset: Dataset) -> None:
    """Fit the range of the maps, and what their scores mean."""
    if not dataset.has_maps:
        return
    config, size = stages.config, stages.config.binarize.min_map_size

    def fit() -> dict[str, Any]:
        binarizer = binarizer_for(config.binarize, has_normal=config.has_normal)
        with stages.progress.task("Range of the maps", len(dataset)) as advance:
            found, figures, reason = map_ranges(stages.engine, dataset.samples, size, config.ignore, advance)
        fit_range(binarizer, found, len(dataset), reason)
        _, normal, _ = map_ranges(stages.engine, stages.normal, size, config.ignore)
        scores_and_peaks = [
            values for pair in (figures, normal) for values in list(zip(*pair, strict=True)) or [(), ()]
        ]
        return {**binarizer.get_state(), **dict(zip(MAP_FIGURES, scores_and_peaks, strict=True))}

    state = stages.range(dataset, fit)
    model.binarizer = restore_binarizer(config, state)
    if config.has_normal and config.learn.normal == "calibrated":
        figures = {name: np.array(state[name], np.float64) for name in MAP_FIGURES}
        model.false_alarms = calibrated(figures, stages.progress)


def _find_regions(stages: Stages, model: DiscoveryModel, dataset: Dataset) -> RegionStore:
    """Main Element Binarization, crops, and features of the frozen network."""
    with stages.progress.task("Regions", len(dataset)) as advance:
        return RegionStore(stages.folder).fill(
            dataset.samples, model.look(stages.progress.say), stages.regions_key(dataset), advance,
            scenes=model.config.unknown.foreign_rate > 0, engine=stages.engine,
        )  # fmt: skip


def _describe_normal(stages: Stages, model: DiscoveryModel) -> tuple[np.ndarray, np.ndarray] | None:
    """Scores (N,) and looks (N, L, C) of normal images; None where looks are no part of the features."""
    config = stages.config
    if not config.features.image:
        return None
    # One region an image, the whole of it: the `image` part does not depend on regions, and needs no crop.
    features = config.features.model_copy(update={"class_token": 0.0, "patches": 0.0})
    crop = config.crop.model_copy(update={"no_region": "learned"})
    config = config.model_copy(update={"features": features, "crop": crop})
    look = Look(config, model.binarizer, whole=True, seen=model.seen, network=partial(model.vit, stages.progress.say))
    samples = [sample for sample in stages.normal if sample.image is not sample.map]  # maps alone have no looks
    with stages.progress.task("Looks of normal images", len(samples)) as advance:
        store = RegionStore(stages.folder, "normal").fill(
            samples, look, stages.normal_key(), advance, engine=stages.engine
        )
    if not store.regions:
        return None
    scores = np.array([store.images[region.index].score for region in store.regions])
    return scores, store.parts["image"].astype(np.float32).mean(axis=1)


def _find_base_regions(stages: Stages, model: DiscoveryModel, base: Dataset) -> RegionSet:
    crop = stages.config.crop.model_copy(update={"no_region": "normal"})
    config = stages.config.model_copy(update={"crop": crop, "has_normal": True})
    look = Look(config, most_regions=BASE_REGIONS, network=partial(model.vit, stages.progress.say))
    with stages.progress.task("Labelled base set", len(base)) as advance:
        store = RegionStore(stages.folder, "base").fill(
            base.samples, look, stages.base_key(base), advance, engine=stages.engine
        )
    report_files(store.images, stages.progress)
    if not store.regions:
        raise DataError("the base set has no region: all its masks are empty.")
    # Classes are numbered again, because one whose masks are all empty would leave a gap.
    _, labels = np.unique(base.numbered_labels[[region.index for region in store.regions]], return_inverse=True)
    return labelled_regions(store, labels.tolist())


@dataclass(frozen=True)
class _Known:
    """What people said of the classes before this call: label → name, and (image, region) → class."""

    names: dict[int, str]
    corrections: dict[Key, int]


def _learned(
    stages: Stages, novel: RegionStore, known: _Known
) -> tuple[DiscoveryModel, FeatureParts, dict[Key, int]] | None:
    """What an earlier call learned from the same regions; None where it is damaged."""
    try:
        model = DiscoveryModel.read(stages.folder.path, device=stages.config.device, names=False)
        features = novel.features(retrained=model.is_retrained)
    except RunError:
        return None
    model.names |= {k: name for k, name in known.names.items() if k in model.names}
    if model.config != stages.config:  # only in what learning does not depend on
        model.config = stages.config
        _know(model, features, novel)
        stages.keep_learned(model.pack(), (), None)
    return model, features, known.corrections


def _learn(
    stages: Stages,
    model: DiscoveryModel,
    novel: RegionStore,
    base: RegionSet | None,
    normal: tuple[np.ndarray, np.ndarray] | None,
    told: Told,
) -> tuple[DiscoveryModel, FeatureParts, dict[Key, int]]:
    """Learn, and keep what was learned; also the features of all regions as the trained network sees them."""
    progress, count = stages.progress, None
    stages.folder.drop_results()  # of a model that was damaged; else they are gone by now
    features: FeatureParts = novel.parts
    fixed: dict[Key, int] = {}
    if novel.regions:
        marked = told.mark(novel.regions, masked=model.binarizer is None, has_normal=model.config.has_normal)
        features, count = learn_classes(model, novel, base, normal, progress, marked)
        if marked is not None:
            table = known_table(marked, novel.regions, model.learned_classes.tolist(), model.names)
            warn_of_known(told, table, progress)
            stages.folder.write_text(KNOWN, to_csv(table))
            fixed = read_corrections(stages.folder.path)
        if model.is_retrained:
            novel.keep_features(features)
    else:
        if not len(model.classes):
            model.set_count(1)
        progress.warn("no image has an anomalous region: all of them are normal, and there is nothing to learn.")
    _know(model, features, novel)
    stages.keep_learned(model.pack(), model.classifier.history if model.classifier else (), count)
    return model, features, fixed


def _know(model: DiscoveryModel, features: FeatureParts, novel: RegionStore) -> None:
    """Fit what the run has seen, by which new kinds and other products are told later."""
    model.fit_unknown(features, novel.regions)
    model.fit_product(novel.scenes)


def _warn_of_results(model: DiscoveryModel, result: Assignment, progress: Silent) -> None:
    """What a person who trusts the numbers would want to be told."""
    there = set(result.labels.tolist())
    if result.regions.empty:
        return
    if empty := [model.names[k] for k in model.classes.tolist() if k > 0 and k not in there]:
        progress.warn(f"{', '.join(empty)}: no image is of this class in the end. Ask for fewer classes (--classes).")
    share = float((result.labels == 0).mean())
    if share > MOSTLY_NORMAL and model.false_alarms is not None:
        progress.warn(
            f"{share:.0%} of the images score or look like normal ones. If more of them show a defect, raise --sensitivity "
            f"(now {model.config.detect.false_alarms:g})."
        )
