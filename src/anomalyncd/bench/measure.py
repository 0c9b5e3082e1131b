"""What is measured for one cell of a table: maps, classes, boxes, times. Each costly step is kept and not done twice."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..checksums import stable_hash
from ..config import Config
from ..data.dataset import Dataset, load_dataset
from ..data.gather import gather_base
from ..data.images import read_image
from ..data.maps import read_map
from ..detect import DETECTORS
from ..discovery.maps import make_maps, normal_samples
from ..errors import DataError
from ..estimator import AnomalyNCD
from ..metrics import evaluate
from ..progress import Silent
from ..regions.prefetch import prefetch
from ..run.folder import RunFolder
from ..run.stages import Stages, definite
from ..sections import DetectConfig
from ..steps.truth import evaluate_maps
from .datasets import BenchData, fingerprint_of
from .experiment import IMAGES_ONLY, MASKS, OURS, Row
from .machine import peak_memory
from .rivals import RIVALS

SHARED_STAGES = ("range", "regions", "looks of normal images", "base set")  # of a run: not dependent on the seed
SHARED_TOKENS = ("tokens", "views")  # of rivals: nor do these
OF_NORMAL = ("normal_precision", "normal_recall", "false_alarms", "missed")
BASE_FOLDER, BASE_STAGE = "base", "base: regions"  # where a run keeps the regions of its base set, and their stage
TIMED = 16  # images that go through a module together


@dataclass(frozen=True)
class Trial:
    """What one result is made from; config : of AnomalyNCD, or what a rival shares with it (backbone, device)."""

    row: Row
    data: BenchData
    source: str
    base: BenchData | None
    seed: int
    config: Config

    @property
    def uses_source(self) -> bool:
        """Whether maps or masks have a say; where not, one result stands for all of them."""
        rival = RIVALS.get(self.row.method)
        if rival is None or rival.looks_at == "maps and masks":
            return True
        asked = self.row.settings.get("weights") == "given"  # of Anomaly Clustering, which else makes scores of its own
        return rival.looks_at == "masks" and (asked or self.source == MASKS)


@dataclass(frozen=True)
class Result:
    """What was measured.

    metrics : by name, None where there is nothing to measure
    seconds : of each stage
    predictions : the columns image and label
    features : image id → what was clustered, that of the largest region where there are several
    pictures : name → content of a PNG file
    """

    metrics: dict[str, float | None]
    seconds: dict[str, float] = field(default_factory=dict)
    predictions: pd.DataFrame | None = None
    features: dict[str, npt.NDArray[np.float16]] = field(default_factory=dict)
    pictures: dict[str, bytes] = field(default_factory=dict)


class Laboratory:
    """The measurements, and the folder that keeps maps, a run for each set of frozen features, and tokens of base sets.

    Parameters
    ----------
    work : folder, made where missing
    maps : (data set, source) → folder of maps that are there already
    """

    def __init__(self, work: Path, maps: Mapping[tuple[str, str], Path], progress: Silent) -> None:
        self.work, self.given, self.progress = work, maps, progress
        self._fingerprints: dict[Path, str] = {}

    def fingerprint(self, place: Path | None) -> str:
        """Of a file or a folder, which is read once; empty for none."""
        if place is not None and place not in self._fingerprints:
            self._fingerprints[place] = fingerprint_of(place)
        return "" if place is None else self._fingerprints[place]

    def source_key(self, trial: Trial) -> str:
        """Identity of the maps or masks."""
        if trial.source in (MASKS, IMAGES_ONLY):
            return trial.source
        if (folder := self.given.get((trial.data.name, trial.source))) is not None:
            return self.fingerprint(folder)
        config = definite(trial.config)
        network = [config.model.backbone, self.fingerprint(config.model.weights), config.precision]
        return stable_hash(trial.source, config.detect.settings, network)

    def classes(self, trial: Trial) -> Result:
        """Fit, and only then compare with the true labels."""
        ours = trial.row.method == OURS
        model: Any = self._fit(trial) if ours else self._fit_rival(trial)
        peak = peak_memory()
        seconds = model.seconds_ | {"maps": self._maps_seconds(trial)}
        if not ours:
            features = dict(zip(model.images_["image"], model.features_.astype(np.float16), strict=True))
        else:
            run, classifier = model.run_, model.run_.model.classifier
            space = None if classifier is None else classifier.space.transform(run.features).astype(np.float16)
            largest = {image: row for (image, region), row in run.rows.items() if region == 0}
            features = {} if space is None else {image: space[row] for image, row in largest.items()}
        predictions, truth = model.images_[["image", "label"]], trial.data.labels
        sure = model.images_["probability"] if ours else None
        found = evaluate([truth[name] for name in predictions["image"]], predictions["label"].tolist(), sure)
        # A rival's clusters have no names, so none of them is the normal one; nor have they probabilities.
        names = ["nmi", "ari", "f1", *(("ece", *OF_NORMAL) if ours else ())]
        metrics = {name: getattr(found, name) for name in names}
        metrics |= {"seconds_image": sum(seconds.values()) / len(truth), "peak_mb": peak}
        if ours:
            metrics |= {"kinds": int((model.classes_ > 0).sum()), "learning": seconds.get("learning")}
            metrics["true_kinds"] = trial.data.n_classes - trial.data.has_normal
        return Result(metrics, seconds, predictions, features)

    def boxes(self, trial: Trial) -> Result:
        """Maps, and boxes of their binarised form, against the true masks."""
        if trial.source in (MASKS, IMAGES_ONLY):
            return Result({})
        dataset, scores, seconds = self.maps(trial)
        found = evaluate_maps(dataset.samples, scores, trial.data.dataset, trial.config, self.progress)
        if found is None or found.aupro is None:
            raise DataError(f"{trial.data.root}: no ground_truth/, so maps cannot be compared with it.")
        metrics = {"fpr": found.box_fpr, "fnr": found.box_fnr, "aupro": found.aupro}
        metrics |= {"fpr_defective": found.box_fpr_defective, "fnr_images": found.box_fnr_images}
        metrics |= {"image_auroc": found.image_auroc, "pixel_auroc": found.pixel_auroc}
        return Result(metrics, {"maps": seconds})

    def modules(self, trial: Trial) -> Result:
        """Seconds an image of each module, as a fitted model takes for new images; rivals are no such model."""
        if trial.row.method != OURS:
            return Result({})
        predictor, samples = self._fit(trial).predictor(bare=False), self._inputs(trial).samples
        extractor, recognize = predictor.extractor, predictor.model.recognize
        predictor.classify(extractor(samples[:1]))  # whatever is made on first use is not counted
        took = np.zeros(3)
        for start in range(0, len(samples), TIMED):
            times = [time.perf_counter()]
            prepared = list(prefetch(extractor.prepare, enumerate(samples[start : start + TIMED])))
            times.append(time.perf_counter())
            found = extractor.encode(prepared)
            known = recognize(found.parts, found.regions, found.images)
            times.append(time.perf_counter())
            predictor.model.recognize = lambda *_, known=known: known  # type: ignore[method-assign]
            predictor.classify(found)
            times.append(time.perf_counter())
            took += np.diff(times)
        cropping, network, merge = (took / len(samples)).tolist()
        metrics = {"binarize-and-crop": cropping, "network": network, "merge": merge}
        return Result({**metrics, "total": cropping + network + merge})

    def maps(self, trial: Trial, fitted: Path | None = None) -> tuple[Dataset, pd.DataFrame, float]:
        """Images with maps, their scores as in maps/scores.csv, and the seconds that the maps took.

        fitted : folder of maps whose detector is used as it is
        """
        given = self.given.get((trial.data.name, trial.source))
        if given is not None:
            return *_given_maps(trial.data, given), 0.0
        out = self._place("maps", trial) if fitted is None else Path(f"{fitted}-new")
        config = definite(trial.config)
        detect = config.detect.model_copy(update={"name": trial.source})
        config = config.model_copy(update={"detect": detect, "random_state": 0})
        kind = DETECTORS.get(trial.source)
        wants_normal = fitted is None and (kind is None or kind.needs_normal)
        normal = list(trial.data.normal) if wants_normal else []
        bare = trial.data.images()
        began = time.perf_counter()
        with RunFolder(out).writing() as folder:
            samples, scores = make_maps(
                Stages(folder, config, self.progress), bare.samples, normal=normal, fitted=fitted
            )
        seconds = _longest(out, {"maps": time.perf_counter() - began}, ["maps"])
        readable = set(scores.loc[scores["message"] == "", "image"])
        return replace(bare, samples=[s for s in samples if s.id in readable]), scores, seconds["maps"]

    def _place(self, kind: str, trial: Trial, key: str = "") -> Path:
        key = key or stable_hash(trial.data.fingerprint, self.source_key(trial))
        return self.work / kind / f"{trial.data.name}-{file_name(trial.source)}-{key[:12]}"

    def _inputs(self, trial: Trial, fitted: Path | None = None) -> Dataset:
        """Images as the method gets them, with maps or masks if these have a say."""
        if trial.source in (MASKS, IMAGES_ONLY) or not trial.uses_source:
            return trial.data.images(masks=trial.source == MASKS and trial.uses_source)
        return self.maps(trial, fitted)[0]

    def _fit_inputs(self, trial: Trial) -> tuple[Dataset, dict[str, Any]]:
        """Images with maps or masks, and what `fit` takes beside them: normal images with maps, where a detector left any.

        Maps are made once for all seeds and given to `fit`: without these it would know less than a run that makes its own.
        """
        inputs = self._inputs(trial)
        if not self.makes_maps(trial):
            return inputs, {}
        samples = normal_samples(RunFolder(self._place("maps", trial)), list(trial.data.normal))
        pairs = {"normal": [each.image for each in samples], "normal_maps": [each.map for each in samples]}
        return inputs, pairs if samples else {}

    def makes_maps(self, trial: Trial) -> bool:
        """Whether a detector runs here for this trial."""
        given = trial.source in (MASKS, IMAGES_ONLY) or (trial.data.name, trial.source) in self.given
        return trial.uses_source and not given

    def _maps_seconds(self, trial: Trial) -> float:
        """What the maps took when they were made; 0 where none were."""
        if not self.makes_maps(trial):
            return 0.0
        return _longest(self._place("maps", trial), {"maps": 0.0}, ["maps"])["maps"]

    def _fit(self, trial: Trial) -> AnomalyNCD:
        """Through a run folder that all trials share whose regions and frozen features are the same."""
        config = definite(trial.config)
        config = config.model_copy(update={"detect": DetectConfig(false_alarms=config.detect.false_alarms)})
        model = AnomalyNCD(progress=self.progress, **config.differences())
        inputs, normal = self._fit_inputs(trial)
        keys = Stages(RunFolder(self.work), config, self.progress)
        run = self._place("runs", trial, keys.regions_key(inputs))
        if trial.base is None:
            model.fit(inputs, run=run, **normal)
        else:
            key = keys.base_key(gather_base(trial.base.base))
            kept = self.work / "base" / key[:12]
            _copy_base(kept, run, key)
            model.fit(inputs, base=trial.base.base, run=run, **normal)
            _copy_base(run, kept, key)
        model.seconds_ |= _longest(run, model.seconds_, SHARED_STAGES)  # whichever measurement did the work
        return model

    def _fit_rival(self, trial: Trial) -> Any:
        config = trial.config
        model = RIVALS[trial.row.method](
            trial.data.n_classes, random_state=trial.seed, backbone=config.model.backbone,
            backbone_weights=config.model.weights, device=config.device, precision=config.precision,
            progress=self.progress, **trial.row.settings,
        )  # fmt: skip
        run = self.work / "rivals" / f"{trial.data.name}-{trial.data.fingerprint[:12]}"
        base = None if trial.base is None else trial.base.dataset
        model.fit(self._inputs(trial), base=base, normal=list(trial.data.normal), run=run)
        model.seconds_ |= _longest(run, model.seconds_, SHARED_TOKENS)
        return model


def file_name(text: str) -> str:
    """Text as a part of a file's name.

    Examples
    --------
    >>> file_name("anomalib:Padim")
    'anomalib-Padim'
    """
    return "".join(letter if letter.isalnum() else "-" for letter in text)


def _longest(run: Path, seconds: Mapping[str, float], stages: Sequence[str]) -> dict[str, float]:
    """Times of stages, kept in the run from the call that did the work: later ones only read what it left."""
    name = "bench.json"
    try:
        known: dict[str, float] = json.loads((run / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    out = {stage: max(seconds[stage], known.get(stage, 0.0)) for stage in stages if stage in seconds}
    RunFolder(run).write_json(name, known | out)
    return out


def _copy_base(source: Path, target: Path, key: str) -> None:
    """Copy the regions of a base set to another folder, if they are whole here and not there."""
    if RunFolder(source).is_done(BASE_STAGE, key):
        with RunFolder(target).writing() as folder:
            if not folder.is_done(BASE_STAGE, key):
                folder.start(BASE_STAGE, key, BASE_FOLDER)
                shutil.copytree(source / BASE_FOLDER, target / BASE_FOLDER, dirs_exist_ok=True)
                folder.finish(BASE_STAGE, key)


def _given_maps(data: BenchData, folder: Path) -> tuple[Dataset, pd.DataFrame]:
    """Maps from elsewhere; an image's score is the largest value of its map."""
    map_of = {s.id: s.map for s in load_dataset(data.root / "test", maps=folder, exclude=data.exclude)}
    bare = data.images()
    samples = [replace(sample, map=map_of[sample.id]) for sample in bare]
    rows = [
        (sample.id, float(np.nanmax(read_map(sample.map))), *read_image(sample.image).shape[:2], "")
        for sample in samples
        if sample.map is not None
    ]
    columns = ["image", "score", "height", "width", "message"]
    return replace(bare, samples=samples), pd.DataFrame(rows, columns=columns)
