"""New kinds of defect among the regions that new images brought: far from all that is known, and alike."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage

from .unknown import LEAST, fit_unknown, joined, limit_for

Floats = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]
MOST = 0.75  # of a group
SUSPECTS = 0.2  # share of known regions as far off as a new one must be to make a new class with others
ODD = 0.01  # share of known regions that may be further from their nearest than members of a group are from each other
MOST_KNOWN = 2000  # of which the distances to each other are taken
MOST_STEPS = 20


def open_classes(
    blocks: Floats,
    weights: Floats,
    images: npt.NDArray[np.int64],
    labels: Labels,
    n_before: int,
    silent: npt.NDArray[np.bool_],
    least: int,
    above: int,
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
    """
    out = labels.copy()
    known = np.flatnonzero(labels[:n_before] >= 0)
    wary, _ = fit_unknown(blocks[known], weights, images[known], SUSPECTS)
    apart = labels < 0
    apart[n_before:] |= wary(blocks[n_before:]) > 0.5
    apart &= ~silent
    places = np.flatnonzero(apart)
    if len(places) < max(least, 2):
        return out
    features = joined(blocks - blocks.mean(axis=0) * (not apart.all()), weights)
    some = known[:: -(-len(known) // MOST_KNOWN) or 1]
    same_image = images[some][:, None] == images[some]
    nearest = 1 - (features[some] @ features[some].T - 3 * same_image).max(axis=1, initial=-1)
    widest = limit_for(nearest, ODD, LEAST) if len(some) > 1 else np.inf
    groups = fcluster(linkage(features[places], "average", metric="cosine"), 1.0, "distance")
    sizes = np.bincount(groups)
    following = max(int(labels.max()), above) + 1
    for group in np.argsort(-sizes, kind="stable"):  # the largest gets the lowest number
        members = places[groups == group]
        if sizes[group] >= least and _is_kind(features[members], features[known], widest):
            out[members] = following
            following += 1
    free = (np.arange(len(labels)) >= n_before) | (labels < 0)
    return _settled(features, labels, out, free & ~silent, least)


def _settled(features: Floats, before: Labels, labels: Labels, free: npt.NDArray[np.bool_], least: int) -> Labels:
    """Classes (R,) where `free` regions have moved to the nearest centre.

    A region that is not drawn to a new class keeps the class that it had `before`; a new one that becomes too small is gone.
    """
    newest = int(before.max())
    for _ in range(MOST_STEPS):
        classes = np.unique(labels[labels >= 0])
        new = classes[classes > newest]
        if not len(new):
            break
        centres = np.stack([features[labels == k].mean(axis=0) for k in classes])
        centres /= np.maximum(np.linalg.norm(centres, axis=1, keepdims=True), 1e-12)
        nearest = classes[(features @ centres.T).argmax(axis=1)]
        moved = np.where(free, np.where(nearest > newest, nearest, before), labels)
        for k in new[np.array([(moved == k).sum() < least for k in new])]:
            moved[moved == k] = before[moved == k]
        if (moved == labels).all():
            break
        labels = moved
    return labels


def _is_kind(members: Floats, known: Floats, widest: float) -> bool:
    """Whether most of a group are more like another of it than like anything known, and as alike as known ones are: others
    are odd ones of known kinds, or of a kind each.

    widest : 1 − cosine of a known region with its nearest, at most
    """
    if not len(known):
        return True
    own = (members @ members.T - 3 * np.eye(len(members))).max(axis=1)
    return bool((own > np.maximum((members @ known.T).max(axis=1), 1 - widest)).mean() >= MOST)
