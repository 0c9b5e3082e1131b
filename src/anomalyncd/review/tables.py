"""The tables of a run as corrections see them: regions by number, their classes, and the names of these."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..checksums import stable_hash
from ..discovery.model import read_names
from ..errors import RunError
from ..run.finished import read_corrections
from ..run.folder import CLASS_NAMES, CORRECTIONS, IMAGES_TABLE, MANIFEST, REGIONS_TABLE, STAGES, RunFolder
from ..run.tables import read_csv, read_results

Key = tuple[str, int]  # image, region: what a correction is stored by
UNKNOWN = -1
NORMAL = 0
COLUMNS = ("image", "region", "label", "class_name", "probability", "score", "crop")


@dataclass(frozen=True)
class Base:
    """What a run says before any correction.

    regions : regions.csv; the number of a row is the region's number everywhere in the review
    keys : (image, region) of each row, and rows : its inverse
    labels : (R,) int64
    images : number of an image → its name, in the order of manifest.csv
    image_of : (R,) int64, number of each region's image
    names : label → name, of every class that the run knows
    signature : of the files, to notice that they have changed
    learned : changes when `discover` learns anew, and numbers of classes mean others; empty where the run does not say
    fixed : regions that a person placed in earlier applies
    """

    regions: pd.DataFrame
    keys: list[Key]
    rows: dict[Key, int]
    labels: npt.NDArray[np.int64]
    images: list[str]
    image_of: npt.NDArray[np.int64]
    names: dict[int, str]
    signature: tuple[object, ...]
    learned: str = ""
    fixed: frozenset[Key] = frozenset()

    @classmethod
    def read(cls, run: Path) -> Base:
        """The tables of a finished run."""
        RunFolder(run).recover()
        signature = signature_of(run)  # before the tables: if they change meanwhile, they are read again
        learned, fixed = _learn_key(run), frozenset(read_corrections(run))
        images, manifest = read_results(run)
        regions = read_csv(run / REGIONS_TABLE)
        if missing := [column for column in COLUMNS if column not in regions]:
            raise RunError(f"{run / REGIONS_TABLE}: expected the table of a run, but it has no column {missing[0]}.")
        keys = list(zip(regions["image"].tolist(), regions["region"].tolist(), strict=True))
        names = {UNKNOWN: "unknown", NORMAL: "normal"}
        for table in (images, regions):
            names |= dict(zip(table["label"].tolist(), table["class_name"].tolist(), strict=True))
        names |= read_names(run)
        order = manifest["image"].tolist()
        number = {name: index for index, name in enumerate(order)}
        unlisted = next((image for image, _ in keys if image not in number), None)
        if unlisted is not None:
            raise RunError(f"{run / MANIFEST}: expected a row for every image of {REGIONS_TABLE}, none for {unlisted}.")
        return cls(
            regions, keys, {key: row for row, key in enumerate(keys)}, regions["label"].to_numpy(np.int64), order,
            np.array([number[image] for image, _ in keys], np.int64), names, signature,
            learned, fixed,
        )  # fmt: skip

    @cached_property
    def table(self) -> str:
        """Tells whether numbers of regions still mean the same regions."""
        return stable_hash(self.keys)[:16]

    @cached_property
    def digest(self) -> str:
        """Tells whether regions still have the same classes, and these still mean the same."""
        return stable_hash(self.learned, sorted(self.names), [*zip(self.keys, self.labels.tolist(), strict=True)])[:16]


def signature_of(run: Path) -> tuple[object, ...]:
    """Changes when a table of the run does."""
    files = [run / name for name in (IMAGES_TABLE, REGIONS_TABLE, CLASS_NAMES, CORRECTIONS)]
    stats = (file.stat() for file in files if file.exists())
    return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats)


def _learn_key(run: Path) -> str:
    try:
        return str(json.loads((run / STAGES).read_text(encoding="utf-8"))["learn"]["key"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
