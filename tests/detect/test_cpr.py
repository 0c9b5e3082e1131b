"""CPR as a whole; its formulas are tested in tests/model/test_cascade.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from anomalyncd.detect import CPR, cpr, load_detector
from anomalyncd.detect.cpr import pair_loss
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.model import cascade

TINY: dict[str, Any] = {"backbone": "tiny", "size": 96, "map_size": 96, "device": "cpu"}
QUICK: dict[str, Any] = {**TINY, "steps": 3, "views": 4, "sigma": 0}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cascade, "HIDDEN", 16)
    monkeypatch.setattr(cascade, "OUT", 8)
    monkeypatch.setattr(cpr, "ROUND", 2)


def pictures(count: int, seed: int = 0, shape: tuple[int, int] = (96, 96)) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(90, 130, (count, *shape, 3), dtype=np.uint8))


def fitted(count: int = 3, **settings: Any) -> tuple[CPR, list[np.ndarray]]:
    normal = pictures(count)
    return CPR(**{**QUICK, **settings}).fit(iter(normal)), normal


@pytest.mark.parametrize("window", [1, 3])
def test_the_loss_is_of_pairs_at_the_same_place_and_elsewhere(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = torch.Generator().manual_seed(0)
    views, partners = (F.normalize(torch.randn(2, 1, 6, 6, 4, generator=chance), dim=-1) for _ in range(2))
    covered = torch.zeros(2, 6, 6)
    covered[0, 1:3, 2:4] = torch.tensor([[1.0, 0.1], [0.5, 0.01]])  # defect, neither, defect, normal
    shifts = iter([3, 3])
    monkeypatch.setattr(cpr.torch, "randint", lambda low, high, size: torch.tensor(next(shifts)))
    found = float(pair_loss(views, partners, covered, window))
    reach, terms = window // 2, {"alike": [], "unlike": [], "elsewhere": []}
    for b in range(2):
        for y in range(6):
            for x in range(6):
                near = partners[b, 0, max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1].reshape(
                    -1, 4
                )
                cosine = float((near @ views[b, 0, y, x]).max())
                if covered[b, y, x] < 0.02:
                    terms["alike"].append(max(0, 0.8 - cosine) ** 3)
                elif covered[b, y, x] > 0.3:
                    terms["unlike"].append(max(0, cosine + 0.2) ** 3)
                other = float(views[b, 0, y, x] @ partners[b, 0, (y - 3) % 6, (x - 3) % 6])
                terms["elsewhere"].append(max(0, other + 0.2) ** 3)
    assert len(terms["unlike"]) == 2
    assert found == pytest.approx(sum(sum(some) / len(some) for some in terms.values()), rel=1e-4)


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 3), (4, 4), (24, 24)])
def test_pairs_elsewhere_are_there_on_every_grid(shape: tuple[int, int]) -> None:
    views = F.normalize(torch.ones(1, 1, *shape, 2), dim=-1)
    for _ in range(5):
        assert bool(pair_loss(views, views, torch.zeros(1, *shape), 3).isfinite())


@pytest.mark.parametrize("steps", [0, 3])
def test_a_defect_is_found_where_it_is(steps: int) -> None:
    normal = pictures(4)
    detector = CPR(**{**QUICK, "steps": steps}).fit(normal)
    odd = normal[1].copy()
    odd[64:80, 16:32] = (255, 0, 0)
    found = next(detector.detect([odd]))
    y, x = np.unravel_index(found.map.argmax(), found.map.shape)
    assert (64 <= y < 80 and 16 <= x < 32) or steps  # three steps teach little
    assert found.score > next(detector.detect([normal[1]])).score
    assert found.score == pytest.approx(np.sort(found.map.ravel())[-46:].mean(), rel=1e-5)  # 0.5 % of 96²


def test_the_metric_learns() -> None:
    normal = [np.tile(np.linspace(0, 255, 96, dtype=np.uint8)[:, None, None], (1, 96, 3)) for _ in range(3)]
    losses: list[float] = []
    original = cpr.pair_loss

    def watched(*arguments: Any) -> torch.Tensor:
        loss = original(*arguments)
        losses.append(float(loss.detach()))
        return loss

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpr, "pair_loss", watched)
        CPR(**{**QUICK, "steps": 40}).fit(normal)
    assert len(losses) == 40 and np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5])


def test_held_out_images_are_compared_with_the_others() -> None:
    detector, normal = fitted()
    found = list(detector.held_out(iter(normal), [0, 1, 2]) or [])
    seen = list(detector.detect(normal))
    assert len(found) == 3 and all(one.score > other.score for one, other in zip(found, seen, strict=True))
    assert fitted(1)[0].held_out(normal[:1], [0]) is None


def test_saved_and_loaded_it_gives_the_same_maps(tmp_path: Path) -> None:
    for steps in (0, 3):
        detector, normal = fitted(steps=steps)
        detector.save(tmp_path)
        loaded = load_detector("cpr", tmp_path, device="cpu")
        new = [*pictures(2, seed=5), *pictures(1, seed=6, shape=(48, 96)), normal[0]]
        for one, again in zip(detector.detect(new), loaded.detect(new), strict=True):
            np.testing.assert_array_equal(one.map, again.map)
            assert one.score == again.score


def test_the_seed_decides_and_a_killed_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = pictures(1, seed=5)
    expected = next(fitted(steps=5)[0].maps(new))
    np.testing.assert_array_equal(next(fitted(steps=5)[0].maps(new)), expected)
    assert not np.array_equal(next(fitted(steps=5, seed=1)[0].maps(new)), expected)
    detector = CPR(**{**QUICK, "steps": 5})
    detector.workspace = tmp_path
    original, calls = cpr.pair_loss, []

    def killed(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(cpr, "pair_loss", killed)
        detector.fit(pictures(3))
    assert not detector.is_ready and any(tmp_path.iterdir())
    np.testing.assert_array_equal(next(detector.fit(pictures(3)).maps(new)), expected)


def test_few_images_of_any_shape_and_grey_ones() -> None:
    images = [np.full((64, 64, 3), level, np.uint8) for level in (0, 255)] + pictures(1, shape=(40, 96))
    for count in (1, 3):
        found = list(CPR(**QUICK).fit(images[:count]).maps(images))
        assert [values.shape for values in found] == [(96, 96), (96, 96), (40, 96)]
        assert all(np.isfinite(values).all() for values in found)


def test_tiles_make_one_grid() -> None:
    images = pictures(2, shape=(96, 144))
    found = next(CPR(**{**QUICK, "tile": 48}).fit(images).maps(images))
    assert found.shape == (192, 288)


def test_memory_is_bounded_by_a_sample_of_the_images() -> None:
    memory = fitted(6, max_patches=100)[0].memory
    assert isinstance(memory, cascade.Gallery) and len(memory.owner) == 2 == len(memory.patches)


def test_not_fitted_and_no_image() -> None:
    with pytest.raises(DataError, match="not fitted"):
        list(CPR(**TINY).maps(pictures(1)))
    with pytest.raises(DataError, match="needs normal images"):
        CPR(**TINY).fit(iter([]))


@pytest.mark.parametrize("settings", [{"window": 2}, {"retrieved": 0}, {"steps": -1}, {"views": 0}, {"max_patches": 0}])
def test_bad_settings(settings: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(settings))} must be"):
        CPR(**settings, **TINY)


@pytest.mark.parametrize("steps", [1, 4, 5])
def test_it_takes_as_many_steps_as_asked_for(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    monkeypatch.setattr(cpr, "pair_loss", lambda *given: (taken.append(1), pair_loss(*given))[1])
    fitted(steps=steps)
    assert len(taken) == steps


def test_an_image_is_not_its_own_neighbour() -> None:
    histograms = torch.full((3, 5, 2), 0.5)
    histograms[2] = torch.tensor([0.9, 0.1])
    detector = CPR(**{**QUICK, "retrieved": 1})
    assert [detector._neighbours(histograms, index) for index in (0, 1)] == [[1], [0]]
    assert detector._neighbours(histograms[:1], 0) == [0]  # there is no other


def test_words_histograms_and_the_metric_are_those_of_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    detector, normal = fitted(3, steps=0)
    memory = detector.memory
    assert isinstance(memory, cascade.Gallery) and memory.branch is None
    grids = torch.stack([grid.blocks for grid in detector.reader(normal)])
    assert memory.centres.shape == (12, 48) and memory.owner.tolist() == [0, 1, 2]
    low = grids[:, 0].half().float()
    torch.testing.assert_close(
        memory.histograms, cascade.block_histograms(cascade.one_hot_words(low, memory.centres)), rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(memory.patches.float(), F.normalize(grids, dim=-1), atol=2e-3, rtol=1e-2)
    assert (memory.weight == 0).all() and float(memory.bias) == 50  # a texture: all of it is the product
    assert detector.reach == 1_000_000


def test_an_object_has_its_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of patches are those of two means of the lowest block."""
    normal = [np.full((96, 96, 3), 20, np.uint8) for _ in range(2)]
    for image in normal:
        image[24:72, 24:72] = np.random.default_rng(0).integers(150, 255, (48, 48, 3))
    seen: list[Any] = []
    original = cpr.foreground
    monkeypatch.setattr(cpr, "foreground", lambda *given: (seen.append(given), original(*given))[1])
    memory = CPR(**{**QUICK, "steps": 0}).fit(normal).memory
    ((grids, groups),) = seen
    assert len(grids) == len(groups) == 2 and {int(kind) for group in groups for kind in group.unique()} == {0, 1}
    found = original(grids, groups)
    assert (found is None) is bool((memory.weight == 0).all())
    if found is not None:
        torch.testing.assert_close(memory.weight, found[0])
        torch.testing.assert_close(memory.bias, found[1])


