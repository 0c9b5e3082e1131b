from __future__ import annotations

import tracemalloc
from itertools import pairwise

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from anomalyncd.errors import DataError, SettingsError
from anomalyncd.metrics import BoxRates, PixelScores, box_rates, image_auroc


@st.composite
def image_sets(draw, n_levels=6):
    """Maps with many ties (levels / 8 are exact floats), masks or None, all of one small size."""
    height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6))
    maps, masks = [], []
    for _ in range(draw(st.integers(1, 4))):
        levels = draw(st.lists(st.integers(0, n_levels), min_size=height * width, max_size=height * width))
        maps.append(np.array(levels, dtype=np.float32).reshape(height, width) / 8)
        bits = draw(st.lists(st.booleans(), min_size=height * width, max_size=height * width))
        masks.append(draw(st.sampled_from([None, np.array(bits).reshape(height, width)])))
    return maps, masks


def flood_regions(mask):
    """Components as lists of (row, column), found by walking over the eight neighbours."""
    left, regions = {(int(y), int(x)) for y, x in np.argwhere(mask)}, []
    while left:
        todo, region = [left.pop()], []
        while todo:
            y, x = todo.pop()
            region.append((y, x))
            near = {(y + dy, x + dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)} & left
            left -= near
            todo += near
        regions.append(region)
    return regions


def slow_auroc(scores, defective):
    wins = [
        1.0 if s > n else 0.5 if s == n else 0.0
        for s, is_defective in zip(scores, defective, strict=True)
        if is_defective
        for n, other in zip(scores, defective, strict=True)
        if not other
    ]
    return sum(wins) / len(wins) if wins else None


def slow_aupro(maps, masks, max_fpr):
    masks = [np.zeros(m.shape, bool) if mask is None else mask for m, mask in zip(maps, masks, strict=True)]
    n_normal = sum(int((~mask).sum()) for mask in masks)
    n_regions = sum(len(flood_regions(mask)) for mask in masks)
    if not n_normal or not n_regions:
        return None
    points = [(0.0, 0.0)]
    for threshold in sorted({float(v) for m in maps for v in m.ravel()}, reverse=True):
        n_false, overlaps = 0, []
        for anomaly_map, mask in zip(maps, masks, strict=True):
            n_false += int(((anomaly_map >= threshold) & ~mask).sum())
            for region in flood_regions(mask):
                overlaps.append(sum(anomaly_map[pixel] >= threshold for pixel in region) / len(region))
        points.append((n_false / n_normal, sum(overlaps) / n_regions))
    area = 0.0
    for (x0, y0), (x1, y1) in pairwise(points):
        if x1 > max_fpr:
            if x0 < max_fpr:
                y1 = y0 + (y1 - y0) * (max_fpr - x0) / (x1 - x0)
                area += (max_fpr - x0) * (y0 + y1) / 2
            break
        area += (x1 - x0) * (y0 + y1) / 2
    return area / max_fpr


def slow_box_rates(predicted, true, iou):
    n_true = n_predicted = n_missed = n_false = 0
    defective = []  # of each image with a defect: its predicted boxes, and those among them that match

    def box_pixels(region):
        ys, xs = [y for y, _ in region], [x for _, x in region]
        return {(y, x) for y in range(min(ys), max(ys) + 1) for x in range(min(xs), max(xs) + 1)}

    for predicted_mask, true_mask in zip(predicted, true, strict=True):
        found = [box_pixels(r) for r in flood_regions(predicted_mask)]
        wanted = [box_pixels(r) for r in flood_regions(true_mask)]
        n_missed += sum(all(len(a & b) <= iou * len(a | b) for b in found) for a in wanted)
        n_false += sum(all(len(a & b) <= iou * len(a | b) for a in wanted) for b in found)
        n_true, n_predicted = n_true + len(wanted), n_predicted + len(found)
        if wanted:
            hits = sum(any(len(a & b) > iou * len(a | b) for a in wanted) for b in found)
            defective.append((len(found), hits))
    inside = sum(n for n, _ in defective)
    return BoxRates(
        n_false / n_predicted if n_predicted else None,
        n_missed / n_true if n_true else None,
        n_true,
        n_predicted,
        sum(n - hits for n, hits in defective) / inside if inside else None,
        sum(not hits for _, hits in defective) / len(defective) if defective else None,
    )


