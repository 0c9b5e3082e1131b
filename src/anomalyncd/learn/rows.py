"""Regions as rows for clustering and for what is known: there at once where they are few, made when asked for where not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import large
from ..large import Lazy, Rows
from ..large import blocks as pieces
from .features import FeatureSpace

Parts = Mapping[str, npt.NDArray[np.floating]]


def vectors(space: FeatureSpace, parts: Parts) -> Rows:
    """One unit vector a region, (R, D): what `space.transform` gives; parts : name → (R, V, L, C)

    Examples
    --------
    >>> parts = {"patches": np.eye(6, dtype=np.float32).reshape(3, 1, 4, 3)}
    >>> vectors(FeatureSpace({"patches": 1.0}).fit(parts), parts).shape
    (3, 12)
    """
    if _count(parts) <= large.LARGE:
        return space.transform(parts)
    width = sum(int(np.prod(parts[name].shape[2:])) for name in space.weights)
    return Lazy(lambda rows: space.transform(_some(space, parts, rows)), (_count(parts), width))


def block_rows(space: FeatureSpace, parts: Parts) -> tuple[Rows, npt.NDArray[np.float32]]:
    """What `space.blocks` gives: (R, B, C), nothing taken off, and the weights (B,)."""
    if _count(parts) <= large.LARGE:
        return space.blocks(parts)
    first, weights = space.blocks(_some(space, parts, slice(0, 1)))
    shape = (_count(parts), *first.shape[1:])
    return Lazy(lambda rows: space.blocks(_some(space, parts, rows))[0], shape), weights


def fit_space(weights: Mapping[str, float], parts: Parts, *, center: bool) -> FeatureSpace:
    """As `FeatureSpace.fit`; the means of very many regions are summed block by block."""
    space, count = FeatureSpace(weights), _count(parts)
    if count <= large.LARGE:
        return space.fit(parts, center=center)
    for name, values in parts.items():
        total = np.zeros(values.shape[2:])
        for rows in pieces(count):
            total += values[rows].astype(np.float32).mean(axis=1).sum(axis=0, dtype=np.float64)
        space.means[name] = np.asarray(total / count if center else 0 * total, np.float32)
    return space


def _count(parts: Parts) -> int:
    return len(next(iter(parts.values()), ()))


def _some(space: FeatureSpace, parts: Parts, rows: Any) -> dict[str, npt.NDArray[np.floating]]:
    return {name: parts[name][rows] for name in space.weights}
