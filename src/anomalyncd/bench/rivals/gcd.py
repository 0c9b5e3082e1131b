"""Generalized Category Discovery (Vaze et al., CVPR 2022): contrastive training, then semi-supervised k-means.

L = (1 − λ) L_u + λ L_s, λ = 0.35: the self-supervised contrastive loss of all images (temperature 1) and the supervised one
of the labelled base set (0.07), on a projection of the class token; the last block and the projector are trained. Then
k-means over base and other images together, the base images held in the clusters of their classes.

What differs: the base classes are other products' defects, so no image to be discovered belongs to one, and each ends in
the nearest of the K new clusters. Without a base set what is left is L_u and plain k-means. The projection has 256 numbers,
where its public code has 65 536.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from ...learn.cluster import squared_distances
from ...learn.losses import Temperatures, info_nce, supervised_contrastive
from .base import Features, Inputs, Labels
from .last_block import LastBlockRival, Outputs
from .semi_supervised import semi_supervised_kmeans

RESTARTS = 100


class GCD(LastBlockRival):
    """GCD; parameters as in `LastBlockRival`.

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

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        found = self._train_last_block(inputs)
        with self._timed("clusters"):
            points, seed = (found.features, found.base_features, found.base_labels), self.random_state
            centres = semi_supervised_kmeans(*points, self.n_classes, seed, restarts=RESTARTS)
            labels = squared_distances(found.features, centres[found.n_base :]).argmin(axis=1)
        return found.features, labels

    def _loss(self, out: Outputs, weight: float) -> Tensor:
        loss = (1 - weight) * info_nce(*out.projections, Temperatures.contrastive)
        if weight:
            labelled = out.labels >= 0
            one, two = (z[labelled] for z in out.projections)
            loss = loss + weight * supervised_contrastive(
                one, two, out.labels[labelled], Temperatures.supervised_contrastive
            )
        return loss
