"""PatchCore (Roth et al., CVPR 2022): distance to the nearest patch of any normal image, from a coreset of such patches."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import DataError
from .base import Detection, Picture, check_least, check_windows
from .tokens import TokenDetector, neighbourhood

QUERIES = 1024  # patches compared with the bank in one matrix product
NEIGHBOURS = 9  # rows of the bank that say how rare the nearest one is


class PatchCore(TokenDetector):
    """One-class detector on patch tokens of intermediate blocks.

    Parameters
    ----------
    radius : side of the neighbourhood that a patch feature is averaged over; 1, because a token has seen its surroundings
    rotations : normal images are also seen turned by 360°/rotations, for products that lie at any angle
    bank_size : patches kept by the greedy coreset
    pool_size : patches that the coreset is chosen from, a random sample of all
    settings : see `TokenDetector`

    Examples
    --------
    >>> import numpy as np
    >>> normal = [np.full((64, 64, 3), 100, np.uint8)] * 2
    >>> odd = normal[0].copy(); odd[:32, :32] = 255
    >>> detector = PatchCore(backbone="tiny", size=64, map_size=64).fit(normal)
    >>> found = next(detector.maps([odd]))
    >>> bool(found[:16, :16].mean() > found[48:, 48:].mean())
    True
    """

    name = "patchcore"
    needs_normal = True

    def __init__(
        self,
        *,
        radius: int = 1,
        bank_size: int = 10_000,
        pool_size: int = 100_000,
        rotations: int = 1,
        **settings: object,
    ) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        check_windows("radius", [radius])
        check_least(1, bank_size=bank_size, pool_size=pool_size, rotations=rotations)
        self.radius, self.bank_size, self.pool_size, self.rotations = radius, bank_size, pool_size, rotations

    @property
    def is_ready(self) -> bool:
        return self.memory is not None

    def remember(self, tensors: dict[str, Tensor]) -> PatchBank:
        return PatchBank(tensors["bank"], self.radius)

    def fit(self, normal_images: Iterable[Picture]) -> PatchCore:
        """Remember a coreset of the patches of normal images."""
        pool = RandomPool(self.pool_size, self.seed)
        for grid in self.reader(turned for image in normal_images for turned in turns(image, self.rotations)):
            pool.add(locally_aware(grid.blocks, self.radius))
        features = pool.take()
        if not len(features):
            raise DataError("PatchCore needs normal images to learn from, and there is none that can be read.")
        kept = features[greedy_coreset(features, self.bank_size, seed=self.seed)]
        self.restore({"bank": kept.half()})  # as it is stored: a loaded detector gives the very same maps
        return self

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps of distances to the nearest patch of the bank, and the re-weighted one of the most abnormal patch."""
        bank = self.memory
        if not isinstance(bank, PatchBank):
            raise DataError("PatchCore was not fitted: give it normal images first.")
        for grid in self.reader(images):
            patches = locally_aware(grid.blocks, self.radius)
            distances, nearest = bank.nearest(patches)
            worst = int(distances.argmax())
            score = reweighted(patches[worst], float(distances[worst]), int(nearest[worst]), bank.rows)
            yield Detection(self.to_map(distances, grid), score)


def locally_aware(blocks: Tensor, radius: int) -> Tensor:
    """Patch features: each block's tokens averaged over their neighbourhood and scaled to length 1, then joined.

    (L, h, w, C) → (h·w, L·C), every row of length 1.
    """
    tokens = F.normalize(neighbourhood(blocks, radius), dim=-1)
    joined: Tensor = torch.cat(list(tokens), dim=-1).flatten(0, 1) / len(tokens) ** 0.5
    return joined


