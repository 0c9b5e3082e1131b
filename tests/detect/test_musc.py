import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anomalyncd.detect import MuSc, musc
from anomalyncd.detect.musc import Lowest, References, lowest_mean, mutual_scores, rescored
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.grid import place_of, to_map, top_mean

TINY = {"backbone": "tiny", "size": 64, "map_size": 32, "device": "cpu"}


def units(*sizes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [F.normalize(torch.randn(n, 12, generator=generator), dim=-1) for n in sizes]


def pictures(count, seed=0, shape=(64, 64)):
    return list(np.random.default_rng(seed).integers(0, 256, (count, *shape, 3), dtype=np.uint8))


def slow_scores(images, references, own):
    """The formula, word by word."""
    out = []
    for image, place in zip(images, own, strict=True):
        scores = []
        for patch in image.double():
            distances = []
            for j, reference in enumerate(references):
                if j != place:
                    distances.append(min(float((patch - other).norm()) for other in reference.double()))
            kept = max(1, int(0.3 * len(distances)))
            scores.append(sum(sorted(distances)[:kept]) / kept)
        out.append(torch.tensor(scores))
    return out


def assert_same(found, expected, atol=1e-5):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=0)


@pytest.mark.parametrize("count", [2, 3, 8, 11])
def test_all_images_are_references(count):
    images = units(*[3 + (5 * i) % 7 for i in range(count)])
    own = list(range(count))
    assert_same(mutual_scores(images, images, own), slow_scores(images, images, own))


@pytest.mark.parametrize("own", [[None, 0, None, 1, 2, None, 3], [2, None, 0, 3, None, 1, None]])
def test_some_images_are_references(own):
    images = units(4, 6, 3, 5, 7, 2, 6)
    references = [images[own.index(place)] for place in range(4)]
    assert_same(mutual_scores(images, references, own), slow_scores(images, references, own))


def test_new_images():
    images, references = units(4, 1, 6), units(5, 3, 7, 2, 4, 6, 3, seed=1)
    own = [None] * 3
    assert_same(mutual_scores(images, references, own), slow_scores(images, references, own))


@pytest.mark.parametrize("own", [[4, None, 1], [4, 4, 0, 1, 2, 3], [2]])
def test_references_need_not_all_be_among_the_images(own):
    references = units(5, 3, 7, 2, 4, 6)
    fresh = units(4, seed=1)[0]
    images = [fresh if place is None else references[place] for place in own]
    assert_same(mutual_scores(images, references, own), slow_scores(images, references, own))


def test_both_directions_of_one_product_equal_two_products():
    images = units(30, 20, 25, 30, 18, 22)
    own = list(range(6))
    alone = [mutual_scores([image], images, [place])[0] for place, image in enumerate(images)]
    assert_same(mutual_scores(images, images, own), alone)


def test_order_of_references_does_not_matter():
    images = units(4, 6, 3, 5, 7)
    order = [3, 0, 4, 2, 1]
    turned = mutual_scores(images, [images[i] for i in order], [order.index(i) for i in range(5)])
    assert_same(turned, mutual_scores(images, images, list(range(5))))


def slow_unit(tokens, window):
    """(h, w, C) → (h·w, C), each patch the mean of those around it, of length 1."""
    reach, (height, width) = window // 2, tokens.shape[:2]
    rows = []
    for y in range(height):
        for x in range(width):
            around = tokens[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1]
            mean = around.reshape(-1, tokens.shape[-1]).mean(0)
            rows.append(mean / mean.norm())
    return torch.stack(rows)


