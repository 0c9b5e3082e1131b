"""From the classes of regions to the class of their image (paper, Section 3.4)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import DataError, SettingsError

Floats = NDArray[np.float64]
MergeHow = Literal["area", "average", "score"]

RELATIVE_TEMPERATURE = 0.1  # of the longer image side


def novel_probabilities(logits: ArrayLike, n_base: int, temperature: float = 0.1) -> Floats:
    """Softmax over the novel classes alone: the logits of the base classes are removed before it.

    Args:
        logits: (R, C) of R regions, base classes in the first `n_base` columns.
        n_base: number of base classes, 0 … C-1.
        temperature: of the softmax, the student's τ_s.

    Returns:
        (R, K) float64 with K = C - n_base, rows sum to 1.

    Example:
        >>> novel_probabilities([[9.0, 0.1, 0.1], [9.0, 0.3, 0.1]], n_base=1).round(3).tolist()
        [[0.5, 0.5], [0.881, 0.119]]
    """
    _check_temperature(temperature)
    values = _finite(logits, "logits", ndim=2)
    if not 0 <= n_base < values.shape[1]:
        raise DataError(
            f"n_base must leave a novel class: expected 0 … {values.shape[1] - 1} for {values.shape[1]} "
            f"classes, but got {n_base}."
        )
    novel = values[:, n_base:]
    with np.errstate(over="ignore"):  # a tiny temperature gives -inf, whose weight is rightly 0
        weights = np.exp((novel - novel.max(axis=1, keepdims=True)) / temperature)
    probabilities: Floats = weights / weights.sum(axis=1, keepdims=True)
    return probabilities


def merge_regions(
    probabilities: ArrayLike,
    image_index: ArrayLike,
    n_images: int,
    *,
    areas: ArrayLike,
    scores: ArrayLike,
    image_sizes: ArrayLike,
    how: MergeHow = "area",
    temperature: float | None = None,
) -> Floats:
    """Class probabilities of each image: the weighted mean over its regions.

    `area` weighs region k of an image by softmax_k(√area_k / τ_α), the paper's way; `score` by its anomaly
    score over the sum of the image's scores (equal weights where all are 0); `average` weighs all alike.

    Args:
        probabilities: (R, K) of R regions.
        image_index: (R,) int, the image of each region, 0 … n_images-1, in any order.
        n_images: number of images.
        areas: (R,) region areas in image pixels, ≥ 0.
        scores: (R,) anomaly scores, ≥ 0.
        image_sizes: (n_images, 2) image heights and widths in pixels.
        how: "area", "average" or "score"; only what it needs is read.
        temperature: τ_α in pixels (paper: 100 on MVTec AD, 50 on MTD); None: a tenth of the longer side.

    Returns:
        (n_images, K) float64. Rows sum to 1 if those of `probabilities` do, but the row of an image
        without regions is all zeros.

    Example:
        >>> merged = merge_regions(
        ...     [[1, 0], [0, 1]], [0, 0], 2,
        ...     areas=[900, 100], scores=[0.2, 0.6], image_sizes=[[100, 200], [100, 200]],
        ... )
        >>> merged.round(3).tolist()  # weights softmax(30 / 20, 10 / 20)
        [[0.731, 0.269], [0.0, 0.0]]
    """
    if how not in get_args(MergeHow):
        raise SettingsError(f"how must be one of {', '.join(get_args(MergeHow))}, but got {how!r}.")
    if temperature is not None:
        _check_temperature(temperature)
    values = _finite(probabilities, "probabilities", ndim=2)
    index = _image_index(image_index, len(values), n_images)

    if how == "area":
        if temperature is None:
            sides = _non_negative(image_sizes, "image_sizes", shape=(n_images, 2)).max(axis=1)
            if (sides[index] == 0).any():
                raise DataError("image_sizes must be positive for an image that has regions, but got 0.")
            tau = RELATIVE_TEMPERATURE * sides[index]
        else:
            tau = np.full(len(index), float(temperature))
        roots = np.sqrt(_non_negative(areas, "areas", shape=(len(values),)))
        with np.errstate(over="ignore"):  # as above
            weights = np.exp((roots - _largest(roots, index, n_images)) / tau)
    elif how == "score":
        levels = _non_negative(scores, "scores", shape=(len(values),))
        largest = _largest(levels, index, n_images)
        weights = np.divide(levels, largest, out=np.ones_like(levels), where=largest > 0)
    else:
        weights = np.ones(len(values))

    weights = weights / np.bincount(index, weights, minlength=n_images)[index]  # the largest is 1, so the sum ≥ 1
    merged = np.zeros((n_images, values.shape[1]))
    np.add.at(merged, index, weights[:, None] * values)
    return merged


def image_classes(
    region_labels: ArrayLike, region_probabilities: ArrayLike, image_index: ArrayLike, n_images: int
) -> list[tuple[int, ...]]:
    """Every class found in each image, most probable first: one image may show several defects.

    A class is as probable as its most probable region; of equals the lower label comes first. Normal (0) is
    left out unless it is all there is. Unknown (-1) is listed like a class.

    Args:
        region_labels: (R,) int, the label of each region.
        region_probabilities: (R,) the probability of that label, 0 … 1.
        image_index: (R,) int, the image of each region, 0 … n_images-1, in any order.
        n_images: number of images.

    Returns:
        n_images tuples of labels, empty for an image without regions.

    Example:
        >>> image_classes([2, 1, 0, 0], [0.6, 0.9, 1.0, 0.8], [0, 0, 0, 2], 3)
        [(1, 2), (), (0,)]
    """
    chances = _finite(region_probabilities, "region_probabilities", ndim=1)
    labels = _integers(region_labels, "region_labels", len(chances))
    index = _image_index(image_index, len(chances), n_images)
    found: list[list[int]] = [[] for _ in range(n_images)]
    for region in np.lexsort((labels, -chances)):
        classes, label = found[index[region]], int(labels[region])
        if label not in classes:
            classes.append(label)
    return [tuple(label for label in classes if label != 0) or tuple(classes) for classes in found]


def _largest(values: Floats, index: NDArray[np.int64], n_images: int) -> Floats:
    """For each region the largest value among the regions of its image."""
    largest = np.full(n_images, -np.inf)
    np.maximum.at(largest, index, values)
    return largest[index]


def _check_temperature(temperature: float) -> None:
    if not (np.isfinite(temperature) and temperature > 0):
        raise SettingsError(f"temperature must be a positive number, but got {temperature}.")


def _image_index(image_index: ArrayLike, n_regions: int, n_images: int) -> NDArray[np.int64]:
    index = _integers(image_index, "image_index", n_regions)
    if len(index) and (index.min() < 0 or index.max() >= n_images):
        raise DataError(
            f"image_index must lie in 0 … {n_images - 1} for {n_images} images, but got {index.min()} … {index.max()}."
        )
    return index


def _integers(values: ArrayLike, name: str, length: int) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.shape != (length,) or (length and array.dtype.kind not in "iu"):
        raise DataError(
            f"{name} must be integers of shape ({length},), one a region, but got {array.dtype} {array.shape}."
        )
    return array.astype(np.int64)


def _finite(values: ArrayLike, name: str, ndim: int) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != ndim:
        raise DataError(f"{name} must have {ndim} dimension(s), but got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise DataError(f"{name} must be finite, but got NaN or infinity.")
    return array


def _non_negative(values: ArrayLike, name: str, shape: tuple[int, ...]) -> Floats:
    array = _finite(values, name, ndim=len(shape))
    if array.shape != shape:
        raise DataError(f"{name} must have shape {shape}, but got {array.shape}.")
    if (array < 0).any():
        raise DataError(f"{name} must not be negative, but got {array.min()}.")
    return array
