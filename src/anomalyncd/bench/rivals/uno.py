"""UNO (Fini et al., ICCV 2021): one cross-entropy for labelled and unlabelled images, the targets of the latter by Sinkhorn.

Logits are cosines with prototypes, those of the base classes on the features, those of the new ones on a projection of
them, joined and divided by 0.1. The target of a labelled image is its class; that of an unlabelled one is how the *other*
view of it is shared out by Sinkhorn's algorithm, which fills all new classes alike. Four heads with K outputs and four with
3 K (over-clustering) learn together, the mean of both losses; of the former the one with the lowest loss in the last epoch
is taken. The prototypes of the base classes are trained first, by themselves.

What differs: heads are trained on the frozen trunk's class token, where the paper trains a ResNet, on the base set before;
100 epochs, where it has 500. Without a base set there are new classes only. Base classes are left out of the prediction.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...labels import UNKNOWN
from ...learn.bank import Indices
from ...learn.trainer import MOMENTUM, sample_batches
from ...model.heads import PrototypeHeads
from .base import Features, Inputs, Labels
from .views import ViewRival, cosine_rate, two_views

HEADS, OVERCLUSTERING, HIDDEN, PROJECTION = 4, 3, 2048, 256
TEMPERATURE, EPSILON, ROUNDS = 0.1, 0.05, 3
WARM_UP, LAST_SHARE, DECAY = 0.02, 0.0025, 1.5e-4  # shares of the epochs and of the rate: 10 of 500, 0.001 of 0.4
PRETRAINING = 50  # epochs


class UNO(ViewRival):
    """UNO; parameters as in `ViewRival`.

    Examples
    --------
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> UNO(2, backbone="tiny", size=32, epochs=1, bank_views=2).fit(gather(images)).features_.shape
    (4, 256)
    """

    name: ClassVar[str] = "uno"
    uses_base = True

    def __init__(
        self,
        n_classes: int,
        *,
        epochs: int = 100,
        batch_size: int = 512,
        learning_rate: float = 0.4,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, **settings)

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        vectors = images = self._class_tokens(inputs.cache, inputs.images)
        known = np.empty(0, np.int64)
        if inputs.base is not None:
            known = inputs.base.numbered_labels
            vectors = torch.cat([images, self._class_tokens(inputs.cache, inputs.base.samples)])
        labels = np.concatenate([np.full(len(images), UNKNOWN), known])
        n_base = len(np.unique(known))
        net = self._new(lambda: Heads(vectors.shape[-1], n_base, self.n_classes))
        goals = torch.from_numpy(labels).to(self._device)
        per_head = torch.zeros(self.epochs, HEADS)

        def pretrain(indices: Indices, rng: np.random.Generator, epoch: int) -> Tensor:
            rows = indices + len(images)
            cosines = net.labelled(two_views(vectors, rows, rng)[0])[0]
            return F.cross_entropy(cosines / TEMPERATURE, goals[rows])

        def discover(indices: Indices, rng: np.random.Generator, epoch: int) -> Tensor:
            one, two = (net(view) for view in two_views(vectors, indices, rng))
            few, many = (swapped_loss(one[k], two[k], goals[indices], n_base) for k in (0, 1))
            per_head[epoch] += few.detach().cpu()
            return (few.mean() + many.mean()) / 2

        optimiser = torch.optim.SGD(net.parameters(), lr=self.learning_rate, momentum=MOMENTUM, weight_decay=DECAY)
        warm_up, last = round(WARM_UP * self.epochs), LAST_SHARE * self.learning_rate
        rate = partial(cosine_rate, epochs=self.epochs, first=self.learning_rate, last=last, warm_up=warm_up)
        if n_base:
            self._train(net, optimiser, partial(sample_batches, known, self.batch_size), pretrain, epochs=PRETRAINING)
        self._train(net, optimiser, partial(sample_batches, labels, self.batch_size), discover, rate=rate)
        with torch.inference_mode():
            best = net.few[int(per_head[-1].argmin())]
            assert isinstance(best, NewHead)
            features = F.normalize(best.projection(images[:, 0]), dim=1)
            return features.cpu().numpy(), best(images[:, 0]).argmax(dim=1).cpu().numpy()


class NewHead(nn.Module):
    """A projection, and prototypes of K new classes."""

    def __init__(self, width: int, n_classes: int) -> None:
        super().__init__()
        self.projection = nn.Sequential(
            nn.Linear(width, HIDDEN), nn.BatchNorm1d(HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, PROJECTION)
        )  # fmt: skip
        self.prototypes = PrototypeHeads(PROJECTION, n_classes)

    def forward(self, vectors: Tensor) -> Tensor:
        """(B, C) → cosines (B, K)."""
        out: Tensor = self.prototypes(self.projection(vectors))[0]
        return out


class Heads(nn.Module):
    """Prototypes of the base classes, and heads of the new ones, with few and many outputs."""

    def __init__(self, width: int, n_base: int, n_new: int) -> None:
        super().__init__()
        self.labelled = PrototypeHeads(width, n_base)
        self.few = nn.ModuleList(NewHead(width, n_new) for _ in range(HEADS))
        self.many = nn.ModuleList(NewHead(width, OVERCLUSTERING * n_new) for _ in range(HEADS))

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C) → cosines (H, B, n_base + K) and (H, B, n_base + 3 K)."""
        base = self.labelled(vectors)[0]
        few, many = (
            torch.stack([torch.cat([base, head(vectors)], dim=1) for head in heads]) for heads in (self.few, self.many)
        )
        return few, many


def swapped_loss(one: Tensor, two: Tensor, labels: Tensor, n_base: int) -> Tensor:
    """Cross-entropy of each view with the targets of the other, of each head: cosines (H, B, C) each → (H,).

    Parameters
    ----------
    labels : (B,) base class, or −1; n_base : how many of the C outputs are base classes
    """
    losses = []
    for first, second in zip(one, two, strict=True):
        goals = [targets(cosines.detach(), labels, n_base) for cosines in (second, first)]
        pairs = zip((first, second), goals, strict=True)
        parts = [-(goal * (cosines / TEMPERATURE).log_softmax(dim=1)).sum(dim=1).mean() for cosines, goal in pairs]
        losses.append(torch.stack(parts).mean())
    return torch.stack(losses)


def targets(cosines: Tensor, labels: Tensor, n_base: int) -> Tensor:
    """(B, C): the class where it is known, else the new classes as Sinkhorn shares them out."""
    goals, unlabelled = torch.zeros_like(cosines), labels < 0
    goals[~unlabelled, labels[~unlabelled]] = 1
    if unlabelled.any():
        goals[unlabelled, n_base:] = sinkhorn(cosines[unlabelled, n_base:])
    return goals


def sinkhorn(cosines: Tensor) -> Tensor:
    """Shares (B, K) that sum to 1 for each image and, nearly, to B / K for each class: exp(cosine / ε), scaled in turn.

    Examples
    --------
    >>> sinkhorn(torch.tensor([[0.9, 0.0], [0.9, 0.3]])).argmax(dim=1).tolist()  # the second one has to make room
    [0, 1]
    """
    shares = ((cosines - cosines.max()) / EPSILON).exp()
    for _ in range(ROUNDS):
        shares = shares / shares.sum(dim=0, keepdim=True).clamp(min=torch.finfo(shares.dtype).tiny)
        shares = shares / shares.sum(dim=1, keepdim=True)
    return shares
