"""Rivals that train the last block, with the labelled base set beside the images: GCD, SimGCD, AMEND.

The learning rate is 0.01, not the papers' 0.1, which was made for DINO's ViT-B/16: with it SimGCD's features of an embedded
backbone fell into one point, and the loss ended higher than it began. GCD and AMEND train the same block in the same way and
take the same rate.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import SettingsError
from ...labels import UNKNOWN
from ...learn.bank import Indices
from ...learn.network import RegionNet
from ...learn.trainer import FINAL_LEARNING_RATE, MOMENTUM, parameter_groups, sample_batches
from .base import Features, Inputs
from .views import ViewRival, WholeViews, class_features, cosine_rate


@dataclass(frozen=True)
class Outputs:
    """What a network says of two views of B images: cosines with C prototypes and projections.

    indices : (B,) which images; cosines : two (B, C), base classes first; projections : two (B, D)
    labels : (B,) base class or −1
    prototypes : (C, d) unit vectors; n_base : how many base classes there are
    """

    indices: Tensor
    cosines: tuple[Tensor, Tensor]
    projections: tuple[Tensor, Tensor]
    labels: Tensor
    prototypes: Tensor
    n_base: int
    epoch: int


@dataclass(frozen=True)
class Learned:
    """A trained network, and unit vectors (N, C) of the images and (M, C) of the base set, whose labels (M,) are 0 …"""

    net: RegionNet
    features: Features
    base_features: Features
    base_labels: Indices

    @property
    def n_base(self) -> int:
        """How many base classes there are."""
        return len(np.unique(self.base_labels))


class LastBlockRival(ViewRival):
    """A rival that trains the last block and what stands on it.

    Parameters
    ----------
    epochs : the papers train 200; 50 is what two cores do in minutes
    learning_rate : the papers have 0.1
    supervised_weight : λ, share of the losses on the labelled base set; without a base set they vanish
    """

    uses_base = True

    def __init__(
        self, n_classes: int, *, learning_rate: float = 0.01, supervised_weight: float = 0.35, **settings: Any
    ) -> None:
        super().__init__(n_classes, learning_rate=learning_rate, **settings)
        self.supervised_weight = supervised_weight

    @abstractmethod
    def _loss(self, out: Outputs, weight: float) -> Tensor:
        """The objective of a batch; weight : λ, 0 without a base set."""

    def _train_last_block(self, inputs: Inputs) -> Learned:
        if not 0 <= self.supervised_weight <= 1:
            raise SettingsError(f"supervised_weight must be from 0 to 1, but got {self.supervised_weight}.")
        sets = [inputs.images] if inputs.base is None else [inputs.images, inputs.base.samples]
        known = np.empty(0, np.int64) if inputs.base is None else inputs.base.numbered_labels
        labels = np.concatenate([np.full(len(inputs.images), UNKNOWN), known])
        n_base, device = len(np.unique(known)), self._device
        banks = [self._bank(inputs.cache, samples) for samples in sets]
        views = WholeViews([bank.random for bank in banks], device)
        net = self._new(lambda: RegionNet(self._vit.width, n_base + self.n_classes, 1, vit=self._vit))

        def loss(indices: Indices, rng: np.random.Generator, epoch: int) -> Tensor:
            (one, z_one), (two, z_two) = (net(view) for view in views.pair(indices, rng))
            rows, goals = (torch.from_numpy(values).to(device) for values in (indices, labels[indices]))
            out = Outputs(rows, (one[0], two[0]), (z_one, z_two), goals, net.heads.weight[0], n_base, epoch)
            return self._loss(out, self.supervised_weight if n_base else 0.0)

        rate, epochs = self.learning_rate, self.epochs
        optimiser = torch.optim.SGD(parameter_groups(net), lr=rate, momentum=MOMENTUM)
        falling = partial(cosine_rate, epochs=epochs, first=rate, last=rate * FINAL_LEARNING_RATE)
        self._train(net, optimiser, partial(sample_batches, labels, self.batch_size), loss, rate=falling)
        found = [class_features(self._vit.class_token, bank.centre, device) for bank in banks]
        return Learned(net, found[0], found[-1] if len(known) else found[0][:0], known)
