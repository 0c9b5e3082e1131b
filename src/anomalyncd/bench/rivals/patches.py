"""Rivals that look at patch tokens of whole images, and what maps, masks and normal images say about the same patches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ...binarize.prepare import prepare_map
from ...data.dataset import Sample
from ...data.images import read_image
from ...data.maps import read_mask
from ...detect.base import check_least
from ...detect.patchcore import PatchBank
from ...model.backbone import image_tensor
from .base import Cache, Rival, image_key

BATCH = 16
Tokens = npt.NDArray[np.float16]
Floats = npt.NDArray[np.float32]


class PatchRival(Rival):
    """A rival that clusters mixtures of patch tokens.

    Parameters
    ----------
    size : side in pixels of the square that images are squeezed into, rounded to whole patches
    """

    def __init__(self, n_classes: int, *, size: int = 224, **settings: Any) -> None:
        super().__init__(n_classes, **settings)
        self.size = size

    @abstractmethod
    def _blocks(self) -> list[int]:
        """Numbers of the blocks, from 0, whose tokens are averaged."""

    @property
    def _grid(self) -> tuple[int, int]:
        """Patches (h, w) of an image."""
        side, (height, width) = self._vit.fit_size(self.size), self._vit.patch_size
        return side // height, side // width

    def _tokens(self, cache: Cache, samples: Sequence[Sample]) -> Tokens:
        """Patch tokens (N, P, C) float16, the mean over the blocks; a memory map."""
        check_least(1, size=self.size)
        vit, blocks, grid = self._vit, self._blocks(), self._grid
        side, device = vit.fit_size(self.size), next(vit.parameters()).device

        @torch.inference_mode()
        def fill(path: Path) -> None:
            shape = (len(samples), grid[0] * grid[1], vit.width)
            tokens = np.lib.format.open_memmap(path / "tokens.npy", mode="w+", dtype=np.float16, shape=shape)
            with self.progress.task("Patch tokens", len(samples)) as advance:
                for start in range(0, len(samples), BATCH):
                    pictures = [square(read_image(sample.image), side) for sample in samples[start : start + BATCH]]
                    found = vit.block_tokens(image_tensor(np.stack(pictures), device), blocks)
                    mean = torch.stack([found[block][:, vit.n_prefix :] for block in blocks]).mean(dim=0)
                    tokens[start : start + BATCH] = mean.half().cpu().numpy()
                    advance(len(pictures))
            tokens.flush()

        stored = cache("patches", [image_key(samples), self._network_key, side, blocks], fill)
        out: Tokens = np.load(stored / "tokens.npy", mmap_mode="r")
        return out

    def _distances_to(self, rows: Tensor, tokens: Tokens) -> Floats:
        """Distance of each patch (N, P, C), scaled to length 1, to the nearest of the rows (M, C): (N, P)."""
        bank, out = PatchBank(rows), np.empty(tokens.shape[:2], np.float32)
        with self.progress.task("Patch distances", len(tokens)) as advance:
            for index, image in enumerate(tokens):
                out[index] = bank.nearest(unit(image))[0].numpy()
                advance()
        return out


def on_grid(samples: Sequence[Sample], grid: tuple[int, int]) -> Floats:
    """What was given with each image, averaged over each patch: (N, P), map values or the share that the mask covers.

    Examples
    --------
    >>> on_grid([Sample("a", np.zeros((4, 4, 3), np.uint8), mask=np.eye(4) > 0)], (2, 2)).tolist()
    [[0.5, 0.0, 0.0, 0.5]]
    """
    rows = []
    for sample in samples:
        values = np.zeros((1, 1), np.float32)
        if sample.map is not None:
            values = prepare_map(sample.map, 0)
            values = np.where(np.isnan(values), np.nanmin(values), values)
        elif sample.mask is not None:
            values = read_mask(sample.mask).astype(np.float32)
        rows.append(F.adaptive_avg_pool2d(torch.from_numpy(values)[None], grid).flatten().numpy())
    return np.stack(rows)


def square(image: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """The whole image in a square, as our own `context` features see it: nothing is cut off, the aspect is not kept."""
    method = cv2.INTER_AREA if max(image.shape[:2]) > side else cv2.INTER_CUBIC
    return cv2.resize(image, (side, side), interpolation=method).astype(np.uint8, copy=False)


def unit(tokens: npt.NDArray[np.floating]) -> Tensor:
    """(…, C) of any float type → unit vectors, float32."""
    return F.normalize(torch.from_numpy(np.asarray(tokens, np.float32)), dim=-1)
