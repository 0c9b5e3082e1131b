"""Anomaly Clustering (Sohn et al., WACV 2023): Ward's clusters of patch embeddings, averaged with abnormal ones to the fore.

An image is Σ α_m z_m over its patches, α_m ∝ exp(d_m / τ). Unsupervised, d_m is the mean over all other images of the
distance to their nearest patch; semi-supervised, the distance to the nearest patch of any normal image. τ → 0 leaves the
most abnormal patch (max-Hausdorff), τ → ∞ the plain mean.

What differs from the paper: patches are unit-length tokens of this package's backbone (the last block but one), not of
a WideResNet-50; and since τ has the unit of the network's distances, it is given in standard deviations of all d_m of the
set, so that one number means the same for any backbone. Results depend on it strongly: of 0.1, 0.25, 0.5, 1 and 2, tried on
hazelnut against its true labels, 0.25 was kept for both weightings, so figures on hazelnut flatter this rival.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ...detect.base import check_least
from ...errors import DataError, SettingsError
from ...learn.cluster import ward
from ...progress import Advance
from .base import Features, Floats, Inputs, Labels, PatchRival, Tokens, image_key, on_grid, unit

COMPARED = 16  # images in one matrix product


class AnomalyClustering(PatchRival):
    """Anomaly Clustering with unsupervised weights.

    Parameters
    ----------
    temperature : τ, in standard deviations of the patch distances over the whole set
    weights : where α comes from. `own`: the method's distances, whatever was given; `given`: the maps in the place of the
        distances, or the share of each patch that the mask covers (all patches alike where it is empty). None takes `own`,
        the method as published, unless masks are given: these are the truth in our tables, and then the rival is to have
        it too, as in the paper's table of ground-truth masks
    block : of the tokens, None for the last but one; size : see `PatchRival`
    max_references : at most so many images, a random choice by content, are compared with (None: 1000),
        which bounds time and memory

    Examples
    --------
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> AnomalyClustering(2, backbone="tiny", size=32).fit(gather(images)).labels_.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    name: ClassVar[str] = "anomaly-clustering"
    looks_at = "masks"
    default_references: ClassVar[int] = 1000

    def __init__(
        self,
        n_classes: int,
        *,
        temperature: float = 0.25,
        weights: Literal["own", "given"] | None = None,
        block: int | None = None,
        max_references: int | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, **settings)
        self.temperature, self.weights, self.block = temperature, weights, block
        self.max_references = self.default_references if max_references is None else max_references

    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        check_least(2, max_references=self.max_references)
        if not self.temperature > 0:
            raise SettingsError(f"temperature must be above 0, but got {self.temperature}.")
        if self.weights not in (None, "own", "given"):
            raise SettingsError(f"weights must be own, given or None, but got {self.weights!r}.")
        if self.weights == "given" and inputs.given is None:
            raise DataError("weights='given' needs maps or masks: give one for each image.")
        with self._timed("tokens"):
            tokens = self._tokens(inputs.cache, inputs.images)
        with self._timed("weights"):
            alpha = self._alpha(inputs, tokens)
        features = np.stack([weighted_embedding(row, unit(z)) for row, z in zip(alpha, tokens, strict=True)])
        with self._timed("clusters"):
            labels = ward(features, self.n_classes)
        return features, labels

    def _blocks(self) -> list[int]:
        count = self._vit.n_blocks
        block = max(count - 2, 0) if self.block is None else self.block
        if not 0 <= block < count:
            raise SettingsError(f"block must be from 0 to {count - 1}, but got {block}.")
        return [block]

    def _alpha(self, inputs: Inputs, tokens: Tokens) -> Floats:
        weights = self.weights or ("given" if inputs.given == "masks" else "own")
        if weights == "own":
            return softmax_weights(self._distances(inputs, tokens), self.temperature)
        values = on_grid(inputs.images, self._grid)
        return covered_weights(values) if inputs.given == "masks" else softmax_weights(values, self.temperature)

    def _distances(self, inputs: Inputs, tokens: Tokens) -> Floats:
        """(N, P), kept: they do not depend on the seed or on τ."""

        def compute() -> Floats:
            with self.progress.task("Patch distances", len(tokens)) as advance:
                return mean_nearest_distances(tokens, self.max_references, on_image=advance)

        key = [image_key(inputs.images), self._network_key, self.size, self._blocks(), self.max_references]
        return inputs.cache.array("mutual-distances", key, compute)


