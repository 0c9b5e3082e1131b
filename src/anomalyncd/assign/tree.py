"""Fewer classes or more: which of them would become one next, and which one would fall into two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.spatial.distance import pdist, squareform

from ..large import Rows, is_large, sums_by

Labels = npt.NDArray[np.int64]
Key = tuple[str, int]  # image, region
MOST_OF_A_CLASS = (
    500  # regions by which it is told how a class would fall into two: Ward's room grows with their square
)
EXAMPLES = 6  # regions that stand for a part


def class_tree(features: Rows, labels: Labels, keys: Sequence[Key]) -> dict[str, Any]:
    """The tree of the classes by Ward's method: above them how they would be joined, below them how they would be divided.

    Each step costs, or gains, a share of the spread of all regions: n_a n_b / (n_a + n_b) · |m_a − m_b|² of two groups of n
    regions with the mean m, divided by the sum of the squared distances to the mean of all.

    Parameters
    ----------
    features : (R, D) unit vectors; labels : (R,) their classes, of which those above 0 are in the tree
    keys : (image, region) of each

    Returns
    -------
    The content of tree.json: `merges`, in their order until one class is left, each with the `classes` of the two groups
    that become one and the `share` that is lost; and `splits`, the likeliest first, each with the `class`, the `share` that
    is gained, and two `parts`: how many regions, and `examples`, the nearest to its middle.

    Examples
    --------
    >>> x = np.float32([[1, 0], [1, 0], [0.8, 0.6], [0.8, 0.6], [0, 1], [0, 1]])
    >>> tree = class_tree(x, np.array([1, 1, 2, 2, 3, 3]), [(f"{i}.png", 0) for i in range(6)])
    >>> [merge["classes"] for merge in tree["merges"]], tree["splits"]
    ([[[1], [2]], [[3], [1, 2]]], [])
    """
    rows = {int(label): np.flatnonzero(labels == label) for label in np.unique(labels[labels > 0])}
    if not rows:
        return {"merges": [], "splits": []}
    sizes = np.array([len(own) for own in rows.values()], np.float64)
    if is_large(features):
        place = np.searchsorted(list(rows), np.maximum(labels, 0)) - (labels <= 0) * (len(rows) + 1)
        means = sums_by(features, np.maximum(place, -1), len(rows)) / sizes[:, None]
    else:
        means = np.stack([features[own].mean(axis=0, dtype=np.float64) for own in rows.values()])
    middle = sizes @ means / sizes.sum()
    spread = max(float(sizes.sum() * (1 - middle @ middle)), 1e-12)  # of unit vectors, Σ|x − m|² = Σ1 − n|m|²
    splits = [found for label, own in rows.items() if (found := _split(features, label, own, keys, spread))]
    merges = _merges(list(rows), means, sizes, spread)
    return {"merges": merges, "splits": sorted(splits, key=lambda split: -split["share"])}


def _merges(
    classes: list[int], means: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64], spread: float
) -> list[dict[str, Any]]:
    """Ward's method on the means (K, D) of the classes, each as heavy as it has regions (K,)."""
    groups = [[label] for label in classes]
    merges = []
    while len(groups) > 1:
        lost = sizes * sizes[:, None] / (sizes + sizes[:, None]) * squareform(pdist(means, "sqeuclidean"))
        np.fill_diagonal(lost, np.inf)
        a, b = np.unravel_index(lost.argmin(), lost.shape)
        merges.append({"classes": [groups[a], groups[b]], "share": round(float(lost[a, b] / spread), 4)})
        joined = (sizes[a] * means[a] + sizes[b] * means[b]) / (sizes[a] + sizes[b])
        rest = [place for place in range(len(groups)) if place not in (a, b)]
        groups = [*(groups[place] for place in rest), groups[a] + groups[b]]
        means, sizes = np.vstack([means[rest], joined]), np.append(sizes[rest], sizes[a] + sizes[b])
    return merges


def _split(
    features: Rows, label: int, rows: npt.NDArray[np.int64], keys: Sequence[Key], spread: float
) -> dict[str, Any] | None:
    """How a class would fall into two; None where its regions are all the same."""
    some = rows[np.linspace(0, len(rows) - 1, min(len(rows), MOST_OF_A_CLASS)).astype(np.int64)]
    points = features[some].astype(np.float64)
    if len(some) < 2 or (points == points[0]).all():
        return None
    last = to_tree(linkage(points, "ward"))  # its two sides, also where the merges before it cost no less
    sides = sorted(
        (np.sort(side.pre_order()) for side in (last.left, last.right)), key=lambda side: (-len(side), side[0])
    )
    means = [points[side].mean(axis=0) for side in sides]
    gain = len(sides[0]) * len(sides[1]) / len(some) * ((means[0] - means[1]) ** 2).sum()
    larger = round(len(rows) * len(sides[0]) / len(some))
    parts = []
    for side, mean, size in zip(sides, means, (larger, len(rows) - larger), strict=True):
        nearest = np.argsort(((points[side] - mean) ** 2).sum(axis=1), kind="stable")[:EXAMPLES]
        parts.append({"n_regions": size, "examples": [list(keys[row]) for row in some[side[nearest]]]})
    return {"class": label, "share": round(float(gain * len(rows) / len(some) / spread), 4), "parts": parts}
