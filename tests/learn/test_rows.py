"""Rows that are made when asked for: the same numbers as all at once, and never all of them in memory."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd import large
from anomalyncd.large import Lazy
from anomalyncd.learn.classifier import Classifier
from anomalyncd.learn.features import FeatureSpace
from anomalyncd.learn.rows import block_rows, fit_space, vectors

WEIGHTS = {"patches": 1.0, "image": 0.7}


@pytest.fixture
def parts() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(0.3, 1, (600, 2, 2, 8)).astype(np.float16) for name in WEIGHTS}


def test_few_regions_are_there_at_once(parts: dict[str, np.ndarray]) -> None:
    space = fit_space(WEIGHTS, parts, center=True)
    expected = FeatureSpace(WEIGHTS).fit(parts, center=True)
    for name in WEIGHTS:
        assert np.array_equal(space.means[name], expected.means[name])
    assert np.array_equal(vectors(space, parts), expected.transform(parts))
    assert np.array_equal(block_rows(space, parts)[0], expected.blocks(parts)[0])


@pytest.mark.parametrize("center", [True, False])
def test_many_regions_have_the_same_numbers(
    parts: dict[str, np.ndarray], center: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = FeatureSpace(WEIGHTS).fit(parts, center=center)
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(large, "BLOCK", 64)
    space = fit_space(WEIGHTS, parts, center=center)
    for name in WEIGHTS:
        np.testing.assert_allclose(space.means[name], expected.means[name], atol=1e-6)
    rows, (blocks, weights) = vectors(expected, parts), block_rows(expected, parts)
    assert isinstance(rows, Lazy) and isinstance(blocks, Lazy)
    some = np.array([5, 599, 0])
    assert rows.shape == (600, 32) and np.array_equal(rows[some], expected.transform(parts)[some])
    whole, shares = expected.blocks(parts)
    assert blocks.shape == whole.shape and np.array_equal(blocks[10:20], whole[10:20])
    assert np.array_equal(weights, shares)


def test_classes_of_many_regions_are_those_of_all_at_once_and_few_are_made_at_a_time(
    parts: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    space = FeatureSpace(WEIGHTS).fit(parts)
    weight = np.random.default_rng(1).normal(size=(5, 32)).astype(np.float32)
    expected = Classifier(space, weight).cosines(parts)
    monkeypatch.setattr(large, "LARGE", 100)
    monkeypatch.setattr(large, "BLOCK", 64)
    made: list[int] = []
    plain = FeatureSpace.transform
    monkeypatch.setattr(
        FeatureSpace,
        "transform",
        lambda self, some: (made.append(len(some["patches"])), plain(self, some))[1],
    )
    found = Classifier(space, weight).cosines(parts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert max(made) <= 64 and sum(made) == 600
