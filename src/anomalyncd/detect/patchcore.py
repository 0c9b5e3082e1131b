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
from .base import Picture, check_least, check_windows
from .memory import MemoryDetector
from .tokens import neighbourhood

QUERIES = 1024  # patches compared with the bank in one matrix product
PROBES = 5  # rows of an image that tell whether it is a copy of another
NEARER = SHARE**0.5  # than usual, as `SHARE` of 1 − cosine
PART = 144  # patches that a thread of faiss compares at once
CANDIDATES = 256  # rows that the next ones of a greedy coreset are looked for among


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


class RandomPool:
    """A uniform random sample of rows that come in pieces: each row draws a key, and the smallest keys stay.

    Rows are float16, as they are stored: a loaded detector gives the very same maps, and memory holds twice as many.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.generator = torch.Generator().manual_seed(seed)
        self.rows: list[Tensor] = []
        self.owners: list[Tensor] = []
        self.keys: list[Tensor] = []

    def add(self, rows: Tensor, owner: int) -> None:
        """Take (N, D) rows of the image `owner` into account."""
        self.rows.append(rows.half())
        self.owners.append(torch.full((len(rows),), owner))
        self.keys.append(torch.rand(len(rows), generator=self.generator))
        if sum(map(len, self.rows)) > 2 * self.size:
            self._shrink()

    def take(self) -> tuple[Tensor, Tensor]:
        """(at most `size`, D) float16 in the order in which they came, and the owner of each, int64."""
        if not self.rows:
            return torch.empty(0, 0), torch.empty(0, dtype=torch.long)
        self._shrink()
        return self.rows[0], self.owners[0]

    def _shrink(self) -> None:
        keys = torch.cat(self.keys)
        kept = keys.argsort()[: self.size].sort().values
        self.rows, self.owners = [torch.cat(self.rows)[kept]], [torch.cat(self.owners)[kept]]
        self.keys = [keys[kept]]


def greedy_coreset(features: Tensor, count: int, *, seed: int = 0, projected: int = 128) -> Tensor:
    """Rows (count,) that cover all others: again and again the one farthest from all chosen so far.

    Distances are taken after a random projection to `projected` dimensions, which keeps them (Johnson–Lindenstrauss).

    Parameters
    ----------
    features : (N, D) of any float type
    """
    n, width = features.shape
    if count >= n:
        return torch.arange(n)
    generator = torch.Generator().manual_seed(seed)
    if projected < width:
        matrix = torch.randn(width, projected, generator=generator).to(features.device) / projected**0.5
        features = torch.cat([some.float() @ matrix for some in features.split(QUERIES)])
    features = features.float()
    squared = (features**2).sum(1)
    nearest = torch.full((n,), float("inf"), device=features.device)  # squared, to the chosen ones
    chosen: list[int] = []
    picked = torch.randint(n, (1,), generator=generator).to(features.device)
    while True:
        chosen += picked.tolist()
        if len(chosen) == count:
            return torch.tensor(chosen)
        # |a − b|² = |a|² + |b|² − 2ab
        product = torch.addmm(squared[picked], features, features[picked].T, alpha=-2).amin(dim=1)
        nearest = torch.minimum(nearest, squared + product)
        nearest[picked] = float("-inf")  # rounding must not choose a row twice
        picked = _farthest(features, nearest, count - len(chosen))


def _farthest(features: Tensor, nearest: Tensor, most: int) -> Tensor:
    """The next rows of the greedy coreset, one at least, without looking at all rows after each of them.

    Distances only shrink. So as long as the farthest of some candidates is still farther than any other row was at the
    start, it is the farthest of all.

    Parameters
    ----------
    features : (N, D); nearest : (N,) squared distances to the chosen ones; most : how many are wanted
    """
    found = nearest.topk(min(CANDIDATES + 1, len(nearest)))
    beyond = float("-inf") if len(nearest) <= CANDIDATES else float(found.values[-1])  # no other row is farther
    values, places = found.values[:CANDIDATES].cpu(), found.indices[:CANDIDATES]
    rows = features[places].cpu()
    between = torch.cdist(rows, rows) ** 2
    picked: list[int] = []
    while len(picked) < most:
        best = int(values.argmax())
        if picked and values[best] < beyond:
            break
        picked.append(best)
        values = torch.minimum(values, between[best])
        values[best] = float("-inf")
    return places[picked]


class PatchBank(nn.Module):
    """Normal patches, searched exactly: by faiss where it is installed and the bank is on the CPU, else by matrix products.

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

    def __init__(self, bank: Tensor, radius: int = 1, owner: Tensor | None = None) -> None:
        super().__init__()
        self.radius = radius
        rows = bank.float()
        self.register_buffer("bank", bank)
        self.register_buffer("owner", owner)
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
        relative = torch.addmm(self.squared, queries, self.rows.T, alpha=-2)
        if hidden is not None:
            relative[:, hidden] = float("inf")
        found = relative.min(dim=1)
        return (found.values + (queries**2).sum(1)).clamp(min=0).sqrt(), found.indices


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
