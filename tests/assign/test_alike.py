"""Which points are copies of each other."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd.assign.alike import copy_groups


def test_groups_are_chains_numbered_by_their_first_points() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 10)).astype(np.float32)
    x[6] = x[2] + 0.001 * rng.normal(size=10)
    x[4] = x[6] + 0.001 * rng.normal(size=10)
    x[7] = x[0]
    assert copy_groups(x).tolist() == [0, 1, 2, 3, 2, 4, 2, 0]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_points(count: int) -> None:
    assert copy_groups(np.eye(2)[:count]).tolist() == list(range(count))


def test_what_is_much_nearer_than_usual_is_a_shot_of_the_same_part() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(12, 10))
    x[5] = x[3] + 0.2 * rng.normal(size=10)  # 1 − cosine far above that of copies
    found = copy_groups(x)
    assert found[5] == found[3] and len(set(found.tolist())) == 11
    alike = np.ones(10) + 0.05 * x  # the same, where all points are near each other
    assert copy_groups(alike).tolist() == copy_groups(x - x.mean(axis=0)).tolist()
