"""The number of kinds: found where it is plain, one where there is none, an honest range elsewhere; its evidence by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from anomalyncd.assign import count as module
from anomalyncd.assign.count import (
    N_STEPS,
    CountEstimate,
    count_communities,
    estimate_count,
    largest_gap,
    neighbour_graph,
)  # fmt: skip


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
    assert found.count == len(sizes) and found.structure > module.STANDS_OUT


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("stretch", [[1.0], [3.0, 2.0, 1.0], [1.0] * 8 + [0.1]])
def test_a_cloud_without_kinds_is_one(stretch: list[float], seed: int) -> None:
    """Round, long or flat: Ward's method cuts it, and a blob of that shape just as well."""
    rng = np.random.default_rng(seed)
    lengths = np.r_[stretch, np.full(48 - len(stretch), stretch[-1])]
    found = estimate_count(centred(3 * np.eye(48)[0] + 0.3 * rng.normal(size=(80, 48)) * lengths), most=20)
    assert (found.count, found.low, found.high) == (1, 1, 1) and found.communities == []


@pytest.mark.parametrize("seed", range(3))
def test_a_long_tail_is_not_split_in_its_head(seed: int) -> None:
    """Kinds of 60, 12, 6 and 4 regions: the rare ones may share a class, the large one stays whole."""
    found = estimate_count(clusters([60, 12, 6, 4], seed, noise=0.08), most=20)
    assert 2 <= found.count <= 4 and found.high <= 5


@pytest.mark.parametrize("seed", range(3))
def test_a_continuum_has_a_wide_range(seed: int) -> None:
    """Points around a circle have no kinds: every scale cuts them into another number."""
    rng = np.random.default_rng(seed)
    turn = rng.uniform(0, 2 * np.pi, 100)
    around = np.stack([np.cos(turn), np.sin(turn)], axis=1) @ np.eye(48)[:2]
    found = estimate_count(centred(around + np.eye(48)[3] + rng.normal(0, 0.05, (100, 48))), most=20)
    assert found.count == 1 or found.high - found.low >= 3


def test_the_middle_answer_is_taken_the_coarser_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    communities, gaps = iter([4, 5, 9]), iter([4, 9, 9])
    monkeypatch.setattr(module, "count_communities", lambda graph: next(communities))
    monkeypatch.setattr(module, "largest_gap", lambda graph, most: next(gaps))
    found = estimate_count(clusters([20, 20, 20]), most=20)
    assert (found.count, found.low, found.high) == (5, 4, 9)
    assert (found.neighbours, found.communities, found.gaps) == ([12, 6, 5], [4, 5, 9], [4, 9, 9])


def test_the_graph_by_loops() -> None:
    x = clusters([6, 5], width=6)
    graph = neighbour_graph(x, 3)
    for i in range(len(x)):
        for j in range(len(x)):
            near = [
                b in sorted((k for k in range(len(x)) if k != a), key=lambda k, a=a: -float(x[a] @ x[k]))[:3]
                for a, b in ((i, j), (j, i))
            ]
            wanted = max(float(x[i] @ x[j]), 1e-3) if i != j and any(near) else 0.0
            assert graph[i, j] == pytest.approx(wanted, abs=1e-6)


def test_parts_without_an_edge_between_them() -> None:
    """Three complete graphs: three communities, and three eigenvalues of 0 before the gap."""
    graph = np.kron(np.eye(3), np.ones((5, 5))) - np.eye(15)
    assert count_communities(graph) == largest_gap(graph, most=6) == 3


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


@pytest.mark.parametrize("n_regions", [0, 1, 2, 3, 7])
def test_too_few_regions_to_tell(n_regions: int) -> None:
    found = estimate_count(clusters([4, 3])[:n_regions], most=20)
    assert found.count == found.low == 1 and found.high >= 1 and found.communities == found.gaps == []


@pytest.mark.parametrize("n_regions", [8, 9, 12])
def test_few_regions_are_no_trouble(n_regions: int) -> None:
    found = estimate_count(clusters([n_regions - 4, 4]), most=20)
    assert 1 <= found.low <= found.count <= found.high <= n_regions // 4


def test_never_more_than_allowed() -> None:
    found = estimate_count(clusters([12] * 5), most=3)
    assert found.high <= 3 and max(found.communities + found.gaps) <= 3


def test_regions_that_are_all_the_same_are_one_kind() -> None:
    assert estimate_count(np.tile(np.float32([[1, 0, 0]]), (30, 1)), most=5).count == 1


def test_the_evidence_fits_into_json() -> None:
    found = estimate_count(clusters([12, 9, 14]), most=6)
    assert CountEstimate(**json.loads(json.dumps(found.to_json_dict()))) == found


def test_steps_are_counted_as_announced() -> None:
    steps: list[int] = []
    estimate_count(clusters([12, 12]), most=6, on_step=lambda: steps.append(1))
    assert len(steps) == N_STEPS


def test_only_so_many_regions_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_REGIONS", 60)
    seen = []
    graph = module.neighbour_graph
    monkeypatch.setattr(module, "neighbour_graph", lambda x, k: (seen.append(len(x)), graph(x, k))[1])
    assert estimate_count(clusters([100, 100, 100]), most=5).count == 3
    assert seen == [60] * 3
