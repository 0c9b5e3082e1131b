"""New kinds of defect among the regions that new images brought: far from all that is known, and alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage

from ..large import Lazy, Rows, at, heaped, is_large, near, sums_by
from ..large import blocks as pieces
from .unknown import LEAST, fit_unknown, joined, limit_for, mean_of

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
MOST = 0.75  # of a group
SUSPECTS = 0.2  # share of known regions as far off as a new one must be to make a new class with others
ODD = 0.01  # share of known regions that may be further from their nearest than members of a group are from each other
MOST_KNOWN = 2000  # of which the distances to each other are taken
MOST_STEPS = 20
MOST_IN_TREE = 10_000  # regions whose distances to each other the tree is made of: 0.4 GB
MOST_HEAPS = 2000  # that the tree is made of where there are more


def open_classes(
    blocks: Rows,
    weights: Floats,
    images: npt.NDArray[np.int64],
    labels: Labels,
    n_before: int,
    silent: npt.NDArray[np.bool_],
    least: int,
    above: int,
    seed: int = 0,
) -> Labels:
    """Classes (R,) of all regions, where those that are far off and alike have new numbers.

    One region must be very far off to be called unknown; several that are alike need less: new ones count from where a
    fifth of the run's own regions lie. They are grouped by average linkage, by features from which the mean of all regions
    was taken off: there, groups whose cosine is below 0 in the mean have nothing in common. Groups that are too small,
    nearer to known regions than to themselves, or less alike than known regions are, open nothing. Then new regions go to
    the nearest centre, of a class or of a group, until nothing moves: what began as half of a kind becomes all of it.

    Parameters
    ----------
    blocks : (R, B, C) and weights : (B,), see `fit_unknown`; images : (R,) int, which image each region is of
    labels : (R,) int, −1 = of no class yet
    n_before : regions that were in the run already; behind them are the new ones
    silent : (R,) bool, false alarms and regions of other products, which open nothing
    least : regions of a new class, at least; above : the highest number that was ever used
    seed : for the choice of what is compared, of very many regions
    """
    out = labels.copy()
    known = np.flatnonzero(labels[:n_before] >= 0)
    new = np.arange(n_before, len(labels))
    wary, _ = fit_unknown(at(blocks, known), weights, images[known], SUSPECTS, seed=seed)
    apart = labels < 0
    apart[n_before:] |= wary(at(blocks, new)) > 0.5
    apart &= ~silent
    places = np.flatnonzero(apart)
    if len(places) < max(least, 2):
        return out
    features = _features(blocks, weights, centred=not apart.all())
    some = known[:: -(-len(known) // MOST_KNOWN) or 1]
    same_image = images[some][:, None] == images[some]
    nearest = 1 - (features[some] @ features[some].T - 3 * same_image).max(axis=1, initial=-1)
    widest = limit_for(nearest, ODD, LEAST) if len(some) > 1 else np.inf
    groups = _groups(features, places, seed)
    sizes = np.bincount(groups)
    following = max(int(labels.max()), above) + 1
    large_enough = sizes[groups] >= least
    kind = np.zeros(len(places), bool)
    kind[large_enough] = _is_nearer(features, places[large_enough], groups[large_enough], known, widest, seed)
    for group in np.argsort(-sizes, kind="stable"):  # the largest gets the lowest number
        if sizes[group] >= least and kind[groups == group].mean() >= MOST:
            out[places[groups == group]] = following
            following += 1
    free = (np.arange(len(labels)) >= n_before) | (labels < 0)
    return _settled(features, labels, out, free & ~silent, least)


def _features(blocks: Rows, weights: Floats, *, centred: bool) -> Rows:
    """Unit vectors (R, D), without the mean of all where `centred`."""
    mean = mean_of(blocks) * centred
    if not is_large(blocks):
        return joined(blocks[:] - mean, weights)
    return Lazy(lambda rows: joined(blocks[rows] - mean, weights), (len(blocks), mean.size))


def _groups(features: Rows, places: Labels, seed: int) -> Labels:
    """Groups (P,) of the regions at these places, numbered from 1, by average linkage up to a distance of 1.

    Of more than `MOST_IN_TREE`, k-means makes so many small heaps first, of which the tree is made.
    """
    if len(places) <= MOST_IN_TREE:
        return np.asarray(fcluster(linkage(features[places], "average", metric="cosine"), 1.0, "distance"))
    own = at(features, places)
    heaps = heaped(own, MOST_HEAPS, seed)
    sizes = np.bincount(heaps).astype(np.float64)
    tree = average_linkage(sums_by(own, heaps, len(sizes)) / sizes[:, None], sizes)
    return np.asarray(fcluster(tree, 1.0, "distance")[heaps])


def average_linkage(means: npt.NDArray[np.float64], sizes: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The tree that average linkage makes of heaps of unit vectors, as SciPy has it.

    The mean of 1 − cosine over all pairs of two heaps is 1 − the product of their means (H, D); sizes (H,) of the heaps.

    Examples
    --------
    >>> average_linkage(np.array([[1.0, 0], [0.8, 0.6], [0, 1]]), np.ones(3))[:, 2].round(2).tolist()
    [0.2, 0.7]
    """
    count = len(means)
    distance = 1 - means @ means.T
    np.fill_diagonal(distance, np.inf)
    sizes, names, tree = sizes.copy(), np.arange(count), np.empty((count - 1, 4))
    for step in range(count - 1):
        a, b = sorted(np.unravel_index(distance.argmin(), distance.shape))
        both = sizes[a] + sizes[b]
        tree[step] = (*sorted((names[a], names[b])), distance[a, b], both)
        row = (sizes[a] * distance[a] + sizes[b] * distance[b]) / both
        row[a] = row[b] = np.inf
        distance[a], distance[:, a] = row, row
        distance[b], distance[:, b] = np.inf, np.inf
        sizes[a], names[a] = both, count + step
    return tree


