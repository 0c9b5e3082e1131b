"""From files to regions and their features, a few images at a time: the same path for fitting and for new images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ..binarize import make_binarizer
from ..binarize.base import Binarizer
from ..config import BinarizeConfig, Config
from ..crop import CropRule, Region, cut, find_regions, whole_region
from ..data.images import read_image
from ..data.maps import read_map, read_mask
from ..errors import BadFileError
from ..learn.features import CropBatch, RegionEncoder

Source = Path | npt.NDArray[Any]
FloatMap = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Item:
    """One image to work on. With neither map nor mask it has no defect."""

    id: str
    image: Source
    map: Source | None = None
    mask: Source | None = None


@dataclass
class ImageRecord:
    """What became of an image; `error` is set when a file of it could not be read, and then it is left out.

    score : largest value of its map on the fitted range, 1 without a map; threshold : of its mask, in the map's units
    """

    index: int
    id: str
    height: int = 0
    width: int = 0
    n_regions: int = 0
    score: float = 1.0
    threshold: float = math.nan
    error: str = ""


@dataclass
class RegionRecord:
    """A region and where its image stands in the list."""

    index: int
    image: str
    region: int
    box: tuple[int, int, int, int]
    square: tuple[int, int, int]
    area: float
    score: float


@dataclass
class Extracted:
    """Some images' regions.

    parts : part name → (R, V, C) float16, as `RegionEncoder.encode` gives; empty without an encoder
    masks : index of an image → its binary mask at map resolution
    """

    images: list[ImageRecord] = field(default_factory=list)
    regions: list[RegionRecord] = field(default_factory=list)
    batch: CropBatch | None = None
    parts: dict[str, npt.NDArray[np.float16]] = field(default_factory=dict)
    masks: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)


def binarizer_for(config: BinarizeConfig, *, has_normal: bool) -> Binarizer:
    """The configured binariser, not fitted yet."""
    if config.method == "mebin":
        return make_binarizer(
            "mebin", n_thresholds=config.n_thresholds, min_interval=config.min_interval, erosion=config.erosion,
            rule=config.rule, has_normal=has_normal,
        )  # fmt: skip
    if config.method == "fixed":
        return make_binarizer("fixed", threshold=config.fixed_threshold)
    return make_binarizer("otsu")


def prepare_map(source: Source, min_size: int) -> FloatMap:
    """Read a map and enlarge a small one, because erosion would eat it.

    Examples
    --------
    >>> prepare_map(np.zeros((32, 16), np.float32), 256).shape
    (256, 128)
    """
    values = read_map(source)
    scale = min_size / max(values.shape)
    if scale <= 1:
        return values
    size = (max(1, round(values.shape[1] * scale)), max(1, round(values.shape[0] * scale)))
    finite = np.isfinite(values)
    if not finite.all() and finite.any():  # interpolation would spread NaN over its neighbours
        values = np.where(finite, values, values[finite].min())
    enlarged: FloatMap = cv2.resize(values, size, interpolation=cv2.INTER_LINEAR).astype(np.float32)
    return enlarged


def fit_binarizer(
    binarizer: Binarizer, items: Iterable[Item], min_size: int, on_map: Callable[[], None] | None = None
) -> Binarizer:
    """Fit the range on all readable maps, one at a time."""

    def maps() -> Iterable[FloatMap]:
        for item in items:
            if on_map:
                on_map()
            try:
                if item.map is not None:
                    yield prepare_map(item.map, min_size)
            except BadFileError:
                continue  # reported when the image itself is worked on

    return binarizer.fit(maps())


class Extractor:
    """Images → regions → crops → features.

    Parameters
    ----------
    config : binarise, crop and has_normal settings are used
    binarizer : fitted, or None when the items have masks
    encoder : computes features of the crops; None leaves them out
    """

    def __init__(self, config: Config, binarizer: Binarizer | None, encoder: RegionEncoder | None) -> None:
        crop = config.crop
        self.config, self.binarizer, self.encoder = config, binarizer, encoder
        self.rule = CropRule(crop.padding, crop.min_size, crop.merge_distance, crop.whole_image)

    def __call__(self, items: Sequence[Item], first_index: int = 0) -> Extracted:
        """Work on a few images at once; a file that cannot be read is noted, not raised."""
        out = Extracted()
        crops, masks, image_of = [], [], []
        contexts: list[npt.NDArray[np.uint8]] = []
        context_masks: list[FloatMap] = []
        for index, item in enumerate(items, start=first_index):
            record = ImageRecord(index, item.id)
            out.images.append(record)
            try:
                image = read_image(item.image)
                record.height, record.width = image.shape[:2]
                regions, components, mask = self._regions(item, record)
            except BadFileError as error:
                record.error = str(error)
                continue
            if mask is not None:
                out.masks[index] = mask
            record.n_regions = len(regions)
            for number, region in enumerate(regions):
                crop, crop_mask = cut(image, components, region, self.config.crop.size)
                crops.append(crop)
                masks.append(crop_mask)
                context_masks.append(_shrink_mask(np.isin(components, region.labels), self.config.model.input_size))
                image_of.append(len(contexts))
                out.regions.append(
                    RegionRecord(index, item.id, number, region.box, region.square, region.area, region.score)
                )
            if regions:
                contexts.append(_shrink(image, self.config.model.input_size))
        if crops:
            out.batch = CropBatch(
                np.stack(crops),
                np.stack(masks),
                np.stack(contexts),
                np.stack(context_masks),
                np.array(image_of),
            )
            if self.encoder is not None:
                out.parts = self.encoder.encode(out.batch)
        return out

    def _regions(
        self, item: Item, record: ImageRecord
    ) -> tuple[list[Region], npt.NDArray[np.int32], npt.NDArray[np.bool_] | None]:
        size = (record.height, record.width)
        mask: npt.NDArray[np.bool_] | None = None
        scores: FloatMap | None = None
        if item.mask is not None:
            mask = read_mask(item.mask)
        elif item.map is not None and self.binarizer is not None:
            values = prepare_map(item.map, self.config.binarize.min_map_size)
            result = self.binarizer.binarize(values)
            mask, scores, record.threshold = result.mask, self.binarizer.normalize(values), result.threshold
            record.score = float(scores.max())
        if mask is None or not mask.any():
            if self.config.has_normal:
                record.score = 0.0 if self.binarizer is None else record.score
                return [], np.zeros((1, 1), np.int32), mask
            regions, components = whole_region(size, scores)
            return regions, components, mask
        regions, components = find_regions(mask, size, rule=self.rule, scores=scores)
        return regions[: self.config.crop.max_regions], components, mask


def _shrink(image: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    method = cv2.INTER_AREA if max(image.shape[:2]) > size else cv2.INTER_CUBIC
    return cv2.resize(image, (size, size), interpolation=method).astype(np.uint8, copy=False)


def _shrink_mask(mask: npt.NDArray[np.bool_], size: int) -> npt.NDArray[np.float32]:
    """Share of each pixel that the region covers, so that a small region does not vanish."""
    method = cv2.INTER_AREA if max(mask.shape) > size else cv2.INTER_LINEAR
    return cv2.resize(mask.astype(np.float32), (size, size), interpolation=method).astype(np.float32, copy=False)
