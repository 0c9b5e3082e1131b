"""Normal or defect: how images without a defect score and look, and so how likely a finding is a false alarm.

No torch here, and SciPy or scikit-learn only where a model is fitted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..large import LARGE

Floats = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]

LEAST_NORMAL = 5  # normal images whose scores tell mean and spread
CONTAMINATED = 10.0  # robust deviations above the median: such a "normal" image shows a defect
LEAST_SPREAD = 0.01  # of the mean: scores that happen to be equal are no certainty
NEAR = 0.3  # false-alarm probability of a score up to which looks have a say
WEIGHT = 0.5  # of looks beside the score, both in deviations of normal images
NEAREST = 5  # examples that an image is compared with
MOST_EXAMPLES = 500  # of normal and of defective images each, 3 kB an image
BEYOND_DOUBT = 1e-4  # false-alarm probability of examples of defects
SAME = 1e-3  # 1 − cosine: the image itself, which says nothing about it

MOST_GROUPS = 5  # of scores
STRONG = 10.0  # difference of BIC that counts as very strong evidence (Kass and Raftery, 1995)
APART = 2.0  # Ashman's D from which on two bell curves show two peaks
WIDE_APART = 3.0  # the same where the lower one is no narrower: normal images score alike, weak defects do not
CERTAINLY_APART = 4.0  # from which on nothing lies between them
LEAST_SHIFT, MOST_SHIFT = 0.5, 2.0  # spreads of normal images: less is chance, more may be a weak kind of defect


@dataclass(frozen=True)
class NormalScores:
    """How images without a defect score: a bell curve of which `count` examples were seen.

    Examples
    --------
    >>> known = NormalScores(0.5, 0.1, 101)
    >>> known.probability([0.5, 0.7]).round(3).tolist()
    [0.5, 0.025]
    >>> round(known.level(0.025), 2)
    0.7
    """

    mean: float
    spread: float
    count: int

    @classmethod
    def fit(cls, scores: npt.ArrayLike) -> NormalScores | None:
        """Of normal images' scores (N,), without those so high that the image must show a defect; None for fewer than 5."""
        values = np.asarray(scores, np.float64)
        values = values[np.isfinite(values)]
        if len(values) < LEAST_NORMAL:
            return None
        middle = float(np.median(values))
        deviation = 1.4826 * float(np.median(np.abs(values - middle)))
        kept = values[values <= middle + CONTAMINATED * deviation] if deviation > 0 else values
        mean = float(kept.mean())
        return cls(mean, max(float(kept.std(ddof=1)), LEAST_SPREAD * abs(mean), 1e-12), len(kept))

    def deviations(self, scores: npt.ArrayLike) -> Floats:
        """Scores in spreads above the mean."""
        values: Floats = (np.asarray(scores, np.float64) - self.mean) / self.spread
        return values

    def probability(self, scores: npt.ArrayLike) -> Floats:
        """Chance that a normal image scores at least so high: Student's t of one more draw from the same bell curve."""
        return student_tail(self.deviations(scores) / math.sqrt(1 + 1 / self.count), self.count - 1)

    def level(self, rate: float) -> float:
        """The score that a share `rate` of normal images exceeds."""
        low, high = -1e3, 1e3
        for _ in range(100):  # bisection, so that it is the inverse of `probability` to the last digit
            middle = (low + high) / 2
            too_low = self.probability(self.mean + middle * self.spread) > rate
            low, high = (middle, high) if too_low else (low, middle)
        return self.mean + high * self.spread


def student_tail(t: npt.ArrayLike, freedom: int) -> Floats:
    """Upper tail of Student's t, by Wallace's transformation to a normal deviate (1959); within a tenth.

    z = ± √(n·log(1 + t²/n)) · (8n + 1) / (8n + 3)
    """
    values, n = np.asarray(t, np.float64), freedom
    z = np.sign(values) * np.sqrt(n * np.log1p(values**2 / n)) * (8 * n + 1) / (8 * n + 3)
    tail: Floats = np.asarray(np.vectorize(math.erfc, otypes=[np.float64])(z / math.sqrt(2)) / 2)
    return tail


