"""The number of kinds: found where it is plain, one where there is none, an honest range elsewhere; its evidence by hand."""

from __future__ import annotations

import json

import networkx
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist, squareform
from sklearn.metrics import silhouette_score

from anomalyncd.assign import count as module
from anomalyncd.assign.count import (
    CountEstimate,
    above_clouds,
    by_communities,
    by_eigengap,
    by_silhouette,
    estimate_count,
    louvain,
    modularity,
    neighbour_nets,
)
from anomalyncd.assign.tree import class_tree


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def centred(x: np.ndarray) -> np.ndarray:
    """As features of regions are."""
    return unit(unit(x) - unit(x).mean(axis=0))


def clusters(sizes: list[int], seed: int = 0, noise: float = 0.13, width: int = 48) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kinds = np.repeat(np.arange(len(sizes)), sizes)
    return centred(np.eye(width)[kinds + 1] + np.eye(width)[0] + rng.normal(0, noise, (sum(sizes), width)))


@pytest.mark.parametrize("sizes", [[20, 15], [24, 16, 10], [30, 20, 12, 12], [20] * 8])
def test_plain_kinds_of_unequal_sizes(sizes: list[int]) -> None:
    found = estimate_count(clusters(sizes), most=20)
    assert found.count == len(sizes) and found.low <= found.count <= found.high


@given(st.lists(st.integers(12, 20), min_size=3, max_size=6), st.integers(0, 10**6))
@settings(max_examples=6, deadline=None, derandomize=True, phases=[Phase.generate])
def test_any_plain_kinds(sizes: list[int], seed: int) -> None:
    found = estimate_count(clusters(sizes, seed), most=20)
    assert found.count == len(sizes) and found.verdict != "one kind"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stretch", [[1.0], [3.0, 2.0, 1.0], [1.0] * 8 + [0.1]])
def test_a_cloud_without_kinds_is_one(stretch: list[float], seed: int) -> None:
    """Round, long or flat: Ward's method cuts it, and a blob of that shape just as well."""
    rng = np.random.default_rng(seed)
    lengths = np.r_[stretch, np.full(48 - len(stretch), stretch[-1])]
    found = estimate_count(centred(3 * np.eye(48)[0] + 0.3 * rng.normal(size=(80, 48)) * lengths), most=20)
    if len(stretch) < 9:
        assert (found.count, found.low, found.high, found.verdict) == (1, 1, 1, "one kind")
    assert found.verdict != "agreed", "a flat cloud, made unit vectors, is hard to tell from kinds"


@pytest.mark.parametrize("seed", range(3))
def test_a_long_tail_is_not_split_in_its_head(seed: int) -> None:
    """Kinds of 60, 12, 6 and 4 regions: the rare ones may share a class, the large one stays whole, and it is the class of
    the rare ones that would fall into two next."""
    x = clusters([60, 12, 6, 4], seed, noise=0.08)
    found = estimate_count(x, most=20)
    assert 2 <= found.count <= 4 and found.high <= 5
    labels = np.repeat([1, 2], [60, 22])
    first = class_tree(x, labels, [(str(place), 0) for place in range(82)])["splits"][0]
    assert found.count > 2 or (first["class"] == 2 and [part["n_regions"] for part in first["parts"]] == [12, 10])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("turn", [np.pi, 2 * np.pi])
