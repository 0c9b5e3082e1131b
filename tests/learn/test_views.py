"""Views against single pictures turned by hand, and the promise that picture and mask move together."""

import itertools

import numpy as np
import pytest

from anomalyncd.learn import views
from anomalyncd.learn.views import ViewRange, centre, dihedral, random_view

# Geometry only: every other change is set to "nothing".
STILL = ViewRange((1, 1), (1, 1), (1, 1), (1, 1), (9,), (1e-3, 1e-3), (8, 8))
GREY = np.array([0.299, 0.587, 0.114])


def only(**change):
    return ViewRange(**{**vars(STILL), **change})


@pytest.fixture
def crop():
    return np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)


@pytest.fixture
def painted():
    """A black crop whose mask, which looks different in each of the eight positions, is painted red."""
    mask = np.zeros((40, 40), bool)
    mask[12:16, 12:28] = True
    mask[16:20, 12:14] = True
    crop = np.zeros((40, 40, 3), np.uint8)
    crop[mask] = [255, 0, 0]
    return crop, mask


@pytest.mark.parametrize("size", [40, 32, 31, 1])
def test_centre_cuts_the_same_border_on_all_sides(crop, size):
    stack = np.stack([crop, crop[::-1]])
    border = (40 - size) // 2
    assert np.array_equal(centre(stack, size), stack[:, border : border + size, border : border + size])
    assert np.array_equal(centre(stack[..., 0], size), centre(stack, size)[..., 0])


def test_dihedral_turns_each_picture_of_a_stack(crop):
    stack = np.stack([crop, crop[::-1]])
    for index in range(8):
        for picture, turned in zip(stack, dihedral(stack, index), strict=True):
            expected = np.rot90(picture, index % 4)
            assert np.array_equal(turned, np.fliplr(expected) if index >= 4 else expected)


def test_the_eight_dihedral_views_are_all_different(crop):
    assert len({dihedral(crop[None], index).tobytes() for index in range(8)}) == 8
    assert np.array_equal(dihedral(crop[None], 0)[0], crop)


def test_random_view_has_the_asked_size_and_types(crop):
    image, mask = random_view(crop, crop[..., 0] > 99, 32, np.random.default_rng(0))
    assert (image.shape, image.dtype, mask.shape, mask.dtype) == ((32, 32, 3), np.uint8, (32, 32), np.bool_)
    assert image.flags.c_contiguous and mask.flags.c_contiguous


def test_random_view_comes_from_its_generator_alone(crop):
    mask = crop[..., 0] > 99
    before = crop.copy()
    one, same, other = (random_view(crop, mask, 32, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one[0], same[0]) and np.array_equal(one[1], same[1])
    assert not np.array_equal(one[0], other[0])
    assert np.array_equal(crop, before)


def test_picture_and_mask_move_together(painted):
    seen = set()
    for seed in range(60):
        image, mask = random_view(*painted, 32, np.random.default_rng(seed), STILL)
        assert np.array_equal(image[..., 0] == 255, mask)
        assert mask.sum() == painted[1].sum()
        rows, columns = np.nonzero(mask)
        seen.add(mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1].tobytes() + bytes([np.ptp(rows)]))
    assert len(seen) == 8


def test_picture_and_mask_stay_together_under_all_changes(painted):
    """Colour and blur may change the paint, but inside the mask it stays redder than outside."""
    for seed in range(20):
        image, mask = random_view(*painted, 32, np.random.default_rng(seed))
        red = image[..., 0].astype(int)
        assert red[mask].mean() > 2 * red[~mask].mean() + 40


def test_the_window_reaches_every_corner_of_the_crop():
    rows, columns = np.indices((40, 40), dtype=np.uint8)
    crop = np.stack([rows, columns, rows], axis=-1)
    found = [random_view(crop, rows > 9, 32, np.random.default_rng(seed), STILL)[0] for seed in range(200)]
    assert {int(view[..., 0].min()) for view in found} == set(range(9))
    assert {int(view[..., 1].min()) for view in found} == set(range(9))


def test_nothing_changes_when_every_range_is_empty(crop):
    image, _ = random_view(crop, crop[..., 0] > 99, 40, np.random.default_rng(0), STILL)
    assert any(np.array_equal(image, dihedral(crop[None], index)[0]) for index in range(8))


def changed(picture, **change):
    return random_view(picture, picture[..., 0] > 99, 40, np.random.default_rng(0), only(**change))[0]


def test_brightness_scales_and_is_cut_at_white(crop):
    plain = changed(crop).astype(float)
    assert np.array_equal(changed(crop, brightness=(0.5, 0.5)), np.floor(plain * 0.5))
    assert np.array_equal(changed(crop, brightness=(1.5, 1.5)), np.floor(np.minimum(plain * 1.5, 255)))


