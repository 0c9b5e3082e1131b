"""What is measured for one cell of a table: maps, classes, boxes, times. Each costly step is kept and not done twice."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import safetensors.numpy

from ..checksums import stable_hash
from ..config import Config, DetectConfig
from ..data.dataset import Dataset, Sample, load_dataset
from ..data.gather import gather_normal
from ..data.images import read_image
from ..data.maps import StackRow, read_map
from ..detect import DETECTORS
from ..discovery.maps import make_maps, pinned
from ..errors import DataError
from ..estimator import AnomalyNCD
from ..metrics import evaluate
from ..progress import Silent
from ..run.evaluate import evaluate_maps
from ..run.folder import RETRAINED, RunFolder
from ..run.store import SHARD, RegionStore, file_identity
from ..run.tables import assign
from .experiment import IMAGES_ONLY, MASKS, OURS, Row
from .products import Labelled, Product, fingerprint_of, load_product
from .rivals import rival
from .shared import borrow, frozen_settings, keep, longest

WHOLE_IMAGE = ("gcd", "simgcd")  # rivals that look at neither maps nor masks
OWN_SCORES = (
    "anomaly-clustering",
    "anomaly-clustering-semi",
)  # rivals that look at masks, but make scores of their own
SHARED = ("range", "regions", "base set")  # stages of a run that do not depend on the seed


@dataclass(frozen=True)
class Case:
    """What one cell is made from; config : of AnomalyNCD, or what a rival shares with it (backbone, device)."""

    row: Row
    product: Product
    source: str
    base: Labelled | None
    seed: int
    config: Config

    @property
    def uses_source(self) -> bool:
        """Whether maps or masks have a say; where not, one result stands for all of them."""
        if self.row.method in OWN_SCORES:
            return self.source == MASKS or self.row.settings.get("weights") == "given"
        return self.row.method not in WHOLE_IMAGE


@dataclass(frozen=True)
class Measured:
    """metrics : by name, None where there is nothing to measure
    seconds : of each stage
    predictions : the columns image and label
    features : image id → what was clustered, that of the largest region where there are several
    """

    metrics: dict[str, float | None]
    seconds: dict[str, float] = field(default_factory=dict)
    predictions: pd.DataFrame | None = None
    features: dict[str, npt.NDArray[np.float16]] = field(default_factory=dict)


class Lab:
    """The working folder: maps of each detector, a run folder for each set of frozen features, tokens of base sets.

    Parameters
    ----------
    work : folder, made where missing
    maps : (data set, source) → folder of maps that are there already
    """

    def __init__(self, work: Path, maps: Mapping[tuple[str, str], Path], progress: Silent) -> None:
        self.work, self.given, self.progress = work, maps, progress
        self._prints: dict[Path, str] = {}

    def source_key(self, case: Case) -> str:
        """Identity of the maps or masks."""
        if not case.uses_source or case.source in (MASKS, IMAGES_ONLY):
            return case.source if case.uses_source else ""
        if (folder := self.given.get((case.product.name, case.source))) is not None:
            if folder not in self._prints:
                self._prints[folder] = fingerprint_of(folder)
            return self._prints[folder]
        config = pinned(case.config)
        weights = None if config.model.weights is None else file_identity(config.model.weights)
        return stable_hash(case.source, config.detect.settings, config.model.backbone, weights, config.precision)

    def classes(self, case: Case) -> Measured:
        """Fit, and only then compare with the true labels."""
        if case.row.method == OURS:
            model, run = self._fit(case)
            seconds, features = self._seconds(model, run), _region_features(model, run)
            ids = model.images_["image"].tolist()
        else:
            fitted = self._fit_rival(case)
            ids = [self._ids(case)[name] for name in fitted.images_["image"]]
            model, seconds = fitted, dict(fitted.seconds_)
            features = dict(zip(ids, fitted.features_.astype(np.float16), strict=True))
        labels = model.labels_.tolist()
        found = evaluate([case.product.labels[name] for name in ids], labels)
        scores: dict[str, float | None] = {name: getattr(found, name) for name in ("nmi", "ari", "f1")}
        if case.row.method == OURS:  # a rival's clusters have no names, so none of them is the normal one
            scores |= {name: getattr(found, name) for name in ("normal_precision", "normal_recall")}
        return Measured(scores, seconds, pd.DataFrame({"image": ids, "label": labels}), features)

    def boxes(self, case: Case) -> Measured:
        """Maps, and boxes of their binarised form, against the true masks."""
        if case.source in (MASKS, IMAGES_ONLY):
            return Measured({})
        items, scores, seconds = self.maps(case)
        found = evaluate_maps(items, scores, case.product.truth, case.config, self.progress)
        if found is None or found.box_fpr is None:
            raise DataError(f"{case.product.root}: no ground_truth/, so maps cannot be compared with it.")
        metrics = {"fpr": found.box_fpr, "fnr": found.box_fnr, "aupro": found.aupro}
        return Measured(
            metrics | {"image_auroc": found.image_auroc, "pixel_auroc": found.pixel_auroc}, {"maps": seconds}
        )

    def modules(self, case: Case) -> Measured:
        """Seconds an image of each module, as a fitted model takes for new images; rivals are no such model."""
        if case.row.method != OURS:
            return Measured({})
        fitted, _ = self._fit(case)
        model, items = fitted.model_, self._items(case)
        extract = model.extractor(self.progress.say)
        encoder = extract.encoder = _Timed(extract.encoder)  # type: ignore[assignment]
        took = {"binarize-and-crop": 0.0, "network": 0.0, "merge": 0.0}
        extract(items[:1])  # whatever is made on first use is not counted
        for start in range(0, len(items), SHARD):
            encoder.seconds, began = 0.0, time.perf_counter()
            found = extract(items[start : start + SHARD])
            cut = time.perf_counter()
            probabilities = model.region_probabilities(found.parts, found.regions)
            known = time.perf_counter()
            assign(found.images, found.regions, probabilities, model.classes, model.names, model.config.merge)
            took["binarize-and-crop"] += cut - began - encoder.seconds
            took["network"] += known - cut + encoder.seconds
            took["merge"] += time.perf_counter() - known
        each = {name: seconds / len(items) for name, seconds in took.items()}
        return Measured({**each, "total": sum(each.values())})

    def combined(self, case: Case) -> Measured:
        """Share of images of excluded classes, which were not learned from, whose regions fall into several classes."""
        if case.row.method != OURS:
            return Measured({})
        product = case.product
        everything = load_product(product.name, product.root)
        new = {name for name, label in everything.labels.items() if label in product.exclude}
        if not new:
            return Measured({"several": None})
        model, _ = self._fit(case)
        held_out = replace(case, product=replace(everything, truth=_only(everything, new), exclude=()))
        if case.source == MASKS:
            items = held_out.product.masked_items()
        else:
            items, _, _ = self.maps(held_out, fitted=self._maps_folder(case))
        model.model_.unknown = None  # which class each region is likest to is asked here, not whether it is like any
        regions = model.predict(Dataset(items)).regions
        kinds = regions[regions["label"] > 0].groupby("image")["label"].nunique()
        return Measured({"several": float((kinds > 1).sum() / len(new))})

    def maps(self, case: Case, fitted: Path | None = None) -> tuple[list[Sample], pd.DataFrame, float]:
        """Images with maps, their scores as in maps/scores.csv, and the seconds that the maps took.

        fitted : folder of maps whose detector is used as it is
        """
        given = self.given.get((case.product.name, case.source))
        if given is not None:
            return *_given_maps(case.product, given), 0.0
        out = self._maps_folder(case) if fitted is None else Path(f"{fitted}-new")
        config = pinned(case.config)
        detect = config.detect.model_copy(update={"name": case.source})
        config = config.model_copy(update={"detect": detect, "random_state": 0})
        kind = DETECTORS.get(case.source)
        wants_normal = fitted is None and (kind is None or kind.needs_normal) and case.product.normal
        normal = gather_normal(case.product.normal if wants_normal else None).samples
        began = time.perf_counter()
        with RunFolder(out).writing() as folder:
            items, scores = make_maps(
                folder, case.product.items(), config, self.progress, normal=normal, fitted=fitted
            )  # fmt: skip
            seconds = longest(folder, "bench.json", {"maps": time.perf_counter() - began})
        readable = set(scores.loc[scores["message"] == "", "image"])
        return [item for item in items if item.id in readable], scores, seconds["maps"]

    def _maps_folder(self, case: Case) -> Path:
        key = stable_hash(case.product.fingerprint, self.source_key(case))
        return self.work / "maps" / f"{case.product.name}-{_plain(case.source)}-{key[:12]}"

    def _items(self, case: Case) -> list[Sample]:
        if case.source == IMAGES_ONLY or not case.uses_source:
            return case.product.items()
        return case.product.masked_items() if case.source == MASKS else self.maps(case)[0]

    def _fit(self, case: Case) -> tuple[AnomalyNCD, Path]:
        """Through a run folder that all cells share whose frozen features are the same."""
        config = pinned(case.config).model_copy(update={"detect": DetectConfig()})
        items = self._items(case)
        frozen = frozen_settings(config)
        key = stable_hash(
            case.product.fingerprint, self.source_key(case), config.has_normal, config.binarize.model_dump(), frozen
        )
        run = self.work / "runs" / f"{case.product.name}-{_plain(case.source)}-{key[:12]}"
        kept = None
        if case.base is not None:
            kept = self.work / "base" / stable_hash(case.base.fingerprint, frozen)[:12]
            borrow(kept, run)
        model = AnomalyNCD.from_config(config, progress=self.progress)
        base = None if case.base is None else case.base.data
        model.fit(Dataset(items, folders=(case.product.root,)), base=base, run=run)
        if kept is not None:
            keep(run, kept)
        return model, run

    def _fit_rival(self, case: Case) -> Any:
        items = self._items(case)
        maps = [_plain_map(item) for item in items] if any(item.map is not None for item in items) else None
        masks = [item.mask for item in items] if any(item.mask is not None for item in items) else None
        base = None if case.base is None else case.base.data
        run = self.work / "rivals" / f"{case.product.name}-{case.product.fingerprint[:12]}"
        model = rival(case.row.method)(
            case.product.n_classes, random_state=case.seed, backbone=case.config.model.backbone,
            backbone_weights=case.config.model.weights, device=case.config.device, progress=self.progress,
            **case.row.settings,
        )  # fmt: skip
        return model.fit(
            [item.image for item in items], maps=maps, masks=masks, base=base, normal=case.product.normal, run=run
        )

    def _ids(self, case: Case) -> dict[str, str]:
        """What a list of paths is called in tables → id."""
        return {Path(str(sample.image)).as_posix(): sample.id for sample in case.product.truth}

    def _seconds(self, model: AnomalyNCD, run: Path) -> dict[str, float]:
        """Stages that an earlier cell finished count with the time that they took there."""
        shared = {stage: took for stage, took in model.seconds_.items() if stage in SHARED}
        return model.seconds_ | longest(RunFolder(run), "bench.json", shared)


class _Timed:
    """An encoder that adds up the time of its work."""

    def __init__(self, encoder: Any) -> None:
        self.inner, self.seconds = encoder, 0.0

    def encode(self, batch: Any) -> Any:
        began = time.perf_counter()
        out = self.inner.encode(batch)
        self.seconds += time.perf_counter() - began
        return out


def _region_features(model: AnomalyNCD, run: Path) -> dict[str, npt.NDArray[np.float16]]:
    classifier = model.model_.classifier
    if classifier is None:
        return {}
    store = RegionStore(RunFolder(run)).read()
    parts = safetensors.numpy.load_file(run / RETRAINED) if classifier.last_block else store.parts
    features = classifier.space.transform(parts).astype(np.float16)
    return {r.image: row for r, row in zip(store.regions, features, strict=True) if r.region == 0}  # largest first


def _given_maps(product: Product, folder: Path) -> tuple[list[Sample], pd.DataFrame]:
    """Maps from elsewhere; an image's score is the largest value of its map."""
    dataset = load_dataset(product.root / "test", maps=folder, exclude=product.exclude)
    map_of = {sample.id: sample.map for sample in dataset}
    items = [replace(item, map=map_of[item.id]) for item in product.items()]
    rows = [(item.id, float(np.nanmax(read_map(item.map))), *_size(item), "") for item in items if item.map is not None]
    return items, pd.DataFrame(rows, columns=["image", "score", "height", "width", "message"])


def _plain_map(item: Sample) -> Path | npt.NDArray[Any] | None:
    return read_map(item.map) if isinstance(item.map, StackRow) else item.map


def _size(item: Sample) -> Sequence[int]:
    return read_image(item.image).shape[:2]


def _only(product: Product, ids: set[str]) -> Any:
    return replace(product.truth, samples=tuple(sample for sample in product.truth if sample.id in ids))


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
