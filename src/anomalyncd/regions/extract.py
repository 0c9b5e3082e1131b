"""From files to regions and their features, a few images at a time: the same path for fitting and for new images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from ..assign.false_alarms import NEAR, NormalScores
from ..assign.product import exposure
from ..binarize.base import Binarizer
from ..binarize.ignore import ignored
from ..binarize.prepare import FloatMap, binarize_map, filled, note_on_map, prepare_map
from ..config import Config
from ..data.dataset import Sample
from ..data.images import read_image
from ..data.maps import read_mask
from ..errors import BadFileError
from ..grid import top_mean
from ..learn.features import SCENES, CropBatch, RegionEncoder
from .find import Region, cut, cut_map, find_regions, whole_region
from .prefetch import prefetch
from .records import MOST_REGIONS, ImageRecord

CUT_RATE = 0.05  # share of normal images whose highest part would be cut out


@dataclass
class Extracted:
    """Regions of one image or of several.

    batch : their pictures, for the network
    parts : part name → (R, V, L, C) float16, as `RegionEncoder.encode` gives; none before the network has seen them
    masks : index of an image → its binary mask at map resolution
    scenes : (I, C + 2) float16, a row for each of `images`, see `assign.product.Product`; NaN where one could not be read,
        None where they are not wanted
    """

    images: list[ImageRecord]
    regions: list[Region] = field(default_factory=list)
    batch: CropBatch | None = None
    parts: dict[str, npt.NDArray[np.float16]] = field(default_factory=dict)
    masks: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)
    scenes: npt.NDArray[np.float16] | None = None


class Extractor:
    """Images → regions → crops → features.

    Parameters
    ----------
    config : binarise, crop and has_normal settings are used
    binarizer : fitted, or None when the items have masks
    encoder : computes features of the crops
    normal : how normal images score: where no region is stable, the highest part of a map that scores unlike them is cut
        out; None = an image without a stable region has none
    most_regions : that are kept of one image, largest first
    whole : every image is one region, whatever its map shows
    """

    def __init__(
        self,
        config: Config,
        binarizer: Binarizer | None,
        encoder: RegionEncoder,
        normal: NormalScores | None = None,
        most_regions: int = MOST_REGIONS,
        whole: bool = False,
    ) -> None:
        self.config, self.binarizer, self.encoder, self.normal = config, binarizer, encoder, normal
        self.most_regions, self.whole = most_regions, whole

    def __call__(self, items: Sequence[Sample], first_index: int = 0) -> Extracted:
        """Work on a few images at once; a file that cannot be read is noted, not raised."""
        return self.encode(list(prefetch(self.prepare, enumerate(items, start=first_index))))

    def prepare(self, numbered: tuple[int, Sample]) -> Extracted:
        """All that comes before the network, of one image with its place in the list; threads may call it."""
        index, item = numbered
        record = ImageRecord(index, item.id)
        out = Extracted([record])
        try:
            image = read_image(item.image)
            record.height, record.width = image.shape[:2]
            regions, components, mask, values = self._regions(item, record)
        except BadFileError as error:
            record.error = str(error)
            return out
        record.n_regions = len(regions)
        if mask is not None:
            out.masks[index] = mask
        if not regions and not self.encoder.scenes:
            return out
        config, image_size, size = self.config, image.shape[:2], self.config.model.image_size
        side, alone = config.crop.size, config.crop.merge == "boxes"
        cuts = [cut(image, components, region, side, alone=alone) for region in regions]
        crops = _stack([crop for crop, _ in cuts], (side, side, 3), np.uint8)
        masks = _stack([own for _, own in cuts], (side, side), np.bool_)
        inside = [shrink_map(np.isin(components, region.labels), size) for region in regions]
        context_masks = _stack(inside, (size, size), np.float32)
        if config.has_normal and (mask is None or not mask.any()):  # learned although nothing was found
            masks[:], context_masks[:] = False, 0
        context_maps = None if values is None else shrink_map(values, size)[None]
        crop_maps = None
        if values is not None and config.features.focus:
            own_maps = [cut_map(values, image_size, region.square, side) for region in regions]
            crop_maps = _stack(own_maps, (side, side), np.float32)
        image_of = np.zeros(len(regions), np.int64)
        out.batch = CropBatch(crops, masks, shrink(image, size)[None], context_masks, image_of, crop_maps, context_maps)
        out.regions = [
            replace(region, index=index, image=item.id, digest=_digest(*pictures), labels=())
            for region, *pictures in zip(regions, crops, masks, strict=True)
        ]
        return out

    def encode(self, prepared: Sequence[Extracted]) -> Extracted:
        """Prepared images as one, with their features."""
        out = Extracted([record for one in prepared for record in one.images])
        out.regions = [region for one in prepared for region in one.regions]
        out.masks = {index: mask for one in prepared for index, mask in one.masks.items()}
        if batches := [one.batch for one in prepared if one.batch is not None]:
            out.batch = _joined(batches)
            out.parts = self.encoder.encode(out.batch)
        if self.encoder.scenes:
            width = self.encoder.network.width
            out.scenes = np.full((len(out.images), width + 2), np.nan, np.float16)
            if out.batch is not None:
                readable = [not record.error for record in out.images]
                out.scenes[readable, :-2], out.scenes[readable, -2:] = (
                    out.parts.pop(SCENES),
                    exposure(out.batch.contexts),
                )
        return out

    def _regions(
        self, item: Sample, record: ImageRecord
    ) -> tuple[list[Region], npt.NDArray[np.int32], npt.NDArray[np.bool_] | None, FloatMap | None]:
        """Regions, components, mask (or None), and the map (or None) without NaN and infinity."""
        size = (record.height, record.width)
        ignore = self.config.ignore
        mask: npt.NDArray[np.bool_] | None = None
        scores: FloatMap | None = None
        values: FloatMap | None = None
        if item.mask is not None:
            mask = read_mask(item.mask)
            mask = mask & ~ignored(ignore, mask.shape[:2]) if ignore else mask
        elif item.map is not None and self.binarizer is not None:
            values = prepare_map(item.map, self.config.binarize.min_map_size, ignore)
            record.note = note_on_map(values)
            result, scores = binarize_map(self.binarizer, values)
            mask, record.threshold, record.score = result.mask, result.threshold, top_mean(values)
            if not mask.any() and self._is_odd(record.score):
                # A line that does not move with the wanted rate of false alarms, so that regions stay as they are.
                record.threshold = min(self.normal.level(CUT_RATE), record.score)  # type: ignore[union-attr]
                cut_out = values >= record.threshold
                mask = kept if (kept := solid(cut_out, self.config.binarize.erosion)).any() else cut_out
            values = filled(values, self.binarizer.high_)
            mask = mask & ~ignored(ignore, mask.shape[:2]) if ignore else mask
        if self.whole or mask is None or not mask.any():
            normal = self.config.has_normal and scores is None
            if normal:
                record.score = 0.0
            if self.config.has_normal and self.config.crop.no_region != "learned":
                return [], np.zeros((1, 1), np.int32), mask, values
            regions, components = whole_region(size, np.zeros((1, 1), np.float32) if normal else scores)
            return regions, components, mask, values
        regions, components = find_regions(mask, size, self.config.crop, scores=scores)
        return regions[: self.most_regions], components, mask, values

    def _is_odd(self, score: float) -> bool:
        """Whether an image may be called defective, by the score alone or together with its looks."""
        wanted = self.normal is not None and self.config.crop.no_region == "gate"
        return wanted and float(self.normal.probability(score)) < NEAR  # type: ignore[union-attr]


def solid(mask: npt.NDArray[np.bool_], erosion: int) -> npt.NDArray[np.bool_]:
    """The components of a mask that MEBin would count: those that an erosion by a square of that side does not remove.

    Examples
    --------
    >>> mask = np.zeros((20, 20), bool)
    >>> mask[2:10, 2:10] = mask[15, 15] = True
    >>> int(solid(mask, 6).sum())
    64
    """
    if not erosion:
        return mask
    left = cv2.erode(mask.astype(np.uint8), np.ones((erosion, erosion), np.uint8))
    _, components = cv2.connectedComponents(mask.astype(np.uint8), connectivity=8)
    return np.isin(components, np.unique(components[left > 0]))


def _stack(pictures: Sequence[npt.NDArray[Any]], shape: tuple[int, ...], kind: type[Any]) -> npt.NDArray[Any]:
    """As np.stack, which needs at least one picture."""
    return np.stack(pictures) if pictures else np.empty((0, *shape), kind)


def _digest(crop: npt.NDArray[np.uint8], mask: npt.NDArray[np.bool_]) -> str:
    return hashlib.blake2b(crop.tobytes() + mask.tobytes(), digest_size=16).hexdigest()


def _joined(batches: Sequence[CropBatch]) -> CropBatch:
    """Pictures of several images, one batch each, as one."""
    pictures = {
        name: None if getattr(batches[0], name) is None else np.concatenate([getattr(one, name) for one in batches])
        for name in vars(batches[0])
    }
    image_of = np.repeat(np.arange(len(batches)), [len(one) for one in batches])
    return CropBatch(**{**pictures, "image_of": image_of})  # type: ignore[arg-type]


def is_readable(item: Sample) -> bool:
    """Whether all files of an image can be read by now."""
    try:
        read_image(item.image)
        if item.map is not None:
            prepare_map(item.map, 0)
        if item.mask is not None:
            read_mask(item.mask)
    except BadFileError:
        return False
    return True


def shrink(image: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """The whole image as the network sees it: (size, size, 3)."""
    method = cv2.INTER_AREA if max(image.shape[:2]) > size else cv2.INTER_CUBIC
    return cv2.resize(image, (size, size), interpolation=method).astype(np.uint8, copy=False)


def shrink_map(values: npt.NDArray[np.bool_] | FloatMap, size: int) -> FloatMap:
    """A map (h, w) in the frame of `shrink`, or the share of each pixel that a mask covers, so that a small region does not
    vanish: (size, size)."""
    method = cv2.INTER_AREA if max(values.shape) > size else cv2.INTER_LINEAR
    return cv2.resize(values.astype(np.float32), (size, size), interpolation=method).astype(np.float32, copy=False)
