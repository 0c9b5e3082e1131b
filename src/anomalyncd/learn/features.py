"""What describes a region: the one place where tokens become numbers for clustering, heads, report and prediction.

No torch here: tokens come from any network that gives them as arrays, so that the same code serves the backbone and its
exported form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..config import FeatureConfig
from ..errors import SettingsError
from ..grid import kept_patches, patch_means
from .views import centre, dihedral

Floats = npt.NDArray[np.floating]
Values = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]
Pictures = npt.NDArray[np.uint8]

CROP_PARTS = ("class_token", "patches")  # seen in the crop; the others in the whole image


class TokenNetwork(Protocol):
    """A frozen vision transformer that takes and gives arrays; images are (B, H, W, 3) uint8, sides whole patches."""

    n_blocks: int
    width: int
    patch_size: tuple[int, int]
    mask_threshold: float
    keep_thin: bool

    def patches(self, images: Pictures, block: int) -> Values:
        """Patch tokens after `block`, counted from 0, without guidance: (B, P, C)."""
        ...

    def guided(self, images: Pictures, masks: Flags, block: int) -> tuple[Values, Values]:
        """Class token of the whole network, guided by masks (B, H, W): (B, C); and patch tokens after `block`: (B, P, C)."""
        ...


@dataclass(frozen=True)
class CropBatch:
    """Regions as pictures.

    crops : (R, S, S, 3) uint8, and masks : (R, S, S) bool
    contexts : (I, T, T, 3) uint8, the whole images, and context_masks : (R, T, T) float32 0 … 1, the region in it
    image_of : (R,) int, the row of `contexts` that a region lies in
    crop_maps : (R, S, S) and context_maps : (I, T, T) float32 0 … 1, the anomaly map in the same frames; None without maps
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
    """Pictures of regions → a unit vector for each wanted part and view.

    Parameters
    ----------
    network : the mask-guided backbone
    config : which parts are wanted, from which block
    input_size : side of the network's input in pixels, whole patches
    batch_size : pictures in one pass
    """

    def __init__(self, network: TokenNetwork, config: FeatureConfig, *, input_size: int, batch_size: int = 16) -> None:
        self.network = network
        self.config = config
        self.input_size = input_size
        self.batch_size = batch_size
        side = network.patch_size[0]
        if input_size % side:
            raise SettingsError(
                f"model.input_size must be a multiple of {side}, the patch size of this backbone, but got {input_size}: "
                f"take {max(1, round(input_size / side)) * side}."
            )
        last = network.n_blocks - 2  # the last block is the one that may be trained, so patches are taken before it
        self.block = last if config.block is None else config.block
        if self.block > last:
            raise SettingsError(
                f"features.block must be at most {last}, the last but one of this backbone, but got {self.block}."
            )

    def encode(self, batch: CropBatch) -> dict[str, npt.NDArray[np.float16]]:
        """Each wanted part of each region in each dihedral view: name → (R, V, C) float16 unit vectors."""
        return _stacked(
            [
                self._crop_parts(batch.crops, batch.masks, view, batch.crop_maps) | self._image_parts(batch, view)
                for view in range(self.config.views)
            ]
        )

    def encode_crops(self, crops: Pictures, masks: Flags) -> dict[str, npt.NDArray[np.float16]]:
        """As `encode`, for the parts that need the crops only."""
        return _stacked([self._crop_parts(crops, masks, view) for view in range(self.config.views)])

    def _crop_parts(
        self, crops: Pictures, all_masks: Flags, view: int, maps: Values | None = None
    ) -> dict[str, Values]:
        found: dict[str, list[Values]] = {}
        if not self.config.class_token and not self.config.patches:
            return {}
        for start in range(0, len(crops), self.batch_size):
            chunk = slice(start, start + self.batch_size)
            images = dihedral(centre(crops[chunk], self.input_size), view)
            masks = dihedral(centre(all_masks[chunk], self.input_size), view)
            if self.config.class_token:
                class_token, tokens = self.network.guided(images, masks, self.block)
                found.setdefault("class_token", []).append(class_token)
            else:  # fewer blocks, and without guidance, which (mode `class`) changes nothing for patches
                tokens = self.network.patches(images, self.block)
            if self.config.patches:
                scores = None if maps is None else dihedral(centre(maps[chunk], self.input_size), view)
                found.setdefault("patches", []).append(weighted_mean(tokens, self._weights(masks, scores)))
        return {name: np.concatenate(values) for name, values in found.items()}

    def _image_parts(self, batch: CropBatch, view: int) -> dict[str, Values]:
        """The region and its surround as seen in the whole image; one pass for an image serves all its regions."""
        wanted = [name for name in ("context", "surround") if getattr(self.config, name)]
        found = {name: np.empty((len(batch), self.network.width), np.float32) for name in wanted}
        for start in range(0, len(batch.contexts) if wanted else 0, self.batch_size):
            tokens = self.network.patches(dihedral(batch.contexts[start : start + self.batch_size], view), self.block)
            rows = np.flatnonzero((batch.image_of >= start) & (batch.image_of < start + self.batch_size))
            own = tokens[batch.image_of[rows] - start]
            maps = None if batch.context_maps is None else dihedral(batch.context_maps[batch.image_of[rows]], view)
            masks = dihedral(batch.context_masks[rows], view)
            weights = self._weights(masks, maps)
            if "context" in found:
                found["context"][rows] = weighted_mean(own, weights)
            if "surround" in found:
                found["surround"][rows] = weighted_mean(own, dilate(weights, self._grid(masks)))
        return found

    def _grid(self, pictures: Values | Flags) -> tuple[int, int]:
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
    """Parts → one vector a region: views averaged, the fitted mean taken off, parts weighted and joined.

    Attributes
    ----------
    weights : part name → weight
    means : part name → (C,) float32, mean of the fitted regions (zeros where nothing is taken off)

    Examples
    --------
    >>> space = FeatureSpace({"patches": 1.0}).fit({"patches": np.eye(3, dtype=np.float32)[:, None]})
    >>> space.transform({"patches": np.eye(3, dtype=np.float32)[:, None]}).shape
    (3, 3)
    """

    def __init__(self, weights: Mapping[str, float], means: Mapping[str, Floats] | None = None) -> None:
        self.weights = dict(weights)
        self.means = dict(means or {})

    def fit(self, parts: Mapping[str, Floats], *, center: bool = True) -> FeatureSpace:
        """Learn the means. parts: name → (R, V, C)."""
        for name, values in parts.items():
            mean = values.astype(np.float32).mean(axis=1).mean(axis=0)
            self.means[name] = mean if center and len(values) > 1 else np.zeros_like(mean)
        return self

    def transform(self, parts: Mapping[str, Floats]) -> npt.NDArray[np.float32]:
        """One unit vector a region, over all its views: name → (R, V, C) gives (R, D), D = sum of C over the parts."""
        averaged = {name: parts[name].astype(np.float32).mean(axis=1) for name in self.weights}
        return unit(self.join(averaged))

    def join(self, parts: Mapping[str, Floats]) -> npt.NDArray[np.float32]:
        """Weighted parts side by side: name → (…, C) gives (…, D); not scaled to length 1."""
        joined = [
            weight * unit(parts[name].astype(np.float32) - self.means.get(name, np.float32(0)))
            for name, weight in self.weights.items()
            if name in parts
        ]
        return np.concatenate(joined, axis=-1)


