"""The mask-guided vision transformer (MGViT): any timm ViT, its blocks told by a mask where to look."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import timm
import torch
from timm.data.config import resolve_model_data_config
from torch import Tensor, nn

from ..errors import SettingsError, WeightsError
from ..grid import kept_patches
from . import checkpoint, registry, weights
from .attention import Guidance, class_token_block, guidance_mask
from .device import autocast

# The paper guides the last 9 of 12 blocks, that is from block 3 on; shallower trunks keep that starting point.
FIRST_GUIDED_BLOCK = 3


class MaskGuidedViT(nn.Module):
    """A timm vision transformer whose blocks from `first_guided` on see the defect mask.

    Parameters
    ----------
    vit : a timm ViT with a class token
    guidance : which tokens the mask restricts (paper Table 4); `class` is the paper's choice
    guided_blocks : L_m, how many of the last blocks are guided; None starts at block 3 as the paper does
    keep_thin : see `grid.kept_patches`
    precision : of `patches` and `guided`, see `autocast`; training is always in float32

    Examples
    --------
    >>> model = MaskGuidedViT(tiny_vit())
    >>> model(torch.zeros(2, 3, 64, 64), torch.ones(2, 64, 64)).shape
    torch.Size([2, 48])
    """

    mask_threshold = 0.5  # share of a patch that the mask must cover, see `grid.kept_patches`

    def __init__(
        self,
        vit: Any,
        *,
        guidance: Guidance = "class",
        guided_blocks: int | None = None,
        keep_thin: bool = True,
        precision: str = "float32",
    ) -> None:
        super().__init__()
        if getattr(vit, "cls_token", None) is None or not hasattr(vit, "blocks"):
            raise SettingsError(
                f"The backbone must be a vision transformer with a class token, but got {type(vit).__name__}."
            )
        self.vit: Any = vit
        self.guidance: Guidance = guidance
        self.keep_thin, self.precision = keep_thin, precision
        self.n_blocks = len(vit.blocks)
        if guided_blocks is not None and not 0 <= guided_blocks <= self.n_blocks:
            raise SettingsError(
                f"guided_blocks must be between 0 and {self.n_blocks}, the depth of this backbone, but got {guided_blocks}."
            )
        by_default = min(FIRST_GUIDED_BLOCK, self.n_blocks - 1)
        self.first_guided = by_default if guided_blocks is None else self.n_blocks - guided_blocks
        self.width: int = vit.embed_dim
        self.n_prefix: int = vit.num_prefix_tokens
        self.patch_size: tuple[int, int] = tuple(vit.patch_embed.patch_size)
        config = resolve_model_data_config(vit)
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(config["mean"]).view(3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(config["std"]).view(3, 1, 1), persistent=False)

    def fit_size(self, size: int) -> int:
        """The input size nearest to `size` that the patches divide."""
        return max(1, round(size / self.patch_size[0])) * self.patch_size[0]

    def normalize(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 or float 0 … 1 → the value range that the weights were trained on."""
        images = images.float() / 255 if images.dtype == torch.uint8 else images
        return (images - self.mean) / self.std

    def attention_mask(self, keep: Tensor, block: int) -> Tensor | None:
        """Additive attention mask (B, 1, N, N) of one block, None where the block is not guided."""
        return None if block < self.first_guided else guidance_mask(keep, self.n_prefix, self.guidance)

    def trunk(self, images: Tensor, masks: Tensor, *, taps: Sequence[int] = ()) -> tuple[Tensor, Tensor, Tensor]:
        """All blocks but the last, which is run only where its patch tokens are wanted.

        Parameters
        ----------
        images : (B, 3, H, W) uint8 or float 0 … 1; H and W multiples of the patch size
        masks : (B, H, W) float or bool; or the patches inside them, (B, P) bool
        taps : blocks, counted from 0, after which patch tokens are wanted

        Returns
        -------
        tokens that enter the last block (B, N, C), patches inside the mask (B, P) bool, patch tokens after each of `taps`
        (B, L, P, C), before the final norm
        """
        keep = self.pool(masks) if masks.ndim == 3 else masks
        guided = guidance_mask(keep, self.n_prefix, self.guidance)
        x = self._embed(images)
        found: dict[int, Tensor] = {}
        for index, block in enumerate(self.vit.blocks):
            if index == self.n_blocks - 1:
                tokens = x
                if index not in taps:
                    break
            x = block(x, attn_mask=guided if index >= self.first_guided else None)
            if index in taps:
                found[index] = x[:, self.n_prefix :]
        none = x[:, None, self.n_prefix :][:, :0]  # (B, 0, P, C)
        return tokens, keep, torch.stack([found[tap] for tap in taps], dim=1) if taps else none

    @torch.inference_mode()
    def patches(self, images: npt.NDArray[np.uint8], blocks: Sequence[int]) -> npt.NDArray[np.float32]:
        """As `patch_tokens`, with arrays: (B, H, W, 3) → (B, L, P, C)."""
        with autocast(self.mean.device, self.precision):
            tokens = self.patch_tokens(image_tensor(images, self.mean.device), blocks)
        return tokens.float().cpu().numpy()

    @torch.inference_mode()
    def guided(
        self, images: npt.NDArray[np.uint8], masks: npt.NDArray[np.bool_], blocks: Sequence[int]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Class token (B, C) and patch tokens after `blocks` (B, L, P, C) of images (B, H, W, 3) with masks (B, H, W)."""
        device = self.mean.device
        with autocast(device, self.precision):
            tokens, keep, patches = self.trunk(image_tensor(images, device), mask_tensor(masks, device), taps=blocks)
            token = self.class_token(tokens, keep)
        return token.float().cpu().numpy(), patches.float().cpu().numpy()

    def patch_tokens(self, images: Tensor, blocks: Sequence[int]) -> Tensor:
        """Patch tokens after each of `blocks`, counted from 0, without any guidance: (B, 3, H, W) → (B, L, P, C)."""
        found = self.block_tokens(images, blocks)
        return torch.stack([found[block][:, self.n_prefix :] for block in blocks], dim=1)

    def block_tokens(self, images: Tensor, blocks: Collection[int]) -> dict[int, Tensor]:
        """All tokens after each of `blocks`, without any guidance: (B, 3, H, W) → block → (B, N, C)."""
        x = self._embed(images)
        found: dict[int, Tensor] = {}
        for index, layer in enumerate(self.vit.blocks[: max(blocks) + 1]):
            x = layer(x)
            if index in blocks:
                found[index] = x
        return found

    def pool(self, masks: Tensor) -> Tensor:
        """Patches inside the mask: (B, H, W) float or bool → (B, P) bool."""
        grid = (masks.shape[-2] // self.patch_size[0], masks.shape[-1] // self.patch_size[1])
        keep = kept_patches(masks.cpu().numpy(), grid, threshold=self.mask_threshold, keep_thin=self.keep_thin)
        return torch.from_numpy(keep).to(masks.device)

    def _embed(self, images: Tensor) -> Tensor:
        x: Tensor = self.vit.norm_pre(self.vit._pos_embed(self.vit.patch_embed(self.normalize(images))))
        return x

    def class_token(self, tokens: Tensor, keep: Tensor) -> Tensor:
        """Last block and final norm for the class token alone: (B, N, C) tokens → (B, C)."""
        last = self.n_blocks - 1
        out: Tensor = self.vit.norm(class_token_block(self.vit.blocks[last], tokens, self.attention_mask(keep, last)))
        return out

    def forward(self, images: Tensor, masks: Tensor) -> Tensor:
        """(B, 3, H, W) images and (B, H, W) masks → class token (B, C)."""
        tokens, keep, _ = self.trunk(images, masks)
        return self.class_token(tokens, keep)


def image_tensor(images: npt.NDArray[np.uint8], device: torch.device) -> Tensor:
    """(B, H, W, 3) uint8 → (B, 3, H, W) uint8."""
    return torch.from_numpy(np.ascontiguousarray(images)).permute(0, 3, 1, 2).to(device)


def mask_tensor(masks: npt.NDArray[np.bool_] | npt.NDArray[np.float32], device: torch.device) -> Tensor:
    """(B, H, W) bool or float → the same as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(masks)).to(device)


