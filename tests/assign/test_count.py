"""The number of classes: found where it is plain, one where there is none, and its evidence by hand."""

from __future__ import annotations

import json
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans

from anomalyncd.assign import count as module
from anomalyncd.assign.count import CountEstimate, estimate_count, n_steps


@pytest.fixture(autouse=True)
def few_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain data need no more, and the tests are faster."""
    for name, few in (("STARTS", 2), ("RESAMPLES", 9), ("BLOBS", 3)):
        monkeypatch.setattr(module, name, few)


@pytest.fixture
def many_tries(few_tries: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there really are, for what is less plain."""
    for name, many in (("RESAMPLES", 20), ("BLOBS", 6)):
        monkeypatch.setattr(module, name, many)


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def clusters(sizes: list[int], seed: int = 0, noise: float = 0.18, width: int = 12) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return unit(np.eye(width)[np.repeat(np.arange(len(sizes)), sizes)] + rng.normal(0, noise, (sum(sizes), width)))


@pytest.mark.parametrize(("count", "seed"), [(3, 0), (4, 1), (6, 0), (8, 0)])
def test_plain_clusters_of_unequal_sizes(count: int, seed: int) -> None:
    sizes = np.linspace(24, 8, count).astype(int).tolist()
    found = estimate_count(clusters(sizes, seed), most=count + 2, seed=seed)
    assert found.count == count and found.low <= count <= found.high


@pytest.mark.parametrize("noise", [0.02, 0.08])
@pytest.mark.parametrize("sizes", [[15, 15], [24, 8]])
def test_two_clusters_however_tight(sizes: list[int], noise: float, many_tries: None) -> None:
    """They lie along one axis, and so does a blob of their covariance: it must not fall into two as they do."""
    assert estimate_count(clusters(sizes, noise=noise), most=3).count == 2


@given(st.lists(st.integers(8, 16), min_size=3, max_size=5), st.integers(0, 10**6))
@settings(
    max_examples=4, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
def test_any_plain_clusters(sizes: list[int], seed: int) -> None:
    found = estimate_count(clusters(sizes, seed), most=len(sizes) + 1)
    assert found.count == len(sizes) and found.low <= found.count <= found.high


@pytest.mark.parametrize("seed", range(3))
def test_a_round_cloud_is_one_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = estimate_count(unit(np.eye(10)[0] + rng.normal(0, 0.2, (50, 10))), most=6)
    assert (found.count, found.low, found.high) == (1, 1, 1)


@pytest.mark.parametrize("seed", range(2))
def test_a_long_cloud_is_one_class_too(seed: int, many_tries: None) -> None:
    """k-means cuts it in two halves of a fair silhouette; a blob of that shape has the same one."""
    rng = np.random.default_rng(seed)
    stretch = np.array([0.5, *[0.2] * 9])
    found = estimate_count(unit(np.eye(10)[1] + rng.normal(0, 1, (60, 10)) * stretch), most=3)
    assert found.silhouette[0] > 0.2 and found.count == 1


def test_the_same_call_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    x = clusters([12, 9, 14], noise=0.25)
    first = estimate_count(x, most=6, seed=3)
    np.random.seed(5)  # noqa: NPY002  — a global state must have no say
    assert estimate_count(x.copy(), most=6, seed=3) == first
    assert estimate_count(x, most=6, seed=4) != first


def test_order_does_not_change_the_number() -> None:
    x = clusters([16, 10, 8, 12])
    order = np.random.default_rng(0).permutation(len(x))
    assert estimate_count(x[order], most=7).count == estimate_count(x, most=7).count == 4


def test_turning_all_features_changes_nothing() -> None:
    x = clusters([12, 9, 14], noise=0.2)
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(12, 12)))
    one, other = estimate_count(x, most=5), estimate_count((x @ turn).astype(np.float32), most=5)
    assert (one.count, one.low, one.high) == (other.count, other.low, other.high)
    np.testing.assert_allclose(one.silhouette, other.silhouette, atol=0.02)


@pytest.mark.parametrize("n_regions", [0, 1, 2, 3])
def test_too_few_regions_to_tell(n_regions: int) -> None:
    found = estimate_count(clusters([2, 1])[:n_regions], most=20)
    assert found.count == found.low == 1 and found.high == max(n_regions, 1)
    assert found.candidates == found.score == found.silhouette == []


@pytest.mark.parametrize("n_regions", [4, 5, 6, 8])
def test_few_regions_are_no_trouble(n_regions: int) -> None:
    found = estimate_count(clusters([n_regions - 2, 2]), most=20)
    assert 1 <= found.low <= found.count <= found.high < n_regions
    assert max(found.candidates) < n_regions - 1


def test_never_more_than_allowed() -> None:
    found = estimate_count(clusters([10] * 5), most=3)
    assert found.candidates == [2, 3] and found.high <= 3


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_regions_that_are_all_the_same_are_one_class() -> None:
    assert estimate_count(np.tile(np.float32([[1, 0, 0]]), (30, 1)), most=5).count == 1


