import numpy as np
import pytest
import torch

from anomalyncd.model import coreset
from anomalyncd.model.coreset import RandomPool, greedy_coreset


def rows(count, width=8, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("candidates", [1, 3, 256])
@pytest.mark.parametrize("seed", range(4))
def test_coreset_is_the_farthest_point_every_time(seed, candidates, monkeypatch):
    monkeypatch.setattr(coreset, "CANDIDATES", candidates)
    features = rows(60, seed=seed)
    chosen = greedy_coreset(features, 25, seed=seed).tolist()
    exact = features.double()
    expected = chosen[:1]
    while len(expected) < 25:
        nearest = [min(float((exact[i] - exact[j]).norm()) for j in expected) for i in range(60)]
        expected.append(int(np.argmax(nearest)))
    assert chosen == expected


def test_coreset_never_takes_a_row_twice():
    features = rows(3).repeat(10, 1) * 100  # large and alike: differences are all rounding
    chosen = greedy_coreset(features, 29).tolist()
    assert len(set(chosen)) == 29
    torch.testing.assert_close(features[chosen[:3]].unique(dim=0), features.unique(dim=0))


@pytest.mark.parametrize("count", [5, 6, 100])
def test_coreset_of_all(count):
    assert greedy_coreset(rows(5), count).tolist() == [0, 1, 2, 3, 4]


def test_coreset_after_projection_still_covers():
    centres = rows(6, width=300) * 10
    features = centres.repeat_interleave(20, 0) + rows(120, width=300, seed=1)
    chosen = greedy_coreset(features, 6, projected=32)
    assert sorted((chosen // 20).tolist()) == [0, 1, 2, 3, 4, 5]


def test_coreset_is_determined_by_its_seed():
    features = rows(200)
    assert greedy_coreset(features, 9, seed=3).equal(greedy_coreset(features, 9, seed=3))
    assert len({int(greedy_coreset(features, 1, seed=seed)) for seed in range(8)}) > 1


def fill(size, seed, pieces=(7, 20, 1, 72)):
    pool = RandomPool(size, seed)
    for piece in torch.arange(sum(pieces)).view(-1, 1).split(pieces):
        pool.add(piece, int(piece[0]))
    kept, owners = pool.take()
    firsts = np.cumsum([0, *pieces])
    assert owners.tolist() == [firsts[firsts <= row].max() for row in kept.flatten().tolist()]
    return kept.flatten().int().tolist()


@pytest.mark.parametrize(("size", "expected"), [(10, 10), (99, 99), (100, 100), (500, 100)])
def test_pool_keeps_so_many_in_order_and_none_twice(size, expected):
    taken = fill(size, seed=0)
    assert len(taken) == expected
    assert taken == sorted(set(taken))


def test_pool_is_determined_by_its_seed_whatever_the_pieces():
    assert fill(10, 5) == fill(10, 5) == fill(10, 5, pieces=(50, 50))
    assert fill(10, 5) != fill(10, 6)


def test_pool_is_uniform():
    taken = np.concatenate([fill(10, seed) for seed in range(600)])
    counts = np.bincount(taken, minlength=100)  # 60 each expected, standard deviation 7.3
    assert counts.min() > 25 and counts.max() < 95
    assert abs(counts[:28].mean() - counts[28:].mean()) < 6  # early and late pieces alike


def test_empty_pool():
    assert [len(part) for part in RandomPool(3, 0).take()] == [0, 0]


def test_projection_keeps_distances_and_is_only_made_where_it_narrows(monkeypatch):
    features = rows(40, width=200)
    generator = torch.Generator().manual_seed(4)
    narrow = features @ torch.randn(200, 16, generator=generator)
    first = int(torch.randint(40, (1,), generator=generator))
    chosen = greedy_coreset(features, 6, seed=4, projected=16).tolist()
    expected = [first]
    while len(expected) < 6:
        expected.append(int(torch.cdist(narrow, narrow[expected]).amin(dim=1).argmax()))
    assert chosen == expected
    first = int(torch.randint(40, (1,), generator=torch.Generator().manual_seed(4)))
    assert greedy_coreset(features, 1, seed=4, projected=200).tolist() == [first]  # no chance went into a projection
    monkeypatch.setattr(coreset, "ROWS", 7)
    assert greedy_coreset(features, 6, seed=4, projected=16).tolist() == expected


def test_the_pool_is_of_half_precision_and_never_holds_three_times_its_size():
    pool = RandomPool(10, seed=0)
    held = []
    for number in range(12):
        pool.add(rows(5, seed=number), number)
        held.append(sum(map(len, pool.rows)))
    assert max(held) == 20 and held[:5] == [5, 10, 15, 20, 10]
    taken, owner = pool.take()
    assert taken.dtype == torch.float16 and len(taken) == 10 == len(owner) and owner.dtype == torch.int64
    keys = torch.rand(60, generator=torch.Generator().manual_seed(0))
    # A row that was dropped had a larger key than all that stayed.
    kept = keys.argsort()[:10].sort().values
    assert owner.tolist() == (kept // 5).tolist()