def test_contrast_zero_is_one_grey_and_saturation_zero_is_grey_pixels(crop):
    assert np.ptp(changed(crop, contrast=(0, 0))) == 0
    assert changed(crop, contrast=(0, 0))[0, 0, 0] == pytest.approx((crop @ GREY).mean(), abs=1)
    grey = changed(crop, saturation=(0, 0))
    assert np.array_equal(grey[..., 0], grey[..., 1]) and np.array_equal(grey[..., 1], grey[..., 2])
    assert np.abs(grey[..., 0] - changed(crop) @ GREY).max() < 0.6


def test_colours_change_in_each_order_and_are_cut_after_every_step():
    two = np.zeros((40, 40, 3), np.uint8)
    two[:, :20], two[:, 20:] = [240, 90, 10], [60, 200, 120]
    steps = {
        "brightness": lambda x: x * 1.4,
        "contrast": lambda x: (x - (x @ GREY).mean()) * 1.4 + (x @ GREY).mean(),
        "saturation": lambda x: (x - (x @ GREY)[:, None]) * 1.8 + (x @ GREY)[:, None],
    }
    expected = []
    for order in itertools.permutations(steps.values()):
        colours = two[0, [0, 39]].astype(float)
        for step in order:
            colours = np.clip(step(colours), 0, 255)
        expected.append(np.sort(colours, axis=0))
    ranges = only(brightness=(1.4, 1.4), contrast=(1.4, 1.4), saturation=(1.8, 1.8))
    seen = set()
    for seed in range(100):
        image, _ = random_view(two, two[..., 0] > 99, 40, np.random.default_rng(seed), ranges)
        colours = np.sort(np.unique(image.reshape(-1, 3), axis=0), axis=0)
        errors = [np.abs(colours - one).max() for one in expected]
        assert min(errors) < 5  # whole values, three times
        seen.add(int(np.argmin(errors)))
    assert seen == set(range(6))


def test_sharpness_blends_with_a_smooth_picture_whose_centre_weighs_five_and_whose_edge_is_kept(crop):
    plain = changed(crop).astype(float)
    smooth = plain.copy()
    for y, x in itertools.product(range(1, 39), range(1, 39)):
        smooth[y, x] = (plain[y - 1 : y + 2, x - 1 : x + 2].sum(axis=(0, 1)) + 4 * plain[y, x]) / 13
    for factor in (0.2, 2.0):
        expected = np.clip(smooth + factor * (plain - smooth), 0, 255)
        assert np.abs(changed(crop, sharpness=(factor, factor)) - expected).max() <= 1.5


def test_blur_kernels_are_nine_to_thirty_three_in_steps_of_four(crop, monkeypatch):
    seen = []
    monkeypatch.setattr(views.cv2, "GaussianBlur", lambda image, kernel, sigmaX: seen.append((kernel, sigmaX)) or image)
    for seed in range(100):
        random_view(crop, crop[..., 0] > 99, 32, np.random.default_rng(seed))
    assert {kernel for kernel, _ in seen} == {(side, side) for side in (9, 13, 17, 21, 25, 29, 33)}
    assert 0.1 <= min(sigma for _, sigma in seen) < 0.3 and 1.8 < max(sigma for _, sigma in seen) <= 2


def test_sharpness_and_blur_change_the_spread_of_neighbours(crop):
    def roughness(picture):
        return np.abs(np.diff(picture.astype(float), axis=0)).mean()

    plain = roughness(changed(crop))
    assert roughness(changed(crop, sharpness=(0.2, 0.2))) < plain < roughness(changed(crop, sharpness=(2, 2)))
    assert roughness(changed(crop, blur_sigma=(2, 2))) < plain / 3


@pytest.mark.parametrize(("bits", "levels"), [(8, 256), (6, 64), (5, 32)])
def test_posterisation_leaves_two_to_the_bits_levels(bits, levels):
    ramp = np.zeros((256, 256, 3), np.uint8) + np.arange(256, dtype=np.uint8)[:, None, None]
    image, _ = random_view(ramp, ramp[..., 0] > 99, 256, np.random.default_rng(0), only(posterize_bits=(bits, bits)))
    assert sorted(set(image.ravel().tolist())) == [256 // levels * k for k in range(levels)]


def test_a_flat_picture_stays_flat_and_in_range():
    for value in (0, 255):
        flat = np.full((40, 40, 3), value, np.uint8)
        for seed in range(10):
            image, mask = random_view(flat, np.zeros((40, 40), bool), 32, np.random.default_rng(seed))
            assert np.ptp(image) == 0 and not mask.any()
