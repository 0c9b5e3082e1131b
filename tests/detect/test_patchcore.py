import numpy as np
import pytest
import torch

from anomalyncd.detect import PatchCore
from anomalyncd.detect.patchcore import PatchBank, RandomPool, greedy_coreset, locally_aware, reweighted, turns
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


@pytest.mark.parametrize("count", [1, 1024, 1500])
@pytest.mark.parametrize("faiss", [False, True])
def test_nearest_rows(count, faiss):
    if faiss:
        pytest.importorskip("faiss")
    queries, rows_of_bank = rows(count), rows(70, seed=1)
    bank = PatchBank(rows_of_bank)
    if not faiss:
        bank.index = None
    assert (bank.index is not None) is faiss
    expected = torch.cdist(queries.double(), rows_of_bank.double()).min(dim=1)
    distances, found = bank.nearest(queries)
    torch.testing.assert_close(distances, expected.values.float(), atol=1e-4, rtol=1e-4)
    assert found.equal(expected.indices)


def test_image_score_against_the_formula():
    bank, patch = rows(40), rows(1, seed=2)[0]
    distances = [float((patch - row).norm()) for row in bank]
    nearest = int(np.argmin(distances))
    around = sorted(range(40), key=lambda row: float((bank[row] - bank[nearest]).norm()))[:9]
    assert nearest in around
    weight = 1 - np.exp(distances[nearest]) / sum(np.exp(distances[row]) for row in around)
    found = reweighted(patch, distances[nearest], nearest, bank)
    assert found == pytest.approx(weight * distances[nearest], rel=1e-5)


def test_image_score_with_a_bank_of_one_row_is_the_distance():
    assert reweighted(torch.zeros(2), 5.0, 0, torch.tensor([[3.0, 4.0]])) == 5.0


def test_image_score_of_detect_is_that_of_its_most_abnormal_patch():
    detector = PatchCore(sigma=0, **TINY).fit(pictures(3))
    image = pictures(1, seed=9)[0]
    found = next(detector.detect([image]))
    patches = locally_aware(next(detector.reader([image])).blocks, 1)
    matrix = torch.cdist(patches.double(), detector.memory.rows.double())
    worst = int(matrix.amin(dim=1).argmax())
    nearest = int(matrix[worst].argmin())
    expected = reweighted(patches[worst], float(matrix[worst, nearest]), nearest, detector.memory.rows)
    assert found.score == pytest.approx(expected, rel=1e-3)


def test_quarter_turns_are_exact_and_others_keep_the_middle():
    image = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    quarter = list(turns(image, 4))
    assert [turned.shape[:2] for turned in quarter] == [(40, 60), (60, 40), (40, 60), (60, 40)]
    for step, turned in enumerate(quarter):
        np.testing.assert_array_equal(np.rot90(turned, -step), image)
    assert len(list(turns(image, 1))) == 1
    disc = np.zeros((41, 41, 3), np.uint8)
    yy, xx = np.mgrid[-20:21, -20:21]
    disc[np.hypot(yy, xx) < 12] = 200
    for turned in turns(disc, 6):
        assert np.abs(turned.astype(int) - disc).mean() < 3


def test_rotations_make_a_turned_product_normal():
    normal = [np.tile(np.linspace(0, 255, 96, dtype=np.uint8)[:, None, None], (1, 96, 3))]
    turned = [np.rot90(normal[0]).copy()]
    plain, all_round = (PatchCore(sigma=0, rotations=count, **TINY).fit(normal) for count in (1, 4))
    assert len(all_round.memory.rows) == 4 * len(plain.memory.rows)
    assert next(all_round.maps(turned)).max() < 2e-3 < 0.02 < next(plain.maps(turned)).max()


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
    grid = next(PatchCore(blocks=(0, 2, 3), **TINY).reader(pictures(1)))
    features = locally_aware(grid.blocks, 1)
    assert features.shape == (36, 3 * 48)
    torch.testing.assert_close(features.norm(dim=1), torch.ones(36))
    second = grid.blocks[1, 2, 4]  # patch 2 · 6 + 4
    torch.testing.assert_close(features[16, 48:96], second / second.norm() / 3**0.5)


def test_normal_images_are_near_and_a_defect_is_far():
    normal = pictures(3)
    detector = PatchCore(sigma=0, radius=3, **TINY).fit(normal)
    assert len(detector.memory.rows) == 3 * 36
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
    assert len(detector.memory.rows) == 20
    image = pictures(1, seed=1)[0]
    features = locally_aware(next(detector.reader([image])).blocks, 3)
    expected = torch.cdist(features.double(), detector.memory.rows.double()).amin(dim=1).view(6, 6)
    np.testing.assert_allclose(next(detector.maps([image])), expected, atol=1e-4)


def test_the_pool_bounds_the_bank():
    assert len(PatchCore(pool_size=15, **TINY).fit(pictures(2)).memory.rows) == 15


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


@pytest.mark.parametrize(
    "settings", [{"radius": 2}, {"radius": 0}, {"bank_size": 0}, {"pool_size": 0}, {"rotations": 0}]
)
def test_bad_settings(settings):
    with pytest.raises(SettingsError, match=f"{next(iter(settings))} must be"):
        PatchCore(**settings, **TINY)
