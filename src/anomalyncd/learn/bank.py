"""Where training views come from: a bank computed once (METHOD: the trunk is frozen, so its output depends on the view
alone) or fresh ones each epoch. Both hand the trainer the same thing."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ..errors import DataError
from ..model.backbone import MaskGuidedViT
from .features import image_tensor, mask_tensor
from .network import ViewBatch
from .views import random_view

Indices = npt.NDArray[np.int64]
# (i) → crop (S, S, 3) uint8 and mask (S, S) bool; crops are read when needed, never all at once
CropReader = Callable[[int], tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]


class Views(Protocol):
    """Two views of each of some regions."""

    def __len__(self) -> int: ...

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        """Two different views of each region, drawn with `rng`."""
        ...


class VectorViews:
    """Views of frozen features only: two of the V dihedral ones.

    Parameters
    ----------
    vectors : (R, V, D) float, kept as float16
    """

    def __init__(self, vectors: npt.NDArray[np.floating], device: torch.device) -> None:
        self.vectors = torch.from_numpy(vectors).to(device).half()

    def __len__(self) -> int:
        return len(self.vectors)

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        first, second = self.draw(indices, rng)
        return ViewBatch(first), ViewBatch(second)

    def draw(self, indices: Indices, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Two vectors (B, D) float32 of each region."""
        first, second = draw_two(len(indices), self.vectors.shape[1], rng)
        return self.vectors[indices, first].float(), self.vectors[indices, second].float()


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
        vectors: npt.NDArray[np.floating] | None = None,
    ) -> None:
        self.tokens, self.keep, self.device = tokens, keep, device
        self.vectors = None if vectors is None else VectorViews(vectors, device)

    def __len__(self) -> int:
        return len(self.tokens)

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        drawn = draw_two(len(indices), self.tokens.shape[1], rng)
        vectors = (None, None) if self.vectors is None else self.vectors.draw(indices, rng)
        one, two = (
            ViewBatch(
                vector,
                torch.from_numpy(self.tokens[indices, view]).to(self.device),
                torch.from_numpy(self.keep[indices, view]).to(self.device),
            )
            for view, vector in zip(drawn, vectors, strict=True)
        )
        return one, two


class FreshViews:
    """New random views in every epoch, through the trunk each time: the plain way, for a GPU."""

    def __init__(
        self,
        vit: MaskGuidedViT,
        crops: CropReader,
        count: int,
        input_size: int,
        vectors: npt.NDArray[np.floating] | None = None,
    ) -> None:
        self.vit, self.crops, self.count, self.input_size = vit, crops, count, input_size
        self.device = next(vit.parameters()).device
        self.vectors = None if vectors is None else VectorViews(vectors, self.device)

    def __len__(self) -> int:
        return self.count

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        vectors = (None, None) if self.vectors is None else self.vectors.draw(indices, rng)
        pictures = [self.crops(int(index)) for index in indices]
        batches = []
        for vector in vectors:
            views = [random_view(crop, mask, self.input_size, rng) for crop, mask in pictures]
            batches.append(ViewBatch(vector, *run_trunk(self.vit, views)))
        return batches[0], batches[1]


def fill_bank(
    path: Path,
    vit: MaskGuidedViT,
    crops: CropReader,
    count: int,
    *,
    n_views: int,
    input_size: int,
    batch_size: int,
    seed: Sequence[int],
    on_region: Callable[[int], None] | None = None,
) -> None:
    """Compute V random views of every crop and write their tokens to `path`: tokens.npy (R, V, N, C) float16 and
    keep.npy (R, V, P) bool, both memory maps, so that memory does not grow with R."""
    path.mkdir(parents=True, exist_ok=True)
    patches = (input_size // vit.patch_size[0]) * (input_size // vit.patch_size[1])
    shape = (count, n_views, vit.n_prefix + patches, vit.width)
    needed, free = math.prod(shape) * 2, shutil.disk_usage(path).free
    if needed > free:  # a memory map that meets a full disk would kill the process without a word
        raise DataError(
            f"{path}: the view bank needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free. Make room, "
            "lower learn.bank_views, or set learn.views to fresh."
        )
    tokens = np.lib.format.open_memmap(path / "tokens.npy", mode="w+", dtype=np.float16, shape=shape)
    keep = np.lib.format.open_memmap(path / "keep.npy", mode="w+", dtype=np.bool_, shape=(count, n_views, patches))
    for index in range(count):
        rng = np.random.default_rng([*seed, index])
        crop, mask = crops(index)
        views = [random_view(crop, mask, input_size, rng) for _ in range(n_views)]
        for start in range(0, n_views, batch_size):
            chunk = slice(start, start + batch_size)
            out, kept = run_trunk(vit, views[chunk])
            tokens[index, chunk], keep[index, chunk] = out.half().cpu().numpy(), kept.cpu().numpy()
        if on_region:
            on_region(index)
    tokens.flush()
    keep.flush()


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
