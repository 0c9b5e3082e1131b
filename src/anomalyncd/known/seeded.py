"""Clusters that respect what is known: labelled regions stay in their kinds, and the rest is found around them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import linkage, to_tree
from scipy.optimize import linear_sum_assignment

from ..large import Rows, at, blocks, is_large, near, sample
from ..learn.cluster import (
    MOST_IN_TREE,
    MOST_STEPS,
    by_size,
    centres,
    check_enough,
    nearest_centre,
    squared_distances,
    ward_kmeans,
)

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
STRAYS = 0.1  # chance that an example of a kind lies among another one
STRAYS_IN_THE_MIDDLE = 0.03  # and there in the half that is nearest to the middle
AGAINST_TWO = 3  # odds, before a look at the examples, that a cluster is one kind and not two
LEAST_SIDE = 3  # regions of such another kind, at least
MOST_STEPS_OF_MANY = 10  # of k-means, where each takes a look at very many regions
NEAREST = 5  # regions that a label is compared with


@dataclass(frozen=True)
class Marked:
    """What is known of the regions of a run.

    names : of the known kinds of defect, each of which has a region
    kinds : (R,) int, the known kind of a region, −1 where it is not known
    normal : (R,) bool, regions that are known to be false alarms
    suspects : filled by learning: place of a region whose label looks wrong → cluster that it seems to be of
    """

    names: list[str]
    kinds: Labels
    normal: npt.NDArray[np.bool_]
    suspects: dict[int, int] = field(default_factory=dict)


def seeded_clusters(features: Rows, known: Labels, n_clusters: int, seed: int) -> Labels:
    """Ward's method and then k-means, in which labelled points stay in the clusters of their kinds.

    The examples of a kind are one cluster from the beginning, and two kinds never become one. Of many points all that are
    labelled, and a random sample of the others, make the tree.

    Parameters
    ----------
    features : (R, D) unit vectors
    known : (R,) int, kind 0 … B−1 of labelled points, −1 for all others; every kind has an example
    n_clusters : kinds in all, known ones counted

    Returns
    -------
    (R,) int: the known kinds first, then the others, the largest first

    Examples
    --------
    >>> x = np.float32([[1, 0], [0.9, 0.4], [0, 1], [-1, 0.1]])
    >>> seeded_clusters(x, np.array([0, -1, 1, -1]), 3, seed=0).tolist()
    [0, 0, 1, 2]
    """
    n_known = int(known.max(initial=-1)) + 1
    check_enough(len(features), n_clusters)
    places = np.arange(len(features))
    if len(features) > MOST_IN_TREE:
        free = np.flatnonzero(known < 0)
        room = max(MOST_IN_TREE - (known >= 0).sum(), n_clusters)
        some = np.random.default_rng(seed).choice(free, min(room, len(free)), replace=False)
        places = np.sort(np.concatenate([np.flatnonzero(known >= 0), some]))
    tree = _seeded_ward(features[places], known[places], n_known, n_clusters)
    start = centres(features[places], tree, n_clusters)
    labels = np.full(len(features), -1, np.int64)
    for _ in range(MOST_STEPS_OF_MANY if is_large(features) else MOST_STEPS):
        nearest = (
            nearest_centre(features, start)
            if is_large(features)
            else squared_distances(features[:], start).argmin(axis=1)
        )
        moved = np.where(known >= 0, known, nearest)
        if (moved == labels).all():
            break
        labels = moved
        own = centres(features, labels, n_clusters)
        start = np.where(own.any(axis=1, keepdims=True), own, start)  # a cluster without members stays where it is
    new = labels >= n_known
    labels[new] = n_known + by_size(labels[new] - n_known, n_clusters - n_known) if new.any() else 0
    return labels


def _seeded_ward(features: Floats, known: Labels, n_known: int, n_clusters: int) -> Labels:
    """Ward's clusters (R,), those of the known kinds first; see `seeded_clusters`."""
    free = np.flatnonzero(known < 0)
    groups = [[*np.flatnonzero(known == kind)] for kind in range(n_known)] + [[place] for place in free]
    means = np.stack([features[group].mean(axis=0, dtype=np.float64) for group in groups])
    sizes = np.array([len(group) for group in groups], np.float64)
    squared = (means**2).sum(axis=1)
    cost = np.maximum(squared[:, None] + squared - 2 * means @ means.T, 0)
    cost *= sizes[:, None] * sizes / (sizes[:, None] + sizes)
    np.fill_diagonal(cost, np.inf)
    cost[:n_known, :n_known] = np.inf
    nearest = cost.argmin(axis=1)
    least = cost[np.arange(len(groups)), nearest]
    alive = np.ones(len(groups), bool)
    for _ in range(len(groups) - n_clusters):
        first = int(least.argmin())
        a, b = (
            min(first, int(nearest[first])),
            max(first, int(nearest[first])),
        )  # known kinds have the lowest places, and keep them
        means[a] = (sizes[a] * means[a] + sizes[b] * means[b]) / (sizes[a] + sizes[b])
        sizes[a] += sizes[b]
        groups[a] += groups[b]
        alive[b] = False
        cost[b], cost[:, b], least[b] = np.inf, np.inf, np.inf
        row = sizes * sizes[a] / (sizes + sizes[a]) * ((means - means[a]) ** 2).sum(axis=1)
        row[~alive] = row[a] = np.inf
        if a < n_known:
            row[:n_known] = np.inf
        cost[a], cost[:, a] = row, row
        stale = np.flatnonzero(alive & ((nearest == a) | (nearest == b)))
        for place in {a, *stale.tolist()}:
            nearest[place] = cost[place].argmin()
            least[place] = cost[place, nearest[place]]
        nearer = alive & (row < least)
        nearest[nearer], least[nearer] = a, row[nearer]
    labels = np.empty(len(features), np.int64)
    for number, left in enumerate(np.flatnonzero(alive).tolist()):
        labels[groups[left]] = number
    return labels


