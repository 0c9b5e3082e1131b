"""Features against the plain network, one region and one view at a time."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from anomalyncd.config import FeatureConfig
from anomalyncd.errors import SettingsError
from anomalyncd.learn.features import CropBatch, FeatureSpace, RegionEncoder, focused, map_weights, unit, weighted_mean
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit

SIDE, PATCH = 64, 16
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, timm's default
BLOCKS = (2, 4)  # of five
ALL_PARTS = FeatureConfig(class_token=1, patches=1, image=1, views=8)
SIZES = {"input_size": SIDE, "image_size": SIDE}


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
    """(4, 4, L, C) patch tokens after the third and the last block, before the final norm, by timm's own function."""
    x = torch.from_numpy(((picture / 255 - MEAN) / STD).astype(np.float32)).permute(2, 0, 1)[None]
    found = vit.vit.forward_intermediates(x, indices=[*BLOCKS], intermediates_only=True, output_fmt="NLC")
    return np.stack([tokens[0].reshape(SIDE // PATCH, SIDE // PATCH, -1).numpy() for tokens in found], axis=2)


def slow_weights(scores, other):
    """Of the patches (h, w) of one image, one after the other; those of other regions do not count."""
    values = sorted(scores.ravel().tolist())
    middle = len(values) // 2
    median = values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
    peak = max(scores[place] for place in np.ndindex(scores.shape) if not other[place])
    out = np.ones(scores.shape)
    for place in np.ndindex(scores.shape):
        if other[place]:
            out[place] = 0
        elif peak > median:
            out[place] = np.exp((scores[place] - peak) / (0.15 * (peak - median)))
    return out


def other_regions(batch, index, view):
    """(h, w) bool: patches of the image's other regions and those beside them, but none of its own."""
    own = kept_patches(turned(batch.context_masks[index], view))
    out = np.zeros_like(own)
    for rival in range(len(batch)):
        if rival != index and batch.image_of[rival] == batch.image_of[index]:
            for i, j in np.argwhere(kept_patches(turned(batch.context_masks[rival], view)) & ~own):
                out[max(0, i - 1) : i + 2, max(0, j - 1) : j + 2] = True
    out &= ~own
    return out if not out.all() else np.zeros_like(out)


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
    parts = {name: [] for name in ("class_token", "patches", "image")}
    for index in range(len(batch)):
        crop, mask = (turned(p[index, 8:72, 8:72], view) for p in (batch.crops, batch.masks))
        keep = kept_patches(mask)
        parts["class_token"].append(plain_class_token(vit, crop, keep)[None])
        parts["patches"].append(plain_patches(vit, crop)[keep].mean(axis=0))
        own = batch.image_of[index]
        tokens = plain_patches(vit, turned(batch.contexts[own], view))
        if batch.context_maps is None:
            weights = kept_patches(turned(batch.context_masks[index], view))
        else:
            scores = turned(batch.context_maps[own], view)
            means = scores.reshape(SIDE // PATCH, PATCH, SIDE // PATCH, PATCH).mean(axis=(1, 3))
            weights = slow_weights(means, other_regions(batch, index, view))
        total = sum(weights[place] * tokens[place] for place in np.ndindex(weights.shape))
        parts["image"].append(total / weights.sum())
    return {
        name: np.stack([v / np.linalg.norm(v, axis=-1, keepdims=True) for v in values])
        for name, values in parts.items()
    }


@pytest.mark.parametrize("with_maps", [False, True])
def test_encode_is_the_plain_network_one_region_and_view_at_a_time(vit, batch, with_maps):
    if with_maps:
        batch = replace(batch, context_maps=np.random.default_rng(3).random((3, SIDE, SIDE), np.float32))
    encoder = RegionEncoder(vit, ALL_PARTS, **SIZES, batch_size=2)
    found = encoder.encode(batch)
    assert list(found) == ["class_token", "patches", "image"]
    for view in range(8):
        for name, expected in slow_encode(vit, batch, view).items():
            n_blocks = 1 if name == "class_token" else 2
            assert found[name].shape == (5, 8, n_blocks, 48) and found[name].dtype == np.float16
            np.testing.assert_allclose(found[name][:, view], expected, atol=1e-3, err_msg=f"{name} {view}")


@pytest.mark.parametrize("image", [0.0, 1.0])
def test_scenes_are_the_mean_tokens_of_whole_images_also_of_such_without_a_region(vit, batch, image):
    config = FeatureConfig(image=image, views=2)
    with torch.inference_mode():
        expected = np.stack([plain_patches(vit, context)[:, :, 0].mean(axis=(0, 1)) for context in batch.contexts])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    alone = replace(batch, image_of=np.array([1, 1, 1, 1, 1]))  # images 0 and 2 have no region
    for given in (batch, alone):
        found = RegionEncoder(vit, config, **SIZES, batch_size=2, scenes=True).encode(given)
        assert found["scenes"].shape == (3, 48) and found["scenes"].dtype == np.float16
        np.testing.assert_allclose(found["scenes"], expected, atol=1e-3)
        plain = RegionEncoder(vit, config, **SIZES, batch_size=2).encode(given)
        assert {*found} == {*plain, "scenes"} and all(np.array_equal(found[name], plain[name]) for name in plain)
    empty = CropBatch(batch.crops[:0], batch.masks[:0], batch.contexts, batch.context_masks[:0], batch.image_of[:0])
    nothing = RegionEncoder(vit, config, **SIZES, scenes=True).encode(empty)
    assert list(nothing) == ["scenes"]
    np.testing.assert_allclose(nothing["scenes"], expected, atol=1e-3)


def test_a_second_defect_of_an_image_is_described_by_itself(vit, batch):
    maps = np.full((1, SIDE, SIDE), 0.1, np.float32)
    masks = np.zeros((2, SIDE, SIDE), np.float32)
    maps[0, :16, :16], maps[0, 48:, 48:] = 0.9, 0.6  # the first is far stronger
    masks[0, :16, :16] = masks[1, 48:, 48:] = 1
    two = CropBatch(
        crops=batch.crops[:2], masks=batch.masks[:2], contexts=batch.contexts[:1], context_masks=masks,
        image_of=np.zeros(2, np.int64), context_maps=maps,
    )  # fmt: skip
    alone = replace(
        two, crops=two.crops[1:], masks=two.masks[1:], context_masks=masks[1:], image_of=np.zeros(1, np.int64),
        context_maps=np.where(maps > 0.8, np.float32(0.1), maps),
    )  # fmt: skip
    found, expected = (RegionEncoder(vit, ALL_PARTS, **SIZES).encode(each)["image"] for each in (two, alone))
    assert (found[1] * expected[0]).sum(axis=-1).min() > 0.999
    assert (found[0] * expected[0]).sum(axis=-1).max() < 0.999


def test_whole_images_may_have_another_size_than_crops(vit, batch):
    larger = replace(batch, contexts=np.repeat(np.repeat(batch.contexts, 2, axis=1), 2, axis=2))
    larger = replace(larger, context_masks=np.ones((5, 2 * SIDE, 2 * SIDE), np.float32))
    found = RegionEncoder(vit, ALL_PARTS, input_size=SIDE, image_size=2 * SIDE).encode(larger)
    same = RegionEncoder(vit, ALL_PARTS, **SIZES).encode(batch)
    assert np.array_equal(found["patches"], same["patches"]) and found["image"].shape == same["image"].shape


@pytest.mark.parametrize("size", [1, 3, 16])
def test_batch_size_does_not_matter(vit, batch, size):
    one = RegionEncoder(vit, ALL_PARTS, **SIZES, batch_size=2).encode(batch)
    other = RegionEncoder(vit, ALL_PARTS, **SIZES, batch_size=size).encode(batch)
    for name in one:
        np.testing.assert_allclose(other[name], one[name], atol=1e-3)


def test_only_the_wanted_parts_are_computed_and_do_not_depend_on_each_other(vit, batch):
    everything = RegionEncoder(vit, ALL_PARTS, **SIZES).encode(batch)
    for name in everything:
        chosen = {part: float(part == name) for part in everything}
        found = RegionEncoder(vit, FeatureConfig(**chosen, views=2), **SIZES).encode(batch)
        assert list(found) == [name]
        np.testing.assert_allclose(found[name], everything[name][:, :2], atol=1e-3)


def test_encode_crops_gives_the_parts_of_the_crops(vit, batch):
    encoder = RegionEncoder(vit, ALL_PARTS, **SIZES)
    found, everything = encoder.encode_crops(batch.crops, batch.masks), encoder.encode(batch)
    assert set(found) == {"class_token", "patches"}
    assert all(np.array_equal(found[name], everything[name]) for name in found)


def test_the_blocks_of_the_patches_can_be_chosen(vit, batch):
    def patches(blocks, **more):
        config = FeatureConfig(patches=1, image=0, blocks=blocks)
        return RegionEncoder(vit, config, **SIZES, **more).encode(batch)["patches"]

    assert np.array_equal(patches(None), patches([2, 4]))
    for place, block in enumerate((4, 0, 3)):
        np.testing.assert_allclose(patches([4, 0, 3])[:, :, place], patches([block])[:, :, 0], atol=1e-3)
    assert np.array_equal(patches(None, train_last_block=True), patches([2, 3]))


@pytest.mark.parametrize(("depth", "blocks"), [(1, (0, 0)), (5, (2, 4)), (12, (8, 11)), (24, (17, 23))])
def test_blocks_by_default(vit, depth, blocks):
    network = SimpleNamespace(n_blocks=depth, patch_size=(16, 16))
    assert RegionEncoder(network, ALL_PARTS, **SIZES).blocks == blocks


def test_settings_that_do_not_fit_the_backbone_are_refused(vit):
    with pytest.raises(SettingsError, match=r"multiple of 16.*got 70: take 64"):
        RegionEncoder(vit, ALL_PARTS, input_size=70)
    with pytest.raises(SettingsError, match=r"image_size must be a multiple of 16.*got 340: take 336"):
        RegionEncoder(vit, ALL_PARTS, input_size=SIDE, image_size=340)
    RegionEncoder(vit, FeatureConfig(image=0), input_size=SIDE, image_size=340)  # no whole image is looked at
    with pytest.raises(SettingsError, match="image_size must be a multiple of 16"):
        RegionEncoder(vit, FeatureConfig(image=0), input_size=SIDE, image_size=340, scenes=True)
    with pytest.raises(SettingsError, match=r"at most 4, the last block of.*got 5"):
        RegionEncoder(vit, FeatureConfig(blocks=[5, 0]), input_size=SIDE)
    with pytest.raises(SettingsError, match=r"at most 3, the last block that is not trained.*got 4"):
        RegionEncoder(vit, FeatureConfig(blocks=[4]), input_size=SIDE, train_last_block=True)


def test_weighted_mean_against_a_loop():
    rng = np.random.default_rng(0)
    tokens, weights = rng.standard_normal((4, 2, 6, 3)), rng.random((4, 6))
    weights[1, 2:] = 0
    found = weighted_mean(tokens, weights)
    for row, block in np.ndindex(4, 2):
        total = sum(weights[row, p] * tokens[row, block, p] for p in range(6))
        np.testing.assert_allclose(found[row, block], total / weights[row].sum())


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


@pytest.mark.parametrize("n_patches", [1, 6, 7, 64])
def test_weights_of_whole_images_against_a_loop(n_patches):
    scores = np.random.default_rng(n_patches).random((5, n_patches)).astype(np.float32)
    scores[3] = 0.4
    scores[4, : n_patches // 2 + 1] = 2  # the median is the peak
    everything = np.ones_like(scores, bool)
    found = map_weights(scores, everything)
    assert found.dtype == np.float32 and (found[3:] == 1).all() and (found.max(axis=1) == 1).all()
    some = scores <= np.median(scores, axis=1, keepdims=True) + 0.2
    for row in range(5):
        np.testing.assert_allclose(found[row], slow_weights(scores[row], ~everything[row]), rtol=1e-4)
        np.testing.assert_allclose(map_weights(scores, some)[row], slow_weights(scores[row], ~some[row]), rtol=1e-4)
    np.testing.assert_allclose(
        map_weights(3 * scores + 1, everything), found, rtol=1e-4
    )  # neither unit nor zero matters


def test_a_flat_map_changes_nothing_and_a_peak_draws_the_features_to_it(vit):
    encoder = RegionEncoder(vit, FeatureConfig(views=2, focus=0.05), **SIZES)
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
        np.testing.assert_allclose(drawn[name], alone[name], atol=2e-3 if name == "patches" else 2e-2)
        assert np.abs(drawn[name] - plain[name]).max() > 0.02


def test_bfloat16_is_close_and_not_the_same(vit, batch):
    exact = RegionEncoder(vit, ALL_PARTS, **SIZES).encode(batch)
    vit.precision = "bfloat16"
    try:
        rough = RegionEncoder(vit, ALL_PARTS, **SIZES).encode(batch)
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
    return {name: rng.standard_normal((5, 3, 2, 4)).astype(np.float16) + 1 for name in ("patches", "image")}


@pytest.mark.parametrize("center", [True, False])
def test_feature_space_against_a_loop(parts, center):
    weights = {"patches": 1.0, "image": 0.5}
    found = FeatureSpace(weights).fit(parts, center=center).transform(parts)
    for region in range(5):
        joined = []
        for name, block in ((name, block) for name in weights for block in range(2)):
            values = parts[name][:, :, block].astype(float)
            mean = sum(values[r, v] for r in range(5) for v in range(3)) / 15 if center else 0
            vector = sum(values[region, v] for v in range(3)) / 3 - mean
            joined += list(weights[name] / 2**0.5 * vector / np.linalg.norm(vector))
        np.testing.assert_allclose(found[region], np.array(joined) / np.linalg.norm(joined), atol=1e-5)
    assert found.dtype == np.float32


def test_blocks_make_the_cosines_of_what_is_not_centred(parts):
    parts = {**parts, "patches": np.repeat(parts["patches"], 2, axis=2) * np.float16([1, 1, 2, 3])[:, None]}
    space = FeatureSpace({"patches": 1.0, "image": 0.5})
    blocks, weights = space.blocks(parts)
    assert blocks.shape == (5, 6, 4) and weights.sum() == pytest.approx(1)
    found, whole = unit(blocks), space.fit(parts, center=False).transform(parts)
    np.testing.assert_allclose(np.einsum("rbc,sbc,b->rs", found, found, weights), whole @ whole.T, atol=1e-5)


def test_a_second_block_like_the_first_changes_no_cosine(parts):
    def cosines(parts):
        found = FeatureSpace({"patches": 1.0, "image": 0.5}).fit(parts).transform(parts)
        return found @ found.T

    one = {name: values[:, :, :1] for name, values in parts.items()}
    twice = {**one, "patches": np.repeat(one["patches"], 2, axis=2)}
    np.testing.assert_allclose(cosines(twice), cosines(one), atol=1e-6)


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
    assert joined.shape == (5, 3, 8)
    np.testing.assert_allclose(np.linalg.norm(joined, axis=-1), 2, rtol=1e-5)
