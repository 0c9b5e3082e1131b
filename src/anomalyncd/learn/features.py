"""What describes a region: the one place where tokens become numbers for clustering, heads, report and prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ..config import FeatureConfig
from ..errors import SettingsError
from ..model.backbone import MaskGuidedViT
from .views import centre, dihedral

Floats = npt.NDArray[np.floating]

CROP_PARTS = ("class_token", "patches")  # seen in the crop; the others in the whole image


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
    """Frozen trunk: pictures of regions → a unit vector for each wanted part and view.

    Parameters
    ----------
    vit : the mask-guided backbone
    config : which parts are wanted, from which block
    input_size : side of the network's input in pixels, whole patches
    batch_size : pictures in one pass
    """

    def __init__(self, vit: MaskGuidedViT, config: FeatureConfig, *, input_size: int, batch_size: int = 16) -> None:
        self.vit = vit
        self.config = config
        self.input_size = input_size
        self.batch_size = batch_size
        if vit.fit_size(input_size) != input_size:
            raise SettingsError(
                f"model.input_size must be a multiple of {vit.patch_size[0]}, the patch size of this backbone, but got "
                f"{input_size}: take {vit.fit_size(input_size)}."
            )
        last = vit.n_blocks - 2  # the last block is the one that may be trained, so patches are taken before it
        self.block = last if config.block is None else config.block
        if self.block > last:
            raise SettingsError(
                f"features.block must be at most {last}, the last but one of this backbone, but got {self.block}."
            )
        self.device = next(vit.parameters()).device

    @torch.inference_mode()
    def encode(self, batch: CropBatch) -> dict[str, npt.NDArray[np.float16]]:
        """Each wanted part of each region in each dihedral view: name → (R, V, C) float16 unit vectors."""
        views: list[dict[str, Tensor]] = []
        for view in range(self.config.views):
            parts: dict[str, Tensor] = {}
            if self.config.class_token or self.config.patches:
                parts |= self._crop_parts(batch.crops, batch.masks, view, batch.crop_maps)
            if self.config.context or self.config.surround:
                parts |= self._image_parts(batch, view)
            views.append(parts)
        return _stacked(views)

    @torch.inference_mode()
    def encode_crops(
        self, crops: npt.NDArray[np.uint8], masks: npt.NDArray[np.bool_]
    ) -> dict[str, npt.NDArray[np.float16]]:
        """As `encode`, for the parts that need the crops only."""
        views = [self._crop_parts(crops, masks, view) for view in range(self.config.views)]
        return _stacked(views)

    def _crop_parts(
        self,
        crops: npt.NDArray[np.uint8],
        all_masks: npt.NDArray[np.bool_],
        view: int,
        maps: npt.NDArray[np.float32] | None = None,
    ) -> dict[str, Tensor]:
        found: dict[str, list[Tensor]] = {}
        for start in range(0, len(crops), self.batch_size):
            chunk = slice(start, start + self.batch_size)
            images = image_tensor(dihedral(centre(crops[chunk], self.input_size), view), self.device)
            masks = mask_tensor(dihedral(centre(all_masks[chunk], self.input_size), view), self.device)
            if self.config.class_token:
                out = self.vit.trunk(images, masks, taps=(self.block,))
                found.setdefault("class_token", []).append(self.vit.class_token(out.tokens, out.keep))
                patches, keep = out.taps[self.block], out.keep
            else:  # fewer blocks, and without guidance, which (mode `class`) changes nothing for patches
                patches, keep = self.vit.patch_tokens(images, self.block), self.vit.pool(masks)
            if self.config.patches:
                scores = None if maps is None else self._pooled(dihedral(centre(maps[chunk], self.input_size), view))
                found.setdefault("patches", []).append(weighted_mean(patches, self._weights(keep, scores)))
        return {name: torch.cat(values) for name, values in found.items()}

    def _image_parts(self, batch: CropBatch, view: int) -> dict[str, Tensor]:
        """The region and its surround as seen in the whole image; one pass for an image serves all its regions."""
        wanted = [name for name in ("context", "surround") if getattr(self.config, name)]
        found = {name: torch.empty(len(batch), self.vit.width, device=self.device) for name in wanted}
        for start in range(0, len(batch.contexts), self.batch_size):
            images = image_tensor(dihedral(batch.contexts[start : start + self.batch_size], view), self.device)
            tokens = self.vit.patch_tokens(images, self.block)
            rows = np.flatnonzero((batch.image_of >= start) & (batch.image_of < start + self.batch_size))
            tokens = tokens[torch.from_numpy(batch.image_of[rows] - start).to(self.device)]
            masks = mask_tensor(dihedral(batch.context_masks[rows], view), self.device)
            maps = batch.context_maps
            scores = None if maps is None else self._pooled(dihedral(maps[batch.image_of[rows]], view))
            weights = self._weights(self.vit.pool(masks), scores)
            if "context" in found:
                found["context"][rows] = weighted_mean(tokens, weights)
            if "surround" in found:
                grid = (masks.shape[-2] // self.vit.patch_size[0], masks.shape[-1] // self.vit.patch_size[1])
                found["surround"][rows] = weighted_mean(tokens, dilate(weights, grid))
        return found

    def _pooled(self, maps: npt.NDArray[np.float32]) -> Tensor:
        """Mean of the maps over each patch: (B, H, W) → (B, P)."""
        return F.avg_pool2d(mask_tensor(maps, self.device)[:, None], self.vit.patch_size).flatten(1)

    def _weights(self, keep: Tensor, scores: Tensor | None) -> Tensor:
        """How much each patch counts: (B, P) bool, and (B, P) scores or None → (B, P) float."""
        keep = torch.where(keep.any(dim=1, keepdim=True), keep, torch.ones_like(keep))
        if scores is None or not self.config.focus:
            return keep.float()
        return focused(keep, scores, self.config.focus)


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


def _stacked(views: list[dict[str, Tensor]]) -> dict[str, npt.NDArray[np.float16]]:
    """One dictionary a view, name → (R, C), as name → (R, V, C) unit vectors."""
    return {
        name: torch.stack([F.normalize(view[name], dim=-1) for view in views], dim=1).half().cpu().numpy()
        for name in views[0]
    }


def unit(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Scale the last axis to length 1; a zero vector stays zero."""
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    out: npt.NDArray[np.float32] = np.divide(x, length, out=np.zeros_like(x), where=length > 0)
    return out


