"""The class map: regions that look alike to the network lie near each other (t-SNE of their features)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from .canvas import Picture, centred, fitted
from .source import ReportSource

MOST = 2_000  # regions; t-SNE of more takes minutes, and dots would cover each other
AT_LEAST = 20  # regions that a class keeps where only a part of them is drawn
SIDE, MARGIN = 640.0, 16.0  # of the map, in units of its own
TILE = 64  # px, thumbnails
PLAIN = 5  # t-SNE needs more regions than this


def make_class_map(source: ReportSource) -> dict[str, Any] | None:
    """The map of a run's regions; None where their features are not known or there is none.

    `points` (x, y, class, title) in the order of their classes, their thumbnails in that order in one picture, `sprite`, of
    so many `columns` and `rows` with sides of `tile` pixels; and the `looks` of the classes.
    """
    if source.vectors is None or not len(source.vectors):
        return None
    labels = source.regions["label"].to_numpy()
    kept = subsample(labels, MOST)
    place = dict(zip(kept.tolist(), project(source.vectors[kept]).tolist(), strict=True))
    order = {label: rank for rank, label in enumerate(source.labels)}
    tiles, points = [], []
    for row in sorted(place, key=lambda row: (order[int(labels[row])], *place[row])):
        region, look = source.regions.iloc[row], source.look(int(labels[row]))
        title = f"{look.name}, {region['probability']:.2f}: {region['image']}, region {region['region']}"
        points.append((round(place[row][0], 1), round(place[row][1], 1), look, title))
        crop, _ = source.run.crop(row)
        grey = np.full((TILE, TILE, 3), 128, np.uint8)
        tiles.append(grey if crop is None else centred(fitted(crop, TILE), TILE))
    sheet, columns = sprite(tiles)
    looks = [source.look(label) for label in source.labels if label in labels[kept]]
    shown = {"points": points, "looks": looks, "sprite": source.album.add(sheet, quality=70)}
    return {**shown, "columns": columns, "rows": len(sheet) // TILE, "tile": TILE}


def sprite(tiles: Sequence[Picture]) -> tuple[Picture, int]:
    """Tiles of one size in one picture, row by row, and how many there are in a row.

    Examples
    --------
    >>> sheet, columns = sprite([np.full((4, 4, 3), k, np.uint8) for k in range(5)])
    >>> sheet.shape, columns, int(sheet[4, 0, 0])
    ((8, 12, 3), 3, 3)
    """
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = [np.hstack(tiles[first : first + columns]) for first in range(0, len(tiles), columns)]
    missing = rows[0].shape[1] - rows[-1].shape[1]
    rows[-1] = np.pad(rows[-1], ((0, 0), (0, missing), (0, 0)))
    return np.vstack(rows), columns


def project(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Features (R, D) on the plane, t-SNE from their principal axes, scaled to the map: (R, 2), x and y in 0 … SIDE.

    Always the same for the same input: one thread, a fixed seed.

    Examples
    --------
    >>> project(np.eye(3, dtype=np.float32)).shape, project(np.zeros((1, 4), np.float32)).tolist()
    ((3, 2), [[320.0, 320.0]])
    """
    count = len(vectors)
    with threadpool_limits(limits=1):
        axes = _principal(vectors.astype(np.float64))
        spread = axes[:, 0].std()
        place = axes[:, :2]
        if count > PLAIN and spread > 1e-9:
            from sklearn.manifold import TSNE

            start = (place / spread * 1e-4).astype(np.float32)
            tsne = TSNE(perplexity=min(30.0, (count - 1) / 3), init=start, random_state=0, n_jobs=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of regions that are all alike
                place = np.nan_to_num(tsne.fit_transform(axes.astype(np.float32)).astype(np.float64))
    low, high = place.min(axis=0), place.max(axis=0)
    span = float((high - low).max())
    scale = (SIDE - 2 * MARGIN) / span if span > 0 else 0.0
    return np.asarray((place - (low + high) / 2) * scale + SIDE / 2)


def subsample(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Places of at most `most` regions drawn at random, in order; small classes are kept whole as far as that goes.

    Examples
    --------
    >>> labels = np.array([1] * 500 + [2] * 3)
    >>> kept = subsample(labels, 50)
    >>> len(kept), int((labels[kept] == 2).sum())
    (50, 3)
    """
    if len(labels) <= most:
        return np.arange(len(labels))
    shuffled = np.random.default_rng(0).permutation(len(labels))
    drawn = pd.Series(labels[shuffled])
    late = drawn.groupby(drawn).cumcount().to_numpy() >= AT_LEAST
    return np.sort(shuffled[np.argsort(late, kind="stable")][:most])


def _principal(vectors: NDArray[np.float64], most: int = 50) -> NDArray[np.float64]:
    """(R, D) on its principal axes (R, 2 … most): as good for distances, and quicker."""
    centred_ = vectors - vectors.mean(axis=0)
    left, length, _ = np.linalg.svd(centred_, full_matrices=False)
    # The sign of an axis is arbitrary: pinned, so that two machines draw the same map.
    left = left * np.where(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])] < 0, -1, 1)
    out = (left * length)[:, :most]
    return np.pad(out, ((0, 0), (0, max(0, 2 - out.shape[1]))))