def test_images_beyond_what_memory_holds_are_drawn_by_chance() -> None:
    kept = set()
    for seed in range(8):
        memory = fitted(5, steps=0, max_patches=80, seed=seed)[0].memory
        assert len(memory.owner) == 2 and memory.owner.tolist() == sorted(memory.owner.tolist())
        kept |= set(memory.owner.tolist())
    assert kept == set(range(5))
    for max_patches, count in ((1, 1), (36, 1), (71, 1), (72, 2), (107, 2), (108, 3)):  # 36 patches each
        memory = fitted(3, steps=0, max_patches=max_patches)[0].memory
        assert len(memory.owner) == count
    chance = torch.Generator().manual_seed(0)
    keys = [float(torch.rand(1, generator=chance)) for _ in range(5)]
    memory = fitted(5, steps=0, max_patches=80)[0].memory
    assert memory.owner.tolist() == sorted(sorted(range(5), key=keys.__getitem__)[:2])


def test_other_shapes_are_brought_to_that_of_the_first_image() -> None:
    images = [*pictures(1), *pictures(1, shape=(48, 96))]
    kept, grids, places = CPR(**QUICK)._held(images)
    assert grids.shape[:4] == (2, 3, 6, 6) and places.tolist() == [0, 1] and grids.dtype == torch.float16
    assert [picture.shape for picture in kept] == [(96, 96, 3), (48, 96, 3)]
    flat = next(CPR(**QUICK).reader(images[1:])).blocks
    torch.testing.assert_close(grids[1].float(), cascade.resized(flat[None], (6, 6))[0], atol=1e-2, rtol=1e-2)
    large = CPR(**{**QUICK, "tile": 96})._held(pictures(1, shape=(192, 96)))[0]
    assert large[0].shape == (192, 96, 3)  # as it is: tiles are cut from it
    assert CPR(**QUICK)._held(pictures(1, shape=(192, 96)))[0][0].shape == (96, 48, 3)


