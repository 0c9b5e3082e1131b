"""The end of every road: probabilities of regions → unknown kinds → classes of images → tables. No torch here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..assign.images import image_classes, merge_regions
from ..labels import NORMAL, NOT_THIS_PRODUCT, UNKNOWN, default_name
from ..learn.classifier import FeatureParts
from ..learn.rows import vectors
from ..regions.find import Region
from ..regions.records import ImageRecord
from ..run.folder import NORMAL_SCORES, RANGE, TREE, to_json
from ..run.store import RegionStore
from ..run.tables import DIGITS, REGION_COLUMNS, result_files
from .model import DiscoveryModel

Key = tuple[str, int]  # image, region


@dataclass(frozen=True)
class Assignment:
    """Classes of images and regions.

    labels : (N,) int, and probabilities : (N, K) float over `classes` (K,), for the images that could be read
    images, regions : the tables images.csv and regions.csv
    """

    labels: npt.NDArray[np.int64]
    probabilities: npt.NDArray[np.float64]
    classes: npt.NDArray[np.int64]
    images: pd.DataFrame
    regions: pd.DataFrame


def assign(
    images: Sequence[ImageRecord],
    regions: Sequence[Region],
    region_probabilities: npt.NDArray[np.float64],
    model: DiscoveryModel,
    unknown: npt.NDArray[np.float64] | None = None,
    chance: npt.NDArray[np.float64] | None = None,
    truth: Mapping[str, str | None] | None = None,
    foreign: npt.NDArray[np.float64] | None = None,
    outside: npt.NDArray[np.bool_] | None = None,
) -> Assignment:
    """Merge region classes into image classes (paper Sec. 3.4).

    An image without a region is normal. Where an image has a defect, regions that are false alarms have no say in which
    one it is, unless `normal_counts` asks for the paper's sum over all regions.

    Parameters
    ----------
    region_probabilities : (R, K) over `classes`; rows of NaN are regions that nothing is known about (label −1)
    model : its classes, their names and `config.merge` are used
    unknown : (R,) in 0 … 1, how far each region lies from those that were fitted; an image has its largest
    chance : (R,) in 0 … 1, how likely a normal image has something as suspicious; an image has its smallest
    truth : id → class by folder, only copied into the table
    foreign : (N,) in 0 … 1, how far each image lies from those that were fitted
    outside : (N,) bool, images that do not show the product: they and their regions are of no class (label −1)
    """
    classes, names, config = model.classes, model.names, model.config.merge
    readable = np.array([not record.error for record in images], bool)
    images = [record for record in images if not record.error]
    far = np.zeros(len(images)) if foreign is None else foreign[readable]
    is_outside = np.zeros(len(images), bool) if outside is None else outside[readable]
    position = {record.index: row for row, record in enumerate(images)}
    of_image = np.array([position[region.index] for region in regions], dtype=np.int64)
    nothing: npt.NDArray[np.bool_] = np.isnan(region_probabilities).any(axis=1) | is_outside[of_image]
    known = np.where(nothing[:, None], 0.0, region_probabilities)
    region_labels = np.where(nothing, UNKNOWN, classes[known.argmax(axis=1)]).astype(np.int64)
    region_best = known.max(axis=1, initial=0.0)

    counted = _counted(region_labels, of_image, len(images), normal_counts=config.normal_counts)
    sizes = np.array([(r.height, r.width) for r in images]).reshape(-1, 2)
    areas, scores = (np.array([getattr(r, name) for r in regions])[counted] for name in ("area", "score"))
    probabilities = merge_regions(known[counted], of_image[counted], sizes, config, areas=areas, scores=scores)
    has_region = np.zeros(len(images), dtype=bool)
    has_region[of_image] = True
    if NORMAL in classes:
        probabilities[~has_region & ~is_outside, classes.tolist().index(NORMAL)] = 1.0
    labels = np.where(probabilities.max(axis=1) > 0, classes[probabilities.argmax(axis=1)], UNKNOWN).astype(np.int64)
    far_off = np.zeros(len(regions)) if unknown is None else unknown
    image_unknown = np.zeros(len(images))
    np.maximum.at(image_unknown, of_image, far_off)
    alarm = np.zeros(len(regions)) if chance is None else chance
    image_alarm = np.ones(len(images))
    np.minimum.at(image_alarm, of_image, alarm)
    if model.false_alarms is not None:
        own = model.false_alarms.scores.probability([record.score for record in images])
        image_alarm = np.where(has_region, image_alarm, own)
    found = image_classes(region_labels, region_best, of_image, len(images))
    called = [NOT_THIS_PRODUCT if out else default_name(UNKNOWN) for out in is_outside]  # where no class is named

    image_table = pd.DataFrame(
        {
            "image": [r.id for r in images],
            "label": labels,
            "class_name": [names.get(k, name) for k, name in zip(labels.tolist(), called, strict=True)],
            "probability": probabilities.max(axis=1).round(DIGITS),
            "classes": [
                ";".join(map(str, f)) if f else str(min(k, 0)) for f, k in zip(found, labels.tolist(), strict=True)
            ],
            "n_regions": [r.n_regions for r in images],
            "unknown": image_unknown.round(DIGITS),
            "foreign": far.round(DIGITS),
            "false_alarm": image_alarm.round(DIGITS),
            **{f"p_{k}": probabilities[:, column].round(DIGITS) for column, k in enumerate(classes.tolist())},
        }
    )
    if truth:
        image_table["true_label"] = [truth.get(name) for name in image_table["image"]]
    rows = [(r.image, r.region, *r.box, *r.square, round(r.area, 2), round(r.score, DIGITS)) for r in regions]
    region_table = pd.DataFrame(rows, columns=list(REGION_COLUMNS[:11]))
    if not rows:  # a table without rows has the types of one with some
        region_table = region_table.astype({name: _kind(name) for name in REGION_COLUMNS[:11]})
    region_table["label"] = region_labels
    region_table["class_name"] = pd.Series(
        [names.get(k, called[image]) for k, image in zip(region_labels.tolist(), of_image, strict=True)], dtype="str"
    )
    region_table["probability"] = region_best.round(DIGITS)
    region_table["unknown"] = far_off.round(DIGITS)
    region_table["false_alarm"] = alarm.round(DIGITS)
    return Assignment(labels, probabilities, classes, image_table, region_table)


def _kind(column: str) -> str:
    return "str" if column == "image" else "float64" if column in ("area", "score") else "int64"


def _counted(
    labels: npt.NDArray[np.int64], of_image: npt.NDArray[np.int64], n_images: int, *, normal_counts: bool
) -> npt.NDArray[np.bool_]:
    """Regions with a say: known defects; unknown ones where there is no such; normal ones where there is neither.

    With `normal_counts` normal ones have it beside known defects too, but an unknown one still outranks them: the paper's
    sum knows no unknown regions, and an image with one must not pass as normal.
    """
    has_defect, has_unknown = (
        (np.bincount(of_image, weights=some, minlength=n_images) > 0)[of_image] for some in (labels > 0, labels < 0)
    )
    normal = ~has_unknown & (~has_defect | normal_counts)
    return np.asarray(np.where(labels > 0, True, np.where(labels < 0, ~has_defect, normal)))


def classify_stored(
    model: DiscoveryModel,
    store: RegionStore,
    features: FeatureParts,
    rows: pd.DataFrame,
    *,
    truth: Mapping[str, str],
    fixed: Mapping[Key, int],
    unknown: npt.NDArray[np.bool_] | None = None,
    outside: npt.NDArray[np.bool_] | None = None,
) -> tuple[Assignment, dict[str, bytes]]:
    """Classes of the images of a run: what `discover`, `relearn` and `update` end with. What is known is fitted anew.

    Parameters
    ----------
    store, features : the regions of the run, and their features as the trained network sees them
    rows : manifest.csv; truth : id → class by folder, only copied into the table
    fixed : (image, region) → class that a person decided on
    unknown : (R,) bool, regions that are of no class; outside : (N,) bool, images that do not show the product

    Returns
    -------
    The classes, and the files of the run that hold them.
    """
    regions = store.regions
    distances = model.fit_unknown(features, regions, None if unknown is None else ~unknown)
    foreign = model.fit_product(store.scenes, None if outside is None else ~outside)
    probabilities = model.region_probabilities(features, regions, store.images)
    for row, region in enumerate(regions):
        if (label := fixed.get((region.image, region.region))) is not None:
            probabilities[row] = model.classes == label
    if unknown is not None:
        probabilities[unknown] = np.nan
    chance = model.false_alarm_probability(features, regions, store.images)
    result = assign(store.images, regions, probabilities, model, distances, chance, truth, foreign, outside)
    result.regions["crop"] = [store.crop_name(region) for region in regions]
    outliers, tree = _neighbourhood(model, features, result.regions)
    files = result_files(result.images, result.regions, outliers, rows, model.names)
    files[TREE] = to_json(tree).encode()
    if model.binarizer is not None and model.config.has_normal:
        files[NORMAL_SCORES] = to_json(_line(model, store, result)).encode()
    return result, files


def _line(model: DiscoveryModel, store: RegionStore, result: Assignment) -> dict[str, Any]:
    """Where the line between normal and defect is, and what it rests on: the content of normal.json."""
    known, rate = model.false_alarms, model.config.detect.false_alarms
    fitted = store.run.read_json(RANGE)
    return {
        "source": ("looks" if model.learns_normal else "none") if known is None else known.source,
        "rate": rate,
        "line": None if known is None else known.scores.level(rate),
        "normal_scores": fitted.get("normal_scores", []) if isinstance(fitted, dict) else [],
        "scores": [r.score if math.isfinite(r.score) else None for r in store.images if not r.error],
        "labels": result.labels.tolist(),
    }


def _neighbourhood(
    model: DiscoveryModel, features: FeatureParts, regions: pd.DataFrame
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Regions apart from all others, too few for a class or too odd for theirs: the table groups.csv; and how classes would
    become fewer or more: tree.json."""
    found: list[list[int]] = []
    tree: dict[str, Any] = {}
    if model.classifier is not None and len(regions):
        from ..assign.outliers import outlier_groups  # with scipy, which an exported run does without
        from ..assign.tree import class_tree

        rows_of = vectors(model.classifier.space, features)
        found = outlier_groups(rows_of, model.config.random_state)
        keys = list(zip(regions["image"].tolist(), regions["region"].tolist(), strict=True))
        tree = class_tree(rows_of, regions["label"].to_numpy(np.int64), keys)
    rows = [place for group in found for place in group]
    table = regions.iloc[rows][["image", "region", "label", "class_name"]].reset_index(drop=True)
    table.insert(0, "group", [number for number, group in enumerate(found, start=1) for _ in group])
    return table, tree or {"merges": [], "splits": []}
