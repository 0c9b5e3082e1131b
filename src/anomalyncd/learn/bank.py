"""Where training views come from: a bank computed once (METHOD: the trunk is frozen, so its output depends on the view
alone) or fresh ones each epoch. Both hand the trainer the same thing."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..errors import DataError
from ..model.backbone import MaskGuidedViT, image_tensor, mask_tensor
from .distributed import ALONE, Team
from .network import ViewBatch
from .views import random_view

Indices = npt.NDArray[np.int64]
Vectors = npt.NDArray[np.floating]
# (i) → crop (S, S, 3) uint8 and mask (S, S) bool; crops are read when needed, never all at once
CropReader = Callable[[int], tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]


@dataclass(frozen=True)
class Crops:
    """What random views are made of: `count` crops, each read when it is needed; `size` : side of a view in pixels."""

    read: CropReader
    count: int
    size: int


class Views(Protocol):
    """Two views of each of some regions; `team` : processes that share each batch."""

    team: Team

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        """Two different views of each region, drawn with `rng`; where several processes train, of this one's share only.

        What is drawn does not depend on the number of processes.
        """
        ...


class VectorViews:
    """Views of frozen features only: two of the V dihedral ones.

    Parameters
    ----------
    vectors : (R, V, D) float, kept as float16
    team : processes that share each batch
    """

    def __init__(self, vectors: Vectors, device: torch.device, team: Team = ALONE) -> None:
        self.vectors, self.team = torch.from_numpy(vectors).to(device).half(), team

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        first, second = self.draw(indices, rng)
        return ViewBatch(first), ViewBatch(second)

    def draw(self, indices: Indices, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Two vectors (B, D) float32 of each region."""
        own = self.team.share(len(indices))
        first, second = draw_two(len(indices), self.vectors.shape[1], rng)
        return self.vectors[indices[own], first[own]].float(), self.vectors[indices[own], second[own]].float()


class BankViews:
    """Views whose tokens were computed once: two of the V in the bank.

    Parameters
    ----------
    tokens : (R, V, N, C) float16 or wider, usually a memory map; keep : (R, V, P) bool
    vectors : (R, V', D) frozen features that join the trained class token, or None
    """

    def __init__(
        self,
        tokens: npt.NDArray[np.floating],
        keep: npt.NDArray[np.bool_],
        device: torch.device,
        vectors: Vectors | None = None,
        team: Team = ALONE,
    ) -> None:
        self.tokens, self.keep, self.device, self.team = tokens, keep, device, team
        self.vectors = None if vectors is None else VectorViews(vectors, device, team)

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        own = self.team.share(len(indices))
        drawn = draw_two(len(indices), self.tokens.shape[1], rng)
        vectors = (None, None) if self.vectors is None else self.vectors.draw(indices, rng)
        one, two = (
            ViewBatch(
                vector,
                torch.from_numpy(self.tokens[indices[own], view[own]]).to(self.device),
                torch.from_numpy(self.keep[indices[own], view[own]]).to(self.device),
            )
            for view, vector in zip(drawn, vectors, strict=True)
        )
        return one, two


class FreshViews:
    """New random views in every epoch, through the trunk each time: the plain way, for a GPU."""

    def __init__(self, vit: MaskGuidedViT, crops: Crops, vectors: Vectors | None = None, team: Team = ALONE) -> None:
        self.vit, self.crops, self.team = vit, crops, team
        self.vectors = None if vectors is None else VectorViews(vectors, next(vit.parameters()).device, team)

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        vectors = (None, None) if self.vectors is None else self.vectors.draw(indices, rng)
        own = self.team.share(len(indices))
        # A seed for each view of the whole batch, so that a view is the same in whichever process it is computed.
        seeds = rng.integers(2**63, size=(2, len(indices)))
        pictures = [self.crops.read(int(index)) for index in indices[own]]
        batches = []
        for vector, drawn in zip(vectors, seeds[:, own], strict=True):
            views = [
                random_view(crop, mask, self.crops.size, np.random.default_rng(seed))
                for (crop, mask), seed in zip(pictures, drawn, strict=True)
            ]
            batches.append(ViewBatch(vector, *run_trunk(self.vit, views)))
        return batches[0], batches[1]


def fill_bank(
    path: Path,
    vit: MaskGuidedViT,
    crops: Crops,
    *,
    n_views: int,
    batch_size: int,
    seed: int,
    on_region: Callable[[int], None] | None = None,
    team: Team = ALONE,
) -> None:
    """Compute V random views of every crop and write their tokens to `path`: tokens.npy (R, V, N, C) float16 and
    keep.npy (R, V, P) bool, both memory maps, so that memory does not grow with R. Each process of a team fills in its
    share of the regions; `on_region` tells of those."""
    patches = (crops.size // vit.patch_size[0]) * (crops.size // vit.patch_size[1])
    shape = (crops.count, n_views, vit.n_prefix + patches, vit.width)

    def begin() -> None:
        path.mkdir(parents=True, exist_ok=True)
        needed, free = math.prod(shape) * 2, shutil.disk_usage(path).free
        if needed > free:  # a memory map that meets a full disk would kill the process without a word
            raise DataError(
                f"{path}: the view bank needs {needed / 1e6:,.1f} MB, but only {free / 1e6:,.1f} MB are free. Make room, "
                "lower learn.bank_views, or set learn.views to fresh."
            )
        np.lib.format.open_memmap(path / "tokens.npy", mode="w+", dtype=np.float16, shape=shape)
        np.lib.format.open_memmap(path / "keep.npy", mode="w+", dtype=np.bool_, shape=(crops.count, n_views, patches))

    def fill() -> None:
        tokens, keep = (np.lib.format.open_memmap(path / name, mode="r+") for name in ("tokens.npy", "keep.npy"))
        for index in range(team.rank, crops.count, team.size):
            rng = np.random.default_rng([seed, index])
            crop, mask = crops.read(index)
            views = [random_view(crop, mask, crops.size, rng) for _ in range(n_views)]
            for start in range(0, n_views, batch_size):
                chunk = slice(start, start + batch_size)
                out, kept = run_trunk(vit, views[chunk])
                tokens[index, chunk], keep[index, chunk] = out.half().cpu().numpy(), kept.cpu().numpy()
            if on_region:
                on_region(index)
        tokens.flush()
        keep.flush()

    team.attempt(begin if team.leads else lambda: None)
    team.attempt(fill)


def open_bank(path: Path) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.bool_]]:
    """The memory maps that `fill_bank` wrote."""
    return np.load(path / "tokens.npy", mmap_mode="r"), np.load(path / "keep.npy", mmap_mode="r")


@torch.no_grad()
def run_trunk(
    vit: MaskGuidedViT, views: Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Views as pictures → tokens (B, N, C) that enter the last block, and keep (B, P)."""
    device = next(vit.parameters()).device
    images = image_tensor(np.stack([image for image, _ in views]), device)
    masks = mask_tensor(np.stack([mask for _, mask in views]), device)
    out = vit.trunk(images, masks)
    return out.tokens, out.keep


def draw_two(count: int, n_views: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Two different view numbers for each of `count` regions (the same one where there is only one view)."""
    first = rng.integers(0, n_views, size=count)
    if n_views == 1:
        return first, first
    return first, (first + rng.integers(1, n_views, size=count)) % n_views
