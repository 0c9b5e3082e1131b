"""What rivals are made of, against slow twins (anomaly_clustering.py, base.py, uniformaly.py).

Covers base.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.bench.rivals.anomaly_clustering import (
    AnomalyClustering,
    SemiSupervisedAnomalyClustering,
    covered_weights,
    mean_nearest_distances,
    softmax_weights,
    weighted_embedding,
)
from anomalyncd.bench.rivals.base import Cache, on_grid, unit
from anomalyncd.bench.rivals.uniformaly import UniFormaly, top_patches
from anomalyncd.data.dataset import Sample
from anomalyncd.data.gather import gather
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit


def fit(model, images, maps=None, masks=None):
    return model.fit(gather(images, maps, masks))


def slow_unit(rows):
    return [[x / math.sqrt(sum(y * y for y in row)) for x in row] for row in rows]


def slow_distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def slow_mean_nearest(images, n_references):
    out = []
    for i, image in enumerate(images):
        others = [j for j in range(n_references) if j != i]
        out.append([sum(min(slow_distance(z, w) for w in images[j]) for j in others) / len(others) for z in image])
    return out


@pytest.mark.parametrize("n_references", [2, 5, 7, 100])
def test_mutual_distances_equal_the_slow_ones(n_references, monkeypatch):
    monkeypatch.setattr("anomalyncd.bench.rivals.anomaly_clustering.COMPARED", 3)
    tokens = np.random.default_rng(0).normal(size=(7, 4, 5)).astype(np.float16)
    slow = slow_mean_nearest([slow_unit(image) for image in tokens.astype(float).tolist()], min(n_references, 7))
    calls = []
    fast = mean_nearest_distances(tokens, n_references, on_image=lambda: calls.append(1))
    np.testing.assert_allclose(fast, slow, atol=1e-3)
    assert len(calls) == 7


def test_distances_to_normal_patches_equal_the_slow_ones():
    rng = np.random.default_rng(1)
    tokens, normal = (rng.normal(size=(n, 4, 5)).astype(np.float16) for n in (3, 2))
    known = slow_unit(normal.astype(float).reshape(-1, 5).tolist())
    slow = [
        [min(slow_distance(z, w) for w in known) for z in slow_unit(image)] for image in tokens.astype(float).tolist()
    ]
    fast = AnomalyClustering(2)._distances_to(unit(normal).flatten(0, 1), tokens)
    np.testing.assert_allclose(fast, slow, atol=1e-3)


def test_weights_and_embedding_equal_the_slow_ones():
    distances = np.random.default_rng(2).uniform(0, 1, (3, 4)).astype(np.float32)
    alpha = softmax_weights(distances, temperature=0.3)
    sigma = math.sqrt(sum((x - distances.mean()) ** 2 for x in distances.ravel()) / 12)
    for row, found in zip(distances.tolist(), alpha, strict=True):
        powers = [math.exp(x / (0.3 * sigma)) for x in row]
        assert found == pytest.approx([p / sum(powers) for p in powers], rel=1e-4)
    z = np.random.default_rng(3).normal(size=(4, 5)).astype(np.float32)
    by_hand = sum(alpha[0][m] * z[m] for m in range(4))
    np.testing.assert_allclose(weighted_embedding(alpha[0], torch.from_numpy(z)), by_hand, rtol=1e-5)


def test_a_low_temperature_takes_the_farthest_patch_and_a_high_one_the_mean():
    distances = np.float32([[0.1, 0.9, 0.2]])
    assert softmax_weights(distances, 1e-4)[0].tolist() == [0, 1, 0]
    assert softmax_weights(distances, 1e4)[0] == pytest.approx(np.full(3, 1 / 3), abs=1e-3)
    assert softmax_weights(np.ones((2, 4), np.float32), 1.0) == pytest.approx(np.full((2, 4), 0.25))
    assert covered_weights(np.zeros((1, 4), np.float32))[0] == pytest.approx(np.full(4, 0.25))


def images_with_a_corner(n):
    """Images that differ in one corner only, and masks of it."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 255, (64, 64, 3), dtype=np.uint8) for _ in range(n)]
    masks = [np.zeros((64, 64), bool) for _ in range(n)]
    for mask in masks[1:]:
        mask[:16, :16] = True  # one patch of the tiny backbone
    return images, masks