def count_with_known(features: Rows, known: Labels, found: int, seed: int) -> int:
    """How many kinds there are, known ones counted, where `found` were found without a look at any label.

    Each known kind is at home in one of these clusters, chosen for all kinds together so that they hold most examples.
    Another cluster with examples of a kind is a part of that kind where so many of them are likelier in a part of its size
    than as strays among another kind, of which few lie in the middle; else it is a kind of its own. And a cluster falls into
    two by Ward's method: where its examples are clearly likelier as those of one half than as those of both, the other half
    is a kind of its own.

    Parameters
    ----------
    features : (R, D) unit vectors; known : (R,) int as in `seeded_clusters`
    """
    n_known = int(known.max(initial=-1)) + 1
    labels = ward_kmeans(features, min(found, len(features)), seed)
    sizes = np.bincount(labels)
    told = [labels[known == kind] for kind in range(n_known)]
    examples = np.stack([np.bincount(own, minlength=len(sizes)) for own in told])
    home = examples.argmax(axis=1)
    kinds, clusters = linear_sum_assignment(examples, maximize=True)
    there = examples[kinds, clusters] > 0
    home[kinds[there]] = clusters[there]
    room = sizes[home] / np.bincount(home)[home]  # what a kind has of its cluster
    share = (sizes / (sizes + room[:, None])).clip(1e-6, 1 - 1e-6)
    chance = np.where(_central(features, labels), STRAYS_IN_THE_MIDDLE, STRAYS)
    strays = np.stack([np.bincount(own, -np.log(chance[known == kind]), len(sizes)) for kind, own in enumerate(told)])
    outside = examples.sum(axis=1, keepdims=True) - examples
    evidence = examples * np.log(share) + strays + outside * np.log((1 - share) / (1 - STRAYS))
    is_part = ((evidence > 0) & (examples > 0)).any(axis=0)
    others = np.setdiff1d(np.flatnonzero(sizes), home)
    count = n_known + int((~is_part[others]).sum())
    for kind in range(n_known):
        rows = np.flatnonzero(labels == home[kind])
        count += (home == home[kind]).sum() == 1 and _is_half(at(features, rows), known[rows] == kind, seed)
    return min(int(count), max(len(features), n_known))