def realistic_set(rng, n_images=12, size=96):
    maps, masks = [], []
    for index in range(n_images):
        mask = np.zeros((size, size), dtype=bool)
        for _ in range(index % 4):
            y, x = rng.integers(0, size - 20, 2)
            mask[y : y + rng.integers(3, 20), x : x + rng.integers(3, 20)] = True
        noise = cv2.GaussianBlur(rng.normal(size=(size, size)), (0, 0), 3)
        maps.append((0.1 * mask + noise).astype(np.float32))
        masks.append(mask)
    return maps, masks


def added(pixel_scores, maps, masks):
    for anomaly_map, mask in zip(maps, masks, strict=True):
        pixel_scores.add(anomaly_map, mask)
    return pixel_scores


def exact(maps, masks):
    """Counts of maps of their masks' size with a bin of its own for every score."""
    values, ranks = np.unique(np.concatenate([m.ravel() for m in maps]), return_inverse=True)
    parts = np.split(ranks, np.cumsum([m.size for m in maps])[:-1])
    ranked = [part.reshape(m.shape) for part, m in zip(parts, maps, strict=True)]
    return added(PixelScores(0, max(len(values) - 1, 1), n_bins=len(values)), ranked, masks)


def pixel_auroc(maps, masks):
    return exact(maps, masks).pixel_auroc()


def aupro(maps, masks, max_fpr=0.3):
    return exact(maps, masks).aupro(max_fpr=max_fpr)


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=25))
@settings(max_examples=150, deadline=None)
def test_image_auroc_equals_pair_counting_and_sklearn(rows):
    scores, defective = [s / 4 for s, _ in rows], [d for _, d in rows]
    value = image_auroc(scores, defective)
    assert value == (None if len(set(defective)) < 2 else pytest.approx(slow_auroc(scores, defective)))
    if value is not None:
        assert value == pytest.approx(roc_auc_score(defective, scores))


@pytest.mark.parametrize("max_fpr", [0.05, 0.3, 1.0])
@given(images=image_sets())
@settings(max_examples=80, deadline=None)
def test_pixel_scores_equal_slow_implementations(max_fpr, images):
    maps, masks = images
    scores = np.concatenate([m.ravel() for m in maps]).tolist()
    full = [np.zeros(m.shape, bool) if mask is None else mask for m, mask in zip(maps, masks, strict=True)]
    defective = np.concatenate([mask.ravel() for mask in full]).tolist()
    streamed = added(PixelScores(0, 1, n_bins=64), maps, masks)  # levels / 8 fall in bins of their own
    assert streamed.n_images == len(maps)
    for value in (pixel_auroc(maps, masks), streamed.pixel_auroc()):
        expected = slow_auroc(scores, defective)
        assert value == (None if expected is None else pytest.approx(expected))
    for value in (aupro(maps, masks, max_fpr=max_fpr), streamed.aupro(max_fpr=max_fpr)):
        expected = slow_aupro(maps, masks, max_fpr)
        assert value == (None if expected is None else pytest.approx(expected, abs=1e-12))


def test_realistic_maps_equal_sklearn_and_the_slow_aupro():
    maps, masks = realistic_set(np.random.default_rng(0), n_images=3, size=21)
    assert pixel_auroc(maps, masks) == pytest.approx(roc_auc_score(np.ravel(masks), np.ravel(maps)), abs=1e-12)
    assert aupro(maps, masks) == pytest.approx(slow_aupro(maps, masks, 0.3), abs=1e-12)


