"""Whether an image shows the product at all: what the limit promises, and what it never does."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd import large
from anomalyncd.assign import product as module
from anomalyncd.assign.product import Product, exposure, fit_product

WIDTH = 40


def scenes(seed: int, count: int, *, of: int = 0, noise: float = 0.02, light: float = 6.5) -> np.ndarray:
    """Images of a product (its main direction), with their light and contrast behind."""
    rng = np.random.default_rng(seed)
    looks = np.eye(WIDTH)[of] + np.eye(WIDTH)[-1] + rng.normal(0, noise, (count, WIDTH))
    return np.concatenate([looks, rng.normal([light, 5], 0.05, (count, 2))], axis=1).astype(np.float32)


def slow_fit(x: np.ndarray) -> tuple[list[float], list[float]]:
    """Median and smallest distance of each image to the others, in plain Python."""
    half, nearest = [], []
    for row, one in enumerate(x[:, :-2].astype(np.float64)):
        distances = []
        for place, other in enumerate(x[:, :-2].astype(np.float64)):
            if place != row:
                distances.append(1 - float(one @ other) / np.linalg.norm(one) / np.linalg.norm(other))
        half.append(float(np.median(distances)))
        nearest.append(min(distances))
    return half, nearest


@given(st.integers(0, 10**6), st.integers(8, 20))
@settings(max_examples=30, deadline=None)
def test_limit_and_scores_are_those_of_loops(seed: int, count: int) -> None:
    x = scenes(seed, count, noise=0.2)
    x[:, -2:] = 5
    product, own = fit_product(x, 0.05)
    half, nearest = slow_fit(x)
    assert product is not None
    expected = max(module.limit_for(half, 0.05, module.LEAST), 2 * float(np.median(half)))
    assert product.limit == pytest.approx(expected, rel=1e-2)
    np.testing.assert_allclose(own, np.array(nearest) / (np.array(nearest) + expected), rtol=0.02, atol=1e-3)


@pytest.mark.parametrize("count", [8, 12, 60])
def test_new_images_of_the_product_stay_it_and_others_do_not(count: int) -> None:
    called = []
    for run in range(20):
        product, own = fit_product(scenes(run, count), 0.01)
        assert product is not None and own.shape == (count,)
        called.append((product(scenes(100 + run, 50)) > 0.5).mean())
        assert (product(scenes(run, 50, of=1)) > 0.5).all()
    assert np.mean(called) <= 0.01


def test_a_kind_of_defect_that_nobody_has_seen_is_no_other_product() -> None:
    """Even where it changes an image more than images of the run differ from each other."""
    x = scenes(0, 40)
    product, _ = fit_product(x, 0.01)
    assert product is not None
    defect = scenes(1, 10) + np.float32(0.18) * np.eye(WIDTH + 2, dtype=np.float32)[7]
    half, nearest = slow_fit(np.concatenate([x, defect[:1]]))
    assert nearest[-1] > 1.1 * max(half[:-1])
    assert (product(defect) <= 0.5).all()


def test_shots_of_the_same_part_do_not_make_another_part_foreign() -> None:
    parts = np.repeat(scenes(0, 10), 4, axis=0)
    parts[:, :-2] += np.random.default_rng(1).normal(0, 1e-4, (40, WIDTH))
    product, _ = fit_product(parts, 0.01)
    assert product is not None and (product(scenes(2, 50)) <= 0.5).mean() > 0.95


@pytest.mark.parametrize(("light", "contrast"), [(0, 0), (8, 0), (4.5, 3), (8, 5), (6.5, 3.5)])
def test_a_frame_of_another_exposure_is_none_of_the_product(light: float, contrast: float) -> None:
    product, _ = fit_product(scenes(0, 30), 0.01)
    new = scenes(1, 5)
    assert product is not None and (product(new) <= 0.5).all()
    drifted = new + np.float32([0] * WIDTH + [0.3, 0.3])
    assert (product(drifted) <= 0.5).all(), "a lamp ages"
    new[:, -2:] = light, contrast
    assert (product(new) > 0.5).all()


def test_a_line_whose_light_changes_is_used_to_it() -> None:
    x = scenes(0, 30)
    x[:, -2] = np.linspace(4, 8, 30)
    product, _ = fit_product(x, 0.01)
    assert product is not None and (product(scenes(1, 20, light=5)) <= 0.5).all()


def test_images_that_could_not_be_read_or_are_of_something_else_are_no_examples() -> None:
    x = np.concatenate([scenes(0, 20), scenes(1, 5, of=1), np.full((2, WIDTH + 2), np.nan, np.float32)])
    known = np.arange(27) < 20
    product, own = fit_product(x, 0.01, known)
    assert product is not None and len(product.scenes) == 20
    assert (own[:20] <= 0.5).all() and (own[20:25] > 0.5).all() and own[25:].tolist() == [0, 0]
    assert product(x[25:]).tolist() == [0, 0] and product(x[:0]).shape == (0,)


@pytest.mark.parametrize(("count", "rate"), [(0, 0.01), (7, 0.01), (20, 0.0)])
def test_too_few_images_or_no_rate_tell_nothing(count: int, rate: float) -> None:
    product, own = fit_product(scenes(0, count), rate)
    assert product is None and own.tolist() == [0.0] * count


def test_images_that_are_all_the_same() -> None:
    x = np.repeat(scenes(0, 1), 12, axis=0)
    product, own = fit_product(x, 0.01)
    assert product is not None and own.max() < 0.01 and product(x).max() < 0.01
    assert product(scenes(0, 3, of=1)).min() > 0.5


def test_what_a_model_file_keeps_says_the_same() -> None:
    product, _ = fit_product(scenes(0, 12), 0.01)
    assert product is not None
    again = Product.restore(product.tensors(), product.settings())
    new = np.concatenate([scenes(1, 4), scenes(2, 4, of=1)])
    np.testing.assert_allclose(again(new), product(new), rtol=1e-6)


def test_blocks_of_rows_and_a_part_of_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    x, new = scenes(0, 50), np.concatenate([scenes(1, 7), scenes(2, 6, of=1)])
    whole, own = fit_product(x, 0.01)
    assert whole is not None
    monkeypatch.setattr(module, "BLOCK", 7)
    parts, own_parts = fit_product(x, 0.01)
    assert parts is not None
    np.testing.assert_allclose(own_parts, own, rtol=1e-3)
    np.testing.assert_allclose(parts(new), whole(new), rtol=1e-3)
    monkeypatch.setattr(module, "MOST_REFERENCES", 10)
    fewer, own_fewer = fit_product(x, 0.01)
    assert fewer is not None and len(fewer.scenes) == 10 and own_fewer.shape == (50,)
    assert (fewer(new) > 0.5).tolist() == [False] * 7 + [True] * 6


def test_exposure_by_hand() -> None:
    half = np.zeros((4, 4, 3), np.uint8)
    half[:2] = 126
    assert exposure(half[None]).tolist() == [[6, 6]]
    lit = np.random.default_rng(0).integers(0, 100, (1, 32, 32, 3), dtype=np.uint8)
    np.testing.assert_allclose(exposure(lit * 2) - exposure(lit), 1, atol=0.05)


def test_of_many_images_the_line_and_the_scores_are_nearly_those_of_the_exact_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(0)
    scenes = np.concatenate(
        [rng.normal(size=(1, 30)) + rng.normal(0, 0.3, (4000, 30)), rng.normal(6, 0.2, (4000, 2))], 1
    )
    scenes = scenes.astype(np.float32)
    exact, own = fit_product(scenes, 0.01)
    monkeypatch.setattr(module, "LARGE", 1000)
    monkeypatch.setattr(large, "LARGE", 1000)
    found, approximate = fit_product(scenes, 0.01, seed=3)
    assert exact is not None and found is not None
    assert found.limit == pytest.approx(exact.limit, rel=0.1) and found.stops == exact.stops
    assert np.quantile(np.abs(approximate - own), 0.95) < 0.05
    new = scenes[:200] + np.float32(0.01)
    assert ((found(new) > 0.5) == (exact(new) > 0.5)).mean() > 0.98
