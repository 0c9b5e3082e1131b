"""Regions and crops against pixel-by-pixel brute force and drawn images.

Covers boxes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from anomalyncd.config import CropConfig, make_config
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.regions.boxes import merge_boxes, merge_squares
from anomalyncd.regions.find import Region, crop_square, cut, cut_map, find_regions, whole_region


def slow_components(mask: np.ndarray) -> list[set[tuple[int, int]]]:
    """8-connected components by flood fill."""
    todo = {(int(y), int(x)) for y, x in np.argwhere(mask)}
    components = []
    while todo:
        component, frontier = set(), [todo.pop()]
        while frontier:
            y, x = frontier.pop()
            component.add((y, x))
            for near in itertools.product((y - 1, y, y + 1), (x - 1, x, x + 1)):
                if near in todo:
                    todo.remove(near)
                    frontier.append(near)
        components.append(component)
    return components


def slow_regions(mask: np.ndarray, image_size: tuple[int, int], distance: float) -> list[tuple]:
    """(box, area, pixels) of every region, merging one pair at a time."""
    (rows, columns), (height, width) = mask.shape, image_size

    def image_box(pixels: set[tuple[int, int]]) -> tuple[int, int, int, int]:
        xs, ys = [x for _, x in pixels], [y for y, _ in pixels]
        return (
            min(xs) * width // columns,
            min(ys) * height // rows,
            -(-(max(xs) + 1) * width // columns),
            -(-(max(ys) + 1) * height // rows),
        )

    def gap(a: tuple[int, ...], b: tuple[int, ...]) -> float:
        return float(np.hypot(max(a[0] - b[2], b[0] - a[2], 0), max(a[1] - b[3], b[1] - a[3], 0)))

    regions = slow_components(mask)
    merging = True
    while merging:
        merging = False
        for a, b in itertools.combinations(regions, 2):
            if gap(image_box(a), image_box(b)) < distance:
                regions = [r for r in regions if r is not a and r is not b] + [a | b]
                merging = True
                break
    scale = (width / columns) * (height / rows)
    result = []
    for pixels in regions:
        x0, y0, x1, y1 = image_box(pixels)
        result.append(((x0, y0, x1 - x0, y1 - y0), len(pixels) * scale, pixels))
    return sorted(result, key=lambda r: (-round(r[1], 6), r[0][1], r[0][0]))


@settings(max_examples=150, deadline=None)
@given(
    mask=hnp.arrays(bool, hnp.array_shapes(min_dims=2, max_dims=2, max_side=16), elements=st.booleans()),
    keep=st.floats(0, 1),
    image_size=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    merge_distance=st.sampled_from([0, 0.01, 0.05, 0.2]),
)
def test_regions_equal_brute_force(
    mask: np.ndarray, keep: float, image_size: tuple[int, int], merge_distance: float
) -> None:
    mask &= np.random.default_rng(0).random(mask.shape) < keep  # sparse masks too
    rule = CropConfig(merge_distance=merge_distance)
    regions, components = find_regions(mask, image_size, rule)
    expected = slow_regions(mask, image_size, merge_distance * max(image_size))
    # A region may consist of components of one box and area in another order: compare as sorted lists.
    assert [r.area for r in regions] == pytest.approx([area for _, area, _ in expected])
    found_pixels = [frozenset((int(y), int(x)) for y, x in np.argwhere(np.isin(components, r.labels))) for r in regions]
    assert {(r.box, p) for r, p in zip(regions, found_pixels, strict=True)} == {
        (box, frozenset(pixels)) for box, _, pixels in expected
    }
    for region in regions:
        assert_square_is_right(region, image_size, rule)
    assert components.dtype == np.int32 and ((components > 0) == mask).all()


def assert_square_is_right(region: Region, image_size: tuple[int, int], rule: CropConfig) -> None:
    (x, y, w, h), (left, top, side) = region.box, region.square
    height, width = image_size
    wanted = max((1 + rule.padding) * max(w, h), 2 * rule.min_size * max(image_size))
    assert side == max(image_size) or wanted - 1e-5 <= side < wanted + 1
    assert left <= x and x + w <= left + side and top <= y and y + h <= top + side  # holds the box
    for start, extent, box_start, box_length in ((left, width, x, w), (top, height, y, h)):
        if side <= extent:
            assert 0 <= start <= extent - side
            centred = box_start + box_length / 2 - side / 2
            assert abs(start - min(max(centred, 0), extent - side)) <= 0.5
        else:
            assert start <= 0 and start + side >= extent
            assert abs((start + side / 2) - extent / 2) <= 0.5


def test_merging_goes_on_with_the_merged_box() -> None:
    # The L-shaped union of the first two reaches the third, which neither of them reaches.
    boxes = np.array([[0, 0, 50, 4], [0, 6, 4, 50], [30, 30, 34, 34], [80, 80, 84, 84]])
    assert merge_boxes(boxes, 3).tolist() == [0, 0, 0, 1]
    assert merge_boxes(boxes, 2).tolist() == [0, 1, 2, 3]  # a gap of two is not nearer than two


@pytest.mark.parametrize("distance", [3, 10, 40])
def test_many_boxes_are_merged_as_few_are(monkeypatch, distance):
    corners = np.random.default_rng(distance).integers(0, 1500, (1200, 2))
    boxes = np.concatenate([corners, corners + np.random.default_rng(0).integers(1, 30, (1200, 2))], axis=1)
    quick = merge_boxes(boxes, distance)
    monkeypatch.setattr("anomalyncd.regions.boxes.MANY_BOXES", len(boxes))
    slow = merge_boxes(boxes, distance)
    assert len({*zip(quick.tolist(), slow.tolist(), strict=True)}) == quick.max() + 1 == slow.max() + 1


def test_many_boxes_that_are_just_apart_stay_apart():
    # Pairs of single pixels, each pair far from all others: by 72 … 83 along both axes they are 100 apart or more.
    first = np.stack(np.meshgrid(400 * np.arange(25), 400 * np.arange(24)), axis=-1).reshape(-1, 2)
    first = first + np.random.default_rng(0).integers(0, 80, first.shape)
    second = first + np.random.default_rng(1).integers(72, 84, (len(first), 1))
    corners = np.concatenate([first, second])
    found = merge_boxes(np.concatenate([corners, corners + 1], axis=1), 100)
    assert len(np.unique(found)) == len(corners) == 1200


def test_a_map_of_noise_takes_seconds_not_hours():
    mask = np.random.default_rng(0).random((1500, 1500)) < 0.05
    (region,), _ = find_regions(mask, (1500, 1500))
    assert region.area == mask.sum()


def test_largest_first_then_by_place() -> None:
    mask = np.zeros((100, 100), bool)
    mask[80:90, 5:15] = mask[5:15, 60:70] = mask[5:15, 20:30] = mask[40:60, 40:60] = True
    regions, _ = find_regions(mask, (100, 100))
    assert [r.box[:2] for r in regions] == [(40, 40), (20, 5), (60, 5), (5, 80)]


def test_score_is_the_maximum_inside_the_square() -> None:
    mask = np.zeros((50, 100), bool)
    mask[20:30, 40:50] = True
    scores = np.zeros((25, 50), np.float32)  # image (100, 200): a score pixel is 4 × 4
    regions, _ = find_regions(mask, (100, 200), scores=scores)
    left, top, side = regions[0].square
    for y, x in np.ndindex(scores.shape):
        scores[y, x] = 0.7
        inside = 4 * x < left + side and 4 * x + 4 > left and 4 * y < top + side and 4 * y + 4 > top
        again, _ = find_regions(mask, (100, 200), scores=scores)
        assert again[0].score == pytest.approx(0.7 if inside else 0)
        scores[y, x] = 0
    assert find_regions(mask, (100, 200))[0][0].score == 1


def test_padding_and_least_size() -> None:
    assert crop_square((100, 100, 100, 40), (500, 500), CropConfig()) == (95, 65, 110)
    assert crop_square((100, 100, 10, 4), (500, 500), CropConfig()) == (55, 52, 100)
    assert crop_square((100, 100, 10, 4), (500, 500), CropConfig(padding=0, min_size=0)) == (100, 97, 10)
    assert crop_square((0, 490, 10, 10), (500, 500), CropConfig()) == (0, 400, 100)
    assert crop_square((0, 0, 500, 500), (500, 500), CropConfig()) == (0, 0, 500)
    assert crop_square((300, 10, 150, 40), (60, 500), CropConfig()) == (292, -53, 165)
    assert crop_square((10, 10, 5, 5), (60, 500), CropConfig(whole_image=True)) == (0, -220, 500)


@pytest.mark.parametrize("image_size", [(300, 300), (240, 500), (900, 123)])
@pytest.mark.parametrize("mask_size", [(300, 300), (64, 64), (224, 320), (1000, 777)])
@pytest.mark.parametrize("whole_image", [False, True])
def test_crop_and_mask_stay_aligned(image_size: tuple[int, int], mask_size: tuple[int, int], whole_image: bool) -> None:
    # A bright rectangle at shares of the field of view, drawn in the image and, independently, in the mask.
    (height, width), (rows, columns) = image_size, mask_size
    y0, y1, x0, x1 = 0.3, 0.6, 0.55, 0.8

    def draw(n_rows: int, n_columns: int) -> np.ndarray:
        y, x = (np.arange(n_rows) + 0.5) / n_rows, (np.arange(n_columns) + 0.5) / n_columns
        return ((y > y0) & (y < y1))[:, None] & ((x > x0) & (x < x1))[None]

    image = np.repeat((draw(height, width) * 200).astype(np.uint8)[..., None], 3, axis=2)
    regions, components = find_regions(
        draw(rows, columns), image_size, CropConfig(whole_image=whole_image, padding=0.5)
    )
    (region,) = regions
    crop, crop_mask = cut(image, components, region, size=128)
    bright = crop[..., 0] > 100
    # The two drawings differ by about one pixel of the coarser one, and so may the edges in the crop.
    tolerance = 1 + np.ceil(128 / region.square[2] * max(height / rows, width / columns, 1))
    for axis in (0, 1):
        a, b = np.flatnonzero(bright.any(axis)), np.flatnonzero(crop_mask.any(axis))
        assert abs(a[0] - b[0]) <= tolerance and abs(a[-1] - b[-1]) <= tolerance
        assert abs(a.mean() - b.mean()) <= tolerance / 2


def test_a_crop_mask_has_pixels_that_are_half_covered_and_the_best_of_thin_regions() -> None:
    image, region = (
        np.zeros((8, 8, 3), np.uint8),
        Region(box=(0, 0, 8, 8), square=(0, 0, 8), area=1, score=1, labels=(1,)),
    )

    def crop_mask(covered: np.ndarray) -> list[list[int]]:
        return cut(image, covered.astype(np.int32), region, size=4)[1].astype(int).tolist()

    three_columns = np.arange(8) < 3
    assert crop_mask(np.tile(three_columns, (8, 1))) == [[1, 1, 0, 0]] * 4  # the second is half covered
    thin = np.zeros((8, 8))
    thin[:2, 0] = thin[2, 2] = thin[4, :1] = 1  # half, a quarter, a quarter of a pixel of the crop
    assert crop_mask(thin) == [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 0, 0], [0] * 4]
    thin[2, 2] = 0
    thin[4, 0], thin[:2, :2] = 1, 1
    assert crop_mask(thin) == [[1, 0, 0, 0], [0] * 4, [0] * 4, [0] * 4]


@pytest.mark.parametrize("size", [32, 64, 100])
def test_crop_mask_equals_area_resampling_by_opencv(size: int) -> None:
    rng = np.random.default_rng(size)
    mask = cv2.GaussianBlur(rng.random((200, 200)), (0, 0), 4) > 0.52
    regions, components = find_regions(mask, (200, 200), CropConfig(merge_distance=0, padding=0.1))
    image = np.zeros((200, 200, 3), np.uint8)
    for region in regions[:5]:
        left, top, side = region.square
        own = np.isin(components, region.labels)
        window = own[top : top + side, left : left + side].astype(np.float32)
        if size < side:  # cv2.INTER_AREA is an area mean only when it shrinks
            coverage = cv2.resize(window, (size, size), interpolation=cv2.INTER_AREA)
            found = cut(image, components, region, size=size)[1]
            certain = np.abs(coverage - 0.5) > 1e-3
            np.testing.assert_array_equal(found[certain], coverage[certain] > 0.5)


def test_crop_at_its_own_size_is_the_image() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (80, 120, 3), dtype=np.uint8)
    mask = np.zeros((80, 120), bool)
    mask[30:50, 70:90] = mask[35:40, 60:90] = True
    regions, components = find_regions(mask, (80, 120))
    left, top, side = regions[0].square
    crop, crop_mask = cut(image, components, regions[0], size=side)
    np.testing.assert_array_equal(crop, image[top : top + side, left : left + side])
    np.testing.assert_array_equal(crop_mask, mask[top : top + side, left : left + side])


def test_a_smaller_crop_is_a_mean_of_pixels_and_a_larger_one_lies_between_them() -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    regions, components = find_regions(np.ones((64, 64), bool), (64, 64))
    small = cut(image, components, regions[0], size=16)[0]
    np.testing.assert_allclose(small, image.reshape(16, 4, 16, 4, 3).mean(axis=(1, 3)), atol=0.51)
    step = np.zeros((64, 64, 3), np.uint8)
    step[:, 32:] = 200
    large = cut(step, components, regions[0], size=256)[0]
    assert large[0, 120:136, 0].tolist() == [0] * 6 + [25, 75, 125, 175] + [200] * 6


def test_missing_part_repeats_the_edge_and_has_no_mask() -> None:
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (20, 60, 3), dtype=np.uint8)
    mask = np.ones((20, 60), bool)
    regions, components = find_regions(mask, (20, 60))
    assert regions[0].square == (0, -20, 60)
    crop, crop_mask = cut(image, components, regions[0], size=60)
    np.testing.assert_array_equal(crop[20:40], image)
    np.testing.assert_array_equal(crop[:20], np.broadcast_to(image[0], (20, 60, 3)))
    np.testing.assert_array_equal(crop[40:], np.broadcast_to(image[-1], (20, 60, 3)))
    assert crop_mask[20:40].all() and not crop_mask[:20].any() and not crop_mask[40:].any()


def test_of_a_square_that_only_touches_the_image_a_pixel_is_seen() -> None:
    """No box gives such a square, but a file may."""
    image = np.random.default_rng(0).integers(0, 256, (1000, 1, 3), dtype=np.uint8)
    regions, components = find_regions(np.ones((1000, 1), bool), (1000, 1))
    crop, crop_mask = cut(image, components, replace(regions[0], square=(-999, 0, 1000)), size=64)
    assert crop.shape == (64, 64, 3) and crop_mask[:, 63].all() and not crop_mask[:, :63].any()


def test_crop_mask_holds_its_own_region_only() -> None:
    mask = np.zeros((100, 100), bool)
    mask[40:50, 40:50] = mask[40:50, 53:60] = True
    regions, components = find_regions(mask, (100, 100))
    assert [r.labels for r in regions] == [(1,), (2,)]
    first, second = (cut(np.zeros((100, 100, 3), np.uint8), components, r, size=100)[1] for r in regions)
    assert first.any() and second.any()
    merged, components = find_regions(mask, (100, 100), CropConfig(merge_distance=0.05))
    assert [r.labels for r in merged] == [(1, 2)]
    both = cut(np.zeros((100, 100, 3), np.uint8), components, merged[0], size=merged[0].square[2])[1]
    assert both.sum() == mask.sum() and first[0].sum() == 0
    left, top, side = regions[0].square
    own = cut(np.zeros((100, 100, 3), np.uint8), components, regions[0], size=side)[1]
    np.testing.assert_array_equal(own, (components == 1)[top : top + side, left : left + side])


@settings(max_examples=150, deadline=None)
@given(
    mask_size=st.tuples(st.integers(1, 300), st.integers(1, 300)),
    image_size=st.tuples(st.integers(1, 400), st.integers(1, 400)),
    size=st.integers(1, 70),
    place=st.tuples(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True)),
    whole_image=st.booleans(),
)
def test_no_region_vanishes(
    mask_size: tuple[int, int],
    image_size: tuple[int, int],
    size: int,
    place: tuple[float, float],
    whole_image: bool,
) -> None:
    mask = np.zeros(mask_size, bool)
    mask[int(place[0] * mask_size[0]), int(place[1] * mask_size[1])] = True  # one pixel
    regions, components = find_regions(mask, image_size, CropConfig(whole_image=whole_image))
    crop, crop_mask = cut(np.zeros((*image_size, 3), np.uint8), components, regions[0], size=size)
    assert crop.shape == (size, size, 3) and crop_mask.shape == (size, size)
    assert crop_mask.any()


def test_whole_region_is_the_full_image() -> None:
    regions, components = whole_region((60, 100), scores=np.array([[0.2, 0.9]], np.float32))
    (region,) = regions
    assert region.area == 6000 and region.score == pytest.approx(0.9)
    _, crop_mask = cut(np.zeros((60, 100, 3), np.uint8), components, region, size=50)
    assert crop_mask[10:40].all() and crop_mask.sum() == 30 * 50


def test_empty_mask_has_no_regions() -> None:
    regions, components = find_regions(np.zeros((5, 7), bool), (50, 70))
    assert regions == [] and components.shape == (5, 7) and not components.any()


def test_bad_input() -> None:
    for bad in (np.zeros((0, 3), bool), np.zeros((2, 2, 3), bool)):
        with pytest.raises(DataError, match="mask"):
            find_regions(bad, (10, 10))
    with pytest.raises(SettingsError, match=r"crop\.padding"):
        make_config({"crop": {"padding": -0.1}})


def test_many_components_are_no_trouble() -> None:
    mask = np.zeros((1024, 1024), bool)
    mask[::8, ::8] = True  # 16,384 specks: a cubic loop would take hours
    apart, _ = find_regions(mask, (1024, 1024), CropConfig(merge_distance=0.001))
    together, _ = find_regions(mask, (1024, 1024))
    assert len(apart) == 128 * 128 and len(together) == 1


@pytest.mark.parametrize("square", [(0, 0, 60), (13, 7, 22), (-10, 0, 80)])
def test_the_map_of_a_crop_against_point_by_point_interpolation(square):
    rng = np.random.default_rng(0)
    scores = rng.random((15, 20)).astype(np.float32)
    height, width, size = 60, 80, 9
    left, top, side = square
    found = cut_map(scores, (height, width), square, size)
    for v, u in itertools.product(range(size), range(size)):
        x = np.clip((left + (u + 0.5) * side / size) * 20 / width - 0.5, 0, 19)
        y = np.clip((top + (v + 0.5) * side / size) * 15 / height - 0.5, 0, 14)
        x0, y0 = min(int(x), 18), min(int(y), 13)
        fx, fy = x - x0, y - y0
        rows = [scores[r, x0] * (1 - fx) + scores[r, x0 + 1] * fx for r in (y0, y0 + 1)]
        assert found[v, u] == pytest.approx(rows[0] * (1 - fy) + rows[1] * fy, abs=0.02)  # OpenCV: 32 steps a pixel


SQUARES = CropConfig(merge="squares")  # on an image of 500 pixels: sides of 100, and 5 pixels are near


def spots(*corners: tuple[int, int]) -> np.ndarray:
    """A mask (500, 500) of spots of 10 × 10 pixels, whose crop squares begin 45 pixels before them."""
    mask = np.zeros((500, 500), bool)
    for x, y in corners:
        mask[y : y + 10, x : x + 10] = True
    return mask


def test_squares_that_overlap_are_one_region_however_far_apart_the_boxes_are() -> None:
    mask = spots((100, 200), (160, 200))
    (region,), _ = find_regions(mask, (500, 500), SQUARES)
    # Squares x 55 … 155 and 115 … 215, y 155 … 255: the box around them is 160 wide, so 30 more above and below.
    assert (region.square, region.box, region.area) == ((55, 125, 160), (100, 200, 70, 10), 200)
    assert region.labels == (1, 2)
    assert len(find_regions(mask, (500, 500))[0]) == 2


@pytest.mark.parametrize(("gap", "n_regions"), [(4, 1), (5, 2)])
def test_squares_nearer_than_a_hundredth_of_the_longer_side_are_one_region(gap: int, n_regions: int) -> None:
    regions, _ = find_regions(spots((100, 200), (200 + gap, 200)), (500, 500), SQUARES)
    assert len(regions) == n_regions


@pytest.mark.parametrize(("start", "n_regions"), [(199, 1), (200, 2)])
def test_squares_that_overlap_are_always_near(start: int, n_regions: int) -> None:
    rule = CropConfig(merge="squares", merge_distance=0)
    assert len(find_regions(spots((100, 200), (start, 200)), (500, 500), rule)[0]) == n_regions


def test_squares_are_rounded_down_but_hold_their_box() -> None:
    assert crop_square((100, 100, 101, 40), (500, 500), SQUARES) == (95, 65, 110)  # half a side of 55.55
    assert crop_square((100, 100, 101, 40), (500, 500), CropConfig()) == (94, 64, 112)
    for side in (1, 3, 499, 500):
        assert crop_square((0, 0, side, 1), (500, 500), CropConfig(merge="squares", padding=0, min_size=0))[2] == side


def test_a_chain_of_squares_is_not_merged_twice() -> None:
    # Neighbours overlap, next but one are 80 pixels apart: the middle ones have three members each, the ends are within.
    regions, _ = find_regions(spots((100, 200), (190, 200), (280, 200), (370, 200)), (500, 500), SQUARES)
    assert [(r.labels, r.area) for r in regions] == [((1, 2, 3), 300), ((2, 3, 4), 300)]
    # 55 … 245 by 155 … 255 grows to 110 … 300, and with the third 55 … 335 to 65 … 345.
    assert [r.square for r in regions] == [(55, 65, 280), (145, 65, 280)]


def test_area_and_mask_of_a_merged_square_are_all_of_the_mask_in_it() -> None:
    # The fourth spot lies in the square that the others grow to, but its own square is 7 pixels away from theirs.
    mask = spots((100, 200), (190, 200), (280, 200), (225, 307))
    regions, components = find_regions(mask, (500, 500), SQUARES)
    assert [(r.labels, r.area, r.box) for r in regions] == [
        ((1, 2, 3), 400, (100, 200, 190, 10)),
        ((4,), 100, (225, 307, 10, 10)),
    ]
    image, side = np.zeros((500, 500, 3), np.uint8), regions[0].square[2]
    for alone, n_pixels in ((False, 400), (True, 300)):
        assert cut(image, components, regions[0], side, alone=alone)[1].sum() == n_pixels


def test_merged_squares_stay_in_the_image() -> None:
    regions, _ = find_regions(spots((0, 200), (100, 120), (200, 200), (300, 120), (400, 200)), (500, 500), SQUARES)
    for left, top, side in (region.square for region in regions):
        assert 0 <= left <= left + side <= 500 and 0 <= top <= top + side <= 500
    narrow = np.zeros((60, 500), bool)
    narrow[20:30, 100:110] = narrow[20:30, 150:160] = True
    assert find_regions(narrow, (60, 500), SQUARES)[0][0].square == (55, -45, 150)


def slow_squares(squares: list[tuple[int, int, int]], distance: float) -> set[tuple]:
    """Members and square of each group, square by square."""

    def is_near(a: tuple[int, int, int], b: tuple[int, int, int]) -> bool:
        (ax, ay, aside), (bx, by, bside) = a, b
        x, y = max(ax - bx - bside, bx - ax - aside), max(ay - by - bside, by - ay - aside)
        return (x < 0 and y < 0) or bool(np.hypot(max(x, 0), max(y, 0)) < distance)

    numbered = list(enumerate(squares))
    groups = {frozenset(j for j, b in numbered if is_near(a, b)) for _, a in numbered}
    found = set()
    for group in groups:
        if any(group < other for other in groups):
            continue
        (x, y, side), *rest = sorted(squares[i] for i in group)
        x0, y0, x1, y1 = float(x), float(y), float(x + side), float(y + side)
        for x, y, side in rest:
            x0, y0, x1, y1 = min(x0, x), min(y0, y), max(x1, x + side), max(y1, y + side)
            more = abs((x1 - x0) - (y1 - y0)) / 2
            if x1 - x0 > y1 - y0:
                y0, y1 = y0 - more, y1 + more
            else:
                x0, x1 = x0 - more, x1 + more
        found.add((tuple(sorted(group)), (x0, y0, x1, y1)))
    return found


@settings(max_examples=150, deadline=None)
@given(
    squares=st.lists(
        st.tuples(st.integers(-20, 200), st.integers(-20, 200), st.integers(20, 60)), min_size=1, max_size=12
    ),
    distance=st.sampled_from([0.0, 2.5, 30.0]),
)
def test_squares_are_merged_as_one_by_one(squares: list[tuple[int, int, int]], distance: float) -> None:
    found = {tuple(members.tolist()): square for members, square in merge_squares(np.array(squares), distance)}
    expected = dict(slow_squares(squares, distance))
    assert found.keys() == expected.keys()
    for members, (left, top, side) in found.items():
        x0, y0, x1, y1 = expected[members]
        assert (left, top) == (np.floor(x0), np.floor(y0))
        assert left + side >= x1 and top + side >= y1 and side < x1 - x0 + 2


def test_squares_of_a_map_of_noise_take_seconds_not_hours() -> None:
    mask = np.random.default_rng(0).random((1500, 1500)) < 0.05
    regions, _ = find_regions(mask, (1500, 1500), SQUARES)
    assert 0 < len(regions) <= 1000