def test_maps_the_slow_way():
    images = [*pictures(4), *pictures(2, seed=1, shape=(40, 80))]
    detector = MuSc(windows=(1, 3), blocks=(2,), sigma=1.0, **TINY)
    found = list(detector.maps(images))
    tokens = [grid.blocks[0].half().float() for grid in detector.reader(images)]
    assert [tuple(t.shape[:2]) for t in tokens] == [(4, 4)] * 4 + [(2, 4)] * 2
    own = list(range(6))
    one, three = (
        slow_scores(features, features, own)
        for features in ([slow_unit(t, window) for t in tokens] for window in (1, 3))
    )
    for image, values, grid, a, b in zip(images, found, tokens, one, three, strict=True):
        expected = to_map(((a + b) / 2).view(grid.shape[:2]).float().numpy(), image.shape[:2], map_size=32, sigma=1.0)
        np.testing.assert_allclose(values, expected, atol=2e-4)


def test_blocks_are_averaged():
    images = pictures(5)
    one, two, both = (list(MuSc(blocks=blocks, **TINY).maps(images)) for blocks in ((1,), (3,), (1, 3)))
    np.testing.assert_allclose(both, (np.array(one) + np.array(two)) / 2, atol=1e-5)
    assert np.abs(np.array(one) - np.array(two)).max() > 1e-3


def test_the_odd_patch_stands_out():
    images = [np.clip(image // 8 + 100, 0, 255).astype(np.uint8) for image in pictures(8)]
    images[3][:32, 32:] = (255, 0, 0)
    found = np.array(list(MuSc(sigma=0, **TINY).maps(images)))
    assert np.unravel_index(found.argmax(), found.shape)[0] == 3
    assert found[3, :16, 16:].mean() > 1.5 * found[3, 16:, :16].mean()


@pytest.mark.parametrize("count", [0, 4])
def test_too_few_images(count):
    with pytest.raises(DataError, match=f"at least 5, but got {count}"):
        list(MuSc(**TINY).maps(pictures(count)))


def test_later_images_are_scored_by_the_references():
    first, new = pictures(6), pictures(3, seed=1)
    detector = MuSc(windows=(3,), blocks=(2,), sigma=0, **TINY)
    list(detector.maps(first))
    found = list(detector.maps(new))
    references, features = (
        [slow_unit(grid.blocks[0], 3) for grid in detector.reader(images)] for images in (first, new)
    )
    for values, scores in zip(found, slow_scores(features, references, [None] * 3), strict=True):
        expected = to_map(scores.view(4, 4).float().numpy(), (64, 64), map_size=32)
        np.testing.assert_allclose(values, expected, atol=2e-3)  # float16 references


def test_a_later_map_depends_on_its_image_alone(tmp_path):
    detector = MuSc(**TINY)
    list(detector.maps(pictures(6)))
    new = [*pictures(4, seed=1), *pictures(1, seed=2, shape=(40, 64))]
    together = list(detector.maps(new))
    backwards = list(detector.maps(new[::-1]))[::-1]
    alone = [next(detector.maps([image])) for image in new]
    detector.save(tmp_path)
    small = MuSc.load(tmp_path)
    small.batch_size = 2
    for maps in (backwards, alone, list(small.maps(new))):
        for values, expected in zip(maps, together, strict=True):
            np.testing.assert_allclose(values, expected, atol=1e-5)


def test_an_image_of_the_first_set_has_the_same_map_when_it_comes_again():
    images = pictures(6)
    detector = MuSc(**TINY)
    first = list(detector.maps(images))
    assert first[2].min() > 0.05
    again = list(detector.maps([images[2], images[4], images[2]]))
    np.testing.assert_allclose(again, [first[2], first[4], first[2]], atol=2e-3)


def test_references_are_spread_over_the_set():
    images = pictures(9)
    detector = MuSc(max_references=3, **TINY)
    found = list(detector.maps(images))
    assert len(found) == 9
    grids = list(detector.reader(images))
    for index, stored in zip((0, 4, 8), detector.memory.references, strict=True):
        torch.testing.assert_close(stored.float(), grids[index].blocks, atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("settings", [{"windows": ()}, {"windows": (1, 2)}, {"windows": (-1,)}, {"max_references": 1}])
def test_bad_settings(settings):
    with pytest.raises(SettingsError, match=f"{next(iter(settings))} must be"):
        MuSc(**settings, **TINY)


def test_fit_needs_nothing():
    detector = MuSc(**TINY)
    assert detector.fit([]) is detector and not detector.needs_normal


def test_memory_holds_a_part_of_the_images():
    images = pictures(9)
    whole, part = MuSc(**TINY), MuSc(max_images=6, **TINY)
    list(whole.maps(images[:6]))
    expected = [*MuSc(**TINY).detect(images[:6]), *whole.detect(images[6:])]
    for found, other in zip(part.detect(iter(images)), expected, strict=True):
        np.testing.assert_array_equal(found.map, other.map)
        assert found.score == other.score


def slow_rescored(place, scores, summaries, sizes):
    """Every image's score and class token given, the image itself among them."""
    unit = [summary / summary.norm() for summary in summaries.double()]
    similar = [float(unit[place] @ other) for other in unit]
    others = sorted((j for j in range(len(unit)) if j != place), key=lambda j: -similar[j])
    found = []
    for size in sizes:
        group = [place, *others[: size - 1]]
        weights = [max(0.0, similar[j]) for j in group]
        found.append(sum(w * float(scores[j]) for w, j in zip(weights, group, strict=True)) / sum(weights))
    return sum(found) / len(found)


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 3), (5,), (12, 2)])
def test_rescoring_against_the_formula(sizes):
    generator = torch.Generator().manual_seed(1)
    summaries, scores = torch.randn(8, 5, generator=generator) + 0.5, torch.rand(8, generator=generator)
    for place in range(8):
        expected = slow_rescored(place, scores, summaries, sizes)
        known = rescored(float(scores[place]), summaries[place], scores, summaries, own=place, sizes=sizes)
        rest = [j for j in range(8) if j != place]
        new = rescored(float(scores[place]), summaries[place], scores[rest], summaries[rest], own=None, sizes=sizes)
        assert known == pytest.approx(expected, abs=1e-6) and new == pytest.approx(expected, abs=1e-6)