def _settled(features: Rows, before: Labels, labels: Labels, free: npt.NDArray[np.bool_], least: int) -> Labels:
    """Classes (R,) where `free` regions have moved to the nearest centre.

    A region that is not drawn to a new class keeps the class that it had `before`; a new one that becomes too small is gone.
    """
    newest = int(before.max())
    places = np.flatnonzero(free)
    own = at(features, places)
    held = None  # what the others add to each class, which they stay in
    for _ in range(MOST_STEPS):
        classes = np.unique(labels[labels >= 0])
        new = classes[classes > newest]
        if not len(new):
            break
        if is_large(features):
            top = int(labels.max()) + 1
            if held is None:
                held = sums_by(features, np.where(free, -1, labels), top)
            centres = (held[:top] + sums_by(own, labels[places], top))[classes].astype(np.float32)
        else:
            centres = np.stack([features[labels == k].mean(axis=0) for k in classes])
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
        nearest = np.full(len(labels), -1)
        nearest[places] = classes[np.concatenate([(own[rows] @ centres.T).argmax(axis=1) for rows in pieces(len(own))])]
        moved = np.where(free, np.where(nearest > newest, nearest, before), labels)
        for k in new[np.array([(moved == k).sum() < least for k in new])]:
            moved[moved == k] = before[moved == k]
        if (moved == labels).all():
            break
        labels = moved
    return labels


def _is_nearer(
    features: Rows, places: Labels, groups: Labels, known: Labels, widest: float, seed: int
) -> npt.NDArray[np.bool_]:
    """Which regions (P,) of the groups are more like another one of their group than like anything known, and as alike as
    known ones are: where most of a group are not, they are odd ones of known kinds, or of a kind each.

    widest : 1 − cosine of a known region with its nearest, at most
    """
    if not len(known):
        return np.ones(len(places), bool)
    to_known, to_own = np.full(len(places), -1.0), np.full(len(places), -1.0)
    own = at(features, places)
    for rows, others in near(own, at(features, known), seed):
        to_known[rows] = (own[rows] @ features[known[others]].T).max(axis=1)
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group)
        mine = at(own, members)
        for rows, others in near(mine, mine, seed):
            cosines = mine[rows] @ mine[others].T
            cosines[members[rows][:, None] == members[others]] = -2
            to_own[members[rows]] = cosines.max(axis=1)
    return np.asarray(to_own > np.maximum(to_known, 1 - widest))
