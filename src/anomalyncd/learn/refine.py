"""Heads that were trained once, trained again with what a person has decided since: seconds, on cached features."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from ..large import Rows, sample

Floats = npt.NDArray[np.float32]
STEPS = 200
LEARNING_RATE = 0.01
MOST = (
    100_000  # regions that are learned from, 0.6 GB of the default's width: a few corrections weigh as much as a class,
)
# so a smaller sample would come out differently


def refine(
    features: Rows,
    targets: npt.NDArray[np.int64],
    fixed: npt.NDArray[np.bool_],
    start: Floats,
    *,
    temperature: float,
    seed: int = 0,
) -> Floats:
    """Unit vectors of the classes, moved until they say what they should of the fixed regions.

    Cross-entropy of the cosine classifier. The fixed regions of a class together weigh as much as all its others, so that
    a few corrections are heard. The others begin with their class as it is, and in the second half follow the classifier:
    where corrections pull a class over, what looks like them goes along.

    Parameters
    ----------
    features : (R, D) unit vectors; of more than `MOST` a random sample of each class stands for it
    targets : (R,) int, the row of `start` that each region belongs to
    fixed : (R,) bool, regions whose class a person has decided
    start : (K, D) unit vectors to begin with

    Examples
    --------
    >>> x = np.float32([[1, 0], [0.8, 0.6], [0, 1]])
    >>> moved = refine(x, np.array([0, 1, 1]), np.array([False, True, False]), np.eye(2, dtype=np.float32), temperature=0.1)
    >>> (x @ moved.T).argmax(axis=1).tolist()
    [0, 1, 1]
    """
    if not len(features):
        return start
    shares = _weights(targets, fixed)
    if len(features) > MOST:
        some, standing_for = _sampled(targets, fixed, seed)
        features, targets, fixed, shares = features[some], targets[some], fixed[some], shares[some] * standing_for
    points, goal = torch.from_numpy(np.ascontiguousarray(features[:])), torch.from_numpy(targets)
    weights = torch.from_numpy(shares)
    held = torch.from_numpy(fixed)
    directions = torch.from_numpy(start.copy()).requires_grad_()
    optimizer = torch.optim.Adam([directions], lr=LEARNING_RATE)
    for step in range(STEPS):
        logits = points @ F.normalize(directions, dim=1).T / temperature
        if step >= STEPS // 2:
            goal = torch.where(held, goal, logits.detach().argmax(dim=1))
        loss = (F.cross_entropy(logits, goal, reduction="none") * weights).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    moved: Floats = F.normalize(directions.detach(), dim=1).numpy()
    return moved


def _weights(targets: npt.NDArray[np.int64], fixed: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """(R,) sum 1: in each class the fixed regions weigh as much as the others, but none less than one of these."""
    weights = np.ones(len(targets), np.float32)
    for k in np.unique(targets[fixed]):
        own = targets == k
        weights[own & fixed] = max(1.0, (own & ~fixed).sum() / (own & fixed).sum())
    shares: npt.NDArray[np.float32] = weights / weights.sum()
    return shares


def _sampled(
    targets: npt.NDArray[np.int64], fixed: npt.NDArray[np.bool_], seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    """Some regions of each class, of the fixed and of the others, and how many each of them stands for."""
    chosen, counts = [], []
    groups = 2 * targets + fixed
    each = _level(np.unique(groups, return_counts=True)[1], MOST)
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        some = own[sample(len(own), each, seed)]
        chosen.append(some)
        counts.append(np.full(len(some), len(own) / len(some), np.float32))
    return np.concatenate(chosen), np.concatenate(counts)


def _level(counts: npt.NDArray[np.int64], most: int) -> int:
    """How many of each group there may be, so that they are `most` together; smaller groups are whole."""
    left, room = np.sort(counts), most
    for place, count in enumerate(left):
        if count * (len(left) - place) > room:
            return max(1, room // (len(left) - place))
        room -= count
    return int(left[-1])
