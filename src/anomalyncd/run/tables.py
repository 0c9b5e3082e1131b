"""The tables of a run: one row an image, one row a region, one row a file that was looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..assign.merge import image_classes, merge_regions
from ..config import MergeConfig
from ..errors import RunError, SettingsError
from .folder import HISTORY, IMAGES_TABLE, MANIFEST, PARTIAL, RunFolder
from .records import ImageRecord, Item, RegionRecord, Source

DIGITS = 6  # of figures for reading; the columns p_… are exact, because `load` reads `probabilities_` from them
REGION_COLUMNS = (
    "image", "region", "x", "y", "width", "height", "crop_x", "crop_y", "crop_size", "area", "score",
    "label", "class_name", "probability", "unknown",
)  # fmt: skip


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
    one it is.

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

    counted = _counted(region_labels, of_image, len(images))
    probabilities = merge_regions(
        known[counted], of_image[counted], len(images),
        areas=np.array([r.area for r in regions])[counted], scores=np.array([r.score for r in regions])[counted],
        image_sizes=np.array([(r.height, r.width) for r in images]).reshape(-1, 2), how=config.how,
        temperature=config.temperature,
    )  # fmt: skip
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
            **{f"p_{k}": probabilities[:, column] for column, k in enumerate(classes.tolist())},
        }
    )
    rows = [(r.image, r.region, *r.box, *r.square, round(r.area, 2), round(r.score, DIGITS)) for r in regions]
    region_table = pd.DataFrame(rows, columns=list(REGION_COLUMNS[:11]))
    region_table["label"] = region_labels
    region_table["class_name"] = [names.get(k, "unknown") for k in region_labels.tolist()]
    region_table["probability"] = region_best.round(DIGITS)
    region_table["unknown"] = far_off.round(DIGITS)
    return Assignment(labels, probabilities, classes, image_table, region_table)


def _counted(labels: npt.NDArray[np.int64], of_image: npt.NDArray[np.int64], n_images: int) -> npt.NDArray[np.bool_]:
    """Regions with a say: known defects; unknown ones where there is no such; normal ones where there is neither."""
    has_defect = np.bincount(of_image, weights=labels > 0, minlength=n_images) > 0
    has_unknown = np.bincount(of_image, weights=labels < 0, minlength=n_images) > 0
    say = np.where(labels > 0, True, np.where(labels < 0, ~has_defect[of_image], ~(has_defect | has_unknown)[of_image]))
    return say.astype(bool)


def manifest(images: Sequence[ImageRecord], items: Sequence[Item]) -> pd.DataFrame:
    """Every file that was looked at, read or skipped, and where it and its map lay; arrays lie nowhere."""
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
            "file": [_place(item.image) for item in items],
            "map": [_place(item.map) for item in items],
        }
    )


def _place(source: Source | None) -> str:
    return str(source.absolute()) if isinstance(source, Path) else ""


def to_csv(table: pd.DataFrame) -> str:
    """The same text on every platform."""
    return table.to_csv(index=False, lineterminator="\n")


def check_table(path: Path) -> None:
    """Fail before the work, not after it, where `write_table` could not write such a file."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise SettingsError(f"{path}: expected a table that ends in .csv or .parquet.")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise SettingsError(f"{path}: Parquet needs pyarrow: pip install 'anomalyncd[parquet]', or write .csv.")
    if path.is_dir():
        raise RunError(f"{path}: expected a file to write, but this is a folder.")


def write_table(table: pd.DataFrame, path: Path) -> None:
    """Write .csv or .parquet, whole or not at all."""
    check_table(path)
    partial = path.with_name(path.name + PARTIAL)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".csv":
            partial.write_bytes(to_csv(table).encode("utf-8"))
        else:
            table.to_parquet(partial, index=False, engine="pyarrow")
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise RunError(f"{path}: cannot be written ({error.strerror or error}).") from error


def read_history(run: Path) -> list[dict[str, float]]:
    """The loss of each epoch, from loss.csv; empty where nothing was learned."""
    if not (run / HISTORY).exists():
        return []
    table = read_csv(run / HISTORY)
    return [dict(zip(table.columns, row, strict=True)) for row in table.to_numpy().tolist()]


def read_csv(path: Path) -> pd.DataFrame:
    """A table of a run; names stay text even where they look like numbers, and numbers are exact."""
    text = ("image", "class_name", "crop", "classes", "true_label", "message", "status", "file", "map")
    try:
        columns = pd.read_csv(path, nrows=0).columns
        return pd.read_csv(
            path, keep_default_na=False, na_values=[""], dtype=dict.fromkeys(text, str),
            converters={name: float for name in columns if name.startswith("p_")},
        )  # fmt: skip
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: expected a table of a run ({error}).") from error


def read_results(run: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """images.csv and manifest.csv of a finished run."""
    if not (run / IMAGES_TABLE).is_file():
        raise RunError(
            f"{run}: expected a finished run with {IMAGES_TABLE}, none found. Make or finish one with `anomalyncd discover`."
        )
    RunFolder(run).recover()
    tables = read_csv(run / IMAGES_TABLE), read_csv(run / MANIFEST)
    for table, name, columns in zip(
        tables, (IMAGES_TABLE, MANIFEST), (("image", "label"), ("image", "status", "message")), strict=True
    ):
        if missing := [column for column in columns if column not in table]:
            raise RunError(f"{run / name}: expected the table of a run, but it has no column {missing[0]}.")
    return tables
