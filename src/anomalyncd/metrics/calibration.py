"""Can a probability be taken at its word? Pure functions on arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from ..errors import DataError, SettingsError


def expected_calibration_error(confidence: ArrayLike, correct: ArrayLike, n_bins: int = 10) -> float | None:
    """How far probabilities are from the share of right answers, in [0, 1]: 0 is perfect.

    Answers are put into bins of equal width by their confidence, the upper end of a bin belonging to the next one and
    1 to the last. With n_b answers in bin b of N in all,

        ECE = Σ_b n_b / N · |mean confidence in b − share correct in b|   (Naeini et al. 2015; Guo et al. 2017)

    None where there is no answer.

    Parameters
    ----------
    confidence : (N,) probability of each answer, 0 … 1
    correct : (N,) bool, whether it is right

    Examples
    --------
    Four answers that claim 0.75 and are right three times of four, and one that claims 1 and is wrong:

    >>> expected_calibration_error([0.75, 0.75, 0.75, 0.75], [True, True, True, False])
    0.0
    >>> expected_calibration_error([0.75, 0.75, 0.75, 0.75, 1], [True, True, True, False, False])
    0.2
    """
    sure, right = np.asarray(confidence, np.float64), np.asarray(correct)
    if sure.ndim != 1 or sure.shape != right.shape:
        raise DataError(
            "Expected one probability and one right or wrong for each answer, "
            f"but got arrays of shape {sure.shape} and {right.shape}."
        )
    if n_bins < 1:
        raise SettingsError(f"n_bins must be at least 1, but got {n_bins}.")
    if len(bad := np.flatnonzero(~((sure >= 0) & (sure <= 1)))):
        raise DataError(f"Probabilities must be between 0 and 1, but the one at position {bad[0]} is {sure[bad[0]]}.")
    if len(sure) == 0:
        return None
    bins = np.minimum((sure * n_bins).astype(np.intp), n_bins - 1)
    # n_b cancels out: the sums of a bin differ by n_b times what its means differ by.
    gaps = np.bincount(bins, weights=sure - right.astype(bool))
    return float(np.abs(gaps).sum() / len(sure))
