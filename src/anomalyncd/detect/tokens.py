"""Images → grids of patch tokens, aspect kept: what both built-in detectors look at."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from ..errors import RunError, SettingsError
from ..model.backbone import MaskGuidedViT, load_vit, resolve_name
from ..model.device import choose_device
from .base import AnomalyMap, Detector, Picture

FILE = "detector.safetensors"


@dataclass(frozen=True)
class TokenGrid:
    """Tokens of one image.

    blocks : (L, h, w, C) float32, patch tokens after each wanted block
    summary : (C,) float32, class token after the last of them
    size : (H, W) of the image in pixels
    """

    blocks: Tensor
    summary: Tensor
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """Patches (h, w)."""
        return self.blocks.shape[1], self.blocks.shape[2]


class TokenDetector(Detector):
    """A detector on patch tokens of a vision transformer.

    Parameters
    ----------
    backbone, weights, device : as everywhere
    size : the longer image side is scaled to this many pixels, rounded to whole patches
    tile : large images with small defects are seen as overlapping tiles of this side in image pixels, each scaled to `size`
    blocks : numbers of the blocks, from 0; None takes the middle one and the last but one
    map_size : pixels of a map's longer side, or of a tile's side; sigma : width of its Gaussian smoothing in such pixels
    """

    def __init__(
        self,
        *,
        backbone: str = "auto",
        weights: str | None = None,
        device: str = "auto",
        size: int = 336,
        tile: int | None = None,
        blocks: Sequence[int] | None = None,
        map_size: int = 256,
        sigma: float = 2.0,
        batch_size: int = 8,
        seed: int = 0,
    ) -> None:
        check_least(1, size=size, map_size=map_size, batch_size=batch_size, tile=1 if tile is None else tile)
        self.settings: dict[str, Any] = {
            "backbone": resolve_name(backbone), "weights": weights, "size": size, "tile": tile,
            "blocks": None if blocks is None else tuple(blocks),
            "map_size": map_size, "sigma": sigma, "batch_size": batch_size, "seed": seed,
        }  # fmt: skip
        self.device = choose_device(device)
        self.size, self.tile, self.map_size, self.sigma = size, tile, map_size, sigma
        self.batch_size, self.seed = batch_size, seed
        self._vit: MaskGuidedViT | None = None

    @property
    def vit(self) -> MaskGuidedViT:
        """The backbone, loaded when first needed."""
        if self._vit is None:
            weights = self.settings["weights"]
            vit = MaskGuidedViT(load_vit(self.settings["backbone"], file=Path(weights) if weights else None))
            self.blocks: tuple[int, ...] = self.settings["blocks"] or (vit.n_blocks // 2, max(0, vit.n_blocks - 2))
            if min(self.blocks) < 0 or max(self.blocks) >= vit.n_blocks:
                raise SettingsError(
                    f"blocks must be from 0 to {vit.n_blocks - 1}, as many as the backbone has, but got {self.blocks}."
                )
            self._vit = vit.to(self.device).eval()
        return self._vit

    def read(self, images: Iterable[Picture]) -> Iterator[TokenGrid]:
        """Tokens of (H, W, 3) uint8 images, in order; neighbours of the same shape go through the network together."""
        waiting: list[Picture] = []
        sizes: list[tuple[int, int]] = []
        for image in images:
            scaled = self._scaled(image)
            if waiting and (scaled.shape != waiting[0].shape or len(waiting) == self.batch_size):
                yield from self._run(waiting, sizes)
                waiting, sizes = [], []
            waiting.append(scaled)
            sizes.append((image.shape[0], image.shape[1]))
        if waiting:
            yield from self._run(waiting, sizes)

    def to_map(self, scores: Tensor, grid: TokenGrid) -> AnomalyMap:
        """Patch scores (h·w,) → a smooth map with the image's aspect."""
        longer = max(grid.size)
        side = round(self.map_size * longer / (self.tile or longer))
        return to_map(scores.view(grid.shape), grid.size, side, self.sigma)

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        meta = {"name": self.name, "settings": self.settings}
        # An empty file is no safetensors file, hence the one number.
        tensors = {"format": torch.ones(1), **{k: v.contiguous().cpu() for k, v in self.tensors().items()}}
        safetensors.torch.save_file(tensors, folder / FILE, metadata={"anomalyncd": json.dumps(meta)})

    @classmethod
    def load(cls, folder: Path, *, device: str = "auto") -> TokenDetector:
        meta, tensors = read_detector(folder)
        if meta["name"] != cls.name:
            raise RunError(f"{folder / FILE}: expected a detector {cls.name!r}, but found {meta['name']!r}.")
        try:
            detector = cls(device=device, **meta["settings"])
        except TypeError as error:
            raise RunError(f"{folder / FILE}: stored by another version of anomalyncd ({error}).") from error
        detector.restore(tensors)
        return detector

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """What was learned."""

    @abstractmethod
    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `tensors`."""

    def _scaled(self, image: Picture) -> Picture:
        scale = self.size / (self.tile or max(image.shape[:2]))
        patch = self.vit.patch_size
        height, width = (max(1, round(side * scale / p)) * p for side, p in zip(image.shape[:2], patch, strict=True))
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        return cv2.resize(image, (width, height), interpolation=method).astype(np.uint8, copy=False)

    def _run(self, images: list[Picture], sizes: list[tuple[int, int]]) -> Iterator[TokenGrid]:
        """Tokens of images of one shape; those of more than one tile go one at a time."""
        grid = (images[0].shape[0] // self.vit.patch_size[0], images[0].shape[1] // self.vit.patch_size[1])
        side = max(1, self.size // self.vit.patch_size[0])
        if self.tile is None or max(grid) <= side:
            for blocks, summary, size in zip(*self._tokens(np.stack(images)), sizes, strict=True):
                yield TokenGrid(blocks, summary, size)
            return
        for image, size in zip(images, sizes, strict=True):
            yield TokenGrid(*self._tiled(image, grid, side), size)

    @torch.inference_mode()
    def _tokens(self, images: Picture) -> tuple[Tensor, Tensor]:
        """(B, H, W, 3) uint8 → patch tokens (B, L, h, w, C), and class tokens (means where there are none) (B, C)."""
        vit = self.vit
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).to(self.device)
        grid = (batch.shape[2] // vit.patch_size[0], batch.shape[3] // vit.patch_size[1])
        found = vit.block_tokens(batch, self.blocks)
        tokens = torch.stack([found[block][:, vit.n_prefix :] for block in self.blocks], dim=1)  # (B, L, P, C)
        last = found[max(self.blocks)]
        summary = last[:, 0] if vit.n_prefix else last.mean(dim=1)
        return tokens.unflatten(2, grid), summary

    def _tiled(self, image: Picture, grid: tuple[int, int], side: int) -> tuple[Tensor, Tensor]:
        """Tokens of one large image from overlapping tiles of side × side patches.

        Where tiles overlap their tokens are averaged, with weights that fade to a tile's edge: so there are no seams, and
        the edge of a tile, which sees half of its surroundings only, counts least.
        """
        height, width = (min(side, patches) for patches in grid)
        corners = [(top, left) for top in _starts(grid[0], height) for left in _starts(grid[1], width)]
        weight = torch.outer(_fading(height), _fading(width)).to(self.device)[..., None]
        weights = torch.zeros(*grid, 1, device=self.device)
        total: Tensor | None = None
        summaries = []
        ph, pw = self.vit.patch_size
        for start in range(0, len(corners), self.batch_size):
            some = corners[start : start + self.batch_size]
            tiles = [image[top * ph : (top + height) * ph, left * pw : (left + width) * pw] for top, left in some]
            blocks, summary = self._tokens(np.stack(tiles))
            summaries.append(summary)
            if total is None:
                total = blocks.new_zeros(blocks.shape[1], *grid, blocks.shape[-1])
            for (top, left), tokens in zip(some, blocks, strict=True):
                total[:, top : top + height, left : left + width] += tokens * weight
                weights[top : top + height, left : left + width] += weight
        assert total is not None
        return total / weights, torch.cat(summaries).mean(dim=0)


def read_detector(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Name and settings, and tensors, of a stored built-in detector."""
    try:
        with safe_open(folder / FILE, framework="pt") as file:
            stored = json.loads(file.metadata()["anomalyncd"])
            meta = {"name": stored["name"], "settings": stored["settings"]}
            return meta, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # damage shows in many ways
        raise RunError(f"{folder / FILE}: missing, damaged or not a detector of anomalyncd ({error}).") from error


