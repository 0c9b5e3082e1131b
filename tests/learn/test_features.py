"""Features against the plain network, one region and one view at a time."""

import numpy as np
import pytest
import torch

from anomalyncd.config import FeatureConfig
from anomalyncd.errors import SettingsError
from anomalyncd.learn.features import CropBatch, FeatureSpace, RegionEncoder, dilate, focused, unit, weighted_mean
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit

SIDE, PATCH = 64, 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, timm's default
ALL_PARTS = FeatureConfig(class_token=1, patches=1, context=1, surround=1, views=8)


@pytest.fixture(scope="module")
def vit():
    return MaskGuidedViT(tiny_vit())


@pytest.fixture(scope="module")
def batch():
    """Five regions of three images, two of them in one image and not in the order of the images; one hair-thin mask."""
    rng = np.random.default_rng(0)
    masks = np.zeros((5, 80, 80), bool)
    context_masks = np.zeros((5, SIDE, SIDE), np.float32)
    for index in range(5):
        top, left = rng.integers(10, 40, 2)
        masks[index, top : top + 25, left : left + 20] = True
        context_masks[index, top : top + 20, left : left + 12] = 0.8
    masks[2] = False
    masks[2, 20:60, 33] = True
    return CropBatch(
        crops=rng.integers(0, 256, (5, 80, 80, 3), dtype=np.uint8), masks=masks,
        contexts=rng.integers(0, 256, (3, SIDE, SIDE, 3), dtype=np.uint8), context_masks=context_masks,
        image_of=np.array([1, 0, 2, 1, 0]),
    )  # fmt: skip


def turned(picture, view):
    out = np.rot90(picture, view % 4)
    return np.fliplr(out) if view >= 4 else out