class RandomPool:
    """A uniform random sample of rows that come in pieces: each row draws a key, and the smallest keys stay."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: list[Tensor] = []
        self.keys: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        self.rows.append(rows)
        self.keys.append(torch.rand(len(rows), generator=self.generator))
        if sum(map(len, self.rows)) > 2 * self.size:
            self._shrink()

    def take(self) -> Tensor:
        """(at most `size`, D), in the order in which they came."""
        if not self.rows:
            return torch.empty(0, 0)
        self._shrink()
        return self.rows[0]

    def _shrink(self) -> None:
        rows, keys = torch.cat(self.rows), torch.cat(self.keys)
        kept = keys.argsort()[: self.size].sort().values
        self.rows, self.keys = [rows[kept]], [keys[kept]]


def greedy_coreset(features: Tensor, count: int, *, seed: int = 0, projected: int = 128) -> Tensor:
    """Rows (count,) that cover all others: again and again the one farthest from all chosen so far.

    Distances are taken after a random projection to `projected` dimensions, which keeps them (Johnson–Lindenstrauss).

    Parameters
    ----------
    features : (N, D) float32
    """
    n, width = features.shape
    if count >= n:
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed)
    if projected < width:
        matrix = torch.randn(width, projected, generator=generator) / projected**0.5
        features = features @ matrix.to(features)
    squared = (features**2).sum(1)
    chosen = torch.empty(count, dtype=torch.long)
    nearest = torch.full((n,), float("inf"), device=features.device)
    current = int(torch.randint(n, (1,), generator=generator))
    for step in range(count):
        chosen[step] = current
        # |a − b|² = |a|² + |b|² − 2ab: one product with one row instead of a difference with all
        nearest = torch.minimum(nearest, squared + squared[current] - 2 * (features @ features[current]))
        nearest[current] = float("-inf")  # rounding must not choose a row twice
        current = int(nearest.argmax())
    return chosen


class PatchBank(nn.Module):
    """Normal patches, searched exactly: by faiss where it is installed and the bank is on the CPU, else by matrix products.

    Parameters
    ----------
    bank : (M, D) float16 or float32
    radius : see `PatchCore`; of `forward` only
    """

    bank: Tensor
    rows: Tensor
    squared: Tensor

    def __init__(self, bank: Tensor, radius: int = 1) -> None:
        super().__init__()
        self.radius = radius
        rows = bank.float()
        self.register_buffer("bank", bank)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("squared", (rows**2).sum(1), persistent=False)

    @cached_property
    def index(self) -> Any:
        """The rows in faiss; None where it is not used."""
        if self.rows.device.type != "cpu" or not len(self.rows) or not importlib.util.find_spec("faiss"):
            return None
        index = importlib.import_module("faiss").IndexFlatL2(self.rows.shape[1])
        index.add(self.rows.numpy())
        return index

    def forward(self, tokens: Tensor) -> Tensor:
        """Distance of each patch to the nearest row, as a graph has it: tokens (L, h, w, C) → (h, w)."""
        distances, _ = self._search(locally_aware(tokens, self.radius))
        grid: Tensor = distances.unflatten(0, tokens.shape[1:3])
        return grid

    def nearest(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Euclidean distance to the nearest row, and which it is: (Q, D) → (Q,) float32, (Q,) int64."""
        if self.index is not None:
            squared, found = self.index.search(queries.contiguous().numpy(), 1)
            return torch.from_numpy(squared[:, 0]).clamp(min=0).sqrt(), torch.from_numpy(found[:, 0])
        distances, places = zip(*map(self._search, queries.split(QUERIES)), strict=True)
        return torch.cat(distances), torch.cat(places)

    def _search(self, queries: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.addmm(self.squared, queries, self.rows.T, alpha=-2).min(dim=1)
        return (found.values + (queries**2).sum(1)).clamp(min=0).sqrt(), found.indices


def reweighted(patch: Tensor, distance: float, nearest: int, bank: Tensor) -> float:
    """PatchCore's image score (its equation 7): a distance counts less where normal patches are rare themselves.

    The nearest row m* has neighbours N in the bank, itself among them; the distance is multiplied by
    1 − exp‖patch − m*‖ / Σ_N exp‖patch − m‖.

    Parameters
    ----------
    patch : (D,) the most abnormal one; distance, nearest : to and number of its nearest row; bank : (M, D)
    """
    around = (bank - bank[nearest]).norm(dim=1).topk(min(NEIGHBOURS, len(bank)), largest=False).indices
    if len(around) < 2:
        return distance
    return float(1 - 1 / ((bank[around] - patch).norm(dim=1) - distance).exp().sum()) * distance


def turns(image: Picture, count: int) -> Iterator[Picture]:
    """The image, and the image turned about its centre by each multiple of 360°/count; the corners are mirrored.

    Quarter turns are exact, and swap the sides of an image that is not square.
    """
    height, width = image.shape[:2]
    for step in range(count):
        quarters, rest = divmod(4 * step, count)
        if rest == 0:
            yield np.ascontiguousarray(np.rot90(image, quarters))
            continue
        matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), 360 * step / count, 1.0)
        turned = cv2.warpAffine(image, matrix, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
        yield turned.astype(np.uint8, copy=False)
