"""From the classes of regions to the class of their image (paper, Section 3.4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..config import MergeConfig
from ..errors import DataError

Floats = NDArray[np.float64]

RELATIVE_TEMPERATURE = 0.1  # of the longer image side


def novel_probabilities(logits: ArrayLike, n_base: int, temperature: float = 0.1) -> Floats:
    """Softmax over the novel classes alone: the logits of the base classes are removed before it.

    Parameters
    ----------
    logits : (R, C) of R regions, base classes in the first `n_base` columns
    temperature : of the softmax, the student's τ_s

    Returns
    -------
    (R, K) float64 with K = C - n_base, rows sum to 1

    Examples
    --------
    >>> novel_probabilities([[9.0, 0.1, 0.1], [9.0, 0.3, 0.1]], n_base=1).round(3).tolist()
    [[0.5, 0.5], [0.881, 0.119]]
    """
    values = np.asarray(logits, dtype=np.float64)
    novel = values[:, n_base:]
    if not np.isfinite(values).all():
        raise DataError(
            "logits must be finite, but got NaN or infinity: the training or the backbone's weights failed."
        )
    with np.errstate(over="ignore"):  # a tiny temperature gives -inf, whose weight is rightly 0
        weights = np.exp((novel - novel.max(axis=1, keepdims=True)) / temperature)
    probabilities: Floats = weights / weights.sum(axis=1, keepdims=True)
    return probabilities


def with_normal(probabilities: Floats, chance: Floats, rate: float) -> Floats:
    """Class probabilities that leave room for a false alarm: odds of a defect are rate / chance.

    So at the line, where a share `rate` of normal images is as suspicious, both are as likely; and a region is called
    normal if and only if its chance is above `rate`.

    Parameters
    ----------
    probabilities : (R, K), normal in the first column, where a person's corrections have made it a class to be learned
    chance : (R,) that a normal image has something as suspicious

    Examples
    --------
    >>> with_normal(np.array([[0, 0.8, 0.2], [0, 0.8, 0.2]]), np.array([0.0, 0.06]), 0.02).round(2).tolist()
    [[0.0, 0.8, 0.2], [0.75, 0.2, 0.05]]
    """
    normal = chance / (chance + rate)
    defects = probabilities[:, 1:]
    total = defects.sum(axis=1)
    defects = np.divide(defects, total[:, None], out=np.zeros_like(defects), where=total[:, None] > 0)
    if defects.shape[1]:
        # A defect of an uncertain kind, near the line: the label says defect, and so must the largest probability.
        largest = defects.max(axis=1)
        normal = np.where(chance <= rate, np.minimum(normal, 0.999 * largest / (1 + largest)), normal)
    normal = np.where(total > 0, 1 - (1 - normal) * (1 - probabilities[:, 0]), 1.0)  # no defect is likely at all
    return np.concatenate([normal[:, None], (1 - normal)[:, None] * defects], axis=1)


def merge_regions(
    probabilities: ArrayLike,
    image_index: ArrayLike,
    image_sizes: ArrayLike,
    config: MergeConfig,
    *,
    areas: ArrayLike,
    scores: ArrayLike,
) -> Floats:
    """Class probabilities of each image: the weighted mean over its regions.

    `area` weighs region k of an image by softmax_k(√area_k / τ_α), the paper's way (τ_α: 100 pixels on MVTec AD, 50 on
    MTD); `score` by its anomaly score over the sum of the image's scores (equal weights where all are 0); `average`
    weighs all alike.

    Parameters
    ----------
    probabilities : (R, K) of R regions
    image_index : (R,) int, the image of each region, 0 … N-1, in any order
    image_sizes : (N, 2) image heights and widths in pixels
    config : `how` and `temperature` are used
    areas : (R,) region areas in image pixels, ≥ 0
    scores : (R,) anomaly scores, ≥ 0

    Returns
    -------
    (N, K) float64. Rows sum to 1 if those of `probabilities` do, but the row of an image without regions is all zeros.

    Examples
    --------
    >>> sizes = [[100, 200], [100, 200]]
    >>> merged = merge_regions([[1, 0], [0, 1]], [0, 0], sizes, MergeConfig(), areas=[900, 100], scores=[0.2, 0.6])
    >>> merged.round(3).tolist()  # weights softmax(30 / 20, 10 / 20)
    [[0.731, 0.269], [0.0, 0.0]]
    """
    values, index = np.asarray(probabilities, dtype=np.float64), np.asarray(image_index, dtype=np.int64)
    sizes = np.asarray(image_sizes, dtype=np.float64)
    if config.how == "area":
        tau = RELATIVE_TEMPERATURE * sizes.max(axis=1)[index] if config.temperature is None else config.temperature
        roots = np.sqrt(np.asarray(areas, dtype=np.float64))
        with np.errstate(over="ignore"):  # as above
            weights = np.exp((roots - _largest(roots, index, len(sizes))) / tau)
    elif config.how == "score":
        levels = np.asarray(scores, dtype=np.float64)
        largest = _largest(levels, index, len(sizes))
        weights = np.divide(levels, largest, out=np.ones_like(levels), where=largest > 0)
    else:
        weights = np.ones(len(values))

    weights = weights / np.bincount(index, weights, minlength=len(sizes))[index]  # the largest is 1, so the sum ≥ 1
    merged = np.zeros((len(sizes), values.shape[1]))
    np.add.at(merged, index, weights[:, None] * values)
    return merged


def counted_regions(
    labels: NDArray[np.int64], of_image: NDArray[np.int64], n_images: int, *, normal_counts: bool
) -> NDArray[np.bool_]:
    """Regions with a say: known defects; unknown ones where there is no such; normal ones where there is neither.

    With `normal_counts` normal ones have it beside known defects too, but an unknown one still outranks them: the paper's
    sum knows no unknown regions, and an image with one must not pass as normal.

    Examples
    --------
    >>> counted_regions(np.array([0, 2, -1, 0]), np.array([0, 0, 0, 1]), 2, normal_counts=False).tolist()
    [False, True, False, True]
    """
    has_defect, has_unknown = (
        (np.bincount(of_image, weights=some, minlength=n_images) > 0)[of_image] for some in (labels > 0, labels < 0)
    )
    normal = ~has_unknown & (~has_defect | normal_counts)
    return np.asarray(np.where(labels > 0, True, np.where(labels < 0, ~has_defect, normal)))


def image_classes(
    region_labels: ArrayLike, region_probabilities: ArrayLike, image_index: ArrayLike, n_images: int
) -> list[tuple[int, ...]]:
    """Every class found in each image, most probable first: one image may show several defects.

    A class is as probable as its most probable region; of equals the lower label comes first. Normal (0) is
    left out unless it is all there is. Unknown (-1) is listed like a class.

    Parameters
    ----------
    region_labels : (R,) int, the label of each region
    region_probabilities : (R,) the probability of that label, 0 … 1
    image_index : (R,) int, the image of each region, 0 … n_images-1, in any order

    Returns
    -------
    n_images tuples of labels, empty for an image without regions

    Examples
    --------
    >>> image_classes([2, 1, 0, 0], [0.6, 0.9, 1.0, 0.8], [0, 0, 0, 2], 3)
    [(1, 2), (), (0,)]
    """
    labels, index = np.asarray(region_labels, dtype=np.int64), np.asarray(image_index, dtype=np.int64)
    found: list[list[int]] = [[] for _ in range(n_images)]
    for region in np.lexsort((labels, -np.asarray(region_probabilities))):
        classes, label = found[index[region]], int(labels[region])
        if label not in classes:
            classes.append(label)
    return [tuple(label for label in classes if label != 0) or tuple(classes) for classes in found]


def _largest(values: Floats, index: NDArray[np.int64], n_images: int) -> Floats:
    """For each region the largest value among the regions of its image."""
    largest = np.full(n_images, -np.inf)
    np.maximum.at(largest, index, values)
    return largest[index]
