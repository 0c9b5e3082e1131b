from __future__ import annotations

from math import exp, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.assign.images import image_classes, merge_regions, novel_probabilities, with_normal
from anomalyncd.config import MergeConfig
from anomalyncd.errors import DataError

SIZES = [[100, 200], [300, 50], [64, 64]]


def slow_merge(probabilities, image_index, n_images, areas, scores, image_sizes, how, temperature):
    rows = []
    for image in range(n_images):
        regions = [r for r in range(len(image_index)) if image_index[r] == image]
        tau = temperature or max(image_sizes[image]) / 10
        if how == "area":
            weights = [exp(sqrt(areas[r]) / tau) for r in regions]
        elif how == "score" and any(scores[r] for r in regions):
            weights = [scores[r] for r in regions]
        else:
            weights = [1.0 for _ in regions]
        row = [0.0] * len(probabilities[0])
        for region, weight in zip(regions, weights, strict=True):
            for k, p in enumerate(probabilities[region]):
                row[k] += weight / sum(weights) * p
        rows.append(row)
    return np.array(rows)


@st.composite
def regions(draw):
    n = draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    return {
        "probabilities": rng.dirichlet(np.ones(4), size=n),
        "image_index": np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))),
        "areas": np.array(draw(st.lists(st.integers(0, 20_000), min_size=n, max_size=n))),
        "scores": np.array(draw(st.lists(st.sampled_from([0.0, 0.01, 0.5, 1.0]), min_size=n, max_size=n))),
    }


@given(regions(), st.sampled_from(["area", "average", "score"]), st.sampled_from([None, 50.0, 100.0]))
@settings(max_examples=150, deadline=None)
def test_merge_equals_loop(data, how, temperature):
    merged = merge_regions(**data, image_sizes=SIZES, config=MergeConfig(how=how, temperature=temperature))
    expected = slow_merge(**data, n_images=3, image_sizes=SIZES, how=how, temperature=temperature)
    np.testing.assert_allclose(merged, expected, atol=1e-12)
    has_region = np.isin(np.arange(3), data["image_index"])
    np.testing.assert_allclose(merged.sum(axis=1), has_region, atol=1e-12)