def lowest_group(scores: npt.ArrayLike, apart: float = APART) -> NormalScores | None:
    """The group of lowest scores, where scores of unlabelled images show more than one; else None.

    As many bell curves as the evidence (BIC) supports; those that make no peak of their own (Ashman's D below 2) belong to
    the one below, because scores of normal images are seldom a perfect bell. A lowest group that is not half as wide as the
    next and not clearly apart (D of 3) tells nothing either: it may hold weak defects too, which score less alike.

    Parameters
    ----------
    scores : (N,) image scores
    apart : Ashman's D from which on two bell curves are two groups

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> levels = [rng.normal(level, 0.02, 30) for level in (0.1, 0.35, 0.9)]
    >>> round(lowest_group(np.concatenate(levels)).mean, 1)
    0.1
    >>> lowest_group(levels[0]) is None
    True
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture

    values = np.asarray(scores, np.float64)
    values = np.sort(values[np.isfinite(values)])
    if len(values) < 2 * LEAST_NORMAL or values[0] == values[-1]:
        return None
    n_scores = len(values)
    if n_scores > LARGE:  # as many as show the same curve
        values = values[np.linspace(0, len(values) - 1, LARGE).round().astype(np.int64)]
    low, width = values[0], values[-1] - values[0]
    scaled = ((values - low) / width)[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [
            GaussianMixture(k, reg_covar=1e-4, n_init=5, random_state=0).fit(scaled)
            for k in range(1, min(MOST_GROUPS, len(values) // LEAST_NORMAL) + 1)
        ]
    evidence = [fit.bic(scaled) for fit in fits]
    best = fits[int(np.argmin(evidence))]
    if evidence[0] - min(evidence) < STRONG:
        return None
    order = np.argsort(best.means_[:, 0])
    weights, means, variances = best.weights_[order], best.means_[order, 0], best.covariances_[order, 0, 0]
    weight, mean, variance = weights[0], means[0], variances[0]
    for w, m, v in zip(weights[1:], means[1:], variances[1:], strict=True):
        distance = abs(m - mean) / math.sqrt((variance + v) / 2)
        if distance >= apart:
            if variance > v / 4 and distance < WIDE_APART:
                return None
            count = max(LEAST_NORMAL, round(weight * n_scores))
            return NormalScores(float(low + width * mean), float(width * math.sqrt(variance)), count)
        both = weight + w
        middle = (weight * mean + w * m) / both
        variance = (weight * (variance + (mean - middle) ** 2) + w * (v + (m - middle) ** 2)) / both
        weight, mean = both, middle
    return None


def shifted(known: NormalScores, scores: npt.ArrayLike) -> NormalScores:
    """What normal images told, moved to where the run's own lowest group of scores lies, if it is clear that it lies higher.

    Images of another day score a little higher than those that a detector was fitted on. Where the run's lowest group is far
    apart from all others and its mean within two spreads of normal images, it cannot be a kind of defect that the line would
    have caught.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> run = np.concatenate([rng.normal(0.51, 0.02, 30), rng.normal(0.9, 0.05, 60)])
    >>> round(shifted(NormalScores(0.47, 0.03, 100), run).mean, 2)
    0.51
    """
    group = lowest_group(scores, CERTAINLY_APART)
    if group is None or not LEAST_SHIFT <= (group.mean - known.mean) / known.spread <= MOST_SHIFT:
        return known
    return NormalScores(group.mean, max(group.spread, known.spread), known.count)


@dataclass(frozen=True)
class Looks:
    """Whether an image looks like images of normal products or like defects, where its detector is most alarmed.

    normal, defects : (N, D) and (M, D) unit vectors of examples
    mean : (L, C) that is taken off before
    usual : the same figure for normal images, each left out in turn
    """

    normal: Features
    defects: Features
    mean: Features
    usual: NormalScores

    def __call__(self, features: npt.NDArray[np.floating]) -> Floats:
        """(I, L, C) `image` parts → (I,): how much more an image is like defects, in deviations of normal images."""
        return self.usual.deviations(likeness(self.project(features, self.mean), self.normal, self.defects))

    @staticmethod
    def project(features: npt.NDArray[np.floating], mean: Features) -> Features:
        """(I, L, C) → (I, L·C) unit vectors, each block centred and scaled on its own."""
        values = features.astype(np.float32)
        values = _unit(_unit(values) - mean) / np.float32(math.sqrt(values.shape[1]))
        return values.reshape(len(values), -1)


def likeness(features: Features, normal: Features, defects: Features) -> Floats:
    """Mean cosine with the nearest 5 defects minus that with the nearest 5 normal images; an image itself does not count.

    Parameters
    ----------
    features : (I, D), normal : (N, D), defects : (M, D) unit vectors

    Returns
    -------
    (I,)
    """

    def nearest(examples: Features) -> Floats:
        cosines = features @ examples.T
        cosines[cosines > 1 - SAME] = -1
        count = min(NEAREST, cosines.shape[1])
        best: Floats = np.partition(cosines, -count, axis=1)[:, -count:].mean(axis=1, dtype=np.float64)
        return best

    return nearest(defects) - nearest(normal)


@dataclass(frozen=True)
class FalseAlarms:
    """How likely what was found in an image is a false alarm.

    scores : of images, in the maps' units; peaks : of the highest value of a map, the same for regions
    looks : of images near the line; None where there are too few examples
    both : of the score and the looks of normal images together, in deviations
    source : what it rests on: "normal images", or "mixture", the lowest group of the run's own scores
    moved : whether normal images score higher in the run, see `shifted`; then they look different too, and looks have no say
    """

    scores: NormalScores
    peaks: NormalScores
    looks: Looks | None = None
    both: NormalScores | None = None
    source: str = "normal images"
    moved: bool = False

    def of_images(self, scores: npt.ArrayLike, features: npt.NDArray[np.floating] | None, rate: float) -> Floats:
        """Chance that a normal image is as suspicious; up to `rate` it is called a defect.

        The score alone decides where it is clear: a score that fewer than half of `rate` of normal images reach is a defect
        whatever it looks like, and one that is common among normal images is none. In between, looks are added to the score.

        Parameters
        ----------
        scores : (I,) image scores; features : (I, L, C) `image` parts, or None for the score alone
        """
        values = np.asarray(scores, np.float64)
        chance = self.scores.probability(values)
        if self.looks is not None and self.both is not None and features is not None and len(values):
            near = (chance > rate / 2) & (chance < NEAR)
            if near.any():
                together = self.scores.deviations(values[near]) + WEIGHT * self.looks(features[near])
                chance[near] = np.maximum(self.both.probability(together), rate / 2)
        return chance

    def of_regions(self, peaks: npt.ArrayLike) -> Floats:
        """Chance that the highest value of a normal image's map is as high as these (R,)."""
        return self.peaks.probability(peaks)

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """Examples, for the model file."""
        if self.looks is None:
            return {}
        return {f"looks.{name}": getattr(self.looks, name) for name in ("normal", "defects", "mean")}

    def settings(self) -> dict[str, Any]:
        """All other numbers."""
        known = {"scores": self.scores, "peaks": self.peaks, "both": self.both}
        known["looks"] = None if self.looks is None else self.looks.usual
        return {name: None if value is None else asdict(value) for name, value in known.items()} | {
            "source": self.source,
            "moved": self.moved,
        }

    @classmethod
    def restore(cls, tensors: Mapping[str, npt.NDArray[np.float32]], settings: Mapping[str, Any]) -> FalseAlarms:
        """The inverse of `tensors` and `settings`."""
        known = {
            name: NormalScores(**settings[name]) for name in ("scores", "peaks", "both", "looks") if settings[name]
        }
        usual = known.pop("looks", None)
        looks = None
        if usual is not None:
            examples = {
                name: np.asarray(tensors[f"looks.{name}"], np.float32) for name in ("normal", "defects", "mean")
            }
            looks = Looks(**examples, usual=usual)
        return cls(**known, looks=looks, source=settings["source"], moved=settings["moved"])