@pytest.mark.parametrize("n_bins", [50, 1000, 65536])
def test_binning_error_stays_within_the_documented_bound(n_bins):
    maps, masks = realistic_set(np.random.default_rng(1))
    low, high = float(np.min(maps)), float(np.max(maps))
    streamed = added(PixelScores(low, high, n_bins=n_bins), maps, masks)
    all_scores, defective = np.ravel(maps), np.ravel(masks)
    regions = [np.array(region).T for mask in masks for region in flood_regions(mask)]
    owners = [index for index, mask in enumerate(masks) for _ in flood_regions(mask)]

    def shares(values):
        return np.histogram(values, bins=n_bins, range=(low, high))[0] / len(values)

    normal = shares(all_scores[~defective])
    mean_region = np.mean([shares(maps[i][tuple(region)]) for i, region in zip(owners, regions, strict=True)], axis=0)
    auroc_bound = (normal * shares(all_scores[defective])).sum() / 2
    aupro_bound = (normal * mean_region).sum() / 2 / 0.3
    auroc_error = abs(streamed.pixel_auroc() - pixel_auroc(maps, masks))
    aupro_error = abs(streamed.aupro() - aupro(maps, masks))
    assert auroc_error <= auroc_bound + 1e-12
    assert aupro_error <= aupro_bound + 1e-12
    if n_bins == 65536:
        assert max(auroc_error, aupro_error) < 1e-5


@pytest.mark.parametrize("n_levels", [256, 65536])
def test_streamed_is_exact_for_maps_from_files_of_8_and_16_bits(n_levels):
    rng = np.random.default_rng(2)
    # Neighbouring levels, all over the range: they must not share a bin.
    levels = np.concatenate([rng.integers(0, n_levels, 800), np.arange(n_levels - 100, n_levels), np.arange(100)])
    maps = [(rng.permutation(levels).reshape(20, 50) / (n_levels - 1)).astype(np.float32) for _ in range(2)]
    masks = [rng.random((20, 50)) < 0.1 for _ in range(2)]
    streamed = added(PixelScores(0, 1), maps, masks)
    assert streamed.pixel_auroc() == pytest.approx(pixel_auroc(maps, masks), abs=1e-13)
    assert streamed.aupro() == pytest.approx(aupro(maps, masks), abs=1e-13)


def two_regions():
    mask = np.zeros((10, 10), dtype=bool)
    mask[0, 0:7] = mask[5, 5] = True
    mask[6, 6] = True  # touches only by a corner: 8-connected, so one region of two pixels
    return mask


def test_perfect_inverted_and_constant_maps():
    mask = two_regions()
    perfect = mask.astype(float)
    normal = np.zeros((10, 10))
    for value in (pixel_auroc, aupro):
        assert value([perfect, normal], [mask, None]) == 1.0
        assert value([1 - perfect, normal + 1], [mask, None]) == 0.0
    constant = [np.ones((10, 10))]
    assert pixel_auroc(constant, [mask]) == 0.5
    assert aupro(constant, [mask], max_fpr=0.3) == pytest.approx(0.15)  # the diagonal's mean height up to 0.3


def test_small_regions_weigh_as_much_as_large_ones():
    mask = two_regions()
    finds_large, finds_small = np.zeros((10, 10)), np.zeros((10, 10))
    finds_large[0] = mask[0]
    finds_small[5:] = mask[5:]
    # Half the overlap at once, the rest on a line to (1, 1): mean height up to 0.3 is 0.5 + 0.5 · 0.15.
    assert aupro([finds_large], [mask]) == pytest.approx(0.575)
    assert aupro([finds_small], [mask]) == pytest.approx(0.575)
    assert pixel_auroc([finds_large], [mask]) == pytest.approx(1 - 2 / 9 / 2)
    assert pixel_auroc([finds_small], [mask]) == pytest.approx(1 - 7 / 9 / 2)


def test_pixels_of_normal_images_count_as_false_positives():
    mask = np.array([[1, 0, 0, 0]])
    anomaly_map = np.array([[0.5, 0.1, 0.1, 0.1]])
    noisy = np.array([[0.9, 0.0, 0.0]])
    assert aupro([anomaly_map, noisy], [mask, None]) == pytest.approx((0.3 - 1 / 6) / 0.3)
    assert pixel_auroc([anomaly_map, noisy], [mask, None]) == pytest.approx(5 / 6)


@given(image_sets(), st.sampled_from([np.exp, lambda v: 7 * v - 3, lambda v: v**3]))
@settings(max_examples=40, deadline=None)
def test_only_the_order_of_scores_matters(images, rising):
    maps, masks = images
    moved = [rising(m.astype(np.float64)) for m in maps]
    assert pixel_auroc(moved, masks) == pixel_auroc(maps, masks)
    assert aupro(moved, masks) == aupro(maps, masks)