def kept_patches(mask):
    """(4, 4) bool: patches covered by at least half, or by half of the best-covered patch."""
    share = np.zeros((SIDE // PATCH, SIDE // PATCH))
    for i, j in np.ndindex(share.shape):
        share[i, j] = mask[i * PATCH : (i + 1) * PATCH, j * PATCH : (j + 1) * PATCH].mean()
    return (share >= min(0.5, share.max() / 2)) & (share > 0)


def plain_patches(vit, picture):
    """(4, 4, C) patch tokens after the last but one block, by timm's own function."""
    x = torch.from_numpy(((picture / 255 - MEAN) / STD).astype(np.float32)).permute(2, 0, 1)[None]
    (tokens,) = vit.vit.forward_intermediates(x, indices=[3], intermediates_only=True, output_fmt="NLC")
    return tokens[0].reshape(SIDE // PATCH, SIDE // PATCH, -1).numpy()


def plain_class_token(vit, picture, keep):
    x = torch.from_numpy(((picture / 255 - MEAN) / STD).astype(np.float32)).permute(2, 0, 1)[None]
    x = vit.vit._pos_embed(vit.vit.patch_embed(x))
    mask = torch.zeros(1, 1, x.shape[1], x.shape[1])
    mask[0, 0, 0, 1:][torch.from_numpy(~keep.ravel())] = float("-inf")
    for index, block in enumerate(vit.vit.blocks):
        x = block(x, attn_mask=mask if index >= 3 else None)
    return vit.vit.norm(x)[0, 0].numpy()


@torch.no_grad()
def slow_encode(vit, batch, view):
    parts = {name: [] for name in ("class_token", "patches", "context", "surround")}
    for index in range(len(batch)):
        crop, mask = (turned(p[index, 8:72, 8:72], view) for p in (batch.crops, batch.masks))
        keep = kept_patches(mask)
        parts["class_token"].append(plain_class_token(vit, crop, keep))
        parts["patches"].append(plain_patches(vit, crop)[keep].mean(axis=0))
        image, mask = turned(batch.contexts[batch.image_of[index]], view), turned(batch.context_masks[index], view)
        tokens, keep = plain_patches(vit, image), kept_patches(mask)
        wide = np.zeros_like(keep)
        for i, j in np.argwhere(keep):
            wide[max(i - 1, 0) : i + 2, max(j - 1, 0) : j + 2] = True
        parts["context"].append(tokens[keep].mean(axis=0))
        parts["surround"].append(tokens[wide].mean(axis=0))
    return {name: np.stack([v / np.linalg.norm(v) for v in values]) for name, values in parts.items()}


def test_encode_is_the_plain_network_one_region_and_view_at_a_time(vit, batch):
    found = RegionEncoder(vit, ALL_PARTS, input_size=SIDE, batch_size=2).encode(batch)
    assert list(found) == ["class_token", "patches", "context", "surround"]
    for view in range(8):
        for name, expected in slow_encode(vit, batch, view).items():
            assert found[name].shape == (5, 8, 48) and found[name].dtype == np.float16
            np.testing.assert_allclose(found[name][:, view], expected, atol=1e-3, err_msg=f"{name} {view}")


def test_two_regions_of_one_image_have_contexts_of_their_own(vit, batch):
    context = RegionEncoder(vit, ALL_PARTS, input_size=SIDE).encode(batch)["context"]
    assert np.abs(context[0] - context[3]).max() > 0.01


@pytest.mark.parametrize("size", [1, 3, 16])
def test_batch_size_does_not_matter(vit, batch, size):
    one = RegionEncoder(vit, ALL_PARTS, input_size=SIDE, batch_size=2).encode(batch)
    other = RegionEncoder(vit, ALL_PARTS, input_size=SIDE, batch_size=size).encode(batch)
    for name in one:
        np.testing.assert_allclose(other[name], one[name], atol=1e-3)


def test_only_the_wanted_parts_are_computed_and_do_not_depend_on_each_other(vit, batch):
    everything = RegionEncoder(vit, ALL_PARTS, input_size=SIDE).encode(batch)
    for name in everything:
        chosen = {part: float(part == name) for part in everything}
        found = RegionEncoder(vit, FeatureConfig(**chosen, views=2), input_size=SIDE).encode(batch)
        assert list(found) == [name]
        np.testing.assert_allclose(found[name], everything[name][:, :2], atol=1e-3)


def test_encode_crops_gives_the_parts_of_the_crops(vit, batch):
    encoder = RegionEncoder(vit, ALL_PARTS, input_size=SIDE)
    found, everything = encoder.encode_crops(batch.crops, batch.masks), encoder.encode(batch)
    assert set(found) == {"class_token", "patches"}
    assert all(np.array_equal(found[name], everything[name]) for name in found)


def test_the_block_of_the_patches_can_be_chosen(vit, batch):
    def patches(block):
        config = FeatureConfig(patches=1, context=0, surround=0, block=block, views=1)
        return RegionEncoder(vit, config, input_size=SIDE).encode(batch)["patches"]

    assert np.array_equal(patches(None), patches(3))
    assert np.abs(patches(3) - patches(2)).max() > 0.01


def test_settings_that_do_not_fit_the_backbone_are_refused(vit):
    with pytest.raises(SettingsError, match=r"multiple of 16.*got 70: take 64"):
        RegionEncoder(vit, ALL_PARTS, input_size=70)
    with pytest.raises(SettingsError, match=r"at most 3.*got 4"):
        RegionEncoder(vit, FeatureConfig(block=4), input_size=SIDE)


def test_weighted_mean_against_a_loop():
    rng = np.random.default_rng(0)
    tokens, weights = rng.standard_normal((4, 6, 3)), rng.random((4, 6))
    weights[1, 2:] = 0
    found = weighted_mean(tokens, weights)
    for row in range(4):
        total = sum(weights[row, p] * tokens[row, p] for p in range(6))
        np.testing.assert_allclose(found[row], total / weights[row].sum())


def test_focus_against_a_loop():
    rng = np.random.default_rng(1)
    keep, scores = rng.random((5, 7)) > 0.4, rng.random((5, 7)).astype(np.float32)
    keep[:, 3] = True
    keep[4] = np.arange(7) == 3
    found = focused(keep, scores, 0.2)
    for row in range(5):
        kept = [scores[row, p] for p in range(7) if keep[row, p]]
        for p in range(7):
            below = (max(kept) - scores[row, p]) / (max(kept) - min(kept)) if len(kept) > 1 else 0
            expected = np.exp(-below / 0.2) if keep[row, p] else 0.0
            assert found[row, p] == pytest.approx(expected, rel=1e-5)


def test_a_flat_map_changes_nothing_and_a_peak_draws_the_features_to_it(vit):
    encoder = RegionEncoder(vit, FeatureConfig(views=2, focus=0.05), input_size=SIDE)
    rng = np.random.default_rng(0)
    crops = rng.integers(0, 255, (2, SIDE, SIDE, 3), dtype=np.uint8)
    masks = np.ones((2, SIDE, SIDE), bool)
    image_of = np.arange(2)

    def parts(masks, maps):
        batch = CropBatch(crops, masks, crops, masks.astype(np.float32), image_of, maps, maps)
        return encoder.encode(batch)

    plain = parts(masks, None)
    flat = parts(masks, np.full((2, SIDE, SIDE), 0.3, np.float32))
    peaked = np.zeros((2, SIDE, SIDE), np.float32)
    peaked[:, :16, :16] = 1  # the first patch
    small = np.zeros_like(masks)
    small[:, :16, :16] = True
    alone = parts(small, None)
    drawn = parts(masks, peaked)
    for name in plain:
        np.testing.assert_allclose(flat[name], plain[name], atol=2e-3)
        np.testing.assert_allclose(drawn[name], alone[name], atol=2e-3)
        assert np.abs(drawn[name] - plain[name]).max() > 0.02


def test_dilate_by_hand():
    weights = np.zeros((2, 12), np.float32)
    weights[0, 0], weights[0, 1] = 1, 0.5  # corner of a grid of 3 rows and 4 columns
    wide = dilate(weights, (3, 4)).reshape(2, 3, 4)
    assert wide[0].tolist() == [[1, 1, 0.5, 0], [1, 1, 0.5, 0], [0, 0, 0, 0]]
    assert not wide[1].any()


def test_bfloat16_is_close_and_not_the_same(vit, batch):
    exact = RegionEncoder(vit, ALL_PARTS, input_size=SIDE).encode(batch)
    vit.precision = "bfloat16"
    try:
        rough = RegionEncoder(vit, ALL_PARTS, input_size=SIDE).encode(batch)
    finally:
        vit.precision = "float32"
    for name in exact:
        difference = np.abs(rough[name].astype(float) - exact[name].astype(float)).max()
        assert 0 < difference < 0.03, name


def test_unit_vectors_and_the_zero_vector():
    x = np.array([[3, 4], [0, 0], [-2, 0]], np.float32)
    assert unit(x).tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0], [-1, 0]]
    assert unit(x).dtype == np.float32


@pytest.fixture
def parts():
    rng = np.random.default_rng(1)
    return {name: rng.standard_normal((5, 3, 4)).astype(np.float16) + 1 for name in ("patches", "context")}


@pytest.mark.parametrize("center", [True, False])
def test_feature_space_against_a_loop(parts, center):
    weights = {"patches": 1.0, "context": 0.5}
    found = FeatureSpace(weights).fit(parts, center=center).transform(parts)
    for region in range(5):
        joined = []
        for name, weight in weights.items():
            values = parts[name].astype(float)
            mean = sum(values[r, v] for r in range(5) for v in range(3)) / 15 if center else 0
            vector = sum(values[region, v] for v in range(3)) / 3 - mean
            joined += list(weight * vector / np.linalg.norm(vector))
        np.testing.assert_allclose(found[region], np.array(joined) / np.linalg.norm(joined), atol=1e-5)
    assert found.dtype == np.float32


def test_new_regions_are_centred_by_the_fitted_mean(parts):
    space = FeatureSpace({"patches": 1.0}).fit(parts)
    both = space.transform(parts)
    np.testing.assert_allclose(space.transform({"patches": parts["patches"][:1]}), both[:1], atol=1e-6)


def test_a_single_region_is_not_centred_to_nothing(parts):
    one = {name: values[:1] for name, values in parts.items()}
    found = FeatureSpace({"patches": 1.0}).fit(one).transform(one)
    assert np.linalg.norm(found) == pytest.approx(1)


def test_join_keeps_views_apart_and_leaves_missing_parts_out(parts):
    space = FeatureSpace({"class_token": 1.0, "patches": 2.0}).fit({"patches": parts["patches"]})
    joined = space.join({"patches": parts["patches"]})
    assert joined.shape == (5, 3, 4)
    np.testing.assert_allclose(np.linalg.norm(joined, axis=-1), 2, rtol=1e-5)
