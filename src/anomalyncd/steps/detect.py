"""`anomalyncd detect`: the first stage of a run by itself, in a folder that others can go on from."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd

from ..blocks.engine import Engine
from ..config import Config
from ..data.dataset import Dataset
from ..data.gather import gather_normal
from ..discovery.maps import make_maps
from ..errors import DataError, SettingsError
from ..model.device import choose_device
from ..paths import resolved, stem_of
from ..places.names import place_of
from ..places.stored import File
from ..progress import Silent
from ..regions.records import ImageRecord, report_files
from ..run.folder import IMAGES_TABLE, LOG, MAPS, METRICS, SCORES, RunFolder
from ..run.log import logging_to
from ..run.stages import Stages
from ..run.store import are_mirrored
from ..run.tables import to_csv
from .truth import DetectionScores, evaluate_maps


@dataclass(frozen=True)
class DetectionRun:
    """What became of the images.

    scores : table with the columns image, score, and label where one is known; only images that could be read
    metrics : None where there is nothing to compare with
    skipped : id → why a file could not be read
    seconds : that the maps took in this call
    """

    maps: Path
    scores: pd.DataFrame
    metrics: DetectionScores | None
    skipped: dict[str, str]
    seconds: float


def detect_images(
    inputs: Dataset,
    truth: Dataset,
    config: Config,
    out: Path,
    progress: Silent,
    *,
    normal: str | File | None = None,
    fitted: Path | None = None,
    engine: Engine | None = None,
) -> DetectionRun:
    """Write maps/, scores.csv, the fitted detector/, and metrics.json where there is a truth.

    Parameters
    ----------
    inputs : images without maps and masks; truth : their labels and masks, for the metrics only
    config : with the detector's name
    normal : folder of normal images; fitted : earlier run whose detector is used as it is
    engine : where work on images is done; here by default
    """
    _check_names(inputs)
    choose_device(config.device)
    inputs.check_outside(out, *([] if normal is None else [place_of(normal, "normal")]))
    if fitted is not None and resolved(fitted) == resolved(out):
        raise SettingsError(f"{out}: the maps would replace the detector that makes them. Choose another folder.")
    normal_images = gather_normal(normal).samples
    with RunFolder(out).writing() as folder, logging_to(folder.place(LOG), progress, "detect_images") as log:
        for note in inputs.notes:
            log.warn(note)
        started = time.perf_counter()
        stages = Stages(folder, config, log, engine)
        config = stages.config
        samples, table = make_maps(stages, inputs.samples, normal=normal_images, fitted=fitted, protected=True)
        seconds = time.perf_counter() - started
        if not folder.place(IMAGES_TABLE).exists():  # else these are the settings of a whole run
            folder.write_text("config.yaml", config.to_yaml())
        rows = zip(table["image"], table["message"], strict=True)
        skipped = report_files([ImageRecord(i, name, error=why) for i, (name, why) in enumerate(rows)], log)
        scores = table.loc[table["message"] == "", ["image", "score"]].reset_index(drop=True)
        if truth_of := inputs.truth:
            scores["label"] = scores["image"].map(truth_of)
        folder.write_text(SCORES, to_csv(scores))
        metrics = evaluate_maps(samples, table, truth, config, log)
        if metrics is None:
            folder.remove(METRICS)
        else:
            folder.write_json(METRICS, {name: value for name, value in asdict(metrics).items() if value is not None})
    return DetectionRun(out / MAPS, scores, metrics, skipped, seconds)


def _check_names(inputs: Dataset) -> None:
    """Maps are found by the names of the images, so these must be plain and must differ in more than their suffix."""
    if are_mirrored(inputs.samples):
        return
    name, count = Counter(stem_of(item.id) for item in inputs.samples).most_common(1)[0]
    if count > 1:
        twice = [item.id for item in inputs.samples if stem_of(item.id) == name]
        raise DataError(f"{twice[0]} and {twice[1]} would have the same map, {name}.npy. Rename one of them.")
    odd = next(item.id for item in inputs.samples if not are_mirrored([item]))
    raise DataError(
        f"{odd}: expected images below the folder of the table, by short relative paths, because the maps are called as "
        "the images. Give a folder, or such paths."
    )
