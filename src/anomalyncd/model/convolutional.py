"""Convolutional networks of timm in the place of a vision transformer, for detectors whose papers use one."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

from ..errors import SettingsError
from . import registry, weights
from .backbone import MaskGuidedViT, load_vit, load_weights, resolve_name


class ConvTrunk(nn.Module):
    """Stages of a convolutional network as blocks of tokens on one grid, as PatchCore joins them.

    A stage's map is averaged over, or interpolated to, patches of 8 × 8 pixels, and its channels are averaged over, or
    repeated to, 384.

    Parameters
    ----------
    network : of timm, with `forward_intermediates`

    Examples
    --------
    >>> trunk = ConvTrunk(timm.create_model("resnet10t", num_classes=0))
    >>> trunk.n_blocks, trunk.block_tokens(torch.zeros(1, 3, 32, 48), [1, 3])[3].shape
    (5, torch.Size([1, 24, 384]))
    """

    patch_size, width, n_prefix = (8, 8), 384, 0
    default_blocks = (1, 2, 3)

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network: Any = network
        self.n_blocks = len(network.feature_info)
        config = resolve_model_data_config(network)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(config["mean"]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(config["std"]).view(3, 1, 1), persistent=False)

    def block_tokens(self, images: Tensor, blocks: Collection[int]) -> dict[int, Tensor]:
        """Tokens after each of the stages, counted from 0: (B, 3, H, W) uint8 → stage → (B, P, C)."""
        grid = (images.shape[2] // self.patch_size[0], images.shape[3] // self.patch_size[1])
        pictures = (images.float() / 255 - self.mean) / self.std
        wanted = sorted(blocks)
        found = self.network.forward_intermediates(pictures, indices=wanted, intermediates_only=True, stop_early=True)
        return {block: self._tokens(stage.float(), grid) for block, stage in zip(wanted, found, strict=True)}

    def _tokens(self, stage: Tensor, grid: tuple[int, int]) -> Tensor:
        """(B, C', h', w') → (B, h·w, C)."""
        if stage.shape[2] < grid[0] or stage.shape[3] < grid[1]:
            resized = F.interpolate(stage, size=grid, mode="bilinear", align_corners=False)
        else:
            resized = F.adaptive_avg_pool2d(stage, grid)
        tokens: Tensor = F.adaptive_avg_pool1d(resized.flatten(2).transpose(1, 2), self.width)
        return tokens


def load_trunk(name: str, *, file: Path | None = None) -> MaskGuidedViT | ConvTrunk:
    """What a detector looks through, with its weights, frozen: see `load_vit`, and any convolutional network of timm."""
    name = resolve_name(name)
    if name == "tiny" or name in registry.REGISTRY:
        return MaskGuidedViT(load_vit(name, file=file))
    source = registry.resolve(name)
    network = timm.create_model(source.architecture, pretrained=False, **source.model_kwargs)
    if hasattr(network, "patch_embed") and hasattr(network, "blocks"):
        return MaskGuidedViT(load_vit(name, file=file))
    if not hasattr(network, "forward_intermediates") or not hasattr(network, "feature_info"):
        raise SettingsError(
            f"backbone {name!r} of timm gives no maps of its stages, so no detector can look through it."
        )
    load_weights(network, file or weights.fetch(name))
    return ConvTrunk(network.requires_grad_(False).eval())
