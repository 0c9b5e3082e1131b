"""IIC (Ji et al., ICCV 2019): clusters in which two views of an image tell as much as possible of each other.

P = Σ p(x) p(x′)ᵀ over pairs of views, made symmetric and divided by its sum, is how often clusters meet; the loss is minus
its mutual information, −Σ P_ij (log P_ij − log P_i − log P_j). Head B with K outputs, the classes, and head A with 5 K,
which only shapes what lies below, learn in turn, an epoch each. Each has 5 sub-heads, whose losses are averaged; that of B
with the lowest loss is taken. An image stands 5 times in a batch, with other views each time.

What differs: heads are trained on the frozen trunk's class token, where the paper trains a ResNet from scratch. One hidden
layer lies below both heads: without it head A would be of no use.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ...labels import UNKNOWN
from ...learn.bank import Indices
from ...learn.trainer import sample_batches
from .base import Features, Inputs, Labels
from .views import ViewRival, two_views

SUB_HEADS, OVERCLUSTERING, REPEATS = 5, 5, 5
LEAST = 1e-9  # share of a pair of clusters, so that its logarithm is a number


class IIC(ViewRival):
    """IIC; parameters as in `ViewRival`, a batch being so many images.

    Examples
    --------
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> IIC(2, backbone="tiny", size=32, epochs=2, bank_views=2).fit(gather(images)).features_.shape
    (4, 48)
    """

    name: ClassVar[str] = "iic"

    def __init__(
        self,
        n_classes: int,
        *,
        epochs: int = 2000,
        batch_size: int = 140,
        learning_rate: float = 1e-4,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, **settings)

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        vectors = self._class_tokens(inputs.cache, inputs.images)
        net = self._new(lambda: Heads(vectors.shape[-1], self.n_classes))

        def loss(indices: Indices, rng: np.random.Generator, epoch: int) -> Tensor:
            views = two_views(vectors, np.repeat(indices, REPEATS), rng)
            one, two = net(torch.cat(views), "AB"[epoch % 2]).chunk(2, dim=1)
            return information_loss(one, two).mean()

        everything = np.full(len(vectors), UNKNOWN)
        optimiser = torch.optim.Adam(net.parameters(), lr=self.learning_rate)
        self._train(net, optimiser, partial(sample_batches, everything, self.batch_size), loss)
        with torch.inference_mode():
            views = vectors[:, 1:]
            one, two = (net(each.flatten(0, 1), "B") for each in (views, views.roll(1, dims=1)))
            best = int(information_loss(one, two).argmin())
            labels = net(vectors[:, 0], "B")[best].argmax(dim=1)
            return net.body(vectors[:, 0]).cpu().numpy(), labels.cpu().numpy()


class Heads(nn.Module):
    """A hidden layer, and the sub-heads of A and B on it."""

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU())
        outputs = {"A": OVERCLUSTERING * n_classes, "B": n_classes}
        self.heads = nn.ModuleDict({name: nn.Linear(width, SUB_HEADS * n) for name, n in outputs.items()})

    def forward(self, vectors: Tensor, head: str) -> Tensor:
        """(B, C) → probabilities (S, B, outputs)."""
        out: Tensor = self.heads[head](self.body(vectors)).unflatten(1, (SUB_HEADS, -1)).softmax(dim=-1)
        return out.movedim(1, 0)


def information_loss(one: Tensor, two: Tensor) -> Tensor:
    """Minus the mutual information of the clusters of two views: probabilities (S, B, K) each → (S,).

    Examples
    --------
    >>> sure = torch.eye(2)[None]  # two images, each in a cluster of its own: log 2
    >>> round(float(information_loss(sure, sure)), 4)
    -0.6931
    """
    joint = torch.einsum("sbi,sbj->sij", one, two)
    joint = (joint + joint.mT) / 2
    joint = (joint / joint.sum(dim=(1, 2), keepdim=True)).clamp(min=LEAST)
    rows, columns = joint.sum(dim=2, keepdim=True), joint.sum(dim=1, keepdim=True)
    return -(joint * (joint.log() - rows.log() - columns.log())).sum(dim=(1, 2))