def weighted_mean(tokens: Tensor, weights: Tensor) -> Tensor:
    """Mean of tokens (B, P, C) with weights (B, P), of which each row has one above 0 → (B, C)."""
    return torch.einsum("bp,bpc->bc", (weights / weights.sum(dim=1, keepdim=True)).to(tokens.dtype), tokens)


def focused(keep: Tensor, scores: Tensor, focus: float) -> Tensor:
    """Weights that follow the anomaly map: 1 at the peak of the kept patches, e times less for each share `focus` of their
    span below it, so that the lowest one has exp(−1/focus).

    A mask that took in some of the normal surface then says little about it. The span is each region's own, because
    detectors, and images, differ in how far a peak stands out.

    Parameters
    ----------
    keep : (B, P) bool, at least one in each row; scores : (B, P) map values

    Examples
    --------
    >>> focused(torch.tensor([[True, True, True, False]]), torch.tensor([[0.5, 0.4, 0.3, 0.9]]), 0.5)
    tensor([[1.0000, 0.3679, 0.1353, 0.0000]])
    """
    peak = scores.masked_fill(~keep, -torch.inf).amax(dim=1, keepdim=True)
    span = peak - scores.masked_fill(~keep, torch.inf).amin(dim=1, keepdim=True)
    below = torch.where(keep & (span > 0), (peak - scores) / span, torch.zeros_like(scores))
    return torch.where(keep, (-below / focus).exp(), torch.zeros_like(scores))


def dilate(weights: Tensor, grid: tuple[int, int]) -> Tensor:
    """The largest weight among each patch and its eight neighbours: (B, P) → (B, P)."""
    return F.max_pool2d(weights.view(-1, 1, *grid), kernel_size=3, stride=1, padding=1).flatten(1)


def image_tensor(images: npt.NDArray[np.uint8], device: torch.device) -> Tensor:
    """(B, H, W, 3) uint8 → (B, 3, H, W) uint8."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).to(device)


def mask_tensor(masks: npt.NDArray[np.bool_] | npt.NDArray[np.float32], device: torch.device) -> Tensor:
    """(B, H, W) bool or float → the same as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(masks)).to(device)