@given(regions(), st.sampled_from(["area", "average", "score"]), st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_order_of_regions_does_not_matter(data, how, random):
    order = random.sample(range(len(data["areas"])), len(data["areas"]))
    shuffled = {name: values[order] for name, values in data.items()}
    rest = {"image_sizes": SIZES, "config": MergeConfig(how=how)}
    np.testing.assert_allclose(merge_regions(**shuffled, **rest), merge_regions(**data, **rest), atol=1e-12)


def merge_two(how="area", temperature=None, **changes):
    given_ = {"areas": [900, 100], "scores": [0.2, 0.6], "image_sizes": [[50, 200]]} | changes
    config = MergeConfig(how=how, temperature=temperature)
    return merge_regions([[1.0, 0.0], [0.0, 1.0]], [0, 0], config=config, **given_)[0].tolist()


def test_merge_by_hand():
    # √900 - √100 = 20 pixels: one temperature of a 200 px image apart, a fifth of the paper's 100
    assert merge_two() == pytest.approx([1 / (1 + exp(-1)), 1 / (1 + exp(1))])
    assert merge_two(temperature=100) == pytest.approx([1 / (1 + exp(-0.2)), 1 / (1 + exp(0.2))])
    assert merge_two("average") == [0.5, 0.5]
    assert merge_two("score") == pytest.approx([0.25, 0.75])
    assert merge_two("score", scores=[0, 0]) == [0.5, 0.5]


def test_relative_temperature_makes_the_image_scale_irrelevant():
    larger = merge_two(areas=[900 * 49, 100 * 49], image_sizes=[[350, 1400]])
    assert larger == pytest.approx(merge_two())


@pytest.mark.parametrize("how", ["area", "average", "score"])
def test_single_region_keeps_its_probabilities(how):
    sizes, config = [[9, 9], [8, 8]], MergeConfig(how=how)
    merged = merge_regions([[0.2, 0.3, 0.5]], [1], sizes, config, areas=[0], scores=[0.4])
    np.testing.assert_array_equal(merged, [[0, 0, 0], [0.2, 0.3, 0.5]])


@pytest.mark.parametrize(
    ("how", "changes"),
    [
        ("area", {"areas": [1e18, 1.0]}),
        ("area", {"areas": [1e300, 1.0], "temperature": 1e-250}),
        ("score", {"scores": [1e308, 1e290]}),
    ],
)
def test_huge_values_do_not_overflow(how, changes):
    assert merge_two(how, **changes) == pytest.approx([1.0, 0.0], abs=1e-15)


def test_huge_equal_values_share():
    assert merge_two(areas=[1e300, 1e300]) == [0.5, 0.5]
    assert merge_two("score", scores=[1.5e308, 1.5e308]) == [0.5, 0.5]
    assert merge_two("score", scores=[5e-324, 5e-324]) == [0.5, 0.5]


def test_no_region_at_all():
    merged = merge_regions(np.empty((0, 3)), [], [[8, 8], [8, 8]], MergeConfig(), areas=[], scores=[])
    np.testing.assert_array_equal(merged, np.zeros((2, 3)))
    assert image_classes([], [], [], 2) == [(), ()]
    assert novel_probabilities(np.empty((0, 5)), n_base=2).shape == (0, 3)


def test_novel_probabilities_by_hand_and_blind_to_base_logits():
    logits = np.array([[5.0, -3.0, 0.0, 0.1, 0.2], [0.0, 0.0, 0.3, 0.3, 0.3]])
    expected = [exp(0), exp(1), exp(2)]
    result = novel_probabilities(logits, n_base=2)
    np.testing.assert_allclose(result, [np.array(expected) / sum(expected), [1 / 3] * 3])
    logits[:, :2] = [[1e6, -1e6], [7, 7]]
    np.testing.assert_array_equal(novel_probabilities(logits, n_base=2), result)


@given(
    st.lists(st.lists(st.floats(-1e300, 1e300), min_size=4, max_size=4), min_size=1, max_size=5),
    st.integers(0, 3),
    st.sampled_from([1e-300, 0.04, 0.1, 1.0]),
)
@settings(max_examples=100, deadline=None)
def test_novel_probabilities_are_probabilities(logits, n_base, temperature):
    result = novel_probabilities(logits, n_base, temperature)
    assert result.shape == (len(logits), 4 - n_base)
    assert result.dtype == np.float64
    assert (result >= 0).all()
    np.testing.assert_allclose(result.sum(axis=1), 1)


@given(st.lists(st.lists(st.floats(-3, 3), min_size=3, max_size=3), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_novel_probabilities_equal_loop(logits):
    expected = [[exp(z / 0.1) / sum(exp(y / 0.1) for y in row[1:]) for z in row[1:]] for row in logits]
    np.testing.assert_allclose(novel_probabilities(logits, n_base=1), expected, rtol=1e-9)


def test_novel_probabilities_of_single_precision_logits_are_computed_in_double():
    logits = np.array([[0.0, 1.0, -1.0]], dtype=np.float32)
    np.testing.assert_array_equal(novel_probabilities(logits, 0), novel_probabilities(logits.astype(np.float64), 0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("n_base", [0, 1])
def test_logits_that_are_not_finite_are_refused(bad, n_base):
    with pytest.raises(DataError, match="must be finite"):
        novel_probabilities([[bad, 1.0]], n_base)


def test_image_classes_by_hand():
    found = image_classes(
        region_labels=[3, 1, 3, 0, 0, 0, 2, 1, -1, 0],
        region_probabilities=[0.5, 0.7, 0.9, 0.99, 0.6, 0.7, 0.4, 0.4, 0.3, 0.9],
        image_index=[0, 0, 0, 0, 1, 1, 2, 2, 4, 4],
        n_images=5,
    )
    assert found == [(3, 1), (0,), (1, 2), (), (-1,)]


@given(
    st.lists(
        st.tuples(st.integers(-1, 4), st.sampled_from([0.1, 0.5, 0.9]), st.integers(0, 2)),
        min_size=1,
        max_size=15,
    )
)
@settings(max_examples=100, deadline=None)
def test_image_classes_equal_loop(rows):
    labels, chances, index = zip(*rows, strict=True)
    expected = []
    for image in range(3):
        best = {}
        for label, chance, where in rows:
            if where == image:
                best[label] = max(chance, best.get(label, 0))
        ranked = sorted(best, key=lambda label: (-best[label], label))
        expected.append(tuple(x for x in ranked if x != 0) if set(ranked) != {0} else (0,))
    assert image_classes(labels, chances, index, 3) == expected


@st.composite
def suspicions(draw):
    """Class probabilities (R, K) with normal first, as `region_probabilities` has them, chances (R,), and a rate."""
    n, k = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    defects = rng.dirichlet(np.full(k, draw(st.sampled_from([0.1, 1.0, 50.0]))), n)
    normal = rng.uniform(0, draw(st.sampled_from([0.0, 0.9])), (n, 1))  # above 0 where a person corrected false alarms
    chance = np.array(draw(st.lists(st.floats(0, 1), min_size=n, max_size=n)))
    return np.concatenate([normal, (1 - normal) * defects], axis=1), chance, draw(st.floats(0.001, 0.3))


@given(suspicions())
def test_normal_leaves_room_for_false_alarms(given_):
    probabilities, chance, rate = given_
    found = with_normal(probabilities, chance, rate)
    assert found.shape == probabilities.shape and (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1)
    kept = found[:, 1:].sum(axis=1) > 1e-9
    shares = found[kept, 1:] / found[kept, 1:].sum(axis=1, keepdims=True)
    own = probabilities[kept, 1:] / probabilities[kept, 1:].sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares, own, atol=1e-6)  # among the defects nothing changes


@given(suspicions())
def test_normal_if_and_only_if_the_chance_is_above_the_rate(given_):
    probabilities, chance, rate = given_
    probabilities = np.concatenate([np.zeros((len(chance), 1)), probabilities[:, 1:]], axis=1)  # not learned
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    labels = with_normal(probabilities, chance, rate).argmax(axis=1)
    assert ((labels == 0) == (chance > rate)).all()


def test_at_the_line_the_label_says_defect():
    even = np.array([[0, 0.25, 0.25, 0.25, 0.25]])  # a kind so uncertain that normal would be the most probable class
    assert with_normal(even, np.array([0.02]), 0.02).argmax() > 0
    assert with_normal(even, np.array([0.0201]), 0.02).argmax() == 0
    assert with_normal(np.array([[1.0, 0, 0]]), np.array([0.0]), 0.02).sum() == pytest.approx(1)