def _stacked(views: list[dict[str, Values]]) -> dict[str, npt.NDArray[np.float16]]:
    """One dictionary a view, name → (R, C), as name → (R, V, C) unit vectors."""
    return {name: np.stack([unit(view[name]) for view in views], axis=1).astype(np.float16) for name in views[0]}


def unit(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale the last axis to length 1; a zero vector stays zero."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    out: npt.NDArray[np.float32] = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    return out


def weighted_mean(tokens: Values, weights: Values) -> Values:
    """Mean of tokens (B, P, C) with weights (B, P), of which each row has one above 0 → (B, C)."""
    shares = weights / weights.sum(axis=1, keepdims=True)
    mean: Values = np.matmul(shares[:, None], tokens)[:, 0]
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


def dilate(weights: Values, grid: tuple[int, int]) -> Values:
    """The largest weight among each patch and its eight neighbours: (B, P) → (B, P)."""
    padded = np.pad(weights.reshape(-1, *grid), ((0, 0), (1, 1), (1, 1)))  # weights are never below 0
    rows = np.maximum(np.maximum(padded[:, :-2], padded[:, 1:-1]), padded[:, 2:])
    both: Values = np.maximum(np.maximum(rows[..., :-2], rows[..., 1:-1]), rows[..., 2:])
    return both.reshape(len(weights), -1)
