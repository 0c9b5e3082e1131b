"""From the features of a region to its class: what was learned, as plain numbers. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DataError
from ..large import blocks, is_large
from .features import FeatureSpace
from .rows import vectors

FeatureParts = Mapping[str, npt.NDArray[np.floating]]


@dataclass
class Classifier:
    """Region features → novel classes.

    Attributes
    ----------
    space : how parts are joined
    weight : (C, D) unit vectors of the chosen head, base classes first
    n_base : number of base classes
    last_block : trained tensors of the last block and norm, empty where they stayed frozen
    history : one row an epoch
    """

    space: FeatureSpace
    weight: npt.NDArray[np.float32]
    n_base: int = 0
    temperature: float = 0.1
    last_block: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)

    @property
    def n_classes(self) -> int:
        return len(self.weight) - self.n_base

    def cosines(self, parts: FeatureParts) -> npt.NDArray[np.float32]:
        """Likeness of regions and classes: name → (R, V, L, C) gives (R, n_base + K), base classes first."""
        features = vectors(self.space, parts)
        if features.shape[1:] != self.weight.shape[1:]:
            wanted, given = self.weight.shape[-1], features.shape[-1]
            raise DataError(f"{wanted} numbers a region were learned from, but these have {given}.")
        if not is_large(features):
            return np.asarray(features[:] @ self.weight.T)
        return np.concatenate([features[rows] @ self.weight.T for rows in blocks(len(features))])

    def renumber(self, order: npt.NDArray[np.int64]) -> None:
        """Put the novel classes into another order: the new class k is the old class order[k]."""
        self.weight = np.concatenate([self.weight[: self.n_base], self.weight[self.n_base :][order]])

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """All numbers of the classifier, named, for one safetensors file."""
        return {
            "weight": self.weight,
            **{f"mean.{name}": np.asarray(mean, np.float32) for name, mean in self.space.means.items()},
            **{f"last.{name}": value for name, value in self.last_block.items()},
        }

    def settings(self) -> dict[str, Any]:
        """What else is needed to build it again."""
        return {"weights": self.space.weights, "n_base": self.n_base, "temperature": self.temperature}

    @classmethod
    def restore(cls, tensors: Mapping[str, npt.NDArray[np.float32]], settings: Mapping[str, Any]) -> Classifier:
        """The inverse of `tensors` and `settings`."""

        def group(prefix: str) -> dict[str, npt.NDArray[np.float32]]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        space = FeatureSpace(settings["weights"], group("mean."))
        return cls(space, tensors["weight"], settings["n_base"], settings["temperature"], group("last."))
