"""What describes a region: the one place where tokens become numbers for clustering, heads, report and prediction.

No torch here: tokens come from any network that gives them as arrays, so that the same code serves the backbone and its
exported form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import cv2
import numpy as np
import numpy.typing as npt

from ..config import FeatureConfig
from ..errors import DataError, SettingsError
from ..grid import kept_patches, patch_means
from ..model.seen import Seen, tokens_of
from .views import centre, dihedral

Floats = npt.NDArray[np.floating]
Values = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Pictures = npt.NDArray[np.uint8]

CROP_PARTS = ("class_token", "patches")  # seen in the crop; the others in the whole image
SCENES = "scenes"  # of whole images, beside the parts of regions
# Share of the way from the typical patch of an image to its peak over which a patch loses a factor e: the typical one then
# has about a thousandth of the peak's weight, so that a thousand of them do not drown it.
PEAK_SHARE = 0.15


class TokenNetwork(Protocol):
    """A frozen vision transformer that takes and gives arrays; images are (B, H, W, 3) uint8, sides whole patches."""

    n_blocks: int
    width: int
    patch_size: tuple[int, int]
    mask_threshold: float
    keep_thin: bool

    def patches(self, images: Pictures, blocks: Sequence[int]) -> Values:
        """Patch tokens after each of `blocks`, counted from 0, without guidance: (B, L, P, C)."""
        ...

    def guided(self, images: Pictures, masks: Flags, blocks: Sequence[int]) -> tuple[Values, Values]:
        """Class token of the whole network, guided by masks (B, H, W): (B, C); and patch tokens after each of `blocks`,
        which may be none: (B, L, P, C)."""
        ...


@dataclass(frozen=True)
class CropBatch:
    """Regions as pictures.

    crops : (R, S, S, 3) uint8, and masks : (R, S, S) bool
    contexts : (I, T, T, 3) uint8, the whole images, also such without a region where their scenes are wanted
    context_masks : (R, T, T) float32 0 … 1, the region in its image
    image_of : (R,) int, the row of `contexts` that a region lies in
    crop_maps : (R, S, S) and context_maps : (I, T, T) float32 0 … 1, the anomaly map in the same frames; None without maps,
        the former also where no part needs them
    """

    crops: npt.NDArray[np.uint8]
    masks: npt.NDArray[np.bool_]
    contexts: npt.NDArray[np.uint8]
    context_masks: npt.NDArray[np.float32]
    image_of: npt.NDArray[np.int64]
    crop_maps: npt.NDArray[np.float32] | None = None
    context_maps: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.crops)


class RegionEncoder:
    """Pictures of regions → a unit vector for each wanted part, view and block.

    Parameters
    ----------
    network : the mask-guided backbone
    config : which parts are wanted, from which blocks
    input_size, image_size : side in pixels of crops and of whole images as the network sees them, whole patches
    batch_size : pictures in one pass
    train_last_block : whether the last block is learned, so that its patch tokens would not stay what they are
    scenes : whether whole images are described too, such without a region included

    seen : an attribute: where a detector may have left what the same network saw in whole images
    """

    seen: Seen | None = None

    def __init__(
        self,
        network: TokenNetwork,
        config: FeatureConfig,
        *,
        input_size: int,
        image_size: int = 336,
        batch_size: int = 16,
        train_last_block: bool = False,
        scenes: bool = False,
    ) -> None:
        self.network = network
        self.scenes = scenes
        self.config = config
        self.input_size = input_size
        self.batch_size = batch_size
        side = network.patch_size[0]
        sizes = {"input_size": input_size} | ({"image_size": image_size} if config.image or scenes else {})
        for name, size in sizes.items():
            if size % side:
                raise SettingsError(
                    f"model.{name} must be a multiple of {side}, the patch size of this backbone, but got {size}: "
                    f"take {max(1, round(size / side)) * side}."
                )
        usable = network.n_blocks - train_last_block
        self.blocks = config.used_blocks(usable)
        if max(self.blocks) >= usable:
            last = f"{usable - 1}, the last {'block that is not trained' if train_last_block else 'block'}"
            raise SettingsError(f"features.blocks must be at most {last} of this backbone, but got {max(self.blocks)}.")

    def encode(self, batch: CropBatch) -> dict[str, npt.NDArray[np.float16]]:
        """Each wanted part of each region in each dihedral view: name → (R, V, L, C) float16 unit vectors.

        L is the number of blocks, and 1 for the class token. Where there is no region, there is no part. Where scenes are
        wanted, `scenes` is (I, C), a unit vector for each whole image: the mean of its patch tokens after the lowest of the
        blocks, which a defect changes less than the last one, and another camera, light or focus more.
        """
        parts = self.encode_crops(batch.crops, batch.masks, batch.crop_maps) if len(batch) else {}
        scenes = np.empty((len(batch.contexts), self.network.width), np.float32)
        if self.config.image and len(batch):
            parts["image"] = self._images(batch, scenes)
        elif self.scenes:
            for chunk in self._chunks(len(batch.contexts)):
                scenes[chunk] = self._scenes(self._whole(batch.contexts[chunk]))
        return {**parts, SCENES: unit(scenes).astype(np.float16)} if self.scenes else parts

    def encode_crops(
        self, crops: Pictures, masks: Flags, maps: Values | None = None
    ) -> dict[str, npt.NDArray[np.float16]]:
        """As `encode`, for the parts that need the crops only."""
        wanted = [name for name in CROP_PARTS if getattr(self.config, name)]
        views = [self._crop_parts(crops, masks, maps, view) for view in range(self.config.views if wanted else 0)]
        return {name: _stacked([view[name] for view in views]) for name in wanted}

    def _crop_parts(self, crops: Pictures, all_masks: Flags, maps: Values | None, view: int) -> dict[str, Values]:
        """(R, L, C) each."""
        found: dict[str, list[Values]] = {name: [] for name in CROP_PARTS}
        for chunk in self._chunks(len(crops)):
            images = dihedral(centre(crops[chunk], self.input_size), view)
            masks = dihedral(centre(all_masks[chunk], self.input_size), view)
            if self.config.class_token:
                class_token, tokens = self.network.guided(images, masks, self.blocks if self.config.patches else ())
                found["class_token"].append(class_token[:, None])
            else:  # fewer blocks, and without guidance: in mode `class` patches see it only by way of the class token
                tokens = self.network.patches(images, self.blocks)
            if self.config.patches:
                scores = None if maps is None else dihedral(centre(maps[chunk], self.input_size), view)
                found["patches"].append(weighted_mean(tokens, self._weights(masks, scores)))
        return {name: np.concatenate(values) for name, values in found.items() if values}

    def _images(self, batch: CropBatch, scenes: Values) -> npt.NDArray[np.float16]:
        """Tokens of whole images, averaged with weights of each region: (R, V, L, C); their plain means go into `scenes`."""
        contexts, image_of, weights = batch.contexts, batch.image_of, self._image_weights(batch)
        grids = weights.reshape(-1, *self._grid(contexts))  # pictures of one pixel a patch, which turn with the images
        views = []
        for view in range(self.config.views):
            found = np.empty((len(weights), len(self.blocks), self.network.width), np.float32)
            for chunk in self._chunks(len(contexts)):
                tokens = self._whole(dihedral(contexts[chunk], view))
                if not view:
                    scenes[chunk] = self._scenes(tokens)
                rows = np.flatnonzero((image_of >= chunk.start) & (image_of < chunk.stop))
                turned = dihedral(grids[rows], view).reshape(-1, weights.shape[1])
                found[rows] = weighted_mean(tokens[image_of[rows] - chunk.start], turned)
            views.append(found)
        return _stacked(views)

    def _whole(self, pictures: Pictures) -> Values:
        """Patch tokens (B, L, P, C) of whole images, which the network may have seen before."""
        shape = (int(np.prod(self._grid(pictures))), self.network.width)
        return tokens_of(pictures, self.blocks, shape, self.network.patches, self.seen)

    def _scenes(self, tokens: Values) -> Values:
        """(I, L, P, C) → (I, C)."""
        mean: Values = tokens[:, self.blocks.index(min(self.blocks))].mean(axis=1)
        return mean

    def _image_weights(self, batch: CropBatch) -> Values:
        """How much each patch of the whole image counts for a region, (R, P): by the map, but for the other regions of the
        image, which may be other defects; without a map, the region alone."""
        own = self._weights(batch.context_masks, None)
        if batch.context_maps is None:
            return own
        grid = self._grid(batch.context_masks)
        inside = kept_patches(
            batch.context_masks, grid, threshold=self.network.mask_threshold, keep_thin=self.network.keep_thin
        )
        all_inside = np.zeros((len(batch.contexts), inside.shape[1]), np.int64)
        np.add.at(all_inside, batch.image_of, inside)
        other = (all_inside[batch.image_of] - inside).reshape(-1, *grid) > 0
        around = np.stack([cv2.dilate(one, np.ones((3, 3), np.uint8)) for one in other.astype(np.uint8)])
        other = (around.reshape(inside.shape) > 0) & ~inside
        other[other.all(axis=1)] = False
        return map_weights(patch_means(batch.context_maps, grid)[batch.image_of], ~other)

    def _chunks(self, count: int) -> Iterator[slice]:
        return (slice(start, start + self.batch_size) for start in range(0, count, self.batch_size))

    def _grid(self, pictures: Pictures | Values | Flags) -> tuple[int, int]:
        height, width = self.network.patch_size
        return pictures.shape[1] // height, pictures.shape[2] // width

    def _weights(self, masks: Values | Flags, maps: Values | None) -> Values:
        """How much each patch counts: masks (B, H, W), and maps (B, H, W) or None → (B, P)."""
        grid = self._grid(masks)
        keep = kept_patches(masks, grid, threshold=self.network.mask_threshold, keep_thin=self.network.keep_thin)
        keep |= ~keep.any(axis=1, keepdims=True)
        if maps is None or not self.config.focus:
            return keep.astype(np.float32)
        return focused(keep, patch_means(maps, grid), self.config.focus)


class FeatureSpace:
    """Parts → one vector a region: views averaged, the fitted means taken off, blocks and parts weighted and joined.

    Attributes
    ----------
    weights : part name → weight
    means : part name → (L, C) float32, mean of the fitted regions (zeros where nothing is taken off)

    Examples
    --------
    >>> parts = {"patches": np.eye(6, dtype=np.float32).reshape(3, 1, 4, 3)}  # three regions, one view, four blocks
    >>> FeatureSpace({"patches": 1.0}).fit(parts).transform(parts).shape
    (3, 12)
    """

    def __init__(self, weights: Mapping[str, float], means: Mapping[str, Floats] | None = None) -> None:
        self.weights = dict(weights)
        self.means = dict(means or {})

    def fit(self, parts: Mapping[str, Floats], *, center: bool = True) -> FeatureSpace:
        """Learn the means. parts: name → (R, V, L, C)."""
        for name, values in parts.items():
            mean = values.astype(np.float32).mean(axis=1).mean(axis=0)
            self.means[name] = mean if center and len(values) > 1 else np.zeros_like(mean)
        return self

    def transform(self, parts: Mapping[str, Floats]) -> npt.NDArray[np.float32]:
        """One unit vector a region, over all its views: name → (R, V, L, C) gives (R, D), D = sum of L·C over the parts."""
        averaged = {name: parts[name].astype(np.float32).mean(axis=1) for name in self.weights}
        return unit(self.join(averaged))

    def blocks(self, parts: Mapping[str, Floats]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """What `transform` is made of, nothing taken off: (R, B, C), blocks of all parts; and their weights (B,), sum 1."""
        averaged = [parts[name].astype(np.float32).mean(axis=1) for name in self.weights]
        shares = [
            [weight**2 / part.shape[1]] * part.shape[1]
            for weight, part in zip(self.weights.values(), averaged, strict=True)
        ]
        weights = np.concatenate(shares).astype(np.float32)
        return np.concatenate(averaged, axis=1), weights / weights.sum()

    def join(self, parts: Mapping[str, Floats]) -> npt.NDArray[np.float32]:
        """Weighted parts side by side: name → (…, L, C) gives (…, D); not scaled to length 1.

        Each block of a part has 1/√L of its weight, so that the part has its weight as its length.
        """
        joined = []
        for name in (name for name in self.weights if name in parts):
            values, mean = parts[name].astype(np.float32), self.means.get(name)
            if mean is not None and mean.shape != values.shape[-2:]:
                raise DataError(
                    f"features.{name}: {mean.shape} numbers a region were learned from, but these have {values.shape[-2:]}."
                )
            blocks = unit(values if mean is None else values - mean.astype(np.float32))
            blocks *= np.float32(self.weights[name] / np.sqrt(blocks.shape[-2]))
            joined.append(blocks.reshape(*blocks.shape[:-2], -1))
        return np.concatenate(joined, axis=-1)


def _stacked(views: list[Values]) -> npt.NDArray[np.float16]:
    """(R, L, C) of each view as unit vectors (R, V, L, C)."""
    return unit(np.stack(views, axis=1)).astype(np.float16)


def unit(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale the last axis to length 1; a zero vector stays zero."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    out: npt.NDArray[np.float32] = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    return out


def weighted_mean(tokens: Values, weights: Values) -> Values:
    """Mean of tokens (B, L, P, C) with weights (B, P), of which each row has one above 0 → (B, L, C)."""
    shares = weights / weights.sum(axis=1, keepdims=True)
    mean: Values = np.matmul(shares[:, None, None], tokens)[:, :, 0]
    return mean


def focused(keep: Flags, scores: Values, focus: float) -> Values:
    """Weights that follow the anomaly map: 1 at the peak of the kept patches, e times less for each share `focus` of their
    span below it, so that the lowest one has exp(−1/focus).

    A mask that took in some of the normal surface then says little about it. The span is each region's own, because
    detectors, and images, differ in how far a peak stands out.

    Parameters
    ----------
    keep : (B, P) bool, at least one in each row; scores : (B, P) map values

    Examples
    --------
    >>> keep = np.array([[True, True, True, False]])
    >>> focused(keep, np.float32([[0.5, 0.4, 0.3, 0.9]]), 0.5).astype(float).round(4).tolist()
    [[1.0, 0.3679, 0.1353, 0.0]]
    """
    peak = np.where(keep, scores, -np.inf).max(axis=1, keepdims=True)
    span = peak - np.where(keep, scores, np.inf).min(axis=1, keepdims=True)
    inside = keep & (span > 0)
    below = np.divide(peak - scores, span, out=np.zeros_like(scores), where=inside)
    return np.where(keep, np.exp(-below / np.float32(focus)), np.float32(0)).astype(np.float32)


def map_weights(scores: Values, counted: Flags) -> Values:
    """Weights that follow the anomaly map over whole images: w = exp(−(max − m) / (0.15 · (max − median))) for a patch of
    map value m, max being the highest counted one and median that of the image; 1 where the two are the same.

    Unlike `focused` it needs no mask, so what a mask missed has a say, and normal images have weights too.

    Parameters
    ----------
    scores : (R, P) map values; counted : (R, P) bool, at least one in each row; the others get 0

    Examples
    --------
    >>> scores = np.float32([[0.2, 0.2, 0.2, 0.74, 0.8, 0.9]])
    >>> map_weights(scores, scores < 0.85).astype(float).round(3).tolist()
    [[0.0, 0.0, 0.0, 0.298, 1.0, 0.0]]
    """
    peak = np.where(counted, scores, -np.inf).max(axis=1, keepdims=True)
    span = PEAK_SHARE * (peak - np.median(scores, axis=1, keepdims=True))
    below = np.divide(peak - scores, span, out=np.zeros_like(scores), where=counted & (span > 0))
    weights: Values = np.where(counted, np.exp(-below), np.float32(0)).astype(np.float32)
    return weights