def test_image_scores_are_rescored_and_survive_storing(tmp_path):
    images = pictures(7)
    detector = MuSc(max_references=5, **TINY)
    found = list(detector.detect(images))
    summaries = torch.stack([grid.summary for grid in detector.reader(images)])
    plain = torch.tensor([top_mean(one.map) for one in found])
    chosen = [0, 2, 3, 4, 6]  # five of seven, evenly spread
    for index, one in enumerate(found):
        group = sorted({index, *chosen})
        expected = slow_rescored(group.index(index), plain[group], summaries[group], (1, 2, 3))
        assert one.score == pytest.approx(expected, abs=1e-5)
    detector.save(tmp_path)
    for one, again in zip(found, MuSc.load(tmp_path, device="cpu").detect(images), strict=True):
        assert again.score == pytest.approx(one.score, abs=2e-3)


def test_neighbours_of_one_leave_the_score_of_the_map():
    for found in MuSc(neighbours=(1,), **TINY).detect(pictures(5)):
        assert found.score == pytest.approx(top_mean(found.map))


@pytest.mark.parametrize("settings", [{"max_images": 4}, {"neighbours": ()}, {"neighbours": (0, 1)}])
def test_settings_out_of_range(settings):
    with pytest.raises(SettingsError, match=next(iter(settings))):
        MuSc(**TINY, **settings)


def test_an_image_is_known_again_in_another_precision():
    images = pictures(6)
    detector = MuSc(**TINY)
    first = list(detector.maps(images))
    detector.precision = "bfloat16"
    again = list(detector.maps(images))
    known = detector.memory.references
    assert [place_of(grid.blocks, known) for grid in detector.reader(images)] == [0, 1, 2, 3, 4, 5]
    np.testing.assert_allclose(again, first, atol=0.05)  # compared with itself, a map would fall by a half
    assert [place_of(grid.blocks, known) for grid in detector.reader(pictures(3, seed=1))] == [None] * 3


