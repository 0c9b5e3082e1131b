"""A finished run, and the one way to read it: what it was made from, what it found, and the model that it left."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd

from ..blocks.shards import file_stem
from ..config import Config, make_config
from ..data.dataset import Dataset, Sample
from ..data.gather import Sources
from ..data.images import read_image
from ..data.maps import StackRow, read_map, read_mask
from ..discovery.classify import Predictor
from ..discovery.model import DiscoveryModel
from ..errors import BadFileError, MissingRunError, RunError, StoreError
from ..labels import UNKNOWN, default_name
from ..learn.classifier import FeatureParts
from ..paths import path_of
from ..places.names import file_named
from ..places.stored import File
from ..progress import Silent
from ..regions.crops import drawn_masks, read_crop, resized
from ..regions.find import find_regions
from ..settings_text import read_config
from .folder import (
    CLASS_NAMES,
    CORRECTIONS,
    COUNT,
    GROUPS,
    HISTORY,
    IMAGES_TABLE,
    KNOWN,
    MANIFEST,
    REGIONS_TABLE,
    TREE,
    RunFolder,
)  # fmt: skip
from .store import RegionStore
from .tables import is_count, read_csv, read_names

if TYPE_CHECKING:  # a model is read without torch
    from ..detect.base import Detector

S = TypeVar("S")
T = TypeVar("T")
Mask = npt.NDArray[np.bool_]
Key = tuple[str, int]  # image, region


class FinishedRun:
    """A run folder that `discover` or `fit` has finished. Each thing is read when it is first asked for.

    Files of the user's own, and pictures, move and vanish: where one cannot be read, the methods return None.

    Parameters
    ----------
    path : folder of the run; may be a link to it
    given : the images as they were given to the run, their maps if these came from outside, and true masks if there are any.
        An image that is not among them is looked for where it was when the run was made.
    device : for the model and the detector; precision : of their networks, auto as the run has it

    Examples
    --------
    >>> FinishedRun("nowhere")
    Traceback (most recent call last):
    anomalyncd.errors.MissingRunError: nowhere: expected a finished run with images.csv, none found. Make or finish one \
