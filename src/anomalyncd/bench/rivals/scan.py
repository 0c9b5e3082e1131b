"""SCAN (Van Gansbeke et al., ECCV 2020): an image and its nearest neighbours belong together.

Neighbours are found in a self-supervised space, here the frozen trunk's class token. Ten linear heads learn from views of an
image x and of one of its neighbours, −log⟨p(x), p(neighbour)⟩ − 5·H(mean p), and the head with the lowest loss over all
neighbours is taken. Then it learns from itself: where it is surer of the plain view than 0.99, cross-entropy on a random
view, classes weighted to count alike.

What differs: as in the paper's own frozen form only heads are trained, and so in the last step too. What images have in
common is taken from the class tokens first: images of one product are much alike, and the rate of 5 would act on that
alone. The paper takes 20 neighbours; here they are at most half of an average class, since small sets have no 20 that belong
together.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...detect.base import check_least
from ...errors import SettingsError
from ...labels import UNKNOWN
from ...learn.bank import Indices
from ...learn.trainer import MOMENTUM, sample_batches
from .base import Features, Inputs, Labels
from .views import ViewRival, two_views

HEADS = 10
SELF_LABEL_EPOCHS, SELF_LABEL_RATE, SELF_LABEL_DECAY = 200, 1e-4, 1e-4
LEAST = 1e-8  # probability, so that its logarithm is a number


class SCAN(ViewRival):
    """SCAN.

    Parameters
    ----------
    neighbours : of an image, at most; entropy_weight : of the mean prediction
    confidence : from which on a prediction is a label; epochs, learning_rate : of the first step

    Examples
    --------
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> SCAN(2, backbone="tiny", size=32, bank_views=2).fit(gather(images)).labels_.shape
    (4,)
    """

    name: ClassVar[str] = "scan"

    def __init__(
        self,
        n_classes: int,
        *,
        epochs: int = 100,
        batch_size: int = 512,
        learning_rate: float = 5.0,
        neighbours: int = 20,
        entropy_weight: float = 5.0,
        confidence: float = 0.99,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, **settings)
        self.neighbours, self.entropy_weight, self.confidence = neighbours, entropy_weight, confidence

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        check_least(1, neighbours=self.neighbours)
        if not 0 <= self.confidence <= 1:
            raise SettingsError(f"confidence must be from 0 to 1, but got {self.confidence}.")
        vectors = self._class_tokens(inputs.cache, inputs.images)
        count = min(self.neighbours, max(1, len(vectors) // (2 * self.n_classes)))
        near = nearest(vectors[:, 0], count).cpu().numpy()
        vectors = F.normalize(vectors - vectors[:, 0].mean(dim=0), dim=2)
        plain, batches = vectors[:, 0], partial(sample_batches, np.full(len(vectors), UNKNOWN), self.batch_size)
        net = self._new(lambda: nn.Linear(vectors.shape[-1], HEADS * self.n_classes))

        def cluster(indices: Indices, rng: np.random.Generator, epoch: int) -> Tensor:
            partners = near[indices, rng.integers(count, size=len(indices))]
            anchors, others = two_views(vectors, indices, rng)[0], two_views(vectors, partners, rng)[1]
            return neighbour_loss(self._heads(net, anchors), self._heads(net, others), self.entropy_weight).sum()

        first = torch.optim.SGD(net.parameters(), lr=self.learning_rate, momentum=MOMENTUM)
        self._train(net, first, batches, cluster)
        with torch.inference_mode():
            anchors, others = (
                self._heads(net, plain[rows]) for rows in (np.arange(len(near)).repeat(count), near.ravel())
            )
            best = int(neighbour_loss(anchors, others, self.entropy_weight).argmin())
        head = nn.Linear(vectors.shape[-1], self.n_classes).to(self._device)
        rows = slice(best * self.n_classes, (best + 1) * self.n_classes)
        head.load_state_dict({name: value[rows] for name, value in net.state_dict().items()})

        def self_label(indices: Indices, rng: np.random.Generator, epoch: int) -> Tensor:
            with torch.no_grad():
                sure = head(plain[indices]).softmax(dim=1)
            return self_label_loss(sure, head(two_views(vectors, indices, rng)[0]), self.confidence)

        second = torch.optim.Adam(head.parameters(), lr=SELF_LABEL_RATE, weight_decay=SELF_LABEL_DECAY)
        self._train(head, second, batches, self_label, epochs=SELF_LABEL_EPOCHS)
        with torch.inference_mode():
            return plain.cpu().numpy(), head(plain).argmax(dim=1).cpu().numpy()

    def _heads(self, net: nn.Module, vectors: Tensor) -> Tensor:
        """Probabilities of all heads (H, B, K)."""
        out: Tensor = net(vectors).unflatten(1, (HEADS, self.n_classes)).softmax(dim=-1)
        return out.movedim(1, 0)


def nearest(vectors: Tensor, count: int) -> Tensor:
    """The nearest other vectors of each of N unit vectors (N, C) → (N, count)."""
    return (vectors @ vectors.T).fill_diagonal_(-torch.inf).topk(count, dim=1).indices


def neighbour_loss(anchors: Tensor, others: Tensor, entropy_weight: float) -> Tensor:
    """−mean log⟨p, p′⟩ − weight · H(mean p) of each head: probabilities (H, B, K) each → (H,).

    Examples
    --------
    >>> sure = torch.eye(2)[None]
    >>> round(float(neighbour_loss(sure, sure, 5.0)), 4)  # −5 log 2
    -3.4657
    """
    agreement = (anchors * others).sum(dim=2).clamp(min=LEAST).log().mean(dim=1)
    mean = anchors.mean(dim=1).clamp(min=LEAST)
    return -agreement + entropy_weight * (mean * mean.log()).sum(dim=1)


def self_label_loss(sure: Tensor, logits: Tensor, confidence: float) -> Tensor:
    """Cross-entropy of another view's logits (B, K) with the predictions (B, K) that are surer than `confidence`.

    Each class counts alike, however many images name it. Without a sure one the loss is 0.
    """
    probability, labels = sure.max(dim=1)
    chosen = probability > confidence
    if not chosen.any():
        return logits.sum() * 0
    counts = torch.bincount(labels[chosen], minlength=logits.shape[1])
    return F.cross_entropy(logits[chosen], labels[chosen], weight=1 / counts.clamp(min=1).to(logits))
