"""k-means that holds labelled points in the clusters of their classes, as GCD ends with."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...learn.cluster import MOST_STEPS, RESTARTS, squared_distances

Floats = npt.NDArray[np.float32]
TOLERANCE = 1e-4  # squared sum of the centres' moves that ends the iteration


def semi_supervised_kmeans(
    features: Floats,
    known: Floats,
    known_labels: npt.NDArray[np.int64],
    n_new: int,
    seed: int,
    *,
    restarts: int = RESTARTS,
) -> Floats:
    """k-means in which labelled points stay in the clusters of their classes.

    The centres of the known classes start at their means, the new ones by k-means++ among the unlabelled points; in each
    step the unlabelled points go to the nearest of all centres, and every centre to the mean of its points. Of all restarts
    the one with the smallest sum of squared distances over all points is taken.

    Parameters
    ----------
    features : (N, d) unlabelled; known : (M, d) labelled, known_labels : (M,) int 0 … B−1; both may be empty
    n_new : clusters besides the B known ones

    Returns
    -------
    (B + n_new, d) centres, those of the known classes first

    Examples
    --------
    >>> points = np.float32([[0.0], [1.0], [9.0]])
    >>> semi_supervised_kmeans(points, np.float32([[10.0]]), np.array([0]), 1, seed=0).tolist()
    [[9.5], [0.5]]
    """
    rng = np.random.default_rng(seed)
    n_base = int(known_labels.max()) + 1 if len(known_labels) else 0
    points = np.concatenate([known, features])
    best, least = np.empty((0, features.shape[1]), np.float32), np.inf
    for _ in range(restarts):
        means = [known[known_labels == label].mean(axis=0) for label in range(n_base)]
        centres = _plus_plus(features, means, n_base + n_new, rng)
        for _ in range(MOST_STEPS):
            labels = np.concatenate([known_labels, squared_distances(features, centres).argmin(axis=1)])
            moved = centres.copy()  # a cluster without members stays where it is
            for label in np.unique(labels):
                moved[label] = points[labels == label].mean(axis=0)
            shift = np.linalg.norm(moved - centres, axis=1).sum() ** 2
            centres = moved
            if shift < TOLERANCE:
                break
        inertia = squared_distances(features, centres).min(axis=1).sum() + ((known - centres[known_labels]) ** 2).sum()
        if inertia < least:
            best, least = centres, inertia
    return best


def _plus_plus(points: Floats, means: list[Floats], count: int, rng: np.random.Generator) -> Floats:
    """Centres (count, d): the means, then points drawn in proportion to their squared distance to the nearest centre."""
    centres = list(means)
    while len(centres) < count:
        chance = np.ones(len(points))
        if centres:
            chance = squared_distances(points, np.stack(centres)).min(axis=1).astype(np.float64)
        total = chance.sum()
        centres.append(points[rng.choice(len(points), p=chance / total if total > 0 else None)])
    return np.stack(centres)