def add_looks(
    known: FalseAlarms,
    scores: npt.NDArray[np.floating],
    features: npt.NDArray[np.floating],
    normal_scores: npt.NDArray[np.floating],
    normal_features: npt.NDArray[np.floating],
) -> FalseAlarms:
    """The same, with looks, where there are enough examples: images of normal products, and defects beyond doubt.

    The run's own low scores are no examples of normal: they look normal to whoever is compared with them, so that the rate
    of false alarms would not be the promised one.

    Parameters
    ----------
    scores, features : (I,) and (I, L, C) of the run's images that have a region
    normal_scores, normal_features : (N,) and (N, L, C) of normal images
    """
    clean = known.scores.probability(normal_scores) > BEYOND_DOUBT  # a defect among them is no example
    normal_scores, normal_features = normal_scores[clean], normal_features[clean]
    clear = np.flatnonzero(known.scores.probability(scores) < BEYOND_DOUBT)
    if min(len(clear), len(normal_scores)) < LEAST_NORMAL:
        return known
    mean = _rounded(_unit(np.concatenate([normal_features, features]).astype(np.float32)).mean(axis=0))
    defects, normal = _sample(Looks.project(features[clear], mean)), Looks.project(normal_features, mean)
    usual = NormalScores.fit(likeness(normal, _sample(normal), defects))
    if usual is None:
        return known
    looks = Looks(_sample(normal), defects, mean, usual)
    together = NormalScores.fit(known.scores.deviations(normal_scores) + WEIGHT * looks(normal_features))
    return FalseAlarms(known.scores, known.peaks, looks, together, known.source)


def _sample(values: Features) -> Features:
    """At most `MOST_EXAMPLES` rows, evenly spread."""
    if len(values) > MOST_EXAMPLES:
        values = values[np.linspace(0, len(values) - 1, MOST_EXAMPLES).astype(np.int64)]
    return _rounded(values)


def _rounded(values: Features) -> Features:
    """As a model file keeps them: a run that goes on ends as one that was never stopped."""
    return values.astype(np.float16).astype(np.float32)


def _unit(values: Features) -> Features:
    length = np.linalg.norm(values, axis=-1, keepdims=True)
    out: Features = np.divide(values, length, out=np.zeros_like(values), where=length > 0)
    return out
