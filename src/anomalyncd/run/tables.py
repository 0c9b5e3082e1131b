"""The tables of a run: one row an image, one row a region, one row a file that was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..assign.images import image_classes, merge_regions
from ..config import MergeConfig
from ..data.dataset import Sample, Source
from ..data.maps import StackRow
from ..errors import RunError
from ..regions.records import ImageRecord, RegionRecord
from .folder import CORRECTIONS, HISTORY, IMAGES_TABLE, MANIFEST, REGIONS_TABLE, RunFolder

DIGITS = 6  # of all figures: equal results are equal bytes, whichever engine computed them
REGION_COLUMNS = (
    "image", "region", "x", "y", "width", "height", "crop_x", "crop_y", "crop_size", "area", "score",
    "label", "class_name", "probability", "unknown",
)  # fmt: skip
REQUIRED = {
    IMAGES_TABLE: ("image", "label", "class_name"),
    REGIONS_TABLE: (*REGION_COLUMNS[:6], "area", "score", "label", "class_name", "probability"),
    MANIFEST: ("image", "status", "height", "width", "n_regions", "message"),
    CORRECTIONS: ("image", "region", "label"),
}
WHOLE_NUMBERS = (
    "region", "label", "x", "y", "width", "height", "crop_x", "crop_y", "crop_size", "n_regions",
)  # fmt: skip
NUMBERS = ("area", "score", "probability", "unknown")


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
    regions: Sequence[RegionRecord],
    region_probabilities: npt.NDArray[np.float64],
    classes: npt.NDArray[np.int64],
    names: Mapping[int, str],
    config: MergeConfig,
    unknown: npt.NDArray[np.float64] | None = None,
) -> Assignment:
    """Merge region classes into image classes (paper Sec. 3.4).

    An image without a region is normal. Where an image has a defect, regions that are false alarms have no say in which
    one it is, unless `normal_counts` asks for the paper's sum over all regions.

    Parameters
    ----------
    region_probabilities : (R, K) over `classes`; rows of NaN are regions that nothing is known about (label −1)
    unknown : (R,) in 0 … 1, how far each region lies from those that were fitted; an image has its largest
    """
    images = [record for record in images if not record.error]
    position = {record.index: row for row, record in enumerate(images)}
    of_image = np.array([position[region.index] for region in regions], dtype=np.int64)
    nothing: npt.NDArray[np.bool_] = np.asarray(np.isnan(region_probabilities).any(axis=1))
    known = np.where(nothing[:, None], 0.0, region_probabilities)
    region_labels = np.where(nothing, -1, classes[known.argmax(axis=1)]).astype(np.int64)
    region_best = known.max(axis=1, initial=0.0)

    counted = _counted(region_labels, of_image, len(images), normal_counts=config.normal_counts)
    sizes = np.array([(r.height, r.width) for r in images]).reshape(-1, 2)
    areas, scores = (np.array([getattr(r, name) for r in regions])[counted] for name in ("area", "score"))
    probabilities = merge_regions(known[counted], of_image[counted], sizes, config, areas=areas, scores=scores)
    has_region = np.zeros(len(images), dtype=bool)
    has_region[of_image] = True
    if 0 in classes:
        probabilities[~has_region, classes.tolist().index(0)] = 1.0
    labels = np.where(probabilities.max(axis=1) > 0, classes[probabilities.argmax(axis=1)], -1).astype(np.int64)
    far_off = np.zeros(len(regions)) if unknown is None else unknown
    image_unknown = np.zeros(len(images))
    np.maximum.at(image_unknown, of_image, far_off)
    found = image_classes(region_labels, region_best, of_image, len(images))

    image_table = pd.DataFrame(
        {
            "image": [r.id for r in images],
            "label": labels,
            "class_name": [names.get(k, "unknown") for k in labels.tolist()],
            "probability": probabilities.max(axis=1).round(DIGITS),
            "classes": [";".join(map(str, f)) if f else "0" for f in found],
            "n_regions": [r.n_regions for r in images],
            "unknown": image_unknown.round(DIGITS),
            **{f"p_{k}": probabilities[:, column].round(DIGITS) for column, k in enumerate(classes.tolist())},
        }
    )
    rows = [(r.image, r.region, *r.box, *r.square, round(r.area, 2), round(r.score, DIGITS)) for r in regions]
    region_table = pd.DataFrame(rows, columns=list(REGION_COLUMNS[:11]))
    if not rows:  # a table without rows has the types of one with some
        region_table = region_table.astype({name: _kind(name) for name in REGION_COLUMNS[:11]})
    region_table["label"] = region_labels
    region_table["class_name"] = pd.Series([names.get(k, "unknown") for k in region_labels.tolist()], dtype="str")
    region_table["probability"] = region_best.round(DIGITS)
    region_table["unknown"] = far_off.round(DIGITS)
    return Assignment(labels, probabilities, classes, image_table, region_table)


def _kind(column: str) -> str:
    return "str" if column == "image" else "float64" if column in ("area", "score") else "int64"


def _counted(
    labels: npt.NDArray[np.int64], of_image: npt.NDArray[np.int64], n_images: int, *, normal_counts: bool
) -> npt.NDArray[np.bool_]:
    """Regions with a say: known defects; unknown ones where there is no such; normal ones where there is neither.

    With `normal_counts` all known ones have it, and unknown ones where there is no such.
    """
    if normal_counts:
        has_known = np.bincount(of_image, weights=labels >= 0, minlength=n_images) > 0
        return np.asarray((labels >= 0) | ~has_known[of_image])
    has_defect = np.bincount(of_image, weights=labels > 0, minlength=n_images) > 0
    has_unknown = np.bincount(of_image, weights=labels < 0, minlength=n_images) > 0
    say = np.where(labels > 0, True, np.where(labels < 0, ~has_defect[of_image], ~(has_defect | has_unknown)[of_image]))
    return say.astype(bool)


def manifest(images: Sequence[ImageRecord], items: Sequence[Sample], run: Path) -> pd.DataFrame:
    """Every file that was looked at, read or skipped, and where it and its map lie; arrays lie nowhere.

    run : its folder; a map inside it is called by its name there, `maps/crack/000.npy`
    """
    return pd.DataFrame(
        {
            "image": [r.id for r in images],
            "status": ["skipped" if r.error else "ok" for r in images],
            "height": [r.height for r in images],
            "width": [r.width for r in images],
            "n_regions": [r.n_regions for r in images],
            "score": [np.nan if r.error else round(r.score, DIGITS) for r in images],
            "threshold": [r.threshold for r in images],
            "message": [r.error or r.note for r in images],
            "file": [_place(item.image, run) for item in items],
            "map": [_place(item.map, run) for item in items],
        }
    )


def _place(source: Source | None, run: Path) -> str:
    if isinstance(source, StackRow):
        return str(replace(source, path=source.path.absolute()))
    if not isinstance(source, Path):
        return ""
    inside = source.is_relative_to(run / "maps")
    return source.relative_to(run).as_posix() if inside else str(source.absolute())


def to_csv(table: pd.DataFrame) -> str:
    """The same text on every platform."""
    return table.to_csv(index=False, lineterminator="\n")


def read_history(run: Path) -> list[dict[str, float]]:
    """The loss of each epoch, from loss.csv; empty where nothing was learned."""
    path = RunFolder(run).place(HISTORY)
    if not path.exists():
        return []
    table = read_csv(path)
    return [dict(zip(table.columns, row, strict=True)) for row in table.to_numpy().tolist()]


def read_csv(path: Path) -> pd.DataFrame:
    """A table of a run; names stay text even where they look like numbers, and numbers are exact."""
    text = ("image", "class_name", "crop", "classes", "true_label", "message", "status", "file", "map")
    try:
        columns = pd.read_csv(path, nrows=0).columns
        table = pd.read_csv(
            path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(text, str),
            converters={name: float for name in columns if name.startswith("p_")},
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: expected a table of a run ({error}).") from error
    _check(table, path)
    return table


def _check(table: pd.DataFrame, path: Path) -> None:
    """Refuse a table that was damaged, or spoiled by an editor, before somebody trips over a cell of it."""
    if missing := [column for column in REQUIRED.get(path.name, ()) if column not in table]:
        raise RunError(f"{path}: expected the table of a run, but it has no column {missing[0]}.")
    if not len(table) or path.name not in REQUIRED:
        return
    if table["image"].isna().any():
        raise RunError(f"{path}: expected the name of an image in every row, but one is empty.")
    for name in (*WHOLE_NUMBERS, *NUMBERS):
        kinds = "iu" if name in WHOLE_NUMBERS else "iuf"
        if name in table and table[name].dtype.kind not in kinds:
            what = "whole numbers" if name in WHOLE_NUMBERS else "numbers"
            raise RunError(f"{path}: expected {what} in the column {name}, but found something else.")


def read_results(run: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """images.csv and manifest.csv of a finished run."""
    RunFolder(run).recover()
    if not (run / IMAGES_TABLE).is_file():
        raise RunError(
            f"{run}: expected a finished run with {IMAGES_TABLE}, none found. Make or finish one with `anomalyncd discover`."
        )
    images, files = read_csv(run / IMAGES_TABLE), read_csv(run / MANIFEST)
    if unlisted := sorted(set(images["image"]) - set(files["image"])):
        raise RunError(f"{run / MANIFEST}: expected a row for every image of {IMAGES_TABLE}, none for {unlisted[0]}.")
    return images, files
