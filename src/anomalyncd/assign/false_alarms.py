"""Which detections are false alarms: a threshold on image scores, found without labels, where the scores show one."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

LEAST_IMAGES = 8  # fewer do not tell the five numbers that two bell curves have
LEAST_SPREAD = 0.02  # of a group, as a share of all scores' range: scores that happen to be equal are no group
STRONG = 10.0  # difference of BIC that counts as very strong evidence (Kass and Raftery, 1995)
LEAST_EXPLAINED = 0.6  # share of the variance; 2/π = 0.64 for the best split of one bell curve
STARTS = np.linspace(0.1, 0.9, 9)  # shares of normal images that the search begins with


def false_alarm_threshold(scores: npt.ArrayLike) -> float:
    """Score from which on an image is rather defective than normal; 0 where the scores do not show two groups.

    Normal images score alike and defective ones differ, so two bell curves of different widths are fitted, and the
    threshold is where the upper one overtakes the lower one. Without very strong evidence (BIC)
    for two curves instead of one there is none. Where the upper curve is only a tail, the split of least variance within
    both sides (Otsu) is lower, and taken instead: too high a threshold loses defects, while false alarms above it may still
    be told by their looks. A split that explains clearly less than it would of one bell curve says nothing, because then few
    extreme images make up the variance.

    Parameters
    ----------
    scores : (N,) float 0 … 1, the largest value of each image's anomaly map on the fitted range

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> normal, defective = rng.normal(0.2, 0.02, 30), rng.normal(0.7, 0.1, 30)
    >>> bool(normal.max() < false_alarm_threshold([*normal, *defective]) < defective.min())
    True
    >>> false_alarm_threshold(normal)
    0.0
    """
    values = np.asarray(scores, dtype=np.float64)
    values = values[np.isfinite(values)] / 2  # the spread of two floats may be more than a float holds
    if len(values) < LEAST_IMAGES or values.min() == values.max():
        return 0.0
    low, width = values.min(), values.max() - values.min()
    scaled = np.sort((values - low) / width)[:, None]
    one = GaussianMixture(1, reg_covar=LEAST_SPREAD**2).fit(scaled)
    two = max((_two_groups(scaled, share) for share in STARTS), key=lambda fit: float(fit.lower_bound_))
    if one.bic(scaled) - two.bic(scaled) < STRONG:
        return 0.0
    first, last = sorted(two.means_[:, 0])
    between = np.linspace(first, last, 2001)[:, None]
    upper = two.predict_proba(between)[:, int(two.means_[:, 0].argmax())] > 0.5
    crossing = float(between[np.argmax(upper), 0]) if upper.any() else last
    split, explained = _otsu_split(scaled[:, 0])
    if explained >= LEAST_EXPLAINED:
        crossing = min(crossing, split)
    return float(2 * (low + width * crossing))


def _otsu_split(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    """Where sorted values (N,) fall into the two groups of least variance, the middle of two neighbours; and the share of
    the variance that this split explains."""
    below = np.arange(1, len(values))
    above = len(values) - below
    sums = np.cumsum(values)[:-1]
    apart = below * above * ((values.sum() - sums) / above - sums / below) ** 2
    place = int(apart.argmax())
    return float(values[place : place + 2].mean()), float(apart[place] / len(values) ** 2 / values.var())


def _two_groups(scaled: npt.NDArray[np.float64], share: float) -> GaussianMixture:
    """Two bell curves for sorted scores (N, 1), the search begun with this share of images in the lower group."""
    parts = np.split(scaled[:, 0], [min(max(2, round(share * len(scaled))), len(scaled) - 2)])
    spreads = [max(float(part.var()), LEAST_SPREAD**2) for part in parts]
    start = {
        "weights_init": [len(part) / len(scaled) for part in parts],
        "means_init": [[part.mean()] for part in parts],
        "precisions_init": [[[1 / spread]] for spread in spreads],
    }
    mixture = GaussianMixture(2, reg_covar=LEAST_SPREAD**2, max_iter=300, **start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a start that wanders is not the best one
        return mixture.fit(scaled)
