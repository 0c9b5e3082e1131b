"""Which kind of region is no defect."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.assign.normal_kind import LEAST_IMAGES, MOST_ABOVE, normal_kind

QUIET = np.linspace(0.1, 0.3, 8)


def slow(kinds: list[int], scores: list[float], quiet: list[float]) -> int | None:
    """By comparing every pair."""
    chances = {}
    for kind in sorted(set(kinds)):
        own = [score for k, score in zip(kinds, scores, strict=True) if k == kind]
        if len(own) >= LEAST_IMAGES and len(quiet) >= LEAST_IMAGES:
            wins = sum(1.0 if a > b else 0.5 if a == b else 0.0 for a in own for b in quiet)
            chances[kind] = wins / (len(own) * len(quiet))
    lowest = min(chances, key=lambda kind: chances[kind], default=None)
    return None if lowest is None or chances[lowest] >= MOST_ABOVE else lowest


levels = st.integers(0, 12).map(lambda n: n / 8)  # eighths, so that ties are common and sums exact


@given(st.lists(st.tuples(st.integers(0, 2), levels), max_size=40), st.lists(levels, max_size=12))
def test_as_by_comparing_every_pair(regions: list[tuple[int, float]], quiet: list[float]) -> None:
    kinds, scores = [kind for kind, _ in regions], [score for _, score in regions]
    assert normal_kind(np.array(kinds, np.int64), np.array(scores), np.array(quiet)) == slow(kinds, scores, quiet)


def test_defects_alone_have_no_normal_kind() -> None:
    assert normal_kind(np.repeat([0, 1], 10), np.linspace(0.5, 0.9, 20), QUIET) is None


def test_a_rare_kind_is_never_normal() -> None:
    kinds = np.array([0] * 10 + [1] * (LEAST_IMAGES - 1))
    assert normal_kind(kinds, np.r_[np.linspace(0.5, 0.9, 10), np.full(LEAST_IMAGES - 1, 0.1)], QUIET) is None
