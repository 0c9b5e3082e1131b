import numpy as np
import pytest
import torch

from anomalyncd.detect import PatchCore
from anomalyncd.detect.patchcore import RandomPool, greedy_coreset, locally_aware, nearest_distances
from anomalyncd.errors import DataError, SettingsError

TINY = {"backbone": "tiny", "size": 96, "map_size": 96, "device": "cpu"}


def rows(count, width=8, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def pictures(count, seed=0):
    return list(np.random.default_rng(seed).integers(90, 130, (count, 96, 96, 3), dtype=np.uint8))


@pytest.mark.parametrize("seed", range(4))
def test_coreset_is_the_farthest_point_every_time(seed):
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


def test_coreset_reports_every_step():
    steps = []
    greedy_coreset(rows(10), 4, on_step=lambda: steps.append(1))
    assert len(steps) == 4


@pytest.mark.parametrize("count", [1, 1024, 1500])
def test_nearest_distances(count):
    queries, bank = rows(count), rows(70, seed=1)
    expected = torch.cdist(queries.double(), bank.double()).amin(dim=1).float()
    torch.testing.assert_close(nearest_distances(queries, bank), expected, atol=1e-4, rtol=1e-4)


def fill(size, seed, pieces=(7, 20, 1, 72)):
    pool = RandomPool(size, seed)
    for piece in torch.arange(sum(pieces)).view(-1, 1).split(pieces):
        pool.add(piece)
    return pool.take().flatten().tolist()


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
    assert len(RandomPool(3, 0).take()) == 0


def test_features_have_length_one_and_see_every_block():
    grid = next(PatchCore(blocks=(0, 2, 3), **TINY).read(pictures(1)))
    features = locally_aware(grid, 1)
    assert features.shape == (36, 3 * 48)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(36))
    second = grid.blocks[1, 2, 4]  # patch 2 · 6 + 4
    torch.testing.assert_close(features[16, 48:96], second / second.norm() / 3**0.5)


def test_normal_images_are_near_and_a_defect_is_far():
    normal = pictures(3)
    detector = PatchCore(sigma=0, radius=3, **TINY).fit(normal)
    assert len(detector.bank) == 3 * 36
    for own in detector.maps(normal):
        assert own.max() < 2e-3
    odd = normal[1].copy()
    odd[64:80, 16:32] = (255, 0, 0)
    values = next(detector.maps([odd]))
    y, x = np.unravel_index(values.argmax(), values.shape)
    assert 48 <= y < 96 and 0 <= x < 48  # radius 3 averages over one patch more on each side
    assert values.max() > 0.05
    single = PatchCore(sigma=0, radius=1, **TINY).fit(normal)
    values = next(single.maps([odd]))
    y, x = np.unravel_index(values.argmax(), values.shape)
    assert 64 <= y < 80 and 16 <= x < 32


def test_maps_are_distances_to_the_bank():
    detector = PatchCore(sigma=0, radius=3, bank_size=20, **TINY | {"map_size": 6}).fit(pictures(2))
    assert len(detector.bank) == 20
    image = pictures(1, seed=1)[0]
    features = locally_aware(next(detector.read([image])), 3)
    expected = torch.cdist(features.double(), detector.bank.double()).amin(dim=1).view(6, 6)
    np.testing.assert_allclose(next(detector.maps([image])), expected, atol=1e-4)


def test_the_pool_bounds_the_bank():
    assert len(PatchCore(pool_size=15, **TINY).fit(pictures(2)).bank) == 15


def test_a_map_depends_on_its_image_alone():
    normal, new = pictures(2), pictures(5, seed=1)
    detector = PatchCore(**TINY).fit(normal)
    together = list(detector.maps(new))
    detector.batch_size = 2
    np.testing.assert_allclose(list(detector.maps(new[::-1]))[::-1], together, atol=1e-5)


def test_not_fitted():
    with pytest.raises(DataError, match="not fitted"):
        list(PatchCore(**TINY).maps(pictures(1)))


def test_no_normal_image():
    with pytest.raises(DataError, match="needs normal images"):
        PatchCore(**TINY).fit(iter([]))


@pytest.mark.parametrize("settings", [{"radius": 2}, {"radius": 0}, {"bank_size": 0}, {"pool_size": 0}])
def test_bad_settings(settings):
    with pytest.raises(SettingsError, match=f"{next(iter(settings))} must be"):
        PatchCore(**settings, **TINY)
