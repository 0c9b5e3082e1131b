"""Whether an image shows the product of a run at all, as its camera sees it: by its looks as a whole and by its exposure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..large import LARGE, Lazy, near, sample
from .unknown import BLOCK, LEAST, MOST_REFERENCES, limit_for

Floats = npt.NDArray[np.float32]
Distances = npt.NDArray[np.float64]
MARGIN = 2.0  # times the usual distance of two images: a defect that nobody has seen may change an image so much
STOP = 1.0  # twice or half the light, or the contrast, which no lamp or lens drifts by
SAME_LIGHT = 0.01  # stops
OF_MANY = 2000  # images, of more than LARGE, that tell the usual distance of two images
FEWEST = 8  # images that tell anything: of fewer, the first defect would look like another product


@dataclass(frozen=True)
class Product:
    """Distance to the nearest image of a run, on a scale where 0.5 is as far off as an image of the product ever should be.

    scenes : (M, C + 2) of the run's images: a unit vector of the whole image each, then its `exposure`
    limit : 1 − cosine from which on an image shows something else; stops : from which on a frame is spoilt
    """

    scenes: Floats
    limit: float
    stops: float

    def __call__(self, scenes: Floats) -> Distances:
        """Scenes (N, C + 2) of images → scores (N,) in 0 … 1; above 0.5 = not this product, 0 where a row is NaN.

        Examples
        --------
        >>> known = Product(np.float32([[1, 0, 6, 5], [0.8, 0.6, 6.5, 5]]), limit=0.2, stops=1.0)
        >>> known(np.float32([[1, 0, 6, 5], [0, 1, 6, 5], [1, 0, 0, 0]])).round(2).tolist()
        [0.0, 0.67, 0.86]
        """
        out = np.zeros(len(scenes))
        for rows in np.array_split(np.flatnonzero(np.isfinite(scenes).all(axis=1)), -(-len(scenes) // BLOCK) or 1):
            looks, light = (distances.min(axis=1) for distances in _distances(scenes[rows], self.scenes))
            out[rows] = self.score(looks, light)
        return out

    def score(self, looks: Distances, light: Distances) -> Distances:
        """Of the distances (N,) to the nearest image."""
        worse: Distances = np.maximum(looks / (looks + self.limit), light / (light + self.stops))
        return worse

    def tensors(self) -> dict[str, npt.NDArray[np.floating]]:
        """All arrays, for the model file."""
        return {"product.scenes": self.scenes.astype(np.float16)}

    def settings(self) -> dict[str, Any]:
        """The rest of it."""
        return {"limit": self.limit, "stops": self.stops}

    @classmethod
    def restore(cls, tensors: Mapping[str, npt.NDArray[np.floating]], settings: Mapping[str, Any]) -> Product:
        """The inverse of `tensors` and `settings`."""
        return cls(tensors["product.scenes"].astype(np.float32), settings["limit"], settings["stops"])


def fit_product(
    scenes: Floats, rate: float, known: npt.NDArray[np.bool_] | None = None, seed: int = 0
) -> tuple[Product | None, Distances]:
    """What calls at most a share `rate` of images of the product something else, and the score of each image of the run.

    Each image is left out together with the half of the run that is most like it: shots of the same part, and its kind of
    defect, so that a kind that nobody has seen is no other product. A new image is measured by the nearest of all.

    Parameters
    ----------
    scenes : (N, C + 2) of the run's images, see `Product`; NaN where one could not be read
    rate : 0 = nothing is ever called so
    known : (N,) bool, images that do show the product; all by default
    seed : for the choice of what is compared, of very many images (`large`)

    Returns
    -------
    None where fewer than eight images, or a rate of 0, tell nothing; and (N,) in 0 … 1: how far each lies from the others.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> scenes = rng.normal([1, 0, 0, 6, 5], 0.1, (30, 5)).astype(np.float32)
    >>> product, own = fit_product(scenes, 0.01)
    >>> (product(np.float32([[0, 1, 0, 6, 5], [1, 0.1, 0, 6, 5], [1, 0.1, 0, 2, 1]])) > 0.5).tolist()
    [True, False, True]
    """
    there = np.isfinite(scenes).all(axis=1)
    used = np.flatnonzero(there if known is None else there & known)
    own = np.zeros(len(scenes))
    if len(used) < FEWEST or not rate:
        return None, own
    chosen = used
    if len(used) > MOST_REFERENCES:
        chosen = used[np.linspace(0, len(used) - 1, MOST_REFERENCES).astype(np.int64)]
    reference = scenes[chosen].astype(np.float16).astype(np.float32)  # as a model file keeps it
    if len(used) > LARGE:
        half, _, _ = _left_out(scenes, used[sample(len(used), OF_MANY, seed)], chosen, reference)
        looks, light = _nearest_of_many(scenes, used, chosen, reference, seed)
    else:
        half, looks, light = _left_out(scenes, used, chosen, reference)
    limit = max(limit_for(half, rate, LEAST), MARGIN * float(np.median(half)))
    product = Product(reference, limit, max(limit_for(light, rate, SAME_LIGHT), STOP))
    own[used] = product.score(looks, light)
    others = np.setdiff1d(np.flatnonzero(there), used)
    own[others] = product(scenes[others])
    return product, own


def _left_out(
    scenes: Floats, used: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64], reference: Floats
) -> tuple[Distances, Distances, Distances]:
    """Of each of the used images: 1 − cosine in the median and to the nearest of the others, and light to the nearest."""
    half, looks, light = (np.empty(len(used)) for _ in range(3))
    for start in range(0, len(used), BLOCK):
        rows = slice(start, start + BLOCK)
        distance, stops = _distances(scenes[used[rows]], reference)
        itself = used[rows, None] == chosen
        distance[itself] = stops[itself] = np.nan
        half[rows] = np.nanmedian(distance, axis=1)
        looks[rows], light[rows] = np.nanmin(distance, axis=1), np.nanmin(stops, axis=1)
    return half, looks, light


def _nearest_of_many(
    scenes: Floats, used: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64], reference: Floats, seed: int
) -> tuple[Distances, Distances]:
    """The latter two of `_left_out`: looks by what is near, light in a tree."""
    from scipy.spatial import KDTree  # an exported run does without scipy, and fits nothing

    looks, references = np.empty(len(used)), _looks(reference)
    own = Lazy(lambda rows: _looks(scenes[used[rows]]), (len(used), references.shape[1]))
    for rows, others in near(own, references, seed):
        distance = np.clip(1 - own[rows] @ references[others].T, 0, None)
        distance[used[rows][:, None] == chosen[others]] = np.inf
        looks[rows] = distance.min(axis=1)
    light, which = KDTree(reference[:, -2:]).query(scenes[used, -2:], k=2, p=np.inf)
    return looks, np.where(chosen[which[:, 0]] == used, light[:, 1], light[:, 0])


def exposure(pictures: npt.NDArray[np.uint8]) -> Floats:
    """Light and contrast of pictures (N, H, W, 3): (N, 2), logarithms to base 2 of mean and deviation of their grey.

    Examples
    --------
    >>> exposure(np.stack([np.full((4, 4, 3), 127, np.uint8), np.zeros((4, 4, 3), np.uint8)])).tolist()
    [[7.0, 0.0], [0.0, 0.0]]
    """
    grey = pictures.mean(axis=-1, dtype=np.float32)
    found: Floats = np.log2(1 + np.stack([grey.mean(axis=(1, 2)), grey.std(axis=(1, 2))], axis=1))
    return found


def _distances(scenes: Floats, others: Floats) -> tuple[Distances, Distances]:
    """Of each of (N, C + 2) to each of (M, C + 2): 1 − cosine, and the larger of light and contrast, (N, M) each."""
    looks = np.clip(1 - _looks(scenes) @ _looks(others).T, 0, None).astype(np.float64)
    light = np.abs(scenes[:, None, -2:] - others[:, -2:]).max(axis=2).astype(np.float64)
    return looks, light


def _looks(scenes: Floats) -> Floats:
    """(N, C + 2) → (N, C) unit vectors."""
    found: Floats = scenes[:, :-2] / np.maximum(np.linalg.norm(scenes[:, :-2], axis=1, keepdims=True), 1e-12)
    return found
