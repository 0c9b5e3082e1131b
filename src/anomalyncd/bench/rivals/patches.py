"""Patch tokens of whole images, and what maps and masks say about the same patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from ...binarize.prepare import prepare_map
from ...data.dataset import Sample
from ...data.images import read_image
from ...data.maps import read_mask
from ...model.backbone import MaskGuidedViT, image_tensor
from ...progress import Silent
from ...run.store import fingerprint
from .cache import Cache

BATCH = 16
Tokens = npt.NDArray[np.float16]
Grid = tuple[int, int]


def patch_tokens(
    items: Sequence[Sample],
    vit: MaskGuidedViT,
    cache: Cache,
    progress: Silent,
    *,
    backbone: str,
    size: int,
    blocks: Sequence[int],
    task: str = "Patch tokens",
) -> Tokens:
    """Patch tokens (N, P, C) float16 of images squeezed into a square, the mean over `blocks`; a memory map.

    Parameters
    ----------
    backbone : name of `vit`, for the cache; size : side of the square in pixels, rounded to whole patches
    blocks : numbers of the blocks, from 0
    """
    side = vit.fit_size(size)
    grid = grid_of(vit, size)

    @torch.inference_mode()
    def fill(path: Path) -> None:
        shape = (len(items), grid[0] * grid[1], vit.width)
        tokens = np.lib.format.open_memmap(path / "tokens.npy", mode="w+", dtype=np.float16, shape=shape)
        device = next(vit.parameters()).device
        with progress.task(task, len(items)) as advance:
            for start in range(0, len(items), BATCH):
                pictures = [square(read_image(item.image), side) for item in items[start : start + BATCH]]
                found = vit.block_tokens(image_tensor(np.stack(pictures), device), blocks)
                mean = torch.stack([found[block][:, vit.n_prefix :] for block in blocks]).mean(dim=0)
                tokens[start : start + BATCH] = mean.half().cpu().numpy()
                advance(len(pictures))
        tokens.flush()

    stored = cache("patches", [image_key(items), backbone, side, list(blocks)], fill)
    out: Tokens = np.load(stored / "tokens.npy", mmap_mode="r")
    return out


def grid_of(vit: MaskGuidedViT, size: int) -> Grid:
    """Patches (h, w) of a square image."""
    side = vit.fit_size(size)
    return side // vit.patch_size[0], side // vit.patch_size[1]


def on_grid(items: Sequence[Sample], grid: Grid) -> npt.NDArray[np.float32]:
    """What was given with each image, averaged over each patch: (N, P), map values or the share that the mask covers.

    Examples
    --------
    >>> on_grid([Sample("a", np.zeros((4, 4, 3), np.uint8), mask=np.eye(4) > 0)], (2, 2)).tolist()
    [[0.5, 0.0, 0.0, 0.5]]
    """
    rows = []
    for item in items:
        values = np.zeros((1, 1), np.float32)
        if item.map is not None:
            values = prepare_map(item.map, 0)
            values = np.where(np.isnan(values), np.nanmin(values), values)
        elif item.mask is not None:
            values = read_mask(item.mask).astype(np.float32)
        rows.append(F.adaptive_avg_pool2d(torch.from_numpy(values)[None], grid).flatten().numpy())
    return np.stack(rows)


def image_key(items: Sequence[Sample]) -> list[object]:
    """What identifies the images, whatever maps or masks came with them."""
    return fingerprint([replace(item, map=None, mask=None) for item in items])


def square(image: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """The whole image in a square, as our own `context` features see it: nothing is cut off, the aspect is not kept."""
    method = cv2.INTER_AREA if max(image.shape[:2]) > side else cv2.INTER_CUBIC
    return cv2.resize(image, (side, side), interpolation=method).astype(np.uint8, copy=False)