with `anomalyncd discover`.
    """

    def __init__(
        self, path: str | Path, *, given: Iterable[Sample] = (), device: str = "auto", precision: str = "auto"
    ) -> None:
        self.path, self.device, self.precision = path_of(path, "run"), device, precision
        self.folder = RunFolder(self.path)
        self._given = {sample.id: sample for sample in given}
        self.folder.recover()
        if not self.folder.place(IMAGES_TABLE).is_file():
            raise MissingRunError(
                f"{self.path}: expected a finished run with {IMAGES_TABLE}, none found. Make or finish one with "
                "`anomalyncd discover`."
            )

    @cached_property
    def model(self) -> DiscoveryModel:
        """What the run has learned, with the names that people gave."""
        model = DiscoveryModel.read(self.path, device=self.device)
        if self.precision != "auto":
            model.config = model.config.model_copy(update={"precision": self.precision})
        return model

    @cached_property
    def config(self) -> Config:
        """The settings that the run was made with."""
        return make_config(read_config(self.folder.place("config.yaml")))

    @cached_property
    def images(self) -> pd.DataFrame:
        """images.csv, a row for each image that could be read."""
        return self._table(IMAGES_TABLE)

    @cached_property
    def regions(self) -> pd.DataFrame:
        """regions.csv, a row for each region."""
        return self._table(REGIONS_TABLE)

    @cached_property
    def manifest(self) -> pd.DataFrame:
        """manifest.csv, a row for each file that was looked at."""
        return read_csv(self.folder.place(MANIFEST))

    @cached_property
    def outliers(self) -> pd.DataFrame:
        """groups.csv: regions that are apart from all others."""
        return read_csv(self.folder.place(GROUPS))

    @cached_property
    def tree(self) -> dict[str, Any]:
        """tree.json: which classes would become one next (`merges`), and which would fall into two (`splits`)."""
        tree = self.folder.read_json(TREE)
        if not isinstance(tree, dict) or not all(isinstance(tree.get(name), list) for name in ("merges", "splits")):
            raise RunError(f"{self.folder.place(TREE)}: expected the tree of the classes, but it is damaged.")
        return tree

    @cached_property
    def history(self) -> list[dict[str, float]]:
        """Loss of each epoch; empty where nothing was learned."""
        path = self.folder.place(HISTORY)
        if not path.exists():
            return []
        table = read_csv(path)
        return [dict(zip(table.columns, row, strict=True)) for row in table.to_numpy().tolist()]

    @cached_property
    def count(self) -> dict[str, Any] | None:
        """How the number of classes was estimated; None where it was given."""
        path = self.folder.place(COUNT)
        count: dict[str, Any] | None = self.folder.read_json(COUNT)
        if path.exists() and not is_count(count):
            raise RunError(f"{path}: expected how the number of classes was estimated, but it is damaged.")
        return count

    @cached_property
    def corrections(self) -> dict[Key, int]:
        """(image, region) → class that a person decided on."""
        return read_corrections(self.path)

    @cached_property
    def names(self) -> dict[int, str]:
        """Label → name of every class that the run knows, −1 included; classes.json outweighs the tables."""
        names: dict[int, str] = {}
        for table in (self.images, self.regions):
            names = dict(zip(table["label"].tolist(), table["class_name"].tolist(), strict=True)) | names
        names |= read_names(self.path)
        return {label: name or default_name(label) for label, name in names.items()} | {UNKNOWN: default_name(UNKNOWN)}

    @property
    def skipped(self) -> dict[str, str]:
        """Image id → why it could not be read."""
        failed = self.manifest[self.manifest["status"] == "skipped"]
        return dict(zip(failed["image"], failed["message"], strict=True))

    @property
    def truth(self) -> dict[str, str]:
        """Image id → class by folder or table; empty where the run was told none."""
        images = self.images
        return dict(zip(images["image"], images["true_label"], strict=True)) if "true_label" in images else {}

    @cached_property
    def rows(self) -> dict[Key, int]:
        """(image, region) → row of regions.csv."""
        keys = zip(self.regions["image"].tolist(), self.regions["region"].tolist(), strict=True)
        rows: dict[Key, int] = {}
        for row, key in enumerate(keys):
            if rows.setdefault(key, row) != row:
                raise RunError(
                    f"{self.path / REGIONS_TABLE}: expected each region of an image once, but region {key[1]} of image "
                    f"{key[0]!r} is in rows {rows[key] + 1} and {row + 1}. Take one away, or call the same `discover` again."
                )
        return rows

    @cached_property
    def store(self) -> RegionStore:
        """Records of all images and regions, in the order of the tables, and the features of the frozen network."""
        store = RegionStore(self.folder).read(len(self.manifest))
        if [(region.image, region.region) for region in store.regions] != list(self.rows):
            raise RunError(
                f"{self.path}: regions.csv does not fit what the run has stored in tokens/. Call the same `discover` again."
            )
        return store

    @cached_property
    def features(self) -> FeatureParts:
        """Part → (R, V, L, C), in the order of regions.csv, as the trained network sees the regions."""
        return self.store.features(retrained=self.model.is_retrained)

    @cached_property
    def range(self) -> tuple[float, float] | None:
        """(low, high) that the binariser was fitted to, in the maps' units; None where there were no maps."""
        binarizer = self.model.binarizer
        if binarizer is None or not (math.isfinite(binarizer.low_) and math.isfinite(binarizer.high_)):
            return None
        return binarizer.low_, binarizer.high_

    @property
    def signature(self) -> tuple[object, ...]:
        """Changes when a table of the run does; asked of the disk each time."""
        files = [self.path / name for name in (IMAGES_TABLE, REGIONS_TABLE, CLASS_NAMES, CORRECTIONS)]
        return tuple((stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in (f.stat() for f in files if f.exists()))

    @property
    def learned(self) -> str:
        """Changes when `discover` learns anew, and numbers of classes mean others."""
        return self.folder.key("learn")

    def detector(self) -> Detector:
        """The detector that made the run's maps, ready for new images."""
        from .detector import read_detector

        return read_detector(self.path, self.model.config)

    @property
    def detector_name(self) -> str | None:
        """Of the detector that is stored with the run; None where maps or masks were given."""
        return self.model.config.detect.name

    def gather(
        self,
        images: Sources | Dataset,
        maps: Sources | None = None,
        masks: Sources | None = None,
        exclude: Collection[str] = (),
    ) -> Dataset:
        """New images as this run needs them: with maps or masks, or bare where its own detector makes maps."""
        return self.model.gather(images, maps, masks, exclude)

    def predictor(self, *, bare: bool = True, progress: Silent | None = None) -> Predictor:
        """Classes of new images, a few at a time; bare : images come without maps and masks."""
        detector = self.detector() if bare and self.detector_name else None
        return Predictor(self.model, self.model.extractor((progress or Silent()).say), detector)

    def image(self, name: str) -> npt.NDArray[np.uint8] | None:
        """(H, W, 3) uint8 RGB."""
        source = self._given[name].image if name in self._given else self.file(name) or file_named(name)
        return _readable(read_image, source)

    def map(self, name: str) -> npt.NDArray[np.float32] | None:
        """(h, w) float32, in the detector's units."""
        given = self._given[name].map if name in self._given else None
        if given is not None:
            return _readable(read_map, given)
        place = self._cell(name, "map")
        if place is None:
            return None
        return _readable(read_map, self.folder.place(place) if place.startswith("maps/") else StackRow.parse(place))

    def mask(self, name: str) -> Mask | None:
        """(h, w) bool, as the run used it, with what people drew."""
        found, drawn = self._found_mask(name), self._drawn(name)
        if not drawn:
            return found
        size = drawn[0].shape if found is None else found.shape
        masks = [*([] if found is None else [found]), *(resized(own, size) for own in drawn)]
        return np.asarray(np.any(masks, axis=0))

    def true_mask(self, name: str) -> Mask | None:
        """(h, w) bool, of the given samples: an image without one is normal if others have one, else nobody knows."""
        if name not in self._given or all(sample.mask is None for sample in self._given.values()):
            return None
        mask = self._given[name].mask
        return np.zeros((1, 1), bool) if mask is None else _readable(read_mask, mask)

    def crop(self, row: int) -> tuple[npt.NDArray[np.uint8] | None, Mask | None]:
        """Crop (S, S, 3) uint8 RGB and its mask (S, S) bool of a row of regions.csv."""
        name = self.regions["crop"].iloc[row] if "crop" in self.regions else None
        return read_crop(self.folder.place(name)) if isinstance(name, str) and name else (None, None)

    def file(self, name: str) -> File | None:
        """Where the image lay when the run was made; None for an array. In a store that nobody has named it is not read."""
        place = self._cell(name, "file")
        return file_named(place).absolute() if place else None

    def size(self, name: str) -> tuple[int, int]:
        """(H, W) of an image, without reading it."""
        row = self.manifest.iloc[self._index[name]]
        return int(row["height"]), int(row["width"])

    def region_masks(self, name: str) -> list[Mask]:
        """(H, W) bool of each region of an image, in the order of its rows in regions.csv, at the image's own size."""
        mask, crop, size = self._found_mask(name), self.config.crop, self.size(name)
        drawn = [resized(own, size) for own in self._drawn(name)]
        count = int(self.manifest.iloc[self._index[name]]["n_regions"]) - len(drawn)
        if mask is None or not mask.any():
            return [np.ones(size, bool)] * count + drawn
        regions, components = find_regions(mask, size, crop)
        large = cv2.resize(components.astype(np.float32), size[::-1], interpolation=cv2.INTER_NEAREST)
        masks = [np.isin(large, region.labels) for region in regions[:count]]
        for own, region in zip(masks, regions, strict=False):
            if not own.any():  # thinner than a pixel of the image
                x, y, width, height = region.box
                own[y : y + height, x : x + width] = True
        return masks + drawn

    def _found_mask(self, name: str) -> Mask | None:
        return _readable(read_mask, self.folder.place(f"masks/{file_stem(self._index[name], name)}.png"))

    def _drawn(self, name: str) -> list[Mask]:
        stem, count = file_stem(self._index[name], name), int(self.manifest.iloc[self._index[name]]["n_regions"])
        return drawn_masks(lambda region: self.folder.place(f"masks/{stem}_{region}.png"), count)

    @cached_property
    def _index(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.manifest["image"])}

    def _cell(self, name: str, column: str) -> str | None:
        place = self.manifest.iloc[self._index[name]].get(column) if name in self._index else None
        return place if isinstance(place, str) and place else None

    def _table(self, name: str) -> pd.DataFrame:
        table = read_csv(self.folder.place(name))
        if unlisted := sorted(set(table["image"]) - set(self._index)):
            raise RunError(f"{self.path / MANIFEST}: expected a row for every image of {name}, none for {unlisted[0]}.")
        table["class_name"] = table["class_name"].fillna("")
        return table


def read_corrections(run: Path) -> dict[Key, int]:
    """(image, region) → class that a person decided on, or told beforehand, of a run that need not be finished."""
    places = [RunFolder(run).place(name) for name in (CORRECTIONS, KNOWN)]  # the former hold the latter too
    path = next((place for place in places if place.exists()), None)
    if path is None:
        return {}
    table = read_csv(path)
    keys = zip(table["image"], table["region"].astype(int), strict=True)
    return dict(zip(keys, table["label"].astype(int), strict=True))


def _readable(reader: Callable[[S], T], source: S) -> T | None:
    try:
        return reader(source)
    except (BadFileError, StoreError):
        return None