class SemiSupervisedAnomalyClustering(AnomalyClustering):
    """Anomaly Clustering with weights by the distance to normal images, which `fit` takes as the folder `normal`.

    Parameters are those of `AnomalyClustering`; the references are normal images, 400 unless told.
    """

    name: ClassVar[str] = "anomaly-clustering-semi"
    uses_normal: ClassVar[bool] = True
    default_references: ClassVar[int] = 400

    def _distances(self, inputs: Inputs, tokens: Tokens) -> Floats:
        if not inputs.normal:
            raise DataError(
                f"{self.name} weighs patches by their distance to normal images: give their folder as normal."
            )
        chosen = inputs.normal[: self.max_references]
        known = self._tokens(inputs.cache, chosen)
        key = [image_key(inputs.images), image_key(chosen), self._network_key, self.size, self._blocks()]
        return inputs.cache.array(
            "normal-distances", key, lambda: self._distances_to(unit(known).flatten(0, 1), tokens)
        )


@torch.inference_mode()
def mean_nearest_distances(tokens: Tokens, max_references: int, *, on_image: Advance) -> Floats:
    """Distance of each patch to its nearest patch of another image, the mean over all other images that are references.

    The first `max_references` images are references. Where both images are, one matrix product serves both directions.

    Parameters
    ----------
    tokens : (N, P, C), scaled to length 1 here

    Returns
    -------
    (N, P) float32
    """
    count = min(len(tokens), max_references)
    known = unit(tokens[:count])  # (R, P, C)
    totals = torch.zeros(tokens.shape[:2])
    for i in range(len(tokens)):
        is_reference = i < count
        patches = known[i] if is_reference else unit(tokens[i])
        for start in range(i + 1 if is_reference else 0, count, COMPARED):
            others = known[start : min(start + COMPARED, count)]
            cosines = (others.flatten(0, 1) @ patches.T).unflatten(0, others.shape[:2])  # (B, P of the others, P)
            totals[i] += _chord(cosines.amax(dim=1)).sum(dim=0)
            if is_reference:
                totals[start : start + len(others)] += _chord(cosines.amax(dim=2))
        on_image()
    totals[:count] /= max(count - 1, 1)
    totals[count:] /= count
    return totals.numpy()


def _chord(cosines: Tensor) -> Tensor:
    """Euclidean distance of unit vectors."""
    return (2 - 2 * cosines).clamp(min=0).sqrt()


def softmax_weights(distances: Floats, temperature: float) -> Floats:
    """α (N, P) ∝ exp(d / (τ σ)), each row summing to 1; σ is the standard deviation of all distances.

    Examples
    --------
    >>> softmax_weights(np.float32([[0, 2]]), temperature=1.0).round(3).tolist()  # σ = 1
    [[0.11900000274181366, 0.8809999823570251]]
    """
    spread = float(distances.std())
    scaled = torch.from_numpy(distances) / (temperature * spread) if spread > 0 else torch.zeros(distances.shape)
    return scaled.softmax(dim=1).numpy()


def covered_weights(shares: Floats) -> Floats:
    """α (N, P) in proportion to the share of each patch that the mask covers; all alike where the mask is empty.

    Examples
    --------
    >>> covered_weights(np.float32([[0, 1, 3], [0, 0, 0]]))[0].tolist()
    [0.0, 0.25, 0.75]
    """
    shares = np.where(shares.any(axis=1, keepdims=True), shares, np.float32(1))
    out: Floats = shares / shares.sum(axis=1, keepdims=True)
    return out


def weighted_embedding(alpha: Floats, embeddings: Tensor) -> Floats:
    """Σ α_m z_m: (P,) and (P, C) → (C,)."""
    out: Floats = (torch.from_numpy(alpha) @ embeddings).numpy()
    return out