@pytest.mark.parametrize("kind", [AnomalyClustering, SemiSupervisedAnomalyClustering, UniFormaly])
def test_given_masks_choose_the_patches(kind):
    images, masks = images_with_a_corner(4)
    model = fit(kind(2, backbone="tiny", size=64), images, masks=[None, *masks[1:]])
    vit = MaskGuidedViT(tiny_vit(), guidance="none")
    blocks = [2, 3, 4] if kind is UniFormaly else [3]
    with torch.inference_mode():
        found = vit.block_tokens(torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2), blocks)
    tokens = torch.stack([found[block][:, 1:] for block in blocks]).mean(0)
    tokens = tokens if kind is UniFormaly else torch.nn.functional.normalize(tokens, dim=-1)
    expected = torch.stack([tokens[0].mean(0), *tokens[1:, 0]])
    np.testing.assert_allclose(model.features_, expected, atol=5e-3)


def test_given_maps_are_used_only_where_asked_for():
    images, masks = images_with_a_corner(5)
    maps = [mask.astype(np.float32) for mask in masks]
    settings_ = {"backbone": "tiny", "size": 64}
    bare = fit(AnomalyClustering(2, **settings_), images)
    own = fit(AnomalyClustering(2, **settings_), images, maps=maps)
    taken = fit(AnomalyClustering(2, weights="given", temperature=1e-3, **settings_), images, maps=maps)
    corner = fit(AnomalyClustering(2, **settings_), images, masks=masks)
    np.testing.assert_array_equal(own.features_, bare.features_)
    np.testing.assert_allclose(taken.features_[1:], corner.features_[1:], atol=1e-5)
    assert np.abs(own.features_ - taken.features_).max() > 1e-2
    top = fit(UniFormaly(2, top_share=1 / 16, **settings_), images, maps=maps)
    masked = fit(UniFormaly(2, **settings_), images, masks=masks)
    np.testing.assert_allclose(top.features_[1:], masked.features_[1:], atol=1e-5)


def test_maps_with_holes_and_of_any_size_fit_the_grid():
    values = np.full((3, 5), 2.0, np.float32)
    values[0, 0] = np.nan
    values[2, 4] = 8
    image = np.zeros((4, 4, 3), np.uint8)
    row = on_grid([Sample("a", image, map=values), Sample("b", image)], (2, 2))
    assert row[0].tolist() == [2, 2, 2, pytest.approx((5 * 2 + 8) / 6)]
    assert row[1].tolist() == [0, 0, 0, 0]


@given(st.integers(1, 40), st.floats(0.01, 1.0), st.integers(0, 9))
def test_top_patches_are_the_highest(count, share, seed):
    scores = np.random.default_rng(seed).permutation(count).astype(np.float32)[None]
    keep = top_patches(scores, share)[0]
    assert keep.sum() == max(1, round(share * count))
    assert keep.all() or scores[0][keep].min() > scores[0][~keep].max()


def test_the_cache_makes_each_key_once(tmp_path):
    cache = Cache(tmp_path)
    made = []

    def make(value):
        made.append(value)
        return np.full(2, value)

    assert cache.array("a", {"k": 1}, lambda: make(1)).tolist() == [1, 1]
    assert Cache(tmp_path).array("a", {"k": 1}, lambda: make(2)).tolist() == [1, 1]
    assert cache.array("a", {"k": 2}, lambda: make(3)).tolist() == [3, 3]
    assert made == [1, 3]