def test_maps_are_resized_to_their_masks_bilinearly():
    rng = np.random.default_rng(3)
    small, mask = rng.random((7, 9)).astype(np.float32), rng.random((20, 30)) < 0.2
    # Bilinear with pixel centres aligned and edges repeated, written out.
    ys = np.clip((np.arange(20) + 0.5) * 7 / 20 - 0.5, 0, 6)
    xs = np.clip((np.arange(30) + 0.5) * 9 / 30 - 0.5, 0, 8)
    by_row = np.stack([np.interp(ys, np.arange(7), column) for column in small.T], axis=1)
    large = np.stack([np.interp(xs, np.arange(9), row) for row in by_row])
    resized = added(PixelScores(0, 1, n_bins=10**6), [small], [mask])
    assert resized.pixel_auroc() == pytest.approx(pixel_auroc([large], [mask]), abs=1e-6)
    assert resized.aupro() == pytest.approx(aupro([large], [mask]), abs=1e-5)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int64, np.float16, np.float32, np.float64, ">f4"])
def test_maps_of_any_dtype_and_layout_and_masks_of_0_and_255(dtype):
    rng = np.random.default_rng(4)
    levels, mask = rng.integers(0, 200, (16, 12)), rng.random((16, 12)) < 0.3
    expected = pixel_auroc([levels.astype(np.float64)], [mask])
    odd = np.asfortranarray(levels.astype(dtype))[::-1]
    assert added(PixelScores(0, 200), [odd], [mask[::-1] * np.uint8(255)]).pixel_auroc() == expected
    large = np.repeat(np.repeat(mask, 2, axis=0), 2, axis=1)
    assert 0 <= added(PixelScores(0, 200), [levels.astype(dtype)], [large]).pixel_auroc() <= 1


def test_nothing_defective_or_nothing_normal_gives_none():
    flat = [np.zeros((4, 4))]
    streamed = PixelScores(0, 1)
    assert streamed.pixel_auroc() is None and streamed.aupro() is None
    for mask in (None, np.zeros((4, 4), bool), np.ones((4, 4), bool)):
        streamed = added(PixelScores(0, 1), flat, [mask])
        assert streamed.pixel_auroc() is streamed.aupro() is None
    assert image_auroc([], []) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("mask", [None, np.eye(4, dtype=bool), np.eye(9, dtype=bool)])
def test_not_finite_scores_are_errors_that_name_the_map(bad, mask):
    broken = np.zeros((4, 4))
    broken[2, 3] = bad
    streamed = added(PixelScores(0, 1), [np.eye(4)], [np.eye(4, dtype=bool)])
    with pytest.raises(DataError, match=r"map 1: .* row 2, column 3"):
        streamed.add(broken, mask)
    assert (streamed.n_images, streamed.pixel_auroc()) == (1, 1.0)


def test_infinite_scores_of_images_are_the_highest():
    assert image_auroc([0.5, np.inf, -np.inf], [False, True, False]) == 1.0
    assert image_auroc([0.5, np.inf, np.inf], [False, True, False]) == 0.75
    with pytest.raises(DataError, match="image 1 "):
        image_auroc([0.5, np.nan], [True, False])


def test_scores_out_of_the_range_given_are_errors():
    streamed = PixelScores(0, 1)
    for value in (-0.01, 1.01):
        with pytest.raises(DataError, match=r"map 0: .*0\.0 … 1\.0"):
            streamed.add(np.full((2, 2), value), None)
    streamed.add(np.array([[0.0, 1.0]]), None)
    assert streamed.n_images == 1


def test_memory_of_streamed_scores_does_not_grow():
    rng = np.random.default_rng(6)
    streamed = PixelScores(0, 1)
    mask = np.eye(256, dtype=bool)
    streamed.add(rng.random((256, 256)), mask)
    tracemalloc.start()
    for _ in range(20):
        streamed.add(rng.random((256, 256)), mask)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 100_000  # one map takes 524,288 bytes