def test_kinds_of_a_continuum_cannot_be_told(seed: int, turn: float) -> None:
    """Points on half a circle, or all around it: each way of counting cuts them into another number."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, turn, 100)
    around = np.stack([np.cos(angle), np.sin(angle)], axis=1) @ np.eye(48)[:2]
    found = estimate_count(centred(around + np.eye(48)[3] + rng.normal(0, 0.05, (100, 48))), most=20)
    assert found.verdict in ("one kind", "cannot tell")


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ((5, 5, 4, 4), (4, 4, 5, 5, "agreed")),
        ((9, 7, 7, 6), (7, 6, 9, None, "agreed")),
        ((20, 9, 5, 4), (5, 4, 20, 9, "cannot tell")),
        ((2, 1, 1, 3), (1, 1, 1, 2, "one kind")),
    ],
)
def test_the_coarser_of_the_two_middle_answers_is_taken(
    answers: tuple[int, int, int, int], wanted: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    communities = iter(answers[2:])
    monkeypatch.setattr(module, "above_clouds", lambda *_: 9.0)
    monkeypatch.setattr(module, "by_silhouette", lambda points, most: answers[0])
    monkeypatch.setattr(module, "by_eigengap", lambda net, most: answers[1])
    monkeypatch.setattr(module, "by_communities", lambda net, most, rng: next(communities))
    found = estimate_count(clusters([20, 20, 20]), most=20)
    assert (found.count, found.low, found.high, found.finer, found.verdict) == wanted
    assert tuple(found.answers.values()) == answers and (found.n_regions, found.neighbours) == (60, 10)


def test_groups_like_those_of_a_cloud_are_one_kind_and_the_finer_answer_is_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "above_clouds", lambda *_: module.CLEARLY - 0.1)
    found = estimate_count(clusters([20, 20, 20]), most=20)
    assert (found.count, found.finer, found.verdict) == (1, 3, "one kind")


def test_the_nets_by_loops() -> None:
    x = clusters([6, 5], width=6).astype(np.float64)
    cosine, shared = neighbour_nets(x, 3)
    near = [set(sorted(range(11), key=lambda k, i=i: (k != i, -float(x[i] @ x[k])))[:4]) for i in range(11)]
    for i in range(11):
        for j in range(11):
            linked = i != j and (i in near[j] or j in near[i])
            assert cosine[i, j] == pytest.approx(max(float(x[i] @ x[j]), 0) * linked)
            assert shared[i, j] == pytest.approx((i != j) * len(near[i] & near[j]) / len(near[i] | near[j]))


def test_parts_without_a_link_between_them() -> None:
    """Three complete nets: three communities, and three eigenvalues of 0 before the step."""
    net = np.kron(np.eye(3), np.ones((5, 5))) - np.eye(15)
    assert by_communities(net, 6, np.random.default_rng(0)) == by_eigengap(net, most=6) == 3


@pytest.mark.parametrize("seed", range(10))
def test_the_largest_step_of_the_normed_laplacian(seed: int) -> None:
    net = np.random.default_rng(seed).random((12, 12)) ** 4
    net = np.triu(net, 1) + np.triu(net, 1).T
    root = np.sqrt(net.sum(axis=1))
    values = np.linalg.eigvalsh(np.eye(12) - net / root / root[:, None])
    steps = [values[k] - values[k - 1] for k in range(2, 7)]  # above 2, 3, … of the smallest values
    assert by_eigengap(net, 6) == 2 + int(np.argmax(steps))


def test_communities_are_as_good_as_those_of_another_implementation() -> None:
    net, _ = neighbour_nets(clusters([20, 15, 12, 9], noise=0.25).astype(np.float64), 8)
    graph, rng = networkx.from_numpy_array(net), np.random.default_rng(0)
    own = [louvain(net, rng) for _ in range(5)]
    for labels in own:
        groups = [set(np.flatnonzero(labels == k).tolist()) for k in np.unique(labels)]
        assert modularity(net, labels) == pytest.approx(networkx.community.modularity(graph, groups))
    theirs = [networkx.community.louvain_communities(graph, seed=seed) for seed in range(5)]
    best = max(networkx.community.modularity(graph, groups) for groups in theirs)
    assert max(modularity(net, labels) for labels in own) >= best - 0.005


def test_tiny_communities_are_no_kinds() -> None:
    net = np.zeros((14, 14))
    for start, stop in ((0, 6), (6, 11), (11, 14)):
        net[start:stop, start:stop] = 1
    np.fill_diagonal(net, 0)
    assert by_communities(net, 6, np.random.default_rng(0)) == 2


def test_clusters_that_lie_apart_best() -> None:
    assert by_silhouette(clusters([8, 9, 7], noise=0.05).astype(np.float64), most=6) == 3


def test_clouds_have_the_very_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    x = clusters([9, 8], width=6).astype(np.float64)
    seen = []
    monkeypatch.setattr(module, "pdist", lambda cloud: (seen.append(cloud), pdist(cloud))[1])
    above_clouds(x, 2, np.random.default_rng(0))
    lengths = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    assert len(seen) == module.CLOUDS + 1
    for cloud in seen:
        np.testing.assert_allclose(cloud.mean(axis=0), 0, atol=1e-9)
        np.testing.assert_allclose(np.linalg.svd(cloud, compute_uv=False), lengths[: cloud.shape[1]], atol=1e-6)


def test_the_same_call_gives_the_same_whatever_the_global_state() -> None:
    x = clusters([12, 9, 14], noise=0.25)
    first = estimate_count(x, most=6, seed=3)
    np.random.seed(5)  # noqa: NPY002  — a global state must have no say
    assert estimate_count(x.copy(), most=6, seed=3) == first


def test_order_and_turning_do_not_change_the_number() -> None:
    x = clusters([16, 10, 14, 12])
    order = np.random.default_rng(0).permutation(len(x))
    turn, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(48, 48)))
    assert {estimate_count(some, most=9).count for some in (x, x[order], (x @ turn).astype(np.float32))} == {4}


@pytest.mark.parametrize("n_regions", [0, 1, 2, 3, 5])
def test_too_few_regions_to_tell(n_regions: int) -> None:
    found = estimate_count(clusters([4, 3])[:n_regions], most=20)
    assert (found.count, found.low, found.high, found.finer) == (1, 1, 1, None) and found.verdict == "too few"


@pytest.mark.parametrize("n_regions", [6, 7, 8, 9, 12])
def test_few_regions_are_no_trouble(n_regions: int) -> None:
    found = estimate_count(clusters([n_regions - 4, 4]), most=20)
    assert 1 <= found.low <= found.count <= found.high <= n_regions // 2


def test_never_more_than_allowed() -> None:
    found = estimate_count(clusters([12] * 5), most=3)
    assert found.high <= 3 and max(found.answers.values()) <= 3


def test_regions_that_are_all_the_same_are_one_kind() -> None:
    assert estimate_count(np.tile(np.float32([[1, 0, 0]]), (30, 1)), most=5).count == 1


def test_the_evidence_fits_into_json() -> None:
    found = estimate_count(clusters([12, 9, 14]), most=6)
    assert CountEstimate(**json.loads(json.dumps(found.to_json_dict()))) == found


def test_only_so_many_regions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REGIONS", 60)
    found = estimate_count(clusters([100, 100, 100]), most=5)
    assert (found.count, found.n_regions) == (3, 60)


@pytest.mark.parametrize(("n_regions", "most", "neighbours", "few"), [
    (5, 9, 4, True), (6, 9, 5, False), (6, 1, 5, True), (6, 2, 5, False), (11, 9, 10, False), (12, 9, 10, False),
    (119, 9, 11, False), (120, 9, 12, False), (0, 9, 0, True), (1, 9, 0, True),
])  # fmt: skip
def test_neighbours_and_the_fewest_regions(
    n_regions: int, most: int, neighbours: int, few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    for name in ("by_silhouette", "by_eigengap", "by_communities"):
        monkeypatch.setattr(module, name, lambda what, most, *rng: (asked.append(most), 2)[1])
    monkeypatch.setattr(module, "above_clouds", lambda *given: 9.0)
    found = estimate_count(unit(np.random.default_rng(0).normal(size=(n_regions, 4))), most)
    assert found.neighbours == neighbours and found.n_regions == n_regions and (found.verdict == "too few") is few
    assert asked == ([] if few else [min(most, n_regions // 2)] * 4)
    if few:
        assert (found.count, found.low, found.high, found.finer, found.above_clouds) == (1, 1, 1, None, None)


@pytest.mark.parametrize(("above", "count"), [(2.4, 1), (2.5, 3)])
def test_groups_must_lie_clearly_further_apart_than_those_of_clouds(
    above: float, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(module, "above_clouds", lambda points, k, rng: (given.append((len(points), k)), above)[1])
    found = estimate_count(clusters([200, 200, 200]), most=9)
    assert found.count == count and found.above_clouds == above and given == [(400, 3)]


@pytest.mark.parametrize(("low", "high", "verdict"), [(3, 5, "agreed"), (3, 6, "cannot tell"), (2, 4, "cannot tell")])
def test_answers_that_differ_by_twice_as_many_cannot_tell(
    low: int, high: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "above_clouds", lambda *_: 9.0)
    monkeypatch.setattr(module, "by_silhouette", lambda points, most: low)
    monkeypatch.setattr(module, "by_eigengap", lambda net, most: high)
    monkeypatch.setattr(module, "by_communities", lambda net, most, rng: low)
    assert estimate_count(clusters([20, 20, 20]), most=20).verdict == verdict


def test_above_clouds_by_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    apart = iter([0.1, 0.2, 0.3, 0.8])
    monkeypatch.setattr(module, "CLOUDS", 3)
    monkeypatch.setattr(module, "_silhouette", lambda tree, distances, count: next(apart))
    found = above_clouds(clusters([9, 8]).astype(np.float64), 2, np.random.default_rng(0))
    assert found == pytest.approx((0.8 - 0.2) / np.std([0.1, 0.2, 0.3]))
    assert above_clouds(np.ones((5, 3)), 2, np.random.default_rng(0)) == 0


def test_one_cluster_has_no_silhouette_and_a_sample_keeps_its_order() -> None:
    points = np.random.default_rng(0).normal(size=(6, 2))
    square = squareform(pdist(points))
    tree = linkage(pdist(points), "ward")
    assert module._silhouette(tree, square, 1) == -1
    assert module._silhouette(tree, square, 2) == pytest.approx(silhouette_score(points, fcluster(tree, 2, "maxclust")))
    rows = np.arange(10.0)[:, None]
    some = module._sample(rows, 4, np.random.default_rng(0))
    assert (
        len(some) == 4
        and (np.diff(some[:, 0]) > 0).all()
        and module._sample(rows, 10, np.random.default_rng(0)) is rows
    )


def test_the_number_of_wards_clusters_by_trying_each() -> None:
    for seed in range(5):
        points = np.random.default_rng(seed).normal(size=(14, 3))
        tree = linkage(pdist(points), "ward")
        scores = [silhouette_score(points, fcluster(tree, k, "maxclust")) for k in range(2, 7)]
        assert by_silhouette(points, 6) == 2 + int(np.argmax(scores))


@pytest.mark.parametrize(
    ("sizes", "most", "expected"), [((5, 4), 9, 1), ((5, 5), 9, 2), ((4, 4), 9, 1), ((6, 6, 6), 2, 2)]
)
def test_communities_of_five_are_kinds(sizes: tuple[int, ...], most: int, expected: int) -> None:
    net = np.zeros((sum(sizes), sum(sizes)))
    start = 0
    for size in sizes:
        net[start : start + size, start : start + size] = 1
        start += size
    np.fill_diagonal(net, 0)
    assert by_communities(net, most, np.random.default_rng(0)) == expected


def test_the_best_of_three_searches_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    net = np.kron(np.eye(2), np.ones((5, 5))) - np.eye(10)
    tries = [np.zeros(10, int), np.repeat([0, 1], 5), np.arange(10) % 2]
    asked: list[int] = []
    monkeypatch.setattr(module, "louvain", lambda given, rng: (asked.append(1), tries[len(asked) - 1])[1])
    assert by_communities(net, 9, np.random.default_rng(0)) == 2 and len(asked) == 3


def test_clouds_are_compared_in_two_parts_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "above_clouds", lambda points, count, rng: (asked.append(count), 9.0)[1])
    monkeypatch.setattr(module, "by_silhouette", lambda points, most: 2)
    monkeypatch.setattr(module, "by_eigengap", lambda net, most: 3)
    monkeypatch.setattr(module, "by_communities", lambda net, most, rng: 1)
    assert estimate_count(clusters([20, 20]), most=9).count == 1 and asked == [2]
