"""The class map: regions that look alike to the network lie near each other (t-SNE of their features)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from ..run.store import read_crop
from .canvas import Picture, centred, fitted
from .embed import sprite
from .source import Look, ReportSource

MOST = 2_000  # regions; t-SNE of more takes minutes, and dots would cover each other
AT_LEAST = 20  # regions that a class keeps where only a part of them is drawn
SIDE, MARGIN = 640.0, 16.0  # of the map, in units of its own
TILE = 64  # px, thumbnails
PLAIN = 5  # t-SNE needs more regions than this


@dataclass(frozen=True)
class Point:
    """A region on the map; number : its thumbnail's place in the sprite."""

    x: float
    y: float
    look: Look
    title: str
    number: int


@dataclass(frozen=True)
class ClassMap:
    """Points in the order of their classes, thumbnails in one picture, and how many regions there are in all."""

    points: list[Point]
    looks: list[Look]
    sprite: str | None
    columns: int
    rows: int
    tile: int
    total: int


def make_class_map(source: ReportSource, seed: int = 0) -> ClassMap | None:
    """The map of a run's regions; None where their features are not known or there is none."""
    features = source.features
    if features is None or not len(features.rows):
        return None
    labels = source.regions["label"].to_numpy()[features.rows]
    kept = subsample(labels, MOST, seed)
    place = project(features.vectors[kept], seed)
    rows, order = features.rows[kept], {label: rank for rank, label in enumerate(source.labels)}
    drawn = sorted(range(len(kept)), key=lambda k: (order[int(labels[kept[k]])], place[k, 0], place[k, 1]))
    tiles, points = [], []
    for number, k in enumerate(drawn):
        region = source.regions.iloc[rows[k]]
        look = source.look(int(region["label"]))
        title = f"{look.name}, {region['probability']:.2f}: {region['image']}, region {region['region']}"
        points.append(Point(round(float(place[k, 0]), 1), round(float(place[k, 1]), 1), look, title, number))
        crop = region.get("crop")
        tiles.append(_thumbnail(read_crop(source.run / crop)[0] if isinstance(crop, str) else None))
    sheet, columns = sprite(tiles, TILE)
    looks = [source.look(label) for label in source.labels if (labels[kept] == label).any()]
    uri = source.album.add(sheet, quality=70)
    return ClassMap(points, looks, uri, columns, sheet.shape[0] // TILE, TILE, len(source.regions))


def project(vectors: NDArray[np.float32], seed: int = 0) -> NDArray[np.float64]:
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

            start = (axes[:, :2] / spread * 1e-4).astype(np.float32)
            perplexity = min(30.0, (count - 1) / 3)
            tsne = TSNE(2, perplexity=perplexity, init=start, learning_rate="auto", random_state=seed, n_jobs=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of regions that are all alike
                place = np.nan_to_num(tsne.fit_transform(axes.astype(np.float32)).astype(np.float64))
    low, high = place.min(axis=0), place.max(axis=0)
    span = float((high - low).max())
    middle = (low + high) / 2
    scale = (SIDE - 2 * MARGIN) / span if span > 0 else 0.0
    return np.asarray((place - middle) * scale + SIDE / 2)


def subsample(labels: NDArray[np.int64], most: int, seed: int = 0) -> NDArray[np.int64]:
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
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    seen: dict[int, int] = {}
    late = []
    for place in shuffled:
        rank = seen[int(labels[place])] = seen.get(int(labels[place]), 0) + 1
        late.append(rank > AT_LEAST)
    first = shuffled[np.argsort(late, kind="stable")]
    return np.sort(first[:most]).astype(np.int64)


def _principal(vectors: NDArray[np.float64], most: int = 50) -> NDArray[np.float64]:
    """(R, D) on its principal axes (R, 2 … most): as good for distances, and quicker."""
    centred_ = vectors - vectors.mean(axis=0)
    left, length, _ = np.linalg.svd(centred_, full_matrices=False)
    # The sign of an axis is arbitrary: pinned, so that two machines draw the same map.
    left = left * np.where(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])] < 0, -1, 1)
    out = (left * length)[:, :most]
    return np.pad(out, ((0, 0), (0, max(0, 2 - out.shape[1]))))


def _thumbnail(crop: Picture | None) -> Picture:
    return np.full((TILE, TILE, 3), 128, np.uint8) if crop is None else centred(fitted(crop, TILE), TILE)
