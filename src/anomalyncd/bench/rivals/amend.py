"""AMEND (Banerjee et al., WACV 2024): SimGCD that also takes neighbours for alike, and keeps prototypes apart.

Of all images the last projections are kept, at most 2,048. The unsupervised contrastive loss of SimGCD becomes the weighted
mean of −log(share of z) over what is alike: the other view and the N nearest that are kept (weight 1), and the M nearest of
each of these (0.1); the share is that of exp(cosine), temperature 1, among all of them and the batch. To the objective is
added (1/C) Σ_{i<j} (d̄² − d²_ij + cos_ij) over pairs of prototypes, d̄² the mean of d². N = M = 5.

What differs: as in `simgcd.py`; an image is kept once and is no neighbour of itself, since with few images its own earlier
projections would fill the bank. The first two terms of the regulariser cancel in the sum, which leaves the cosines.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...detect.base import check_least
from ...learn.losses import info_nce
from .base import Features, Inputs, Labels
from .last_block import Outputs
from .simgcd import SimGCD

KEPT = 2048
FAR_WEIGHT = 0.1


class AMEND(SimGCD):
    """AMEND.

    Parameters
    ----------
    neighbours, far_neighbours : N and M; margin_weight : of the regulariser; settings : see `SimGCD`

    Examples
    --------
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> AMEND(2, backbone="tiny", size=32, epochs=2, bank_views=2).fit(gather(images)).features_.shape
    (4, 48)
    """

    name: ClassVar[str] = "amend"

    def __init__(
        self,
        n_classes: int,
        *,
        neighbours: int = 5,
        far_neighbours: int = 5,
        margin_weight: float = 1.0,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, **settings)
        self.neighbours, self.far_neighbours, self.margin_weight = neighbours, far_neighbours, margin_weight

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        check_least(0, neighbours=self.neighbours, far_neighbours=self.far_neighbours)
        self._kept = Kept()
        return super()._learn(inputs)

    def _loss(self, out: Outputs, weight: float) -> Tensor:
        terms = self._terms(out, weight)
        wide = wide_contrast(*out.projections, out.indices, self._kept, self.neighbours, self.far_neighbours)
        self._kept.add(out.indices, out.projections[0])
        apart = self.margin_weight * closeness(out.prototypes)
        return terms.total + (1 - weight) * (wide - terms.contrastive) + apart


class Kept:
    """The last projections of images, unit vectors (Q, D), and whose they are (Q,); the oldest go first."""

    def __init__(self) -> None:
        self.owners, self.vectors = torch.empty(0, dtype=torch.int64), torch.empty(0)

    def add(self, owners: Tensor, projections: Tensor) -> None:
        """Keep projections (B, D), in the place of earlier ones of the same images."""
        first = torch.from_numpy(np.sort(np.unique(owners.cpu().numpy(), return_index=True)[1]))
        owners, new = owners[first], F.normalize(projections.detach()[first], dim=1)
        if len(self.owners):
            stays = ~torch.isin(self.owners, owners)
            owners, new = torch.cat([self.owners[stays], owners]), torch.cat([self.vectors[stays], new])
        self.owners, self.vectors = owners[-KEPT:], new[-KEPT:]


def wide_contrast(first: Tensor, second: Tensor, owners: Tensor, kept: Kept, n: int, m: int) -> Tensor:
    """Contrastive loss with neighbours and their neighbours; as `info_nce` while there are none.

    Parameters
    ----------
    first, second : (B, D) projections of two views; owners : (B,) whose they are
    n, m : neighbours of an image, and of each of these; fewer where fewer are kept
    """
    n = min(n, len(kept.owners) - 1)
    if n < 1:
        return info_nce(first, second, 1.0)
    z, owner = F.normalize(torch.cat([first, second]), dim=1), torch.cat([owners, owners])
    own = owner[:, None] == kept.owners  # (2B, Q)
    to_kept = z @ kept.vectors.T
    near = to_kept.masked_fill(own, -torch.inf).topk(n, dim=1).indices  # (2B, n)
    between = (kept.vectors @ kept.vectors.T).fill_diagonal_(-torch.inf)
    m = max(0, min(m, len(kept.owners) - 2))
    far = between[near].masked_fill(own[:, None], -torch.inf).topk(m, dim=2).indices.flatten(1)  # (2B, n·m)
    in_batch = (z @ z.T).fill_diagonal_(-torch.inf)
    shares = torch.cat([to_kept.gather(1, near), to_kept.gather(1, far), in_batch], dim=1).log_softmax(dim=1)
    other = n + n * m + torch.arange(len(z), device=z.device).roll(len(first))[:, None]
    alike = shares[:, :n].sum(dim=1) + FAR_WEIGHT * shares[:, n : n + n * m].sum(dim=1) + shares.gather(1, other)[:, 0]
    return -alike.mean() / (1 + n + FAR_WEIGHT * n * m)


def closeness(prototypes: Tensor) -> Tensor:
    """(1/C) Σ_{i<j} (mean d² − d²_ij + cos_ij) of unit vectors (C, D)."""
    cosines = prototypes @ prototypes.T
    above = torch.ones_like(cosines, dtype=torch.bool).triu(1)
    squared = (2 - 2 * cosines)[above]
    return (squared.mean() - squared + cosines[above]).sum() / len(prototypes)
