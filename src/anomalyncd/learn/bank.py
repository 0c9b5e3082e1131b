"""Where training views come from: a bank computed once (METHOD: the trunk is frozen, so its output depends on the view
alone) or fresh ones each epoch."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DataError
from ..model.backbone import MaskGuidedViT, image_tensor, mask_tensor
from .distributed import ALONE, ProcessGroup
from .network import ViewBatch
from .views import random_view

Indices = npt.NDArray[np.int64]
Bank = tuple[npt.NDArray[np.floating], npt.NDArray[np.bool_]]  # tokens (R, V, N, C) and keep (R, V, P)
# (i) → crop (S, S, 3) uint8 and mask (S, S) bool; crops are read when needed, never all at once
CropReader = Callable[[int], tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]


@dataclass(frozen=True)
class Crops:
    """What random views are made of: `count` crops, each read when it is needed; `size` : side of a view in pixels."""

    read: CropReader
    count: int
    size: int


class Views:
    """Two different views of each region of a batch; where several processes train, of this one's share of it only.

    Parameters
    ----------
    vectors : (R, V, D) float, frozen features, of whose V views two are drawn; or None
    bank : tokens that were computed once, two of the V' views of each region; or None
    fresh : a network and crops, of which new random views pass the trunk each time: the plain way, for a GPU; or None
    group : processes that share each batch; what is drawn does not depend on their number
    """

    def __init__(
        self,
        device: torch.device,
        vectors: npt.NDArray[np.floating] | None = None,
        *,
        bank: Bank | None = None,
        fresh: tuple[MaskGuidedViT, Crops] | None = None,
        group: ProcessGroup = ALONE,
    ) -> None:
        self.device, self.vectors, self.bank, self.fresh, self.group = device, vectors, bank, fresh, group

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        """Two views of the regions `indices` (B,), drawn with `rng`."""
        own = self.group.share(len(indices))
        vectors: Sequence[Tensor | None] = (None, None)
        tokens: Iterable[Sequence[Tensor]] = ((), ())
        if self.bank is not None:
            tokens = self._stored(self.bank, indices, own, rng)
        if self.vectors is not None:
            vectors = [drawn.float() for (drawn,) in self._stored([self.vectors], indices, own, rng)]
        if self.fresh is not None:
            tokens = _fresh(*self.fresh, indices, own, rng)
        one, two = (ViewBatch(vector, *some) for vector, some in zip(vectors, tokens, strict=True))
        return one, two

    def _stored(
        self, arrays: Sequence[npt.NDArray[np.generic]], indices: Indices, own: Indices, rng: np.random.Generator
    ) -> list[list[Tensor]]:
        """Rows of each array (R, V, …), by the two views that were drawn."""
        drawn = draw_two(len(indices), arrays[0].shape[1], rng)
        return [[torch.from_numpy(x[indices[own], view[own]]).to(self.device) for x in arrays] for view in drawn]


def _fresh(
    vit: MaskGuidedViT, crops: Crops, indices: Indices, own: Indices, rng: np.random.Generator
) -> list[tuple[Tensor, Tensor]]:
    # A seed for each view of the whole batch, so that a view is the same in whichever process it is computed.
    seeds = rng.integers(2**63, size=(2, len(indices)))
    pictures = [crops.read(int(index)) for index in indices[own]]

    def views(drawn: npt.NDArray[np.int64]) -> list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]:
        rngs = map(np.random.default_rng, drawn)
        return [random_view(crop, mask, crops.size, own) for (crop, mask), own in zip(pictures, rngs, strict=True)]

    return [run_trunk(vit, views(drawn)) for drawn in seeds[:, own]]


def fill_bank(
    path: Path,
    vit: MaskGuidedViT,
    crops: Crops,
    *,
    n_views: int,
    batch_size: int,
    seed: int,
    on_region: Callable[[int], None] = lambda index: None,
    group: ProcessGroup = ALONE,
) -> Bank:
    """Compute V random views of every crop and write their tokens to `path`: tokens.npy (R, V, N, C) float16 and
    keep.npy (R, V, P) bool, both memory maps, so that memory does not grow with R. Each process of a group fills in its
    share of the regions; `on_region` tells of those."""
    patches = (crops.size // vit.patch_size[0]) * (crops.size // vit.patch_size[1])
    shape = (crops.count, n_views, vit.n_prefix + patches, vit.width)
    files = path / "tokens.npy", path / "keep.npy"

    def begin() -> None:
        path.mkdir(parents=True, exist_ok=True)
        needed, free = math.prod(shape) * 2, shutil.disk_usage(path).free
        if needed > free:  # a memory map that meets a full disk would kill the process without a word
            raise DataError(
                f"{path}: the view bank needs {needed / 1e6:,.1f} MB, but only {free / 1e6:,.1f} MB are free. Make room, "
                "lower learn.bank_views, or set learn.views to fresh."
            )
        np.lib.format.open_memmap(files[0], mode="w+", dtype=np.float16, shape=shape)
        np.lib.format.open_memmap(files[1], mode="w+", dtype=np.bool_, shape=(crops.count, n_views, patches))

    def fill() -> None:
        tokens, keep = (np.lib.format.open_memmap(file, mode="r+") for file in files)
        for index in range(group.rank, crops.count, group.size):
            rng = np.random.default_rng([seed, index])
            crop, mask = crops.read(index)
            views = [random_view(crop, mask, crops.size, rng) for _ in range(n_views)]
            for start in range(0, n_views, batch_size):
                chunk = slice(start, start + batch_size)
                out, kept = run_trunk(vit, views[chunk])
                tokens[index, chunk], keep[index, chunk] = out.half().cpu().numpy(), kept.cpu().numpy()
            on_region(index)
        tokens.flush()
        keep.flush()

    group.attempt(begin if group.leads else lambda: None)
    group.attempt(fill)
    return np.load(files[0], mmap_mode="r"), np.load(files[1], mmap_mode="r")


@torch.no_grad()
def run_trunk(
    vit: MaskGuidedViT, views: Sequence[tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]
) -> tuple[Tensor, Tensor]:
    """Views as pictures → tokens (B, N, C) that enter the last block, and keep (B, P)."""
    device = vit.mean.device
    images, masks = (np.stack(pictures) for pictures in zip(*views, strict=True))
    tokens, keep, _ = vit.trunk(image_tensor(images, device), mask_tensor(masks, device))
    return tokens, keep


def draw_two(count: int, n_views: int, rng: np.random.Generator) -> tuple[Indices, Indices]:
    """Two different view numbers for each of `count` regions (the same one where there is only one view)."""
    first = rng.integers(0, n_views, size=count)
    if n_views == 1:
        return first, first
    return first, (first + rng.integers(1, n_views, size=count)) % n_views
