"""How many classes there are: an estimate from the features alone, with its evidence."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import adjusted_rand_score, pairwise_distances, silhouette_score
from threadpoolctl import threadpool_limits

Floats = npt.NDArray[np.float32]
Points = npt.NDArray[np.float64]
RESAMPLES = 20
SHARE = 0.9  # of the regions in a resample
BLOBS = 10  # data sets without classes, for comparison
BLOB_RESAMPLES = 3  # of each
TIED = 0.9  # of the largest score: no worse, and the smaller number is the simpler one
STARTS = 10  # of each k-means
MOST_REGIONS = 1000  # that are looked at
MOST_AXES = 200


@dataclass(frozen=True)
class CountEstimate:
    """An estimate of the number of clusters K, and what it rests on, for each of the `candidates`.

    count : the estimate; low, high : range of numbers that are hardly worse
    silhouette : how much nearer regions are to their own cluster than to the next, mean over resamples
    stability : adjusted Rand index of the clusterings that two resamples give
    agreement : adjusted Rand index of the clusterings that each two kinds of features give alone; 1 where there is one kind
    blob_silhouette, blob_stability : as above, for one Gaussian blob with the covariance of the data
    score : silhouette times stability above a blob's times agreement
    error : standard error of the largest score. The estimate is the smallest number that is within one error of it and not
        much worse either (`TIED`); the range is of all within two errors.
    """

    count: int
    low: int
    high: int
    candidates: list[int]
    silhouette: list[float]
    stability: list[float]
    agreement: list[float]
    blob_silhouette: list[float]
    blob_stability: list[float]
    score: list[float]
    error: float

    def to_json_dict(self) -> dict[str, Any]:
        """Plain numbers, for a file."""
        return asdict(self)


def estimate_count(
    features: Floats,
    most: int,
    *,
    kinds: Sequence[Floats] = (),
    seed: int = 0,
    on_step: Callable[[], None] = lambda: None,
) -> CountEstimate:
    """Estimate the number of clusters among unit vectors.

    Three things speak for a number K: clusters lie apart (silhouette), other samples of the same regions give the same
    clusters (stability), and features of different kinds, each on its own, give the same clusters (agreement). A long
    cloud without any clusters is cut in two just as reproducibly, so stability counts only as far as it exceeds that of a
    Gaussian blob with the same covariance. Where no number does better than blobs do by chance, there is one class.

    Parameters
    ----------
    features : (R, D) unit vectors
    most : largest number to consider
    kinds : the same regions (R, D_i) by features of each kind alone, such as crop and whole image
    on_step : called after each of `n_steps()` steps

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = np.eye(8, dtype=np.float32)[np.arange(60) % 3] + rng.normal(0, 0.1, (60, 8)).astype(np.float32)
    >>> estimate_count(x / np.linalg.norm(x, axis=1, keepdims=True), most=6).count
    3
    """
    rng = np.random.default_rng(seed)
    if len(features) > MOST_REGIONS:
        chosen = np.sort(rng.choice(len(features), MOST_REGIONS, replace=False))
        features, kinds = features[chosen], [kind[chosen] for kind in kinds]
    candidates = list(range(2, min(most, int(SHARE * len(features)) - 1) + 1))
    if not candidates:
        return CountEstimate(1, 1, min(most, len(features)) or 1, [], [], [], [], [], [], [], 0.0)
    points, spread = _principal(features)
    with threadpool_limits(1), warnings.catch_warnings():  # more threads add up in the order in which they end
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct regions than clusters
        silhouettes, stabilities = _resampled(points, candidates, RESAMPLES, rng, on_step)
        agreement = _agreement([_principal(kind)[0] for kind in kinds], candidates, rng, on_step)
        blobs = []
        for _ in range(BLOBS):
            blob = rng.standard_normal(points.shape) * spread
            blobs.append(_resampled(blob, candidates, BLOB_RESAMPLES, rng, on_step))
    blob_silhouette = np.mean([found.mean(axis=0) for found, _ in blobs], axis=0)
    # More clusters are never more stable in a blob: what looks so is noise.
    falling = IsotonicRegression(increasing=False)
    blob_stability = falling.fit_transform(candidates, np.mean([found.mean(axis=0) for _, found in blobs], axis=0))
    noise = np.median(np.std([found.mean(axis=0) for _, found in blobs], axis=0))

    def above_blob(stable: Points) -> Points:
        # Share of what there is to gain; the noise keeps it small where a blob is as stable as anything can be.
        share: Points = (stable - blob_stability) / (1 - blob_stability + max(noise, 1e-6))
        return np.clip(share, 0, None)

    gains = [
        np.clip(apart.mean(axis=0) - blob_silhouette, 0, None) * above_blob(stable.mean(axis=0))
        for apart, stable in ((silhouettes, stabilities), *blobs)
    ]
    by_chance = [gain.max() for gain in gains[1:]]
    is_blob = gains[0].max() <= np.mean(by_chance) + 3 * np.std(by_chance)
    scores = np.clip(silhouettes, 0, None) * above_blob(stabilities) * agreement  # (resamples, K)
    silhouette, stability, score = silhouettes.mean(axis=0), stabilities.mean(axis=0), scores.mean(axis=0)
    best = int(score.argmax())
    # Jackknife: resamples that share most of their regions differ less than new data would.
    deviation = 1.4826 * np.median(np.abs(scores[:, best] - np.median(scores[:, best])))
    error = float(np.sqrt(SHARE / (1 - SHARE)) * deviation)
    lowest = (max(TIED * score[best], score[best] - error), score[best] - 2 * error)
    tied, likely = (np.array(candidates)[(score > 0) & (score >= limit)] for limit in lowest)
    if is_blob or not score.any():
        tied = likely = np.ones(1)
    return CountEstimate(
        int(tied.min()), int(likely.min()), int(likely.max()), candidates, silhouette.tolist(), stability.tolist(),
        agreement.tolist(), blob_silhouette.tolist(), blob_stability.tolist(), score.tolist(), error,
    )  # fmt: skip


def n_steps(n_kinds: int = 0) -> int:
    """Steps of `estimate_count` with so many kinds of features, for a progress bar."""
    return RESAMPLES + BLOB_RESAMPLES * BLOBS + (RESAMPLES // 2 if n_kinds > 1 else 0)


def _principal(features: Floats) -> tuple[Points, Points]:
    """Coordinates (R, d) along the main axes and their deviations (d,): distances hardly change, and k-means is faster."""
    centred = features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)
    u, s, _ = np.linalg.svd(centred, full_matrices=False)
    u, s = u[:, :MOST_AXES], s[:MOST_AXES]
    return u * s, s / np.sqrt(len(features))


def _agreement(
    kinds: list[Points], candidates: list[int], rng: np.random.Generator, on_step: Callable[[], None]
) -> Points:
    """(K,) mean over resamples and over all pairs of kinds; 1 where there are not two of them."""
    if len(kinds) < 2:
        return np.ones(len(candidates))
    found = np.empty((RESAMPLES // 2, len(candidates)))
    for row in range(len(found)):
        chosen = rng.permutation(len(kinds[0]))[: int(SHARE * len(kinds[0]))]
        for column, k in enumerate(candidates):
            seed = int(rng.integers(2**31))
            labels = [KMeans(k, n_init=STARTS, random_state=seed).fit_predict(kind[chosen]) for kind in kinds]
            found[row, column] = np.mean([adjusted_rand_score(a, b) for a, b in combinations(labels, 2)])
        on_step()
    mean: Points = found.mean(axis=0)
    return np.clip(mean, 0, None)


def _resampled(
    points: Points, candidates: list[int], count: int, rng: np.random.Generator, on_step: Callable[[], None]
) -> tuple[Points, Points]:
    """Silhouettes (count, K) of resamples, and how far the clustering of each agrees with those of all others."""
    silhouettes = np.empty((count, len(candidates)))
    labels = np.empty((count, len(candidates), len(points)), np.int64)
    for row in range(count):
        chosen = rng.permutation(len(points))[: int(SHARE * len(points))]
        distances = pairwise_distances(points[chosen])
        np.fill_diagonal(distances, 0)
        for column, k in enumerate(candidates):
            found = KMeans(k, n_init=STARTS, random_state=int(rng.integers(2**31))).fit(points[chosen])
            silhouettes[row, column] = -1.0
            if len(np.unique(found.labels_)) == k < len(chosen):
                silhouettes[row, column] = silhouette_score(distances, found.labels_, metric="precomputed")
            labels[row, column] = found.predict(points)
        on_step()
    agree = np.zeros((count, count, len(candidates)))
    for a, b in combinations(range(count), 2):
        agree[a, b] = agree[b, a] = [adjusted_rand_score(labels[a, c], labels[b, c]) for c in range(len(candidates))]
    return silhouettes, agree.sum(axis=1) / (count - 1)
