"""Unlabelled images → classes of defects: the paper's Section 3 in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..assign.false_alarms import false_alarm_threshold
from ..binarize.prepare import binarizer_for, fit_binarizer
from ..data.dataset import Dataset, Sample
from ..detect import Detector
from ..errors import DataError, RunError
from ..labels import default_name
from ..learn.classifier import FeatureParts
from ..learn.distributed import process_group
from ..learn.fit import RegionSet, is_banked
from ..model.device import choose_device
from ..regions.extract import Extractor
from ..regions.records import report_files
from ..run.finished import read_corrections
from ..run.folder import UPDATE
from ..run.stages import Stages
from ..run.store import RegionStore
from ..run.tables import manifest
from .learning import learn_classes
from .maps import make_maps
from .model import DiscoveryModel, make_encoder, read_names, restore_binarizer
from .results import Assignment, Key, classify_stored
from .torchrun import labelled_regions

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
) -> Discovery:
    """Find the regions of all images, learn classes of regions, and merge them into classes of images.

    Parameters
    ----------
    stages : of the run; those that were finished from the same inputs and settings are read instead
    base : labelled defects of other products
    normal : images of normal products for the detector; detector : one made by the caller, instead of the configured one
    """
    folder, progress = stages.folder, stages.progress
    _check(stages, dataset)
    known = _Known(read_names(folder.path), read_corrections(folder.path))  # before another result takes their place
    folder.write_text("config.yaml", stages.config.to_yaml())
    model = DiscoveryModel(stages.config)
    if dataset.is_bare:
        with stages.timed("maps"):
            samples, _ = make_maps(stages, dataset.samples, normal=normal, detector=detector)
            dataset = replace(dataset, samples=samples)
    with stages.timed("range"):
        threshold = _fit_range(stages, model, dataset)
    with stages.timed("regions"):
        novel = _find_regions(stages, model, dataset)
    skipped = report_files(novel.images, progress)
    labelled = None
    if base is not None:
        with stages.timed("base set"):
            labelled = _find_base_regions(stages, model, base)
    with stages.timed("learning"):
        model, features, fixed = stages.learning(
            dataset, base, novel, lambda: _learned(stages, novel, known),
            lambda: _learn(stages, model, novel, labelled, threshold, known),
        )  # fmt: skip
    rows = manifest(novel.images, dataset.samples, folder.path)
    result, files = classify_stored(model, novel, features, rows, truth=dataset.truth, fixed=fixed)
    folder.commit(files)
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


def _fit_range(stages: Stages, model: DiscoveryModel, dataset: Dataset) -> float:
    """Fit the range of the maps; returns the score from which on an image has a defect rather than not, 0 without maps."""
    if not dataset.has_maps:
        return 0.0
    config = stages.config

    def fit() -> dict[str, Any]:
        binarizer, maxima = binarizer_for(config.binarize, has_normal=config.has_normal), []  # type: ignore[var-annotated]
        with stages.progress.task("Range of the maps", len(dataset)) as advance:
            fit_binarizer(binarizer, dataset.samples, config.binarize.min_map_size, advance, maxima)
        return {**binarizer.get_state(), "scores": binarizer.normalize(np.array([maxima]))[0].tolist()}

    state = stages.range(dataset, fit)
    model.binarizer = restore_binarizer(config, state)
    threshold = false_alarm_threshold(state["scores"]) if config.has_normal else 0.0
    if config.crop.no_region == "gate":
        model.cut_score = threshold
    return threshold


def _find_regions(stages: Stages, model: DiscoveryModel, dataset: Dataset) -> RegionStore:
    """Main Element Binarization, crops, and features of the frozen network."""
    with stages.progress.task("Regions", len(dataset)) as advance:
        return RegionStore(stages.folder).fill(
            dataset.samples, lambda: model.extractor(stages.progress.say), stages.regions_key(dataset), advance
        )


def _find_base_regions(stages: Stages, model: DiscoveryModel, base: Dataset) -> RegionSet:
    crop = stages.config.crop.model_copy(update={"no_region": "normal"})
    config = stages.config.model_copy(update={"crop": crop, "has_normal": True})

    def extractor() -> Extractor:
        encoder = make_encoder(model.vit(stages.progress.say), config)
        return Extractor(config, None, encoder, most_regions=BASE_REGIONS)

    with stages.progress.task("Labelled base set", len(base)) as advance:
        store = RegionStore(stages.folder, "base").fill(base.samples, extractor, stages.base_key(base), advance)
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
        model.fit_unknown(features, novel.regions)
        stages.keep_learned(model.pack(), (), None)
    return model, features, known.corrections


def _learn(
    stages: Stages,
    model: DiscoveryModel,
    novel: RegionStore,
    base: RegionSet | None,
    threshold: float,
    known: _Known,
) -> tuple[DiscoveryModel, FeatureParts, dict[Key, int]]:
    """Learn, and keep what was learned; also the features of all regions as the trained network sees them."""
    progress, count = stages.progress, None
    if renamed := {k: name for k, name in known.names.items() if name != model.names.get(k, default_name(k))}:
        progress.warn(f"classes are learned anew, so the names given to them no longer fit: {renamed}")
    if known.corrections:
        progress.warn(f"classes are learned anew, and {len(known.corrections)} corrected regions with them.")
    features: FeatureParts = novel.parts
    if novel.regions:
        features, count = learn_classes(model, novel, base, threshold, progress)
        if model.is_retrained:
            novel.keep_features(features)
        model.fit_unknown(features, novel.regions)
    else:
        if not len(model.classes):
            model.set_count(1)
        progress.warn("no image has an anomalous region: all of them are normal, and there is nothing to learn.")
    stages.keep_learned(model.pack(), model.classifier.history if model.classifier else (), count)
    return model, features, {}
