"""The stages of a run, in the order of the paper: range, regions, learning, classes. Each is kept and not redone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from safetensors import SafetensorError

from .. import __version__
from ..assign.false_alarms import false_alarm_threshold
from ..binarize.base import Binarizer
from ..binarize.prepare import binarizer_for, fit_binarizer
from ..checksums import seal, stable_hash, unseal
from ..config import Config
from ..data.dataset import Dataset, Sample
from ..detect import Detector
from ..errors import DataError, RunError
from ..labels import default_name
from ..learn.classifier import Parts
from ..learn.distributed import team
from ..learn.fit import RegionSet, is_banked
from ..model.backbone import MaskGuidedViT
from ..model.device import choose_device
from ..regions.extract import Extractor
from ..regions.records import report_files
from ..run.finished import read_corrections
from ..run.folder import (
    CLASS_NAMES,
    FORMAT,
    GROUPS,
    IMAGES_TABLE,
    MANIFEST,
    MODEL_FILE,
    REGIONS_TABLE,
    RETRAINED,
    UPDATE,
    RunFolder,
)  # fmt: skip
from ..run.log import RunLog
from ..run.store import RegionStore, file_identity, fingerprint
from ..run.tables import Assignment, assign, manifest, read_history, to_csv
from .learning import Training
from .maps import make_maps, pinned
from .model import DiscoveryModel, make_encoder, read_names, restore_binarizer
from .relearn import groups_table, hold
from .torchrun import labelled_regions

T = TypeVar("T")
RANGE = "range.json"
BASE_REGIONS = 2  # crops that an image of the labelled base set gives, as in the paper


@dataclass(frozen=True)
class Discovery:
    """A finished run; seconds : time of each stage in this call."""

    model: DiscoveryModel
    result: Assignment
    skipped: dict[str, str]
    history: list[dict[str, float]]
    seconds: dict[str, float]


class Discover:
    """One run in one folder."""

    def __init__(self, folder: RunFolder, config: Config, progress: RunLog) -> None:
        self.folder, self.config, self.progress = folder, pinned(config), progress
        self.model = DiscoveryModel(self.config)
        self.threshold = 0.0  # score from which on an image has a defect rather than not
        self.seconds: dict[str, float] = {}

    def __call__(
        self, inputs: Dataset, base: Dataset | None, normal: Sequence[Sample] = (), detector: Detector | None = None
    ) -> Discovery:
        """All stages; those that were finished from the same inputs and settings are read instead.

        normal : images of normal products for the detector; detector : one made by the caller, instead of a configured one
        """
        device = choose_device(self.config.device)  # a wrong one is said now, not after the maps were read
        team().check(device, banked=is_banked(self.config.learn, device))
        for note in inputs.notes:
            self.progress.warn(note)
        if self.folder.has_begun(UPDATE):
            raise RunError(
                f"{self.folder.path}: this run has taken in more images since (`anomalyncd update`), which `discover` would "
                "forget. Choose another folder, or go on with `update`."
            )
        self.given_names, self.corrections = read_names(self.folder.path), read_corrections(self.folder.path)
        self.folder.write_text("config.yaml", self.config.to_yaml())
        if self.config.detect.name:
            inputs = self._timed("maps", lambda: self._maps(inputs, normal, detector))
        range_key = stable_hash(
            FORMAT, __version__, self.config.has_normal, self.config.binarize.model_dump(), fingerprint(inputs.samples)
        )
        key = stable_hash(range_key, self._frozen_identity())
        self._timed("range", lambda: self._range(inputs, range_key))
        novel = self._timed("regions", lambda: self._regions(inputs, key))
        skipped = report_files(novel.images, self.progress)
        base_key = ""
        labelled = None
        if base is not None:
            base_key = stable_hash(self._frozen_identity(), fingerprint(base.samples), base.labels)
            labelled = self._timed("base set", lambda: self._base(base, base_key))
        learn_key = stable_hash(
            key, base_key, self.config.model_dump(mode="json", exclude={"merge", "preset", "unknown"}),
            [region.digest for region in novel.regions], [bool(record.error) for record in novel.images],
        )  # fmt: skip
        parts = self._timed("learning", lambda: self._learn(novel, labelled, learn_key))
        probabilities = self.model.region_probabilities(parts, novel.regions)
        place = {(region.image, region.region): row for row, region in enumerate(novel.regions)}
        held = {place[key]: label for key, label in self.corrections.items() if key in place}
        hold(probabilities, np.array([*held], int), np.array([*held.values()], int), self.model.classes)
        result = assign(
            novel.images, novel.regions, probabilities, self.model.classes, self.model.names, self.config.merge,
            self.model.fit_unknown(parts, novel.regions),
        )  # fmt: skip
        if truth := inputs.truth:
            result.images["true_label"] = [truth.get(name) for name in result.images["image"]]
        result.regions["crop"] = [novel.crop_name(region) for region in novel.regions]
        self.folder.write_text(GROUPS, to_csv(groups_table(self.model, parts, result.regions)))
        self._write_tables(novel, result, inputs.samples)
        return Discovery(self.model, result, skipped, read_history(self.folder.path), self.seconds)

    def _maps(self, inputs: Dataset, normal: Sequence[Sample], detector: Detector | None) -> Dataset:
        items, _ = make_maps(
            self.folder, inputs.samples, self.config, self.progress, normal=normal, detector=detector, timed=self._timed
        )
        return replace(inputs, samples=items)

    def _range(self, inputs: Dataset, key: str) -> None:
        """Range of all maps, and the score from which on an image has a defect rather than not; nothing without maps."""
        if all(item.map is None for item in inputs.samples):
            return
        binarizer, scores = self._known_range(key)
        if binarizer is None:
            self.folder.start("range", key, RANGE)
            binarizer = binarizer_for(self.config.binarize, has_normal=self.config.has_normal)
            maxima: list[float] = []
            with self.progress.task("Range of the maps", len(inputs)) as advance:
                fit_binarizer(binarizer, inputs.samples, self.config.binarize.min_map_size, advance, maxima)
            scores = binarizer.normalize(np.array([maxima]))[0].tolist()
            self.folder.write_json(RANGE, {**binarizer.get_state(), "scores": scores})
            self.folder.finish("range", key)
        self.model.binarizer = binarizer
        self.threshold = false_alarm_threshold(scores) if self.config.has_normal else 0.0
        if self.config.crop.no_region == "gate":
            self.model.alarm = self.threshold

    def _known_range(self, key: str) -> tuple[Binarizer | None, list[float]]:
        """What an earlier call left, unless it is damaged."""
        if self.folder.is_done("range", key):
            try:
                stored = json.loads(self.folder.place(RANGE).read_text())
                return restore_binarizer(self.config, stored), [float(score) for score in stored["scores"]]
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                pass
        return None, []

    def _regions(self, inputs: Dataset, key: str) -> RegionStore:
        def make() -> Extractor:
            return Extractor(
                self.config, self.model.binarizer, make_encoder(self._vit(), self.config), self.model.alarm
            )

        with self.progress.task("Regions", len(inputs)) as advance:
            return RegionStore(self.folder).fill(inputs.samples, make, key, advance)

    def _base(self, base: Dataset, key: str) -> RegionSet:
        crop = self.config.crop.model_copy(update={"no_region": "normal"})
        config = self.config.model_copy(update={"crop": crop, "has_normal": True})

        def make() -> Extractor:
            return Extractor(config, None, make_encoder(self._vit(), config), most_regions=BASE_REGIONS)

        with self.progress.task("Labelled base set", len(base.samples)) as advance:
            store = RegionStore(self.folder, "base").fill(base.samples, make, key, advance)
        report_files(store.images, self.progress)
        if not store.regions:
            raise DataError("the base set has no region: all its masks are empty.")
        # Classes are numbered again, because one whose masks are all empty would leave a gap.
        _, labels = np.unique(base.numbered_labels[[region.index for region in store.regions]], return_inverse=True)
        return labelled_regions(store, labels.tolist())

    def _learn(self, novel: RegionStore, base: RegionSet | None, key: str) -> Parts:
        """Train, or read what was trained; returns the features of all regions as the trained network sees them."""
        known = self._learned(novel, key)
        if known is not None:
            return known
        if renamed := {
            k: name for k, name in self.given_names.items() if name != self.model.names.get(k, default_name(k))
        }:
            self.progress.warn(f"classes are learned anew, so the names given to them no longer fit: {renamed}")
        if self.corrections:
            self.progress.warn(f"classes are learned anew, and {len(self.corrections)} corrected regions with them.")
            self.corrections = {}
        self.folder.start("learn", key, RETRAINED)
        parts: Parts = novel.parts
        if novel.regions:
            parts = Training(self.folder, self.config, self.progress, self.model, self.threshold)(novel, base)
            if self.config.learn.train_last_block:
                self.folder.write(RETRAINED, seal(parts, {}))
            self.model.fit_unknown(parts, novel.regions)
        else:
            if not len(self.model.classes):
                self.model.set_count(1)
            self.progress.warn(
                "no image has an anomalous region: all of them are normal, and there is nothing to learn."
            )
        self.folder.write(MODEL_FILE, self.model.pack())
        self.folder.finish("learn", key)
        return parts

    def _learned(self, novel: RegionStore, key: str) -> Parts | None:
        """What an earlier call learned from the same regions; None where there is nothing, or it is damaged."""
        if not self.folder.is_done("learn", key):
            return None
        try:
            model = DiscoveryModel.read(self.folder.path, device=self.config.device, names=False)
            retrained = bool(model.classifier and model.classifier.last_block)
            parts = unseal(self.folder.place(RETRAINED))[0] if retrained else novel.parts
        except (RunError, OSError, SafetensorError):
            return None
        model.names |= {k: name for k, name in self.given_names.items() if k in model.names}
        if model.config != self.config:  # only in what learning does not depend on
            model.config = self.config
            model.fit_unknown(parts, novel.regions)
            self.folder.write(MODEL_FILE, model.pack())
        self.model = model
        return parts

    def _write_tables(self, novel: RegionStore, result: Assignment, items: Sequence[Sample]) -> None:
        self.folder.write_text(MANIFEST, to_csv(manifest(novel.images, items, self.folder.path)))
        self.folder.write_text(REGIONS_TABLE, to_csv(result.regions))
        self.folder.write_json(CLASS_NAMES, {str(k): name for k, name in self.model.names.items()})
        self.folder.write_text(IMAGES_TABLE, to_csv(result.images))  # last: where it is, the run is whole

    def _vit(self) -> MaskGuidedViT:
        return self.model.vit(self.progress.say)

    def _frozen_identity(self) -> list[object]:
        """All that the features of a region depend on, besides its files."""
        model, features = self.config.model, self.config.features
        return [
            FORMAT, __version__, model.model_dump(mode="json"), self.config.crop.model_dump(),
            None if model.weights is None else file_identity(model.weights),
            self.config.precision, sorted(features.weights()), features.block, features.views, features.focus,
        ]  # fmt: skip

    def _timed(self, stage: str, work: Callable[[], T]) -> T:
        started, others = time.perf_counter(), sum(self.seconds.values())
        out = work()
        inside = sum(self.seconds.values()) - others  # stages of their own within this one
        self.seconds[stage] = time.perf_counter() - started - inside
        self.progress.note(f"{stage}: {self.seconds[stage]:.1f} s")
        return out
