"""The classes of a run before any correction: regions by number, their classes, and the names of these."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..checksums import stable_hash
from ..labels import NORMAL, default_name
from ..run.finished import FinishedRun

Key = tuple[str, int]  # image, region: what a correction is stored by


class UncorrectedClasses:
    """What the tables of a run say, read once.

    Parameters
    ----------
    path : folder of a finished run

    Attributes
    ----------
    run : where pictures are read from
    regions : regions.csv; the number of a row is the region's number everywhere in the review
    keys : (image, region) of each row, and rows : its inverse
    labels : (R,) int64
    images : number of an image → its name, in the order of manifest.csv
    image_of : (R,) int64, number of each region's image
    names : label → name, of every class that the run knows
    learned : changes when `discover` learns anew, and numbers of classes mean others
    fixed : regions that a person placed in earlier applies
    """

    def __init__(self, path: Path) -> None:
        self.run = run = FinishedRun(path, device="cpu")
        self._signature = run.signature  # before the tables: if they change meanwhile, they are read again
        self.learned, self.fixed = run.learned, frozenset(run.corrections)
        self.regions = regions = run.regions
        self.keys: list[Key] = list(zip(regions["image"].tolist(), regions["region"].tolist(), strict=True))
        self.rows = {key: row for row, key in enumerate(self.keys)}
        self.labels = regions["label"].to_numpy(np.int64)
        self.images: list[str] = run.manifest["image"].tolist()
        number = {name: index for index, name in enumerate(self.images)}
        self.image_of = np.array([number[image] for image, _ in self.keys], np.int64)
        self.names = {NORMAL: default_name(NORMAL)} | run.names

    def is_current(self) -> bool:
        """Whether no table of the run has changed since."""
        return self.run.signature == self._signature

    def named(self, rows: Iterable[int]) -> list[list[Any]]:
        """Image and region of each of these rows, as the log stores them."""
        return [list(self.keys[row]) for row in rows]

    @cached_property
    def table(self) -> str:
        """Tells whether numbers of regions still mean the same regions."""
        return stable_hash(self.keys)[:16]

    @cached_property
    def digest(self) -> str:
        """Tells whether regions still have the same classes, and these still mean the same."""
        return stable_hash(self.learned, sorted(self.names), [*zip(self.keys, self.labels.tolist(), strict=True)])[:16]