def _central(features: Rows, labels: Labels) -> npt.NDArray[np.bool_]:
    """(R,) whether a region is among the half of its cluster that lies nearest to the middle."""
    middles = centres(features, labels, int(labels.max()) + 1)
    cosine = np.concatenate([(features[rows] * middles[labels[rows]]).sum(axis=1) for rows in blocks(len(features))])
    out = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        own = labels == label
        out[own] = cosine[own] >= np.median(cosine[own])
    return out


def _is_half(features: Rows, examples: npt.NDArray[np.bool_], seed: int) -> bool:
    """Whether the examples of a cluster fill one half of it only; of many regions some tell how it falls into halves."""
    some = sample(len(features), MOST_IN_TREE, seed)
    points = features[some]
    if len(features) < 2 * LEAST_SIDE or (points == points[0]).all():
        return False
    side = np.zeros(len(some), bool)
    side[to_tree(linkage(points.astype(np.float64), "ward")).left.pre_order()] = True
    if len(some) < len(features):
        side = nearest_centre(features, centres(points, side.astype(np.int64), 2)) == 1
    for half in (side, ~side):
        inside, outside, share = (half & examples).sum(), (~half & examples).sum(), half.mean()
        if inside > 1 and share < 1 and (~half).sum() >= LEAST_SIDE:  # one example lies in some half anyway
            evidence = inside * np.log((1 - STRAYS) / share) + outside * np.log(STRAYS / (1 - share))
            if evidence > np.log(AGAINST_TWO):
                return True
    return False


def suspects(features: Rows, known: Labels, labels: Labels, seed: int = 0) -> Labels:
    """(R,) int: the cluster that a labelled point seems to belong to, where that is not its own; −1 for all others.

    It must lie nearer to the middle of another cluster than to that of its own without it, and most of its nearest points
    must be of other clusters.

    Parameters
    ----------
    features : (R, D) unit vectors; known : (R,) int as in `seeded_clusters`; labels : (R,) its result
    seed : for the choice of what is compared, of very many regions
    """
    out = np.full(len(known), -1, np.int64)
    n = int(labels.max(initial=-1)) + 1
    sizes = np.bincount(labels, minlength=n)
    sums = centres(features, labels, n) * sizes[:, None]
    told = np.flatnonzero(known >= 0)
    for rows, others in (
        near(at(features, told), features, seed) if is_large(features) else ((slice(None), slice(None)),)
    ):
        points, candidates = features[told[rows]], features[others]
        for place, point in zip(told[rows], points, strict=True):
            own = labels[place]
            middles = sums.copy()
            middles[own] -= point
            lengths, left = np.linalg.norm(middles, axis=1), sizes - (np.arange(n) == own)
            cosines = np.where((lengths > 1e-6) & (left > 0), middles @ point / np.maximum(lengths, 1e-6), -1)
            cosine_to = candidates @ point
            cosine_to[np.arange(len(features))[others] == place] = -np.inf
            near_by = labels[others][np.argsort(-cosine_to, kind="stable")[:NEAREST]]
            if cosines[own] > -1 and cosines.argmax() != own and 2 * (near_by == own).sum() < len(near_by):
                out[place] = cosines.argmax()
    return out


def robust_clusters(features: Rows, known: Labels, n_clusters: int, seed: int) -> tuple[Labels, Labels]:
    """`seeded_clusters` that learn nothing from labels that look wrong; and these labels, as `suspects` gives them.

    A kind whose every label looks wrong keeps them all: it may be a kind that nobody else has seen.
    """
    doubtful = suspects(features, known, seeded_clusters(features, known, n_clusters, seed), seed)
    for kind in np.unique(known[doubtful >= 0]):
        if (doubtful[known == kind] >= 0).all():
            doubtful[known == kind] = -1
    trusted = np.where(doubtful >= 0, -1, known)
    return seeded_clusters(features, trusted, n_clusters, seed), doubtful
