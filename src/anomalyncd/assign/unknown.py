"""How far a region lies from all that a run has seen: the score by which new kinds of defect are told from known ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..large import Lazy, Rows, is_large, near
from ..large import blocks as pieces

Floats = npt.NDArray[np.float32]
Distances = npt.NDArray[np.float64]
NEIGHBOURS = 3
SAME = 1e-5  # 1 − cosine of a region with itself, after rounding to float16
BLOCK = 1024  # rows whose distances are held at once
MOST_REFERENCES = 20_000  # of about 3 kB each
LEAST = 1e-3  # distance: rounding to 16 bits, or on another machine, moves a region by less
LOCAL = 0.25  # how much it counts that neighbours are themselves far from each other: 0 not at all, 1 in full
LARGEST = 20.0  # logarithm of a limit: by two distances, nothing is too far off
LEAST_DEVIATION = 0.2  # of the logarithms of a few distances, which may be alike by chance


@dataclass(frozen=True)
class UnknownScore:
    """Distance to the nearest regions of a run, on a scale where 0.5 is as far off as a known region ever should be.

    mean : (B, C) that is taken off the blocks of a region; weights : (B,) of the blocks, sum 1
    reference : (M, B·C) unit vectors of the run's regions
    spread : (M,) how far each of them lies from those of other images
    limit : distance from which on a region is unknown; infinite where nothing can be unknown

    The distance is the geometric mean of 1 − cosine to the nearest few references, over the fourth root of their spread:
    where known regions of a kind differ much, a new one may too. It is 0 where one of them is the same: a region of the
    run itself is never unknown to it, as long as it is one of the references.
    """

    mean: Floats
    weights: Floats
    reference: Floats
    spread: Distances
    limit: float

    def __call__(self, blocks: Rows) -> Distances:
        """Blocks (R, B, C) of regions → scores (R,) in 0 … 1; above 0.5 = unknown.

        Examples
        --------
        >>> known = UnknownScore(
        ...     np.zeros((1, 2), np.float32), np.ones(1, np.float32), np.float32([[1, 0], [0.8, 0.6]]), np.ones(2), limit=0.2
        ... )
        >>> known(np.float32([[[1, 0]], [[0, 1]]])).round(2).tolist()
        [0.0, 0.76]
        """
        if not np.isfinite(self.limit) or not len(self.reference):
            return np.zeros(len(blocks))
        distance = np.empty(len(blocks))
        for start in range(0, len(blocks), BLOCK):
            rows = slice(start, start + BLOCK)
            features = joined(blocks[rows] - self.mean, self.weights)
            nearest, which = _nearest(1 - features @ self.reference.T)
            distance[rows] = _typical(nearest, self.spread[which])
        score: Distances = distance / (distance + self.limit)
        return score

    def tensors(self) -> dict[str, npt.NDArray[np.floating]]:
        """All arrays, for the model file."""
        return {
            "unknown.mean": self.mean,
            "unknown.weights": self.weights,
            "unknown.reference": self.reference.astype(np.float16),
            "unknown.spread": self.spread.astype(np.float32),
        }

    def settings(self) -> dict[str, Any]:
        """The rest of it."""
        return {"limit": self.limit if np.isfinite(self.limit) else None}

    @classmethod
    def restore(cls, tensors: Mapping[str, npt.NDArray[np.floating]], settings: Mapping[str, Any]) -> UnknownScore:
        """The inverse of `tensors` and `settings`."""
        mean, weights, reference = (
            tensors[f"unknown.{name}"].astype(np.float32) for name in ("mean", "weights", "reference")
        )
        limit = np.inf if settings["limit"] is None else float(settings["limit"])
        spread = tensors["unknown.spread"].astype(np.float64)
        if spread.shape != (len(reference),) or mean.ndim != 2 or weights.shape != (len(mean),):
            raise ValueError("the arrays of the unknown score do not fit each other")
        return cls(mean, weights, reference, spread, limit)


def fit_unknown(
    blocks: Rows,
    weights: Floats,
    images: npt.NDArray[np.int64],
    false_rate: float,
    *,
    center: bool = True,
    seed: int = 0,
) -> tuple[UnknownScore, Distances]:
    """The score that calls a share `false_rate` of known regions unknown, and the score of each region of the run.

    Each region is measured against the regions of all other images, as a new one of its kind would be, and the mean is
    taken without its image too: that of few regions is drawn towards each of them. Of very many regions (`large`) those near
    each other are measured, and the mean is of all.

    Parameters
    ----------
    blocks : (R, B, C) vectors of regions, nothing taken off; weights : (B,) of the blocks, sum 1
    images : (R,) int, which image each region is of
    center : whether the mean of the regions is taken off
    seed : for the choice of what is compared, of very many regions

    Returns
    -------
    The score, and (R,) in 0 … 1: how far each region lies from the others.

    Examples
    --------
    >>> x = np.float32([[1, 0], [0.96, 0.28], [0.96, -0.28], [0, 1]])[:, None]
    >>> unknown, own = fit_unknown(x, np.ones(1, np.float32), np.arange(4), false_rate=0.25, center=False)
    >>> own.argmax(), unknown(x).max() < 0.5
    (np.int64(3), np.True_)
    """
    mean = mean_of(blocks) if center and len(blocks) > 1 else np.zeros(blocks.shape[1:], np.float32)
    chosen = np.arange(len(blocks))
    if len(blocks) > MOST_REFERENCES:
        chosen = np.linspace(0, len(blocks) - 1, MOST_REFERENCES).astype(np.int64)
    stored = joined(blocks[chosen] - mean, weights).astype(np.float16).astype(np.float32)  # as a model file keeps it
    if len(blocks) < 2 or not false_rate:
        return UnknownScore(mean, weights, stored, np.ones(len(stored)), np.inf), np.zeros(len(blocks))
    group = images if len(np.unique(images)) > 1 else np.arange(len(blocks))
    if is_large(blocks):
        unit = Lazy(lambda rows: joined(blocks[rows] - mean, weights), (len(blocks), stored.shape[1]))
        nearest, which = _others(unit, stored, group, chosen, seed)
    else:
        nearest, which = _left_out(blocks[:] - mean, weights, group, chosen, center=center)
    spread = np.maximum(_typical(nearest, np.ones_like(nearest)), LEAST)[chosen]
    own = _typical(nearest, spread[which])
    limit = limit_for(own, false_rate, LEAST ** (1 - LOCAL))
    return UnknownScore(mean, weights, stored, spread, limit), own / (own + limit)


def limit_for(distances: npt.ArrayLike, rate: float, least: float) -> float:
    """The distance that the next one of the same kind exceeds with the chance `rate`; smaller ones than `least` are noise.

    The k-th of n distances is exceeded with the chance 1 − k/(n + 1). Where they are too few for that, even the largest is
    exceeded too often: then by Student's t for their logarithms, though no less than the largest.

    Examples
    --------
    >>> limit_for(np.arange(1, 100), 0.05, 1e-3), round(limit_for([1, 2, 3], 0.05, 1e-3), 1)
    (95.0, 11.8)
    """
    values = np.maximum(np.asarray(distances, np.float64), least)
    count = len(values)
    if (count + 1) * rate >= 1:
        return float(np.quantile(values, 1 - rate, method="weibull"))
    from scipy.special import stdtrit  # an exported run does without scipy, and fits nothing

    logs = np.log(values)
    deviation = max(float(logs.std(ddof=1)), LEAST_DEVIATION) * np.sqrt(1 + 1 / count)
    return float(max(values.max(), np.exp(min(logs.mean() + stdtrit(count - 1, 1 - rate) * deviation, LARGEST))))


def joined(blocks: Floats, weights: Floats) -> Floats:
    """Blocks (R, B, C) as one vector of length 1 each: (R, B·C)."""
    length = np.linalg.norm(blocks, axis=-1, keepdims=True)
    unit = np.divide(blocks, length, out=np.zeros_like(blocks), where=length > 0)
    weighted: Floats = (unit * np.sqrt(weights)[:, None]).astype(np.float32)
    return weighted.reshape(len(blocks), blocks.shape[1] * blocks.shape[2])


def mean_of(blocks: Rows) -> Floats:
    """(R, B, C) → (B, C); of very many rows it is summed piece by piece.

    Examples
    --------
    >>> mean_of(np.float32([[[1, 2]], [[3, 6]]])).tolist()
    [[2.0, 4.0]]
    """
    if not is_large(blocks):
        return np.asarray(blocks[:].mean(axis=0))
    total = np.zeros(blocks.shape[1:])
    for rows in pieces(len(blocks)):
        total += blocks[rows].sum(axis=0, dtype=np.float64)
    return np.asarray(total / len(blocks), np.float32)


def _others(
    unit: Rows, references: Floats, images: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64], seed: int
) -> tuple[Distances, npt.NDArray[np.int64]]:
    """As `_nearest`, of each region (R, D) to the references (M, D) of other images, which are the `chosen` regions."""
    nearest = np.full((len(unit), NEIGHBOURS), np.inf)
    which = np.zeros((len(unit), NEIGHBOURS), np.int64)
    for rows, others in near(unit, references, seed):
        distance = 1 - unit[rows] @ references[others].T
        distance[images[rows][:, None] == images[chosen[others]]] = np.inf
        found, columns = _nearest(distance)
        nearest[rows], which[rows] = found, np.arange(len(references))[others][columns]
    return nearest, which


def _left_out(
    centred: Floats, weights: Floats, images: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64], *, center: bool
) -> tuple[Distances, npt.NDArray[np.int64]]:
    """As `_nearest`, of each region (R, B, C) to the `chosen` ones of other images, all without the mean of these.

    Without an image, the mean moves by −δ, where δ is the sum of the image's centred regions over the number of the others:
    so each vector v becomes v + δ, and products follow from those with v and δ.
    """
    _, place = np.unique(images, return_inverse=True)
    others = len(images) - np.bincount(place)
    sums = np.zeros((len(others), *centred.shape[1:]), np.float32)
    if center:
        np.add.at(sums, place, centred)
    moves = sums / others[:, None, None]
    reference, found = centred[chosen], []
    squares = np.square(reference).sum(axis=-1)  # (M, B)
    for start in range(0, len(centred), BLOCK):
        rows = slice(start, start + BLOCK)
        move = moves[place[rows]]  # (r, B, C)
        own = centred[rows] + move
        cosine = np.zeros((len(own), len(reference)), np.float32)
        for block, weight in enumerate(weights):
            a, b, v = own[:, block], move[:, block], reference[:, block]
            product = a @ v.T + (a * b).sum(axis=1)[:, None]
            square = squares[:, block] + 2 * b @ v.T + (b * b).sum(axis=1)[:, None]
            length = np.linalg.norm(a, axis=1)[:, None] * np.sqrt(np.maximum(square, 0))
            cosine += weight * np.divide(product, length, out=np.zeros_like(product), where=length > 0)
        distance = 1 - cosine
        distance[place[rows, None] == place[chosen]] = np.inf
        found.append(_nearest(distance))
    nearest, which = (np.concatenate(parts) for parts in zip(*found, strict=True))
    return nearest, which


def _nearest(distance: Floats) -> tuple[Distances, npt.NDArray[np.int64]]:
    """The smallest few of the distances (R, M), and their columns: (R, k) each; infinite ones count as none."""
    count = min(NEIGHBOURS, distance.shape[1])
    which = np.argpartition(distance, count - 1, axis=1)[:, :count]
    return np.clip(np.take_along_axis(distance, which, axis=1), 1e-7, None).astype(np.float64), which


def _typical(nearest: Distances, spread: Distances) -> Distances:
    """Geometric mean (R,) of distances (R, k) over the fourth root of the spread (R, k) there; 0 where one is the same."""
    there = np.isfinite(nearest)
    logs = np.where(there, np.log(np.where(there, nearest, 1)) - LOCAL * np.log(spread), 0)
    itself = nearest.min(axis=1) < SAME
    typical: Distances = np.exp(logs.sum(axis=1) / np.maximum(there.sum(axis=1), 1)) * ~itself
    return typical