@st.composite
def mask_pairs(draw):
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    bits = st.lists(st.booleans(), min_size=height * width, max_size=height * width)
    pairs = draw(st.lists(st.tuples(bits, bits), max_size=3))
    return [[np.array(pair[side]).reshape(height, width) for pair in pairs] for side in (0, 1)]


@given(mask_pairs(), st.sampled_from([0, 0.1, 0.25, 0.5]))
@settings(max_examples=150, deadline=None)
def test_box_rates_equal_brute_force(masks, iou):
    predicted, true = masks
    assert box_rates(predicted, true, iou=iou) == slow_box_rates(predicted, true, iou)
    assert box_rates(iter(predicted), iter(true), iou=iou) == slow_box_rates(predicted, true, iou)


def test_boxes_at_exactly_the_limit_do_not_match():
    true, predicted = np.ones((1, 10), dtype=bool), np.zeros((1, 10), dtype=bool)
    predicted[0, 0] = True
    assert box_rates([predicted], [true]) == BoxRates(1.0, 1.0, 1, 1, fpr_defective=1.0, fnr_images=1.0)
    predicted[0, 1] = True
    assert box_rates([predicted], [true]) == BoxRates(0.0, 0.0, 1, 1, fpr_defective=0.0, fnr_images=0.0)


def test_boxes_match_within_one_image_only_and_none_is_an_empty_mask():
    mask = np.eye(5, dtype=bool)
    assert box_rates([mask, None], [None, mask]) == BoxRates(1.0, 1.0, 1, 1, fpr_defective=None, fnr_images=1.0)
    assert box_rates([None], [None]) == BoxRates(fpr=None, fnr=None, n_true=0, n_predicted=0)
    assert box_rates([np.zeros((3, 3))], [mask]) == BoxRates(None, 1.0, 1, 0, fpr_defective=None, fnr_images=1.0)
    assert box_rates([mask], [np.zeros((3, 3))]) == BoxRates(fpr=1.0, fnr=None, n_true=0, n_predicted=1)


def test_boxes_of_masks_of_another_size_are_scaled():
    true, predicted = np.zeros((40, 60), dtype=bool), np.zeros((10, 30), dtype=bool)
    true[20:28, 40:50] = True
    predicted[5:7, 20:25] = True  # the same field of view: rows times 4, columns times 2
    assert box_rates([predicted], [true], iou=0.99) == BoxRates(0.0, 0.0, 1, 1, fpr_defective=0.0, fnr_images=0.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: PixelScores(0, 1).add(np.zeros((2, 2, 3)), None), r"map 0: .*\(2, 2, 3\)"),
        (lambda: PixelScores(0, 1).add(np.zeros((0, 2)), None), "map 0: .*non-empty"),
        (lambda: PixelScores(0, 1).add(np.array([["a"]]), None), "numbers"),
        (lambda: PixelScores(0, 1).add(np.zeros((2, 2)), np.zeros(4)), "Mask 0: "),
        (lambda: box_rates([np.zeros((2, 2))], [np.zeros(4)]), "Mask 0: "),
        (lambda: box_rates([None, None], [None]), "missing for image 1"),
        (lambda: box_rates([None], [None, np.zeros((2, 2))]), "missing for image 1"),
        (lambda: image_auroc([1.0, 2.0], [True]), r"\(2,\).*\(1,\)"),
        (lambda: image_auroc([1.0, 2.0], [0, 2]), "True or False"),
    ],
)
def test_inputs_that_do_not_fit_are_data_errors(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: PixelScores(0, 1).aupro(max_fpr=0), "max_fpr"),
        (lambda: PixelScores(0, 1).aupro(max_fpr=1.1), "max_fpr"),
        (lambda: box_rates([], [], iou=1), "iou"),
        (lambda: PixelScores(1, 1), "low"),
        (lambda: PixelScores(0, np.inf), "low"),
        (lambda: PixelScores(0, np.nan), "low"),
        (lambda: PixelScores(0, 1, n_bins=0), "n_bins"),
    ],
)
def test_settings_out_of_range_are_settings_errors(call, name):
    with pytest.raises(SettingsError, match=name):
        call()