def tiny_vit() -> Any:
    """A random ViT of 5 blocks, 48 wide, patch 16: for tests, always with the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return timm.models.vision_transformer.VisionTransformer(
            embed_dim=48, depth=5, num_heads=3, num_classes=0, dynamic_img_size=True
        ).eval()


def load_vit(name: str = "auto", *, file: Path | None = None, progress: weights.Progress | None = None) -> Any:
    """A timm ViT with its weights, frozen and in evaluation mode.

    Parameters
    ----------
    name : `auto`, `tiny`, a name of `registry.REGISTRY`, or any ViT of timm
    file : take the weights from this local file instead of the cache or the hub
    progress : called with one line before each slow step
    """
    name = resolve_name(name)
    if name == "tiny":
        vit = tiny_vit()
    else:
        source = registry.resolve(name)
        try:
            vit = timm.create_model(source.architecture, pretrained=False, dynamic_img_size=True, **source.model_kwargs)
        except TypeError as error:
            raise SettingsError(f"backbone {name!r} of timm is no plain vision transformer ({error}).") from error
    if name != "tiny" or file is not None:
        load_weights(vit, file or weights.fetch(name, progress=progress))
    return vit.requires_grad_(False).eval()


def resolve_name(name: str) -> str:
    """`auto` is the paper's ViT-B/8 where a GPU and its weights are at hand, else the embedded DINOv2-S."""
    if name != "auto":
        return name
    return "dino_vitb8" if torch.cuda.is_available() and weights.available("dino_vitb8") else registry.EMBEDDED


def load_weights(vit: nn.Module, path: Path) -> None:
    """From a file that has them all."""
    wanted = vit.state_dict()
    given = checkpoint.load_state_dict(path)
    missing = sorted(set(wanted) - set(given))
    wrong = [name for name in wanted if name in given and given[name].shape != wanted[name].shape]
    if missing or wrong:
        problem = f"{missing[0]} is missing" if missing else f"{wrong[0]} has shape {tuple(given[wrong[0]].shape)}"
        raise WeightsError(
            f"{path}: expected weights of {type(vit).__name__} with {len(wanted)} tensors, but {problem}. "
            "Choose the backbone that the file was made for."
        )
    # Classification layers of a checkpoint have no place here and are left out.
    vit.load_state_dict({name: given[name] for name in wanted})
