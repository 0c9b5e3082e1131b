"""Defects among images that are taken for normal."""

from __future__ import annotations

import numpy as np
import pytest

from anomalyncd.assign.contamination import LEAST_IMAGES, odd_images


def patches(n_images: int, seed: int, width: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(-2, 2, (n_images * 30, width)).astype(np.float16), np.repeat(np.arange(n_images), 30)


@pytest.mark.parametrize("width", [40, 300])
def test_defects_of_one_kind_do_not_vouch_for_each_other(width: int) -> None:
    rows, owner = patches(60, 0, width)
    kind = np.random.default_rng(1).normal(size=width) * 3
    bad = [3, 9, 20, 33, 41, 58]
    for image in bad:
        rows[image * 30 : image * 30 + 4] = kind + 0.1 * np.random.default_rng(image).normal(size=(4, width))
    found = odd_images(rows, owner, seed=0)
    assert set(bad) <= set(found) and len(found) <= len(bad) + 1
    assert min(found[image] for image in bad) > 10
    assert odd_images(rows, owner, seed=0) == found
    order = np.random.default_rng(2).permutation(len(rows))
    assert {7 * image for image in bad} <= set(odd_images(rows[order], 7 * owner[order], seed=0))


def test_hardly_anything_is_found_where_all_are_alike() -> None:
    assert sum(len(odd_images(*patches(60, seed), seed=seed)) for seed in range(5)) <= 1  # of 300 images
    rows, owner = patches(60, 0)
    assert odd_images(np.ones_like(rows), owner, seed=0) == {}


def test_two_variants_of_a_product_are_both_normal() -> None:
    rows, owner = patches(60, 0)
    rows[owner % 2 == 1] += 5
    assert odd_images(rows, owner, seed=0) == {}


def test_few_images_tell_nothing() -> None:
    rows, owner = patches(LEAST_IMAGES, 0)
    rows[0] += 9
    assert list(odd_images(rows, owner, seed=0)) == [0]
    fewer = owner < LEAST_IMAGES - 1
    assert odd_images(rows[fewer], owner[fewer], seed=0) == {}
    assert odd_images(rows[:0], owner[:0], seed=0) == {}