def test_words_are_learned_from_a_sample_by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = torch.randn(2, 5, 4, 3, generator=torch.Generator().manual_seed(0))
    detector = CPR(**QUICK)
    seen: list[np.ndarray] = []
    kinds: list[tuple[Any, ...]] = []

    class Watched(cpr.KMeans):  # type: ignore[misc]
        def fit(self, rows: np.ndarray) -> Any:
            seen.append(rows)
            kinds.append((self.n_clusters, self.n_init, self.random_state))
            return super().fit(rows)

    monkeypatch.setattr(cpr, "KMeans", Watched)
    monkeypatch.setattr(cpr, "SAMPLE", 30)
    found = detector._centres(tokens, 4)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))[:30]
    np.testing.assert_array_equal(seen[0], tokens.reshape(40, 3)[order])
    assert found.shape == (4, 3) and found.dtype == torch.float32 and kinds == [(4, 1, 0)]
    assert detector._centres(tokens[:1, :1], 9).shape == (4, 3)  # no more than tokens


def test_made_up_defects_and_the_share_of_each_patch() -> None:
    detector = CPR(**{**QUICK, "views": 5})
    images = pictures(2)
    tokens, covered = detector._synthetic(images, (6, 6))
    rng = np.random.default_rng(0)
    made = [cpr.with_defect(images[k % 2], rng) for k in range(5)]
    assert tokens.shape == (5, 3, 6, 6, 48) and tokens.dtype == torch.float16 and covered.shape == (5, 6, 6)
    for place, (image, mask) in enumerate(made):
        share = mask.astype(float).reshape(6, 16, 6, 16).mean((1, 3))
        np.testing.assert_allclose(covered[place], share, atol=1e-5)
        expected = next(detector.reader([image])).blocks
        torch.testing.assert_close(tokens[place].float(), expected, atol=1e-2, rtol=1e-2)


