"""How well do anomaly scores, maps and masks find the true defects? Pure functions on arrays.

Maps are (h, w) finite numbers of any range, a higher score being more anomalous; others are errors. Masks are
(H, W) bool or numbers that are not 0 on a defect; None stands for a mask without defect. A map of another size
than its mask covers the same field of view: it is resized to the mask's size bilinearly. An image whose mask is None
counts as many normal pixels as its map has: where maps are not of the masks' size, give it a mask that is all False.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import trapezoid
from scipy.stats import rankdata

from ..errors import DataError, SettingsError

Array = NDArray[Any]


@dataclass(frozen=True)
class BoxRates:
    """What `box_rates` finds, in two readings; a rate is None where there is nothing that it could be a share of.

    fpr, fnr : of all predicted boxes and of all true ones
    fpr_defective : of the predicted boxes of images with a defect; fnr_images : of those images, none of whose boxes match
    """

    fpr: float | None
    fnr: float | None
    n_true: int
    n_predicted: int
    fpr_defective: float | None = None
    fnr_images: float | None = None


def image_auroc(scores: ArrayLike, is_defective: ArrayLike) -> float | None:
    """Chance that a defective image scores higher than a normal one, ties counting half, in [0, 1].

    None where only one kind of image is present.

    Parameters
    ----------
    scores : (N,) one number an image, higher is more anomalous; NaN is an error
    is_defective : (N,) bool

    Examples
    --------
    >>> image_auroc([0.1, 0.4, 0.4, 0.9], [False, False, True, True])
    0.875
    """
    values, defective = np.asarray(scores), np.asarray(is_defective)
    if values.ndim != 1 or values.shape != defective.shape:
        raise DataError(
            f"Expected one score and one truth an image, but got scores of shape {values.shape} "
            f"and truths of shape {defective.shape}."
        )
    if not np.isin(defective, (0, 1)).all():
        raise DataError("is_defective: expected True or False for each image, but got other values.")
    if len(bad := np.flatnonzero(np.isnan(values.astype(np.float64)))):
        raise DataError(f"The score of image {bad[0]} is {values[bad[0]]}: expected a number.")
    defective = defective.astype(bool)
    n_defective, n_normal = int(defective.sum()), int((~defective).sum())
    if not n_defective or not n_normal:
        return None
    n_wins = rankdata(values)[defective].sum() - n_defective * (n_defective + 1) / 2
    return float(n_wins / (n_defective * n_normal))


class PixelScores:
    """Pixel AUROC and AUPRO of any number of images, added one by one, in fixed memory (24 bytes a bin).

    Scores are counted in `n_bins` bins of equal width, and scores in one bin count as ties. So results are exact where
    different scores never share a bin, as with maps of 8 or 16 bits scaled to 0 … 1 and not resized. In general the
    error is at most ½ Σ_b p_b·q_b, where bin b holds the shares p_b of the normal and q_b of the defective pixels
    (in AUPRO: of the mean region), and for AUPRO that divided by `max_fpr`. This is far less than 1e-3, unless a few
    outliers stretch the range so far that most scores share a few bins.

    Parameters
    ----------
    low, high : ends of the range; a score outside is an error
    n_bins : number of bins

    Examples
    --------
    >>> scores = PixelScores(low=0, high=1)
    >>> scores.add(np.array([[0.1, 0.4], [0.4, 0.9]]), np.array([[False, False], [True, True]]))
    >>> scores.add(np.array([[0.1, 0.2], [0.1, 0.2]]), None)
    >>> round(scores.pixel_auroc(), 4), round(scores.aupro(), 4), scores.n_images
    (0.9583, 0.8611, 2)
    """

    def __init__(self, low: float, high: float, *, n_bins: int = 65536) -> None:
        if not (low < high and np.isfinite(high - low)):
            raise SettingsError(f"low and high must be finite numbers with low < high, but got {low} and {high}.")
        if n_bins < 1:
            raise SettingsError(f"n_bins must be 1 or more, but got {n_bins}.")
        self.low, self.high, self.n_bins = float(low), float(high), n_bins
        self.n_images = 0
        self._normal, self._defective = np.zeros((2, n_bins), dtype=np.int64)
        self._overlap = np.zeros(n_bins)  # each defective pixel as its share of its region

    def add(self, anomaly_map: Array, mask: Array | None) -> None:
        """Count one image; an image that raises an error is not counted.

        Parameters
        ----------
        anomaly_map : (h, w), low … high
        mask : (H, W) or None, see the top of this module
        """
        scores = _check_map(anomaly_map, self.n_images)
        if scores.min() < self.low or scores.max() > self.high:
            raise DataError(
                f"Anomaly map {self.n_images}: expected scores in {self.low} … {self.high}, the range given to "
                f"PixelScores, but got {scores.min()} … {scores.max()}. Give the range of all maps."
            )
        truth = np.zeros(scores.shape, dtype=bool) if mask is None else _check_mask(mask, self.n_images)
        if scores.shape != truth.shape:
            scores = cv2.resize(scores, truth.shape[::-1], interpolation=cv2.INTER_LINEAR)
        position = (scores.astype(np.float64) - self.low) / (self.high - self.low)
        # Clipped, because interpolation may leave the range by a rounding error.
        bins = np.clip((position * self.n_bins).astype(np.intp), 0, self.n_bins - 1)
        np.add.at(self._normal, bins[~truth], 1)
        np.add.at(self._defective, bins[truth], 1)
        _, regions = cv2.connectedComponents(truth.astype(np.uint8), connectivity=8)
        np.add.at(self._overlap, bins[truth], 1 / np.bincount(regions.ravel())[regions[truth]])
        self.n_images += 1

    def pixel_auroc(self) -> float | None:
        """Chance that a defective pixel scores higher than a normal one, over all images together, in [0, 1].

        None where no pixel is defective, or none is normal.
        """
        return _area(self._normal, self._defective, 1.0)

    def aupro(self, *, max_fpr: float = 0.3) -> float | None:
        """Area under per-region overlap against false positive rate up to `max_fpr`, divided by `max_fpr`, in [0, 1].

        As MVTec AD is evaluated (Bergmann et al., CVPR 2019). At each threshold, the per-region overlap is the mean share
        of a true region that scores at least the threshold, where regions are the 8-connected components of the masks and
        all regions of all images weigh the same; the false positive rate is that share of all normal pixels, those of
        normal images included. The curve is linear between thresholds, also where `max_fpr` cuts it.
        None where no pixel is defective, or none is normal.
        """
        if not 0 < max_fpr <= 1:
            raise SettingsError(f"max_fpr must be greater than 0 and at most 1, but got {max_fpr}.")
        return _area(self._normal, self._overlap, max_fpr)


def box_rates(predicted: Iterable[Array | None], true: Iterable[Array | None], *, iou: float = 0.1) -> BoxRates:
    """How many defects do masks miss, and how many do they invent, counted in bounding boxes (the paper's Table 3)?

    Boxes are the bounding boxes of the masks' 8-connected components; a predicted and a true box of one image match
    if their intersection over union exceeds `iou`. The paper says this much and prints no formula. Strictly read,
    FNR = true boxes that no predicted box matches / true boxes, FPR = predicted boxes that match no true box /
    predicted boxes, over all images together, normal ones included. A box may match several. Mildly read, "an anomaly
    is detected" is said of an image, and normal images have none: FNR = images with a defect of which no box matches /
    images with a defect, FPR = as above, in these images only. The table's figures are means over products.

    Parameters
    ----------
    predicted : N masks (h, w) or None, for instance from a generator: only one at a time is held
    true : N masks (H, W) or None. A predicted mask of another size covers the same field of view; its boxes are scaled.
    iou : in [0, 1)

    Examples
    --------
    >>> true, predicted = np.zeros((8, 8), dtype=bool), np.zeros((8, 8), dtype=bool)
    >>> true[:3, :3] = predicted[1:4, 1:4] = predicted[6:, 6:] = True
    >>> box_rates([predicted], [true])
    BoxRates(fpr=0.5, fnr=0.0, n_true=1, n_predicted=2, fpr_defective=0.5, fnr_images=0.0)
    """
    if not 0 <= iou < 1:
        raise SettingsError(f"iou must be at least 0 and less than 1, but got {iou}.")
    n_true = n_predicted = n_missed = n_false = 0
    of_defective = np.zeros(4, dtype=np.int64)  # images with a defect, those missed; their boxes, those false
    missing: Any = object()
    for index, (predicted_mask, true_mask) in enumerate(zip_longest(predicted, true, fillvalue=missing)):
        if predicted_mask is missing or true_mask is missing:
            raise DataError(f"Expected one predicted and one true mask an image, but one is missing for image {index}.")
        found, wanted = _boxes(predicted_mask, index), _boxes(true_mask, index)
        if predicted_mask is not None and true_mask is not None:
            (rows, columns), (height, width) = np.shape(predicted_mask), np.shape(true_mask)
            found *= (width / columns, height / rows, width / columns, height / rows)
        is_false = np.ones(len(found), dtype=bool)
        for box in wanted:  # a box at a time: noisy masks have boxes by the ten thousand
            matches = _iou(box, found) > iou
            n_missed += not matches.any()
            is_false &= ~matches
        n_true, n_predicted, n_false = n_true + len(wanted), n_predicted + len(found), n_false + int(is_false.sum())
        if len(wanted):
            of_defective += np.array((1, is_false.all(), len(found), is_false.sum()))
    n_images, n_lost, n_found, n_wrong = of_defective.tolist()
    return BoxRates(
        _share(n_false, n_predicted),
        _share(n_missed, n_true),
        n_true,
        n_predicted,
        _share(n_wrong, n_found),
        _share(n_lost, n_images),
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _area(normal: Array, defective: Array, max_fpr: float) -> float | None:
    """Mean height up to `max_fpr` of the curve that falling thresholds draw: defective share over normal share."""
    fpr, hit_rate = (np.cumsum(np.append(0, counts[::-1])) for counts in (normal, defective))
    if not fpr[-1] or not hit_rate[-1]:
        return None
    fpr, hit_rate = fpr / fpr[-1], hit_rate / hit_rate[-1]
    stop = int(np.searchsorted(fpr, max_fpr, side="right"))
    if stop < len(fpr):
        share = (max_fpr - fpr[stop - 1]) / (fpr[stop] - fpr[stop - 1])
        last = hit_rate[stop - 1] + share * (hit_rate[stop] - hit_rate[stop - 1])
        fpr, hit_rate = np.append(fpr[:stop], max_fpr), np.append(hit_rate[:stop], last)
    return min(1.0, float(trapezoid(hit_rate, fpr)) / max_fpr)  # rounding may pass 1


def _check_map(anomaly_map: Array, index: int) -> Array:
    """→ (h, w) float32 or float64, finite."""
    scores = np.asarray(anomaly_map)
    if scores.ndim != 2 or scores.size == 0 or scores.dtype.kind not in "biuf":
        raise DataError(
            f"Anomaly map {index}: expected a non-empty 2-D array of numbers, "
            f"but got shape {scores.shape} and type {scores.dtype}."
        )
    fits_single = np.can_cast(scores.dtype, np.float32)
    scores = np.ascontiguousarray(scores, dtype=np.float32 if fits_single else np.float64)
    if len(bad := np.argwhere(~np.isfinite(scores))):
        row, column = bad[0]
        raise DataError(
            f"Anomaly map {index}: expected finite scores, but {len(bad)} of {scores.size} are NaN or infinite, "
            f"the first at row {row}, column {column}. Mend the detector's output or leave the image out."
        )
    return scores


def _check_mask(mask: Array, index: int) -> NDArray[np.bool_]:
    truth: NDArray[np.bool_] = np.asarray(mask) != 0
    if truth.ndim != 2 or truth.size == 0:
        raise DataError(f"Mask {index}: expected a non-empty 2-D array, but got shape {truth.shape}.")
    return truth


def _boxes(mask: Array | None, index: int) -> NDArray[np.float64]:
    """→ (N, 4) x0, y0, x1, y1, ends excluded."""
    if mask is None:
        return np.zeros((0, 4))
    foreground = _check_mask(mask, index).astype(np.uint8)
    statistics = cv2.connectedComponentsWithStats(foreground, connectivity=8)[2][1:]  # 0 is the background
    x, y, width, height = statistics[:, :4].astype(np.float64).T
    return np.stack([x, y, x + width, y + height], axis=1)


def _iou(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    intersection = np.clip(sides, 0, None).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - intersection
    ratio: NDArray[np.float64] = intersection / union
    return ratio
