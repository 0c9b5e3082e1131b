"""PatchCore (Roth et al., CVPR 2022): distance to the nearest patch of any normal image, from a coreset of such patches."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import islice, repeat
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..assign.alike import SHARE
from ..assign.contamination import odd_images
from ..errors import DataError
from ..grid import TokenGrid
from ..model.coreset import RandomPool, greedy_coreset
from .base import Picture, check_least, check_windows
from .memory import MemoryDetector
from .tokens import neighbourhood

QUERIES = 1024  # patches compared with the bank in one matrix product
PROBES = 5  # rows of an image that tell whether it is a copy of another
NEARER = SHARE**0.5  # than usual, as `SHARE` of 1 − cosine
DIRECTIONS, NEAREST = 256, 4  # that all rows are compared in, and rows that are then compared in full
PART = 144  # patches that a thread of faiss compares at once


class PatchCore(MemoryDetector):
    """One-class detector on patch tokens of intermediate blocks.

    Parameters
    ----------
    radius : side of the neighbourhood that a patch feature is averaged over; 1, because a token has seen its surroundings
    rotations : normal images are also seen turned by 360°/rotations, for products that lie at any angle
    bank_size : patches kept by the greedy coreset
    pool_size : patches that the coreset is chosen from, a random sample of all; with `bank_size` the bank is that sample,
        which finds less (docs/detectors.md)
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
    from_tokens = True

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
        self.reach = radius // 2

    def remember(self, tensors: dict[str, Tensor]) -> PatchBank:
        return PatchBank(tensors["bank"], self.radius, tensors["owner"])

    def fit(self, normal_images: Iterable[Picture]) -> PatchCore:
        """Remember a coreset of the patches of normal images, but not of those that seem to show a defect."""
        return self.fit_tokens(self.look(normal_images))

    def look(self, images: Iterable[Picture]) -> Iterator[list[TokenGrid]]:
        """Tokens of each image, turned and not."""
        grids = self.reader(turned for image in images for turned in turns(image, self.rotations))
        while some := list(islice(grids, self.rotations)):
            yield some

    def fit_tokens(self, seen: Iterable[Sequence[TokenGrid]]) -> PatchCore:
        """`fit`, from what `look` gives."""
        features, owner = self._pool(seen)
        if not len(features):
            raise DataError("PatchCore needs normal images to learn from, and there is none that can be read.")
        self.suspects = odd_images(features.cpu().numpy(), owner.numpy(), self.seed)
        if self.suspects:
            clean = ~torch.isin(owner, torch.tensor(list(self.suspects)))
            features, owner = features[clean], owner[clean]
        kept = greedy_coreset(features, self.bank_size, seed=self.seed)
        self.restore({"bank": features[kept], "owner": owner[kept]})
        return self

    def scores(self, memory: PatchBank, grid: TokenGrid, without: int | None = None) -> Tensor:
        """Distances to the nearest patch of the bank."""
        return memory.nearest(locally_aware(grid.blocks, self.radius), without)[0]

    def learn_more(self, normal_images: Iterable[Picture]) -> None:
        """Add patches of more normal images to the bank: those that it has nothing like, at most a quarter of its size."""
        bank = self.memory
        if not isinstance(bank, PatchBank):
            raise DataError("PatchCore was not fitted: give it normal images first.")
        features, owner = self._pool(self.look(normal_images), int(bank.owner.max()) + 1)
        if not len(features):
            raise DataError("expected normal images to learn from, and there is none that can be read.")
        far = bank.nearest(features.float().to(bank.rows.device))[0].cpu()
        kept = far.argsort(descending=True)[: max(self.bank_size // 4, 1)].sort().values
        known = {"bank": bank.bank.cpu(), "owner": bank.owner.cpu()}
        more = {"bank": features.cpu()[kept], "owner": owner[kept]}
        self.restore({name: torch.cat([known[name], more[name]]) for name in known})

    def _pool(self, seen: Iterable[Sequence[TokenGrid]], first: int = 0) -> tuple[Tensor, Tensor]:
        """A sample of the patches, and the images that they are of, from this number on."""
        pool = RandomPool(self.pool_size, self.seed)
        for index, grids in enumerate(seen, start=first):
            for grid in grids:
                pool.add(locally_aware(grid.blocks, self.radius), index)
        return pool.take()


def locally_aware(blocks: Tensor, radius: int) -> Tensor:
    """Patch features: each block's tokens averaged over their neighbourhood and scaled to length 1, then joined.

    (L, h, w, C) → (h·w, L·C), every row of length 1.
    """
    tokens = F.normalize(neighbourhood(blocks, radius), dim=-1)
    joined: Tensor = torch.cat(list(tokens), dim=-1).flatten(0, 1) / len(tokens) ** 0.5
    return joined


class PatchBank(nn.Module):
    """Normal patches to search. Narrow ones are all compared; of wide ones only the nearest by their main directions.

    On hazelnut 256 directions of 1,152 hold 96 % of the squared length, 99.9 % of the patches find the nearest row among the
    four nearest there, and the others one at most 1 % farther off.

    Parameters
    ----------
    bank : (M, D) float16 or float32
    radius : see `PatchCore`; of `forward` only
    owner : (M,) int64, the normal image of each row; only a search without one of them needs it
    """

    bank: Tensor
    owner: Tensor
    rows: Tensor
    squared: Tensor
    directions: Tensor
    short: Tensor

    def __init__(self, bank: Tensor, radius: int = 1, owner: Tensor | None = None) -> None:
        super().__init__()
        self.radius = radius
        rows = bank.float()
        self.is_wide = rows.shape[1] > 2 * DIRECTIONS and len(rows) > NEAREST
        directions = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -DIRECTIONS:] if self.is_wide else rows[:0].T
        self.register_buffer("bank", bank)
        self.register_buffer("owner", owner)
        self.register_buffer("rows", rows, persistent=False)
        self.register_buffer("squared", (rows**2).sum(1), persistent=False)
        self.register_buffer("directions", directions.contiguous(), persistent=False)
        self.register_buffer("short", rows @ directions, persistent=False)

    @cached_property
    def index(self) -> Any:
        """The rows in faiss; None where it is not used."""
        searched = len(self.rows) and self.rows.device.type == "cpu" and not self.is_wide
        if not searched or not importlib.util.find_spec("faiss"):
            return None
        index = importlib.import_module("faiss").IndexFlatL2(self.rows.shape[1])
        index.add(self.rows.numpy())
        return index

    @cached_property
    def searchers(self) -> ThreadPoolExecutor:
        """Threads that search a part of the queries each: where faiss itself shares a search out, last bits are others."""
        one_thread = importlib.import_module("faiss").omp_set_num_threads
        return ThreadPoolExecutor(torch.get_num_threads(), "anomalyncd-faiss", one_thread, (1,))

    def forward(self, tokens: Tensor) -> Tensor:
        """Distance of each patch to the nearest row, as a graph has it: tokens (L, h, w, C) → (h, w)."""
        distances, _ = self._search(locally_aware(tokens, self.radius))
        grid: Tensor = distances.unflatten(0, tokens.shape[1:3])
        return grid

    def nearest(self, queries: Tensor, without: int | None = None) -> tuple[Tensor, Tensor]:
        """Euclidean distance to the nearest row, and which it is: (Q, D) → (Q,) float32, (Q,) int64.

        Rows of the image `without`, which the queries are of, do not count, nor those of its copies, see `kin`.
        """
        if without is None and self.index is not None:
            some = [part.contiguous().numpy() for part in queries.split(PART)]
            squared, found = map(
                np.concatenate, zip(*self.searchers.map(self.index.search, some, repeat(1)), strict=True)
            )
            return torch.from_numpy(squared[:, 0]).clamp(min=0).sqrt(), torch.from_numpy(found[:, 0])
        hidden = None if without is None else torch.isin(self.owner, self.kin(queries, without))
        distances, places = zip(*(self._search(some, hidden) for some in queries.split(QUERIES)), strict=True)
        return torch.cat(distances), torch.cat(places)

    def kin(self, queries: Tensor, image: int) -> Tensor:
        """The image and its copies, or shots of the same part: most of their rows are far nearer than usual to its patches.

        Queries (Q, D) of the image → (K,) int64; where all are copies, only itself.
        """
        own = torch.tensor([image], device=self.rows.device)
        owner = self.owner[self.probes]
        others, place = owner[owner != image].unique(return_inverse=True)
        if len(others) < 2:
            return own
        probes = self.rows[self.probes[owner != image]]
        near = torch.cat([torch.cdist(some, queries).amin(dim=1) for some in probes.split(QUERIES)])
        typical = torch.stack([near[place == other].median() for other in range(len(others))])
        kin = others[typical < NEARER * typical.median()]
        return own if len(kin) == len(others) else torch.cat([own, kin])

    @cached_property
    def probes(self) -> Tensor:
        """A few rows of each image that has as many."""
        order = self.owner.argsort(stable=True)
        _, counts = self.owner.unique(return_counts=True)
        first = counts.cumsum(0) - counts
        return torch.cat(
            [order[a : a + PROBES] for a, n in zip(first, counts, strict=True) if n >= PROBES] or [order[:0]]
        )

    def _search(self, queries: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        squared = self.squared
        if hidden is not None:
            squared = squared.masked_fill(hidden, float("inf"))
        if not self.is_wide:
            found = torch.addmm(squared, queries, self.rows.T, alpha=-2).min(dim=1)
            return (found.values + (queries**2).sum(1)).clamp(min=0).sqrt(), found.indices
        # What is beyond the directions is taken for square to each other, as it nearly is in so many dimensions.
        roughly = torch.addmm(squared, queries @ self.directions, self.short.T, alpha=-2)
        places = roughly.topk(NEAREST, dim=1, largest=False).indices  # (Q, 4)
        exact = ((queries[:, None] - self.rows[places]) ** 2).sum(2)
        best = exact.masked_fill(roughly.gather(1, places).isinf(), float("inf")).min(dim=1)
        return best.values.sqrt(), places.gather(1, best.indices[:, None])[:, 0]


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
