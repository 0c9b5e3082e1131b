"""Which regions to look at next: uncertain ones, unlike those that were decided, a few at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
NEAREST = 5  # regions that a region must be like, or it would teach about itself only
LEAST_CLASS = 3  # regions of a class that is worth a look as a whole
LEAST = 0.1  # weight of a region whose class is certain


def next_regions(
    features: Floats,
    probabilities: Floats,
    decided: npt.NDArray[np.bool_],
    images: npt.NDArray[np.int64],
    n: int,
) -> list[int]:
    """Places of regions in the order in which a person should look at them, one an image.

    First one of each class of which none was decided, the one with the largest mean cosine with its class, the largest class
    first: it tells what a whole class is, or that it is no class of its own. Then each time the region with the largest
    product of three: how uncertain its class is, 1 minus the difference of its two largest probabilities; how far it lies
    from all that were decided or taken before, 1 − cosine; and how much it is like others, its mean cosine with the nearest
    five.

    Parameters
    ----------
    features : (R, D) unit vectors; probabilities : (R, K), rows of NaN where no class is known
    decided : (R,) bool, regions that a person has placed; images : (R,) int, which image each is of

    Examples
    --------
    >>> x = np.float32([[1, 0], [0.9, 0.44], [0, 1], [0.7, 0.71]])
    >>> p = np.array([[1, 0], [0.9, 0.1], [0, 1], [0.5, 0.5]])
    >>> next_regions(x, p, np.array([True, False, False, False]), np.arange(4), 2)
    [3, 2]
    """
    if not len(features):
        return []
    first = np.sort(np.nan_to_num(probabilities, nan=0.0), axis=1)
    gap = first[:, -1] - (first[:, -2] if first.shape[1] > 1 else 0.0)
    uncertain = LEAST + (1 - LEAST) * (1 - gap)
    cosines = (features @ features.T).astype(np.float64)
    np.fill_diagonal(cosines, -1)
    near = np.sort(cosines, axis=1)[:, -min(NEAREST, len(features) - 1) :].mean(axis=1) if len(features) > 1 else 0.0
    typical = np.clip((near + 1) / 2, 0.0, 1.0)
    np.fill_diagonal(cosines, 1)
    apart = 1 - cosines[:, decided].max(axis=1) if decided.any() else np.full(len(features), 2.0)
    free = ~np.isin(images, images[decided])
    chosen: list[int] = []
    waiting = _speakers(cosines, probabilities, decided, free)
    while len(chosen) < n and free.any():
        worth = np.where(free, uncertain * np.maximum(apart, 1e-9) * typical, -1.0)
        place = waiting.pop(0) if waiting else int(worth.argmax())
        if not free[place]:  # another region of its image was taken
            continue
        chosen.append(place)
        free &= images != images[place]
        apart = np.minimum(apart, 1 - cosines[:, place])
    return chosen


def _speakers(
    cosines: Floats, probabilities: Floats, decided: npt.NDArray[np.bool_], free: npt.NDArray[np.bool_]
) -> list[int]:
    """The region that is most like its class, for each class of some size without a decided one, the largest first."""
    known = np.isfinite(probabilities).all(axis=1)
    of_class = np.where(known, np.nan_to_num(probabilities).argmax(axis=1), -1)
    found = []
    for label in np.unique(of_class[known & free]):
        own = np.flatnonzero(of_class == label)
        if len(own) < LEAST_CLASS or decided[own].any():
            continue
        best = own[np.where(free[own], cosines[np.ix_(own, own)].sum(axis=1), -2.0).argmax()]
        found.append((-len(own), int(label), int(best)))
    return [place for *_, place in sorted(found)]
