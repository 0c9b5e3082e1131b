"""How far a region lies from all that a run has seen: the score by which new kinds of defect are told from known ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
NEIGHBOURS = 3
SAME = 1e-5  # 1 − cosine of a region with itself, after rounding to float16
BLOCK = 1024  # rows whose distances are held at once
MOST_REFERENCES = 20_000  # of about 2 kB each
LEAST_LIMIT = 1e-3  # rounding to 16 bits, or on another machine, moves a region by less


@dataclass(frozen=True)
class UnknownScore:
    """Distance to the nearest regions of a run, on a scale where 0.5 is as far off as a known region ever should be.

    reference : (M, D) unit features of the run's regions
    limit : distance from which on a region is unknown; infinite where nothing can be unknown

    The distance is the geometric mean of 1 − cosine to the nearest few references, and 0 where one of them is the same:
    a region of the run itself is never unknown to it, as long as it is one of the references.
    """

    reference: Floats
    limit: float

    def __call__(self, features: Floats) -> npt.NDArray[np.float64]:
        """Unit features (R, D) → scores (R,) in 0 … 1; above 0.5 = unknown.

        Examples
        --------
        >>> known = UnknownScore(np.float32([[1, 0], [0.8, 0.6]]), limit=0.2)
        >>> known(np.float32([[1, 0], [0, 1]])).round(2).tolist()
        [0.0, 0.76]
        """
        if not np.isfinite(self.limit) or not len(self.reference):
            return np.zeros(len(features))
        distance = neighbour_distance(features, self.reference)
        score: npt.NDArray[np.float64] = distance / (distance + self.limit)
        return score


def fit_unknown(
    features: Floats, images: npt.NDArray[np.int64], false_rate: float
) -> tuple[UnknownScore, npt.NDArray[np.float64]]:
    """The score that calls a share `false_rate` of known regions unknown, and the score of each region of the run.

    Each region is measured against the regions of all other images, as a new one of its kind would be; the limit is the
    distance that only a share `false_rate` of them exceeds.

    Parameters
    ----------
    features : (R, D) unit vectors; images : (R,) int, which image each region is of

    Returns
    -------
    The score, and (R,) in 0 … 1: how far each region lies from the others.

    Examples
    --------
    >>> x = np.float32([[1, 0], [0.96, 0.28], [0.96, -0.28], [0, 1]])
    >>> unknown, own = fit_unknown(x, np.arange(4), false_rate=0.25)
    >>> own.argmax(), unknown(x).max() < 0.5
    (np.int64(3), np.True_)
    """
    chosen = np.arange(len(features))
    if len(features) > MOST_REFERENCES:
        chosen = np.linspace(0, len(features) - 1, MOST_REFERENCES).astype(np.int64)
    stored = features[chosen].astype(np.float16).astype(np.float32)  # as a model file keeps it
    if len(features) < 2 or not false_rate:
        return UnknownScore(stored, np.inf), np.zeros(len(features))
    group = images if len(np.unique(images)) > 1 else np.arange(len(features))
    own = neighbour_distance(features, features[chosen], (group, group[chosen]))
    unknown = UnknownScore(stored, max(float(np.quantile(own, 1 - false_rate)), LEAST_LIMIT))
    return unknown, own / (own + unknown.limit)


def neighbour_distance(
    features: Floats, reference: Floats, apart: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]] | None = None
) -> npt.NDArray[np.float64]:
    """Geometric mean of 1 − cosine of features (R, D) to the nearest of the references (M, D), (R,).

    apart : (R,) and (M,) int: references with the same number as a feature don't count for it.
    """
    out = np.empty(len(features))
    for start in range(0, len(features), BLOCK):
        rows = slice(start, start + BLOCK)
        distance = np.clip(1 - features[rows] @ reference.T, 1e-7, None).astype(np.float64)
        if apart is not None:
            distance[apart[0][rows, None] == apart[1]] = np.inf
        count = min(NEIGHBOURS, distance.shape[1])
        nearest = np.partition(distance, count - 1, axis=1)[:, :count]
        there = np.isfinite(nearest)
        itself = nearest.min(axis=1) < SAME
        logs = np.log(nearest, where=there, out=np.zeros_like(nearest))
        out[rows] = np.exp(logs.sum(axis=1) / np.maximum(there.sum(axis=1), 1)) * ~itself
    return out
