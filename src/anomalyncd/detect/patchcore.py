"""PatchCore (Roth et al., CVPR 2022): distance to the nearest patch of any normal image, from a coreset of such patches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DataError
from .base import AnomalyMap, Picture
from .tokens import TokenDetector, TokenGrid, check_least, check_windows, neighbourhood, to_map

QUERIES = 1024  # patches compared with the bank in one matrix product


class PatchCore(TokenDetector):
    """One-class detector on patch tokens of intermediate blocks.

    Parameters
    ----------
    radius : side of the neighbourhood that a patch feature is averaged over; 1, because a token has seen its surroundings
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
        self, *, radius: int = 1, bank_size: int = 10_000, pool_size: int = 100_000, **settings: object
    ) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        check_windows("radius", [radius])
        check_least(1, bank_size=bank_size, pool_size=pool_size)
        self.settings |= {"radius": radius, "bank_size": bank_size, "pool_size": pool_size}
        self.radius, self.bank_size, self.pool_size = radius, bank_size, pool_size
        self.bank: Tensor | None = None

    def fit(self, normal_images: Iterable[Picture]) -> PatchCore:
        """Remember a coreset of the patches of normal images."""
        pool = RandomPool(self.pool_size, self.seed)
        for grid in self.read(normal_images):
            pool.add(locally_aware(grid, self.radius))
        features = pool.take()
        if not len(features):
            raise DataError("PatchCore needs normal images to learn from, and there is none that can be read.")
        kept = features[greedy_coreset(features, self.bank_size, seed=self.seed)]
        self.bank = kept.half().float()  # as it is stored: a loaded detector gives the very same maps
        return self

    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        """Distance of each patch to the nearest one of the bank, smoothed."""
        if self.bank is None:
            raise DataError("PatchCore was not fitted: give it normal images first.")
        for grid in self.read(images):
            distances = nearest_distances(locally_aware(grid, self.radius), self.bank)
            yield to_map(distances.view(grid.shape), grid.size, self.map_size, self.sigma)

    def tensors(self) -> dict[str, Tensor]:
        return {} if self.bank is None else {"bank": self.bank.half()}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.bank = tensors["bank"].float().to(self.device) if "bank" in tensors else None


def locally_aware(grid: TokenGrid, radius: int) -> Tensor:
    """Patch features: each block's tokens averaged over their neighbourhood and scaled to length 1, then joined.

    (L, h, w, C) → (h·w, L·C), every row of length 1.
    """
    tokens = F.normalize(neighbourhood(grid.blocks, radius), dim=-1)
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


def greedy_coreset(
    features: Tensor, count: int, *, seed: int = 0, projected: int = 128, on_step: Callable[[], None] | None = None
) -> Tensor:
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
        if on_step:
            on_step()
    return chosen


def nearest_distances(queries: Tensor, bank: Tensor) -> Tensor:
    """Euclidean distance of each query to its nearest row of the bank: (Q, D), (M, D) → (Q,)."""
    squared = (bank**2).sum(1)
    found = []
    for chunk in queries.split(QUERIES):
        smallest = torch.addmm(squared, chunk, bank.T, alpha=-2).amin(dim=1)
        found.append((smallest + (chunk**2).sum(1)).clamp(min=0).sqrt())
    return torch.cat(found)