def check_least(least: int, **settings: int) -> None:
    """Refuse a setting that is too small."""
    for name, value in settings.items():
        if value < least:
            raise SettingsError(f"{name} must be at least {least}, but got {value}.")


def check_windows(name: str, sides: Sequence[int]) -> None:
    """Refuse windows without a centre."""
    if not sides or any(side < 1 or side % 2 == 0 for side in sides):
        raise SettingsError(f"{name} must be odd and at least 1, but got {tuple(sides)}.")


def neighbourhood(tokens: Tensor, side: int) -> Tensor:
    """Mean over the side × side window around each patch, fewer at the border: (…, h, w, C) → the same shape; side odd."""
    if side == 1:
        return tokens
    flat = tokens.reshape(-1, *tokens.shape[-3:]).permute(0, 3, 1, 2)
    pooled = F.avg_pool2d(flat, side, stride=1, padding=side // 2, count_include_pad=False)
    return pooled.permute(0, 2, 3, 1).reshape(tokens.shape)


def to_map(grid: Tensor, image_size: tuple[int, int], map_size: int, sigma: float) -> AnomalyMap:
    """Patch scores (h, w) → a smooth map whose longer side has `map_size` pixels and which has the image's aspect."""
    scale = map_size / max(image_size)
    size = (max(1, round(image_size[1] * scale)), max(1, round(image_size[0] * scale)))
    out = cv2.resize(grid.float().cpu().numpy(), size, interpolation=cv2.INTER_LINEAR)
    if sigma > 0:
        out = cv2.GaussianBlur(out, (0, 0), sigma, borderType=cv2.BORDER_REFLECT)
    return out.astype(np.float32, copy=False)


def _starts(length: int, side: int) -> list[int]:
    """Where tiles of `side` begin so that they cover `length` evenly and overlap by at least a quarter.

    Examples
    --------
    >>> _starts(24, 24), _starts(60, 24)
    ([0], [0, 18, 36])
    """
    count = 1 + -(-(length - side) // max(1, side - -(-side // 4)))
    return [round(k * (length - side) / (count - 1)) for k in range(count)] if count > 1 else [0]


def _fading(side: int) -> Tensor:
    """(side,) weights, 1 at the edges and more towards the middle."""
    steps = torch.arange(1, side + 1)
    return torch.minimum(steps, steps.flip(0)).float()
