"""SimGCD (Wen et al., ICCV 2023): a cosine classifier of whole images that learns from its own sharpened predictions.

L = (1 − λ)(L_u + L_distil + ε L_entropy) + λ (L_s + L_cls), λ = 0.35, ε = 2: both contrastive losses of GCD,
self-distillation between two views (student temperature 0.1, teacher 0.07 → 0.04 over 30 epochs), the mean prediction's
entropy maximised, and cross-entropy of the labelled base set. One head of unit-norm prototypes; the class is its largest
output. The last block, the projector and the head are trained.

What differs: as everywhere in this package, pseudo labels never name a base class, since these belong to other products, and
distillation and entropy are over unlabelled images only; base classes are left out of the prediction. Without a base set
what is left is L_u + L_distil + ε L_entropy.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...assign.images import novel_probabilities
from ...learn.losses import LossParts, Temperatures, objective, teacher_temperature
from .base import Features, Inputs, Labels
from .last_block import LastBlockRival, Outputs

teacher = partial(teacher_temperature, epochs=30, step=1)


class SimGCD(LastBlockRival):
    """SimGCD.

    Parameters
    ----------
    entropy_weight : ε; settings : see `LastBlockRival`

    Examples
    --------
    >>> import numpy as np
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> SimGCD(2, backbone="tiny", size=32, epochs=1, bank_views=2).fit(gather(images)).features_.shape
    (4, 48)
    """

    name: ClassVar[str] = "simgcd"

    def __init__(self, n_classes: int, *, entropy_weight: float = 2.0, **settings: Any) -> None:
        super().__init__(n_classes, **settings)
        self.entropy_weight = entropy_weight

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        found = self._train_last_block(inputs)
        with torch.inference_mode():
            cosines = found.features @ found.net.heads.weight[0].cpu().numpy().T
        return found.features, novel_probabilities(cosines, found.n_base, Temperatures.student).argmax(axis=1)

    def _loss(self, out: Outputs, weight: float) -> Tensor:
        return self._terms(out, weight).total

    def _terms(self, out: Outputs, weight: float) -> LossParts:
        parts, _ = objective(
            (out.cosines[0][None], out.cosines[1][None]), out.projections, out.labels, torch.ones(len(out.labels)),
            n_base=out.n_base, normal=None, temperatures=Temperatures(teacher=teacher(out.epoch)),
            supervised_weight=weight, entropy_weight=self.entropy_weight,
        )  # fmt: skip
        return parts
