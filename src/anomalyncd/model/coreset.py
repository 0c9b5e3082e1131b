"""Few rows in the place of many: a random sample of what comes in pieces, and a coreset that covers it."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 1024  # projected in one matrix product
CANDIDATES = 256  # rows that the next ones of a greedy coreset are looked for among


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
        features = torch.cat([some.float() @ matrix for some in features.split(ROWS)])
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
