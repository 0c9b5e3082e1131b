"""From files to regions and their features, a few images at a time: the same path for fitting and for new images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import cv2
import numpy as np
import numpy.typing as npt

from ..binarize.base import Binarizer
from ..binarize.prepare import FloatMap, binarize_map, note_on_map, prepare_map
from ..config import Config
from ..data.dataset import Sample
from ..data.images import read_image
from ..data.maps import read_mask
from ..errors import BadFileError
from ..learn.features import CropBatch, RegionEncoder
from .find import Region, cut, cut_map, find_regions, rescale, whole_region
from .prefetch import prefetch
from .records import ImageRecord

FLAT = np.ones((1, 1), np.float32)
MOST_REGIONS = 64  # of one image


@dataclass
class Extracted:
    """Regions of one image or of several.

    batch : their pictures, for the network
    parts : part name → (R, V, C) float16, as `RegionEncoder.encode` gives; none before the network has seen them
    masks : index of an image → its binary mask at map resolution
    """

    images: list[ImageRecord]
    regions: list[Region] = field(default_factory=list)
    batch: CropBatch | None = None
    parts: dict[str, npt.NDArray[np.float16]] = field(default_factory=dict)
    masks: dict[int, npt.NDArray[np.bool_]] = field(default_factory=dict)


class Extractor:
    """Images → regions → crops → features.

    Parameters
    ----------
    config : binarise, crop and has_normal settings are used
    binarizer : fitted, or None when the items have masks
    encoder : computes features of the crops
    cut_score : score (0 … 1) of a map from which on its image has a defect; where no region is stable it is cut out at this
        score. 0 = an image without a stable region has none
    most_regions : that are kept of one image, largest first
    """

    def __init__(
        self,
        config: Config,
        binarizer: Binarizer | None,
        encoder: RegionEncoder,
        cut_score: float = 0.0,
        most_regions: int = MOST_REGIONS,
    ) -> None:
        self.config, self.binarizer, self.encoder, self.cut_score = config, binarizer, encoder, cut_score
        self.most_regions = most_regions

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
            regions, components, mask, scores = self._regions(item, record)
        except BadFileError as error:
            record.error = str(error)
            return out
        record.n_regions = len(regions)
        if mask is not None:
            out.masks[index] = mask
        if not regions:
            return out
        config, image_size, size = self.config, image.shape[:2], self.config.model.input_size
        cuts = [cut(image, components, region, config.crop.size) for region in regions]
        crops, masks = (np.stack(pictures) for pictures in zip(*cuts, strict=True))
        context_masks = np.stack([_shrink_region(components, region, image_size, size) for region in regions])
        if config.has_normal and (mask is None or not mask.any()):  # learned although nothing was found
            masks[:], context_masks[:] = False, 0
        crop_maps = context_maps = None
        if config.features.focus:
            crop_maps = np.stack([cut_map(scores, image_size, region.square, config.crop.size) for region in regions])
            context_maps = _shrink_mask(scores, size)[None]
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
        return out

    def _regions(
        self, item: Sample, record: ImageRecord
    ) -> tuple[list[Region], npt.NDArray[np.int32], npt.NDArray[np.bool_] | None, FloatMap]:
        """Regions, components, mask (or None), and the map on the fitted range, which is flat where there is none."""
        size = (record.height, record.width)
        mask: npt.NDArray[np.bool_] | None = None
        scores: FloatMap | None = None
        if item.mask is not None:
            mask = read_mask(item.mask)
        elif item.map is not None and self.binarizer is not None:
            values = prepare_map(item.map, self.config.binarize.min_map_size)
            record.note = note_on_map(values)
            result, scores = binarize_map(self.binarizer, values)
            mask, record.threshold, record.score = result.mask, result.threshold, float(scores.max())
            if not mask.any() and 0 < self.cut_score <= record.score:
                mask = solid(scores >= self.cut_score, self.config.binarize.erosion)
                low, high = self.binarizer.low_, self.binarizer.high_
                record.threshold = low + self.cut_score * (high - low)
        if mask is None or not mask.any():
            if self.config.has_normal and scores is None:
                record.score, scores = 0.0, np.zeros((1, 1), np.float32)
            if self.config.has_normal and self.config.crop.no_region != "learned":
                return [], np.zeros((1, 1), np.int32), mask, FLAT
            regions, components = whole_region(size, scores)
            return regions, components, mask, FLAT if scores is None else scores
        regions, components = find_regions(mask, size, self.config.crop, scores=scores)
        return regions[: self.most_regions], components, mask, FLAT if scores is None else scores


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


def _shrink_region(
    components: npt.NDArray[np.int32], region: Region, image_size: tuple[int, ...], size: int
) -> FloatMap:
    """`_shrink_mask` of a region alone; only where the region is, as the map may be large and its regions many."""
    (x, y, box_width, box_height), (height, width) = region.box, image_size
    rows, columns = components.shape
    (y0, y1), (x0, x1) = rescale(y, y + box_height, height, rows), rescale(x, x + box_width, width, columns)
    if min(rows, columns) < size or 16 * (y1 - y0) * (x1 - x0) > rows * columns:
        return _shrink_mask(np.isin(components, region.labels), size)
    own = np.isin(components[y0:y1, x0:x1], region.labels)
    share: FloatMap = (_shares(y0, y1, rows, size) @ own @ _shares(x0, x1, columns, size).T).astype(np.float32)
    return share


def _shares(start: int, stop: int, length: int, size: int) -> npt.NDArray[np.float64]:
    """Share of pixels start … stop of `length` in each of the `size` that they are shrunk to: (size, stop - start)."""
    step, pixels = length / size, np.arange(start, stop)
    edges = np.arange(size + 1)[:, None] * step
    overlap = np.minimum(edges[1:], pixels + 1) - np.maximum(edges[:-1], pixels)
    return np.where(overlap > 1e-3, overlap, 0) / step  # OpenCV leaves out less than this


def _shrink_mask(mask: npt.NDArray[np.bool_] | FloatMap, size: int) -> FloatMap:
    """Share of each pixel that the region covers, so that a small region does not vanish; or the mean of a map."""
    method = cv2.INTER_AREA if max(mask.shape) > size else cv2.INTER_LINEAR
    return cv2.resize(mask.astype(np.float32), (size, size), interpolation=method).astype(np.float32, copy=False)
