import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anomalyncd.grid import kept_patches, patch_means, starts, to_map, top_mean


@pytest.mark.parametrize(
    ("image_size", "expected"),
    [((100, 200), (32, 64)), ((300, 100), (64, 21)), ((7, 7), (64, 64)), ((1, 900), (1, 64))],
)
@pytest.mark.parametrize("sigma", [0.0, 4.0])
def test_map_has_the_images_aspect(image_size, expected, sigma):
    values = to_map(np.full((2, 3), 0.7, np.float32), image_size, map_size=64, sigma=sigma)
    assert values.shape == expected and values.dtype == np.float32
    np.testing.assert_allclose(values, 0.7, atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1), (9, 11), (40, 50), (256, 171)])
@pytest.mark.parametrize("share", [1e-9, 0.01, 0.5, 1.0])
def test_mean_of_the_highest(shape, share):
    values = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    count = max(1, round(share * values.size))
    expected = sum(sorted(values.ravel().tolist(), reverse=True)[:count]) / count
    assert top_mean(values, share) == pytest.approx(expected, rel=1e-6, abs=1e-9)
    holes = np.concatenate([values.ravel(), np.float32([np.nan, np.nan])])
    assert top_mean(holes, share) == top_mean(values, share)
    assert top_mean(np.append(values, np.float32(np.inf)), share) == np.inf


def test_mean_of_nothing_and_of_infinity():
    assert np.isnan(top_mean(np.float32([[np.nan]])))
    assert top_mean(np.float32([np.inf, -np.inf]), share=1) == np.inf
    assert top_mean(np.full((3, 3), np.inf)) == np.inf and top_mean(np.full((3, 3), -np.inf)) == -np.inf
    assert top_mean(np.float32([[-np.inf, 2]])) == 2


def test_map_keeps_places():
    grid = np.zeros((4, 8), np.float32)
    grid[1, 6] = 1
    values = to_map(grid, (100, 200), map_size=64, sigma=2.0)
    y, x = np.unravel_index(values.argmax(), values.shape)
    assert 8 <= y < 16 and 48 <= x < 56
    assert values[:, :24].max() < 1e-3


@pytest.mark.parametrize("side", [1, 2, 4, 7, 24])
@pytest.mark.parametrize("more", [0, 1, 3, 5, 18, 36, 100])
def test_tiles_cover_all_and_overlap_by_a_quarter(side, more):
    begins = starts(side + more, side)
    assert begins[0] == 0 and begins[-1] == more
    steps = np.diff(begins)
    assert all(0 < step <= max(1, side - side / 4) for step in steps)


@pytest.mark.parametrize("keep_thin", [True, False])
@pytest.mark.parametrize("patch", [8, 14, 16])
def test_kept_patches_against_torch(keep_thin, patch):
    rng = np.random.default_rng(2)
    shares = (0, 0.02, 0.4, 0.5, 0.9, 1)
    masks = np.stack([rng.random((2 * patch, 3 * patch)) < share for share in shares])
    covered = F.adaptive_avg_pool2d(torch.from_numpy(masks).float()[:, None], (2, 3)).flatten(1)
    limit = torch.minimum(torch.tensor(0.5), covered.amax(1, keepdim=True) / 2) if keep_thin else 0.5
    found = kept_patches(masks, (2, 3), keep_thin=keep_thin)
    assert np.array_equal(found, ((covered >= limit) & (covered > 0)).numpy())
    assert np.array_equal(found, kept_patches(masks.astype(np.float32), (2, 3), keep_thin=keep_thin))
    np.testing.assert_allclose(patch_means(masks, (2, 3)), covered, rtol=1e-6)
    assert found[-1].all() and not found[0].any() and found[1].any() == keep_thin


def test_thin_defects_keep_their_patches_and_only_those():
    mask = np.zeros((1, 28, 28), bool)
    mask[0, 3, :14] = True  # one line of 14: covers 1/14 of the first patch
    assert kept_patches(mask, (2, 2), keep_thin=False).sum() == 0
    assert kept_patches(mask, (2, 2)).tolist() == [[True, False, False, False]]
    assert kept_patches(np.zeros((1, 28, 28)), (2, 2)).sum() == 0


def test_a_patch_covered_to_the_threshold_is_kept():
    mask = np.zeros((1, 14, 28), bool)
    mask[0, :7, :14] = True
    mask[0, :7, 14:27] = True
    assert kept_patches(mask, (1, 2), keep_thin=False).tolist() == [[True, False]]
