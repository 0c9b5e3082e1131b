"""Images → grids of patch tokens, aspect kept: what both built-in detectors look at."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from ..errors import RunError, SettingsError
from ..grid import GridReader, TokenGrid, grid_to_map
from ..grid import to_map as array_to_map
from ..model.backbone import MaskGuidedViT, load_vit, resolve_name
from ..model.device import autocast, choose_device
from .base import AnomalyMap, Detector, Picture

FILE = "detector.safetensors"


class TokenDetector(Detector):
    """A detector on patch tokens of a vision transformer.

    Parameters
    ----------
    backbone, weights, device, precision : as everywhere
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
        precision: str = "auto",
        size: int = 336,
        tile: int | None = None,
        blocks: Sequence[int] | None = None,
        map_size: int = 256,
        sigma: float = 2.0,
        batch_size: int = 8,
        seed: int = 0,
    ) -> None:
        check_least(1, size=size, map_size=map_size, batch_size=batch_size, tile=1 if tile is None else tile)
        if not (isinstance(sigma, int | float) and 0 <= sigma < math.inf):
            raise SettingsError(f"sigma must be a number of at least 0, but got {sigma!r}.")
        listed = isinstance(blocks, Sequence) and all(type(each) is int for each in blocks)
        if blocks is not None and not listed:
            raise SettingsError(f"blocks must be a list of whole numbers, but got {blocks!r}.")
        self.settings: dict[str, Any] = {
            "backbone": resolve_name(backbone), "weights": weights, "size": size, "tile": tile,
            "blocks": None if blocks is None else tuple(blocks),
            "map_size": map_size, "sigma": sigma, "batch_size": batch_size, "seed": seed,
        }  # fmt: skip
        self.device, self.precision = choose_device(device), precision
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
        return self.reader(images)

    def to_map(self, scores: Tensor, grid: TokenGrid) -> AnomalyMap:
        """Patch scores (h·w,) → a smooth map with the image's aspect."""
        values = scores.view(grid.shape).float().cpu().numpy()
        return grid_to_map(values, grid.size, map_size=self.map_size, tile=self.tile, sigma=self.sigma)

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

    @property
    def reader(self) -> GridReader:
        """How images become grids."""
        return GridReader(
            self._tokens, self.vit.patch_size, self.size, self.tile, self.batch_size,
            lambda values: torch.from_numpy(values).to(self.device),
        )  # fmt: skip

    @torch.inference_mode()
    def _tokens(self, images: Picture) -> tuple[Tensor, Tensor]:
        """(B, H, W, 3) uint8 → patch tokens (B, L, h, w, C), and class tokens (means where there are none) (B, C)."""
        vit = self.vit
        batch = torch.from_numpy(images).permute(0, 3, 1, 2).to(self.device)
        grid = (batch.shape[2] // vit.patch_size[0], batch.shape[3] // vit.patch_size[1])
        with autocast(self.device, self.precision):
            found = vit.block_tokens(batch, self.blocks)
        tokens = torch.stack([found[block][:, vit.n_prefix :].float() for block in self.blocks], dim=1)  # (B, L, P, C)
        last = found[max(self.blocks)].float()
        # A view would keep all tokens of the batch alive as long as the class token.
        summary = last[:, 0].clone() if vit.n_prefix else last.mean(dim=1)
        return tokens.unflatten(2, grid), summary


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
        if type(value) is not int:
            raise SettingsError(f"{name} must be a whole number, but got {value!r}.")
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
    """As `grid.to_map`, of a tensor."""
    return array_to_map(grid.float().cpu().numpy(), image_size, map_size, sigma)