def test_the_evidence_has_an_entry_for_each_candidate_and_fits_into_json() -> None:
    found = estimate_count(clusters([12, 9, 14]), most=6)
    assert found.candidates == [2, 3, 4, 5, 6]
    plain = json.loads(json.dumps(found.to_json_dict()))
    assert CountEstimate(**plain) == found
    evidence = {name: np.array(values) for name, values in plain.items() if isinstance(values, list)}
    assert {"silhouette", "stability", "agreement", "blob_silhouette", "blob_stability", "score"} <= set(evidence)
    for name, values in evidence.items():
        assert values.shape == (5,) and np.isfinite(values).all(), name
        assert name == "candidates" or values.max() <= 1 + 1e-9, name
    assert found.agreement == [1.0] * 5, "there is one kind of features only"
    assert found.score[1] == max(found.score), "the score speaks for the number that is taken"


def test_steps_are_counted_as_announced() -> None:
    steps: list[int] = []
    estimate_count(clusters([6, 6]), most=3, on_step=lambda: steps.append(1))
    assert len(steps) == n_steps()


def test_only_so_many_regions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REGIONS", 60)
    seen = []
    principal = module._principal
    monkeypatch.setattr(module, "_principal", lambda x: (seen.append(len(x)), principal(x))[1])
    x = clusters([100, 100, 100])
    assert estimate_count(x, most=5, kinds=[x, x]).count == 3
    assert seen == [60, 60, 60]


class TestAgreement:
    """Features of two kinds."""

    def test_kinds_that_say_the_same(self) -> None:
        x = clusters([12, 9, 14])
        found = estimate_count(x, most=5, kinds=[x, x[:, ::-1].copy()])
        assert found.count == 3 and found.agreement[1] == pytest.approx(1)

    def test_what_only_one_kind_sees_counts_less(self) -> None:
        """One kind tells four groups, two of them much alike; the other one only tells these two pairs apart."""
        two = clusters([24, 24], seed=1)
        four = unit(np.concatenate([two, 0.8 * clusters([12] * 4)], axis=1))
        both = unit(np.concatenate([four, 0.7 * two], axis=1))
        alone, agreed = estimate_count(both, most=6), estimate_count(both, most=6, kinds=[four, two])
        assert agreed.agreement[0] > 0.9 and agreed.agreement[2] < 0.8
        assert agreed.score[2] / agreed.score[0] < alone.score[2] / alone.score[0]

    def test_kinds_that_have_nothing_in_common(self) -> None:
        x = clusters([20, 20])
        other = x[np.random.default_rng(0).permutation(40)]
        found = estimate_count(x, most=4, kinds=[x, other])
        assert max(found.agreement) < 0.2 and min(found.agreement) >= 0


def slow_silhouette(points: np.ndarray, labels: np.ndarray) -> float:
    scores = []
    for i, point in enumerate(points):

        def mean_distance(k: int, i: int = i, point: np.ndarray = point) -> float:
            others = [float(np.linalg.norm(point - p)) for j, p in enumerate(points) if labels[j] == k and j != i]
            return sum(others) / len(others)

        if (labels == labels[i]).sum() == 1:
            scores.append(0.0)
            continue
        own = mean_distance(labels[i])
        next_one = min(mean_distance(k) for k in set(labels.tolist()) - {labels[i]})
        scores.append((next_one - own) / max(own, next_one))
    return float(np.mean(scores))


def slow_rand(one: np.ndarray, other: np.ndarray) -> float:
    """Adjusted Rand index by counting pairs."""
    pairs = list(combinations(range(len(one)), 2))
    same_one = np.array([one[i] == one[j] for i, j in pairs])
    same_other = np.array([other[i] == other[j] for i, j in pairs])
    both, expected = (same_one & same_other).sum(), same_one.sum() * same_other.sum() / len(pairs)
    most = (same_one.sum() + same_other.sum()) / 2
    return 1.0 if most == expected else float((both - expected) / (most - expected))


def test_silhouette_and_stability_of_a_tiny_case_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four resamples of twelve points, clustered here and measured by loops."""
    points = np.random.default_rng(2).normal(size=(12, 3))
    rng = np.random.default_rng(7)
    silhouettes, stabilities = module._resampled(points, [2, 3], 4, np.random.default_rng(7), lambda: None)
    labels = np.empty((4, 2, 12), int)
    for row in range(4):
        chosen = rng.permutation(12)[:10]
        for column, k in enumerate((2, 3)):
            model = KMeans(k, n_init=3, random_state=int(rng.integers(2**31))).fit(points[chosen])
            assert silhouettes[row, column] == pytest.approx(slow_silhouette(points[chosen], model.labels_))
            to_centres = np.linalg.norm(points[:, None] - model.cluster_centers_, axis=2)
            labels[row, column] = to_centres.argmin(axis=1)
    for row in range(4):
        for column in range(2):
            others = [slow_rand(labels[row, column], labels[o, column]) for o in range(4) if o != row]
            assert stabilities[row, column] == pytest.approx(np.mean(others))


def test_main_axes_keep_all_distances() -> None:
    x = clusters([5, 5], noise=0.3)
    points, spread = module._principal(x)
    for i, j in pairwise(range(10)):
        assert np.linalg.norm(points[i] - points[j]) == pytest.approx(np.linalg.norm(x[i] - x[j]), abs=1e-5)
    np.testing.assert_allclose(spread, points.std(axis=0), atol=1e-6)
    assert (np.diff(spread) <= 1e-9).all()