def test_products_in_pieces_change_nothing(monkeypatch):
    images = units(40, 33, 57, 20, 41)
    own = list(range(5))
    whole = mutual_scores(images, images, own)
    for most in (1, 100, 1000):
        monkeypatch.setattr(musc, "MOST_PRODUCTS", most)
        assert_same(mutual_scores(images, images, own), whole, atol=1e-6)
        assert_same(
            mutual_scores(images, images[:3], [0, 1, 2, None, None]),
            slow_scores(images, images[:3], [0, 1, 2, None, None]),
        )


def test_patches_bound_what_is_held():
    """Sixteen patches an image: as many images as have the patches, five at least, and references of half of them."""
    images = pictures(12)
    for most, held, kept in ((16 * 8, 8, 4), (16, 5, 2), (10**6, 12, 12)):
        detector = MuSc(max_patches=most, **TINY)
        grids = detector.reader(iter(images))
        assert len(list(detector._held(grids))) == held
        assert len(list(detector.maps(images))) == 12 and len(detector.memory.references) == kept


def test_class_tokens_do_not_keep_the_batch_alive():
    grid = next(MuSc(**TINY).reader(pictures(4)))
    assert grid.summary.untyped_storage().nbytes() == 4 * 4 * grid.summary.numel()  # of the four images


@pytest.mark.parametrize("windows", [(1,), (1, 3)])
def test_a_graph_has_the_nearest_cosines_of_each_block_and_window(windows):
    generator = torch.Generator().manual_seed(0)
    tokens, reference = torch.randn(2, 3, 4, 8, generator=generator), torch.randn(2, 2, 5, 8, generator=generator)
    known = References({"reference_00000": reference.half()}, windows)
    found = known(tokens, reference)
    assert found.shape == (2 * len(windows), 3, 4)
    place = 0
    for block in range(2):
        for window in windows:
            one, other = (slow_unit(x[block], window) for x in (tokens, reference))
            expected = (one @ other.T).amax(dim=1).view(3, 4)
            torch.testing.assert_close(found[place], expected, atol=1e-5, rtol=1e-5)
            place += 1
    cosines = torch.rand(4, 3, 4, 20, generator=generator)
    torch.testing.assert_close(Lowest()(cosines), lowest_mean(cosines).mean(dim=0))


def test_references_are_in_the_order_of_their_numbers():
    tensors = {f"reference_{place:05d}": torch.full((1, 1, 1, 1), float(place)) for place in (2, 10, 0, 1)}
    known = References({**tensors, "summaries": torch.zeros(4, 2), "scores": torch.zeros(4)})
    assert [float(reference) for reference in known.references] == [0, 1, 2, 10]


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (3, 1), (4, 1), (6, 1), (7, 2), (9, 2), (10, 3), (13, 3), (20, 6)])
def test_the_lowest_three_of_ten_distances_count(count, kept):
    cosines = torch.rand(5, count, generator=torch.Generator().manual_seed(count)) * 2 - 1
    for row, found in zip(cosines, lowest_mean(cosines), strict=True):
        distances = sorted((2 - 2 * float(cosine)) ** 0.5 for cosine in row)
        assert float(found) == pytest.approx(sum(distances[:kept]) / kept, rel=1e-4)
    assert float(lowest_mean(torch.tensor([1.0001]))) == 0  # rounding


@pytest.mark.parametrize(
    ("max_references", "max_patches", "count"), [(3, 10**6, 3), (400, 96, 3), (400, 1, 2), (2, 96, 2)]
)
def test_how_many_references_are_kept(max_references, max_patches, count):
    detector = MuSc(**TINY, max_references=max_references, max_patches=max_patches)
    list(detector.detect(pictures(5)))  # 16 patches each
    assert len(detector.memory.references) == count and detector.memory.scores.shape == (count,)
    list(detector.maps(pictures(3, seed=1)))
    assert len(detector.memory.references) == count
    assert detector.reach == 0 and MuSc(**TINY, windows=(1, 5)).reach == 2
