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
    histograms = torch.full((3, 1, 2), 0.5)
    histograms[2, 0] = torch.tensor([0.9, 0.1])
    detector = CPR(**{**QUICK, "retrieved": 1})
    assert [detector._neighbours(histograms, index) for index in (0, 1)] == [[1], [0]]
    assert detector._neighbours(histograms[:1], 0) == [0]  # there is no other
