"""GCD and SimGCD, which grew out of it.

Generalized Category Discovery (Vaze et al., CVPR 2022): contrastive training, then semi-supervised k-means.

L = (1 − λ) L_u + λ L_s, λ = 0.35: the self-supervised contrastive loss of all images and the supervised one of the
labelled base set, on a projection of the class token; the last block and the projector are trained. Then k-means over base
and other images together, the base images held in the clusters of their classes.

The base classes are other products' defects, so no image to be discovered belongs to one: each ends in the nearest of the K
new clusters. Without a base set what is left is L_u and plain k-means. The projection has 256 numbers, where its public code
has 65 536.

SimGCD (Wen et al., ICCV 2023): a cosine classifier of whole images that learns from its own sharpened predictions.

L = (1 − λ)(L_u + L_distil + ε L_entropy) + λ (L_s + L_cls), λ = 0.35, ε = 2: both contrastive losses, self-distillation
between two views (student temperature 0.1, teacher 0.07 → 0.04 over 30 epochs), the mean prediction's entropy maximised, and
cross-entropy of the labelled base set. One head of unit-norm prototypes; the class is its largest output.

What differs: as everywhere in this package, pseudo labels never name a base class, since these belong to other products, and
distillation and entropy are over unlabelled images only; base classes are left out of the prediction. Without a base set
what is left is L_u + L_distil + ε L_entropy. The learning rate is 0.01, not 0.1: at the paper's, made for DINO's ViT-B/16,
the features of the embedded backbone fall into one point, and the loss ends higher than it began. See `training` for what
differs on a CPU.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...assign.images import novel_probabilities
from ...learn.cluster import semi_supervised_kmeans, squared_distances
from ...learn.losses import Temperatures, teacher_temperature
from ...learn.network import RegionNet, ViewBatch
from .base import Features, Inputs, Labels
from .training import TrainedRival

RESTARTS = 100


class GCD(TrainedRival):
    """GCD; parameters as in `TrainedRival`.

    Examples
    --------
    >>> import numpy as np
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> model = GCD(2, backbone="tiny", size=32, epochs=1, bank_views=2, learning_rate=0.001).fit(gather(images))
    >>> model.labels_.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    name: ClassVar[str] = "gcd"

    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        found = self._learn(inputs, ContrastiveNet, entropy_weight=0.0)
        with self._timed("clusters"):
            points, seed = (found.features, found.base_features, found.base_labels), self.random_state
            centres = semi_supervised_kmeans(*points, self.n_classes, seed, restarts=RESTARTS)
            labels = squared_distances(found.features, centres[found.n_base :]).argmin(axis=1)
        return found.features, labels


class ContrastiveNet(RegionNet):
    """GCD has no classifier: constant logits have no gradient, which leaves the contrastive terms of the objective."""

    def forward(self, batch: ViewBatch) -> tuple[Tensor, Tensor]:
        _, projections = super().forward(batch)
        return torch.zeros(1, len(projections), self.heads.directions.shape[1], device=projections.device), projections


class SimGCD(TrainedRival):
    """SimGCD.

    Parameters
    ----------
    entropy_weight : ε; settings : see `TrainedRival`

    Examples
    --------
    >>> import numpy as np
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> SimGCD(2, backbone="tiny", size=32, epochs=1, bank_views=2).fit(gather(images)).features_.shape
    (4, 48)
    """

    name: ClassVar[str] = "simgcd"

    def __init__(
        self, n_classes: int, *, entropy_weight: float = 2.0, learning_rate: float = 0.01, **settings: Any
    ) -> None:
        super().__init__(n_classes, learning_rate=learning_rate, **settings)
        self.entropy_weight = entropy_weight

    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        teacher = partial(teacher_temperature, epochs=30, step=1)
        found = self._learn(inputs, RegionNet, self.entropy_weight, teacher)
        with torch.inference_mode():
            cosines = found.features @ found.net.heads.weight[0].cpu().numpy().T
        return found.features, novel_probabilities(cosines, found.n_base, Temperatures.student).argmax(axis=1)
