import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anomalyncd.detect import MuSc, PatchCore
from anomalyncd.detect.patchcore import PatchBank, greedy_coreset, locally_aware, turns
from anomalyncd.errors import DataError, SettingsError

TINY = {"backbone": "tiny", "size": 96, "map_size": 96, "device": "cpu"}


def rows(count, width=8, seed=0):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def pictures(count, seed=0):
    return list(np.random.default_rng(seed).integers(90, 130, (count, 96, 96, 3), dtype=np.uint8))


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


def wide_rows(count, seed):
    """(count, 600) unit vectors that lie near 40 directions, as patches do near few."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 40)) @ np.random.default_rng(9).standard_normal((40, 600))
    return F.normalize(torch.from_numpy(rows + 0.05 * rng.standard_normal((count, 600))).float(), dim=1)


@pytest.mark.parametrize("without", [None, 2])
def test_nearest_of_wide_rows_by_their_main_directions(without):
    rows, queries = wide_rows(900, 0), wide_rows(1100, 1)
    bank = PatchBank(rows, 1, torch.arange(900) % 5)
    assert bank.is_wide and bank.index is None and bank.short.shape == (900, 256)
    expected = torch.cdist(queries, rows)
    if without is not None:
        expected[:, bank.owner == without] = torch.inf
    distances, places = bank.nearest(queries, without)
    assert (places == expected.argmin(1)).float().mean() > 0.99
    np.testing.assert_allclose(distances, expected.gather(1, places[:, None])[:, 0], atol=1e-4)
    assert (distances <= 1.02 * expected.amin(1)).all()
    alone = PatchBank(rows[:6], 1, torch.tensor([0, 0, 0, 0, 0, 1]))
    assert alone.nearest(queries, 0)[1].unique().tolist() == [5], "rows that do not count are never the nearest"


def test_image_score_is_the_mean_of_the_highest_of_its_map():
    detector = PatchCore(**TINY).fit(pictures(3))
    found = next(detector.detect(pictures(1, seed=9)))
    assert found.score == pytest.approx(np.sort(found.map.ravel())[-92:].mean(), rel=1e-5)  # 1 % of 96²


def without(detector, image, place, radius):
    """The map that a bank without the rows of one image gives, found the slow way."""
    rest = PatchCore(sigma=0, radius=radius, **TINY)
    kept = detector.memory.owner != place
    rest.restore({"bank": detector.memory.bank[kept], "owner": detector.memory.owner[kept]})
    return next(rest.detect([image]))


@pytest.mark.parametrize("settings", [{}, {"bank_size": 50}, {"rotations": 3, "radius": 3}])
def test_held_out_images_are_seen_as_if_they_had_not_been_there(settings):
    normal = [*pictures(4), pictures(1, seed=5)[0][:48]]
    detector = PatchCore(sigma=0, **settings, **TINY).fit(iter(normal))
    places = [3, 0, 4]
    found = list(detector.held_out((normal[place] for place in places), places))
    assert len(found) == 3
    for one, place in zip(found, places, strict=True):
        expected = without(detector, normal[place], place, settings.get("radius", 1))
        np.testing.assert_allclose(one.map, expected.map, atol=2e-4)  # faiss rounds in another way
        assert one.score == pytest.approx(expected.score, abs=2e-4)


def test_held_out_is_a_bank_fitted_on_the_others():
    normal = pictures(3)
    found = list(PatchCore(sigma=0, **TINY).fit(normal).held_out(normal, range(3)))
    for place, one in enumerate(found):
        others = PatchCore(sigma=0, **TINY).fit(normal[:place] + normal[place + 1 :])
        np.testing.assert_allclose(one.map, next(others.maps([normal[place]])), atol=2e-4)
        assert one.map.max() > 10 * next(PatchCore(sigma=0, **TINY).fit(normal).maps([normal[place]])).max()


def test_held_out_survives_storing(tmp_path):
    normal = pictures(3)
    detector = PatchCore(**TINY).fit(normal)
    detector.save(tmp_path)
    loaded = PatchCore.load(tmp_path, device="cpu")
    for one, again in zip(detector.held_out(normal, range(3)), loaded.held_out(normal, range(3)), strict=True):
        np.testing.assert_array_equal(one.map, again.map)


def test_a_copy_of_a_held_out_image_does_not_vouch_for_it():
    normal = pictures(6)
    again = normal[2].copy()
    again[:8, :8] += 1
    plain = PatchCore(sigma=0, **TINY).fit(normal)
    twice = PatchCore(sigma=0, **TINY).fit([*normal, again])
    assert [twice.memory.kin(twice.memory.rows[twice.memory.owner == own], own).tolist() for own in (1, 2, 6)] == [
        [1], [2, 6], [6, 2]
    ]  # fmt: skip
    for one, alone in zip(twice.held_out(normal, range(6)), plain.held_out(normal, range(6)), strict=True):
        np.testing.assert_allclose(one.map, alone.map, atol=2e-4)


def test_where_all_are_copies_there_is_nothing_else_to_compare_with():
    normal = pictures(1) * 3
    for found in PatchCore(sigma=0, **TINY).fit(normal).held_out(normal[:2], [0, 1]):
        assert found.map.max() < 2e-3


def test_defects_among_the_normal_images_are_found_and_not_learned():
    normal = pictures(24)
    clean = PatchCore(sigma=0, **TINY).fit(normal)
    assert not clean.suspects and set(clean.memory.owner.tolist()) == set(range(24))
    odd = [image.copy() for image in normal]
    for place in (4, 11, 17):
        odd[place][32:64, 32:64] = 255
    detector = PatchCore(sigma=0, **TINY).fit(odd)
    assert sorted(detector.suspects) == [4, 11, 17] and min(detector.suspects.values()) > 3
    rest = [place for place in range(24) if place not in detector.suspects]
    others = PatchCore(sigma=0, **TINY).fit([odd[place] for place in rest])
    assert detector.memory.bank.equal(others.memory.bank)
    assert detector.memory.owner.unique().tolist() == rest


def test_one_normal_image_leaves_nothing_to_compare_with():
    normal = pictures(1)
    assert PatchCore(rotations=2, **TINY).fit(normal).held_out(normal, [0]) is None


def test_other_detectors_cannot_tell():
    assert MuSc(**TINY).held_out(pictures(1), [0]) is None


def test_every_row_knows_its_image():
    detector = PatchCore(rotations=2, **TINY).fit(pictures(3))
    assert detector.memory.owner.tolist() == [0] * 72 + [1] * 72 + [2] * 72


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


def test_the_bank_is_the_coreset_of_all():
    bank, plain = (PatchCore(bank_size=size, **TINY).fit(pictures(2)).memory for size in (30, 72))
    chosen = greedy_coreset(plain.bank, 30)
    assert bank.bank.equal(plain.bank[chosen]) and bank.owner.equal(plain.owner[chosen])


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


def test_a_turn_is_by_its_share_of_a_full_one():
    image = np.zeros((401, 401, 3), np.uint8)
    image[199:202, 374:377] = 255  # 175 to the right of the middle
    for step, turned in enumerate(turns(image, 3)):
        rows, columns = np.nonzero(turned[..., 0] > 60)
        angle = np.degrees(np.arctan2(200 - rows.mean(), columns.mean() - 200)) % 360
        assert angle == pytest.approx(120 * step, abs=0.1)


@pytest.mark.parametrize("radius", [1, 3])
def test_a_graph_has_the_distances_to_the_bank(radius):
    detector = PatchCore(**{**TINY, "radius": radius}).fit(pictures(2))
    tokens = torch.randn(3, 4, 5, 48, generator=torch.Generator().manual_seed(0))
    expected = torch.cdist(locally_aware(tokens, radius), detector.memory.rows).amin(dim=1).view(4, 5)
    torch.testing.assert_close(detector.memory(tokens), expected, atol=1e-3, rtol=1e-3)
    assert detector.reach == radius // 2


def test_the_graph_of_a_wide_bank_has_its_distances(tmp_path):
    pytest.importorskip("onnxscript")
    from anomalyncd.export.onnx import write_scores
    from anomalyncd.runtime.graphs import open_graph

    bank = PatchBank(wide_rows(300, 0).half())
    write_scores(tmp_path / "scores.onnx", bank, 2, 300)
    tokens = torch.randn(2, 5, 4, 300, generator=torch.Generator().manual_seed(3))
    (found,) = open_graph(tmp_path / "scores.onnx", "onnxruntime")({"tokens": tokens.numpy()})
    np.testing.assert_allclose(found, bank(tokens), atol=1e-4)


def test_more_normal_images_bring_what_the_bank_has_nothing_like():
    detector = PatchCore(**{**TINY, "bank_size": 40, "rotations": 2}).fit(pictures(2))
    before, owners = detector.memory.bank.clone(), detector.memory.owner.clone()
    more = pictures(2, seed=5)
    more[1][:48] = 255
    features = torch.cat(
        [locally_aware(grid.blocks, 1).half() for image in more for grid in detector.reader(turns(image, 2))]
    )
    far = torch.cdist(features.float(), before.float()).amin(dim=1)
    expected = far.argsort(descending=True)[:10].sort().values  # a quarter of the bank's size
    detector.learn_more(iter(more))
    assert detector.memory.bank[:40].equal(before) and detector.memory.owner[:40].equal(owners)
    assert detector.memory.bank[40:].equal(features[expected])
    assert (
        detector.memory.owner[40:].tolist() == (int(owners.max()) + 1 + expected // 72).tolist()
    )  # 2 turns of 36 patches
    small = PatchCore(**{**TINY, "bank_size": 3}).fit(pictures(1))
    small.learn_more(more)
    assert len(small.memory.bank) == 3 + 1


def test_more_images_need_a_bank_and_an_image():
    with pytest.raises(DataError, match="PatchCore was not fitted"):
        PatchCore(**TINY).learn_more(pictures(1))
    with pytest.raises(DataError, match="expected normal images to learn from"):
        PatchCore(**TINY).fit(pictures(1)).learn_more(iter([]))
    with pytest.raises(SettingsError, match="'musc' cannot learn more normal images"):
        MuSc(**TINY).learn_more(pictures(1))
