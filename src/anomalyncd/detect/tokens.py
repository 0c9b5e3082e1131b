"""Images → grids of patch tokens, aspect kept: what both built-in detectors look at."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..config import Config
from ..errors import SettingsError
from ..grid import GridReader, TokenGrid, Values, to_map
from ..model.backbone import MaskGuidedViT, resolve_name
from ..model.convolutional import ConvTrunk, load_trunk
from ..model.device import autocast, choose_device
from ..model.seen import Seen
from .base import AnomalyMap, Detection, Picture, StoredDetector, check_least


class TokenDetector(StoredDetector):
    """A detector on patch tokens of a vision transformer.

    Parameters
    ----------
    backbone, weights, device, precision : as everywhere; the backbone may also be a convolutional network of timm
    size : the longer image side is scaled to this many pixels, rounded to whole patches
    tile : large images with small defects are seen as overlapping tiles of this side in image pixels, each scaled to `size`
    blocks : numbers of the blocks, from 0; None takes the last one and those at one half and at three quarters of the depth,
        and the second to the fourth stage of a convolutional network
    map_size : pixels of a map's longer side, or of a tile's side; sigma : width of its Gaussian smoothing in such pixels

    Attributes
    ----------
    memory : what was learned, a module whose tensors are stored with the detector; None before
    reach : how many rows of patches above and below a patch have a say in its score
    with_pixels : whether each patch comes with its pixels behind its tokens, see `add_pixels`
    from_tokens : whether it learns from what `look` gives alone, so that others may read that for it; then it has
        `fit_tokens`, or `detect_tokens` where images are compared with each other, of which `fit` and `detect` are made
    seen : where the tokens of each picture are left for others, and found again; None for nowhere
    """

    memory: nn.Module | None = None
    seen: Seen | None = None
    reach: int = 0
    with_pixels: ClassVar[bool] = False
    from_tokens: ClassVar[bool] = False

    def __init__(
        self,
        *,
        backbone: str = "auto",
        weights: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        size: int = 336,
        tile: int | None = None,
        blocks: Sequence[int] | None = None,
        map_size: int = 256,
        sigma: float = 4.0,
        batch_size: int = 8,
        seed: int = 0,
    ) -> None:
        check_least(1, size=size, map_size=map_size, batch_size=batch_size, tile=1 if tile is None else tile)
        if not (isinstance(sigma, int | float) and 0 <= sigma < math.inf):
            raise SettingsError(f"sigma must be a number of at least 0, but got {sigma!r}.")
        listed = isinstance(blocks, Sequence) and all(type(each) is int for each in blocks)
        if blocks is not None and not listed:
            raise SettingsError(f"blocks must be a list of whole numbers, but got {blocks!r}.")
        self.backbone, self.weights = resolve_name(backbone), weights
        self.device, self.precision = choose_device(device), precision
        self.size, self.tile, self.map_size, self.sigma = size, tile, map_size, sigma
        self.blocks = None if blocks is None else tuple(blocks)
        self.batch_size, self.seed = batch_size, seed
        self._vit: MaskGuidedViT | ConvTrunk | None = None

    @property
    def vit(self) -> MaskGuidedViT | ConvTrunk:
        """The backbone, loaded when first needed."""
        if self._vit is None:
            vit = load_trunk(self.backbone, file=Path(self.weights) if self.weights else None)
            if self.blocks and not 0 <= min(self.blocks) <= max(self.blocks) < vit.n_blocks:
                raise SettingsError(
                    f"blocks must be from 0 to {vit.n_blocks - 1}, as many as the backbone has, but got {self.blocks}."
                )
            self._vit = vit.to(self.device).eval()
        return self._vit

    @property
    def used_blocks(self) -> tuple[int, ...]:
        """The blocks whose tokens are looked at: `blocks`, or the default ones of the backbone."""
        if self.blocks or isinstance(self.vit, ConvTrunk):
            return self.blocks or ConvTrunk.default_blocks
        n = self.vit.n_blocks
        return tuple(sorted({max(0, n // 2 - 1), max(0, 3 * n // 4 - 1), n - 1}))

    def shares(self, config: Config) -> bool:
        """Whether its tokens of a whole picture are those of the network that describes regions with these settings."""
        weights = None if config.model.weights is None else str(config.model.weights)
        run = (resolve_name(config.model.backbone), weights, config.precision, None)
        return run == (self.backbone, self.weights, self.precision, self.tile)

    @property
    def reader(self) -> GridReader:
        """(H, W, 3) uint8 images → tokens of each, in order."""
        sizes = self.vit.patch_size, self.size, self.tile, self.batch_size
        return GridReader(self._tokens, *sizes, lambda values: torch.from_numpy(values).to(self.device))

    def look(self, images: Iterable[Picture]) -> Iterator[list[TokenGrid]]:
        """What is learned from each image: its tokens."""
        return ([grid] for grid in self.reader(images))

    def fit_tokens(self, seen: Iterable[Sequence[TokenGrid]]) -> TokenDetector:
        """`fit`, from what `look` gives."""
        raise NotImplementedError

    def detect_tokens(self, seen: Iterable[Sequence[TokenGrid]]) -> Iterator[Detection]:
        """`detect`, from what `look` gives."""
        raise NotImplementedError

    def to_map(self, scores: Tensor, grid: TokenGrid) -> AnomalyMap:
        """Patch scores (h·w,) → a smooth map with the image's aspect."""
        values = scores.view(grid.shape).float().cpu().numpy()
        return to_map(values, grid.size, map_size=self.map_size, tile=self.tile, sigma=self.sigma)

    @abstractmethod
    def remember(self, tensors: dict[str, Tensor]) -> nn.Module:
        """The module that has these buffers."""

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.memory is None else dict(self.memory.state_dict())

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.memory = self.remember(tensors).to(self.device)

    @torch.inference_mode()
    def _tokens(self, images: Picture) -> tuple[Tensor, Tensor]:
        """(B, H, W, 3) uint8 → patch tokens (B, L, h, w, C), and class tokens (B, C), or means if none or seen before."""
        vit, blocks = self.vit, self.used_blocks
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).to(self.device)
        grid = (batch.shape[2] // vit.patch_size[0], batch.shape[3] // vit.patch_size[1])
        tokens = self._known(images, (grid[0] * grid[1], vit.width))
        if tokens is None:
            with autocast(self.device, self.precision):
                found = vit.block_tokens(batch, blocks)
            # Rounded as they are kept, so that a call that was killed goes on with the same numbers.
            tokens = torch.stack(
                [found[block][:, vit.n_prefix :].half().float() for block in blocks], dim=1
            )  # (B, L, P, C)
            last = found[max(blocks)].float()
            # A view would keep all tokens of the batch alive as long as the class token.
            summary = last[:, 0].clone() if vit.n_prefix else last.mean(dim=1)
            for picture, own in zip(images, tokens, strict=True) if self.seen else ():
                self.seen.add(picture, blocks, own.cpu())  # type: ignore[union-attr]
        else:
            summary = tokens[:, -1].mean(dim=1)
        tokens = tokens.unflatten(2, grid)
        return add_pixels(tokens, batch) if self.with_pixels else tokens, summary

    def _known(self, images: Picture, shape: tuple[int, int]) -> Tensor | None:
        """Tokens (B, L, P, C) of pictures that were seen before, all of them; without class tokens, which MuSc needs."""
        found: list[Values] = []
        for picture in images if self.seen and self.seen.shelf and self.needs_normal else ():
            if (own := self.seen.tokens(picture, self.used_blocks, shape)) is None:  # type: ignore[union-attr]
                return None
            found.append(own.astype(np.float32))
        return torch.from_numpy(np.stack(found)).to(self.device) if found else None


def add_pixels(tokens: Tensor, images: Tensor) -> Tensor:
    """Pixels of each patch, 0 … 1, behind its tokens: (B, L, h, w, C), (B, 3, H, W) uint8 → (B, L, h, w, C + 3·patch)."""
    n_blocks, height, width = tokens.shape[1:4]
    patch = images.shape[2] // height, images.shape[3] // width
    pixels = (images.float() / 255).unflatten(3, (width, patch[1])).unflatten(2, (height, patch[0]))
    pixels = pixels.permute(0, 2, 4, 3, 5, 1).flatten(3)[:, None]  # (B, 1, h, w, patch · patch · 3)
    return torch.cat([tokens, pixels.expand(-1, n_blocks, -1, -1, -1)], dim=-1)


def neighbourhood(tokens: Tensor, side: int) -> Tensor:
    """Mean over the side × side window around each patch, fewer at the border: (…, h, w, C) → the same shape; side odd."""
    if side == 1:
        return tokens
    flat = tokens.reshape(-1, *tokens.shape[-3:]).permute(0, 3, 1, 2)
    pooled = F.avg_pool2d(flat, side, stride=1, padding=side // 2, count_include_pad=False)
    return pooled.permute(0, 2, 3, 1).reshape(tokens.shape)
