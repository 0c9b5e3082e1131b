"""Defects among images that are taken for normal: their patches are odd to most of several small banks of the others."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .false_alarms import NormalScores

Floats = npt.NDArray[np.float32]
BANK_IMAGES = 4  # so few that most banks are without a kind of defect that one image in twenty shows
IMAGE_ROWS = 130  # of each image in a bank
LEAST_IMAGES = 16  # fewer tell nothing about each other
WIDTH = 128  # that rows are projected to: distances stay nearly the same (Johnson–Lindenstrauss)
ROUNDS = 3
HIGHEST, LEAST_ROWS = 0.01, 3  # share of an image's patches, and number, whose mean oddness is that of the image
WRONG = 0.01  # share of what is found that may be normal
CLEAR = 3.0  # spreads above the mean up to which an image tells how normal ones score
REFINED = 10  # times at most that mean and spread are taken anew, of the images that are not odd by the last ones
LEAST_SPREAD = 0.01  # of the mean: scores that happen to be equal are no certainty
LOW, HIGH = 0.1, 0.4  # of the scores: a tenth or two of defects, all above, hardly move these quantiles
LOW_Z, HIGH_Z = -1.2816, -0.2533  # where they lie on a bell curve
BLOCK = 4096


def odd_images(rows: npt.NDArray[np.floating], owner: npt.NDArray[np.int64], seed: int) -> dict[int, float]:
    """Images that seem to show a defect, and how odd each is, in spreads above the mean of the others.

    The images are dealt into banks of four or five. A patch is as odd as the median of its distances to the banks, its own
    left out: a defect that is in fewer than half of them cannot vouch for its like. What is found is in no bank of the next
    of three rounds. By the method of Benjamini and Hochberg (1995) about one in a hundred of them is a normal image.

    Parameters
    ----------
    rows : (N, D) patch features; owner : (N,) the image of each

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(400, 20)).astype(np.float32)
    >>> rows[35] += 9
    >>> list(odd_images(rows, np.repeat(np.arange(20), 20), seed=0))
    [1]
    """
    images, place = np.unique(owner, return_inverse=True)
    if len(images) < LEAST_IMAGES:
        return {}
    rng = np.random.default_rng(seed)
    points = _projected(rows, rng)
    part, suspect = rng.permutation(len(images)) % (len(images) // BANK_IMAGES), np.zeros(len(images), bool)
    deviations = np.zeros(len(images))
    for _ in range(ROUNDS):
        scores = _scores(_oddness(points, part[place], ~suspect[place], rng), place, len(images))
        deviations, chance = _deviations(scores)
        before, suspect = suspect, _surprising(chance)
        if (suspect == before).all():
            break
    return {int(images[k]): round(float(deviations[k]), 1) for k in np.flatnonzero(suspect)}


def _projected(rows: npt.NDArray[np.floating], rng: np.random.Generator) -> Floats:
    if rows.shape[1] <= WIDTH:
        return rows.astype(np.float32)
    matrix = rng.standard_normal((rows.shape[1], WIDTH), np.float32) / np.float32(WIDTH**0.5)
    blocks = range(0, len(rows), BLOCK)
    return np.concatenate([rows[start : start + BLOCK].astype(np.float32) @ matrix for start in blocks])


def _oddness(
    points: Floats, part: npt.NDArray[np.int64], clean: npt.NDArray[np.bool_], rng: np.random.Generator
) -> Floats:
    """(N,) median distance of each point to the banks of which it is no part."""
    squared = (points**2).sum(axis=1)
    found = np.full((part.max() + 1, len(points)), np.nan, np.float32)
    for bank, distances in enumerate(found):
        own, others = np.flatnonzero((part == bank) & clean), np.flatnonzero(part != bank)
        if len(own) > BANK_IMAGES * IMAGE_ROWS:
            own = rng.choice(own, BANK_IMAGES * IMAGE_ROWS, replace=False)
        for some in np.split(others, range(BLOCK, len(others), BLOCK)) if len(own) else ():
            distances[some] = (squared[own] - 2 * points[some] @ points[own].T).min(axis=1) + squared[some]
    median: Floats = np.sqrt(np.maximum(np.nanmedian(found, axis=0), 0))
    return median


def _scores(odd: Floats, place: npt.NDArray[np.int64], n_images: int) -> npt.NDArray[np.float64]:
    """(n_images,) mean of the highest of each image."""
    scores = np.zeros(n_images)
    for image in range(n_images):
        own = np.sort(odd[place == image])
        scores[image] = own[-max(LEAST_ROWS, round(HIGHEST * len(own))) :].mean()
    return scores


def _deviations(scores: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Spreads above the mean of normal images, (N,), and the chance that one of these lies as high.

    Mean and spread are of scores that are not far above them, beginning with the bell curve through two low quantiles.
    """
    low, mean = np.quantile(scores, [LOW, HIGH])
    spread, count = (mean - low) / (HIGH_Z - LOW_Z), len(scores)
    mean -= HIGH_Z * spread
    for _ in range(REFINED):
        clear = scores[scores <= mean + CLEAR * max(spread, LEAST_SPREAD * abs(mean))]
        mean, spread, count = float(clear.mean()), float(clear.std(ddof=1)), len(clear)
    known = NormalScores(mean, max(spread, LEAST_SPREAD * abs(mean), 1e-12), count)
    return known.deviations(scores), known.probability(scores)


def _surprising(chance: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """As many of the smallest chances as can be taken with a share `WRONG` of false ones."""
    order = np.argsort(chance, kind="stable")
    below = np.flatnonzero(chance[order] <= WRONG * np.arange(1, len(chance) + 1) / len(chance))
    found = np.zeros(len(chance), bool)
    found[order[: below.max(initial=-1) + 1]] = True
    return found