def test_how_the_metric_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def train(branch: Any, optimiser: Any, losses: Any, **named: Any) -> None:
        seen.update(named, optimiser=optimiser, rates=[named["rate"](0), named["rate"](9)])
        seen["steps"] = [len(list(losses(number))) for number in range(named["rounds"])]

    pairs: list[tuple[torch.Size, ...]] = []

    def watched(views: torch.Tensor, partners: torch.Tensor, covered: torch.Tensor, window: int) -> torch.Tensor:
        pairs.append((views.shape, partners.shape, covered.shape))
        assert window == 3
        return pair_loss(views, partners, covered, window)

    monkeypatch.setattr(cpr, "train", train)
    monkeypatch.setattr(cpr, "pair_loss", watched)
    fitted(steps=5, seed=3)
    assert seen["rounds"] == 3 and seen["steps"] == [2, 2, 1] and seen["seed"] == 3  # rounds of two here
    assert seen["rates"] == [1e-3, 1e-3] and seen["optimiser"].param_groups[0]["weight_decay"] == 0.01
    assert isinstance(seen["optimiser"], torch.optim.AdamW)
    assert set(pairs) == {((4, 3, 6, 6, 8), (4, 3, 6, 6, 8), (4, 6, 6))}


def test_neighbours_are_the_likest_images() -> None:
    shares = torch.tensor([0.5, 0.52, 0.6, 0.9, 0.45])
    histograms = torch.stack([shares, 1 - shares], dim=1)[:, None].expand(-1, 5, -1)
    detector = CPR(**{**QUICK, "retrieved": 2})
    assert detector._neighbours(histograms, 0) == [1, 4]
    detector = CPR(**{**QUICK, "retrieved": 9})
    assert detector._neighbours(histograms, 3) == [2, 1, 0, 4]


@pytest.mark.parametrize(
    ("side", "window", "bounds"), [(1, 3, (0, 0)), (2, 3, (1, 1)), (6, 1, (1, 5)), (6, 3, (3, 3)), (24, 3, (3, 21))]
)
def test_pairs_elsewhere_are_farther_off_than_the_window(
    side: int, window: int, bounds: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(cpr.torch, "randint", lambda low, high, size: (asked.append((low, high)), torch.tensor(low))[1])
    views = F.normalize(torch.ones(1, 1, side, 4, 2), dim=-1)
    pair_loss(views, views, torch.zeros(1, side, 4), window)
    low, high = bounds
    assert asked[0] == (low, high + 1) and asked[1] == {1: (1, 4), 3: (2, 3)}[window]
