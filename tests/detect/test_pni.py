"""PNI: each formula against a slow, obvious form; then the detector as a whole."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anomalyncd.detect import PNI, load_detector, pni
from anomalyncd.detect.patchcore import locally_aware
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.model import places as parts
from anomalyncd.model.cascade import places
from anomalyncd.model.places import GAMMA, PLACES, SHARE, TEMPERATURE, NormalPlaces, features

TINY: dict[str, Any] = {"backbone": "tiny", "size": 96, "map_size": 96, "device": "cpu"}
QUICK: dict[str, Any] = {**TINY, "epochs": 2, "kinds": 8, "bank_size": 40, "window": 3, "sigma": 0}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "HIDDEN", 16)
    monkeypatch.setattr(pni, "WIDTH", 6)


def pictures(count: int, seed: int = 0, shape: tuple[int, int] = (96, 96)) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(90, 130, (count, *shape, 3), dtype=np.uint8))


def fitted(count: int = 3, **settings: Any) -> tuple[PNI, list[np.ndarray]]:
    normal = pictures(count)
    return PNI(**{**QUICK, **settings}).fit(iter(normal)), normal


def slow_histogram(memory: NormalPlaces, reach: int, without: int | None = None) -> np.ndarray:
    """Elements whose share of the patches around a position is above half of an equal share."""
    size, counts = len(memory.bank), np.zeros((PLACES, PLACES, len(memory.bank)))
    for (first, other), place, image in zip(
        memory.words.tolist(), memory.place.tolist(), memory.seen.tolist(), strict=True
    ):
        if image != without:
            counts[place // PLACES, place % PLACES, other if memory.owner[first] == without else first] += 1
    allowed = np.zeros((PLACES, PLACES, size), bool)
    for y in range(PLACES):
        for x in range(PLACES):
            near = counts[max(0, y - reach) : y + reach + 1, max(0, x - reach) : x + reach + 1].sum((0, 1))
            allowed[y, x] = near > SHARE / size * near.sum()
    return allowed.reshape(PLACES**2, size)


@pytest.mark.parametrize("reach", [0, 4])
@pytest.mark.parametrize("without", [None, 1])
def test_the_histogram_counts_patches_around_a_position(reach: int, without: int | None) -> None:
    memory = fitted(near=reach)[0].memory
    assert isinstance(memory, NormalPlaces)
    np.testing.assert_array_equal(memory.by_position(without), slow_histogram(memory, reach, without))


def test_maps_are_the_mean_of_both_ways() -> None:
    detector = fitted(map_size=6, size=96)[0]
    memory = detector.memory
    assert isinstance(memory, NormalPlaces) and len(memory.bank) == 40
    image = pictures(1, seed=9)[0]
    values = features(next(detector.reader([image])).blocks)
    torch.testing.assert_close(values.flatten(0, 1), locally_aware(next(detector.reader([image])).blocks, 1))
    logits = memory.net(((values - memory.mean) @ memory.axes).permute(2, 0, 1)[None])[0].permute(1, 2, 0).detach()
    found = next(detector.maps([image]))
    for y in range(6):
        for x in range(6):
            distances = [float((values[y, x] - row).norm()) for row in memory.rows]
            chance = (logits[y, x] / TEMPERATURE).softmax(0)
            kinds = [min(range(8), key=lambda k, m=m: float((m - memory.rows[k]).norm())) for m in memory.rows]
            likely = [float(chance[kind]) > SHARE / 40 for kind in kinds]
            ways = [likely, memory.possible[int(places(6, 6, PLACES)[y, x])].tolist()]
            nearest = [min([d for d, ok in zip(distances, way, strict=True) if ok] + [max(distances)]) for way in ways]
            assert found[y, x] == pytest.approx(GAMMA * sum(nearest) / 2 - math.log(GAMMA), abs=1e-4)


def test_a_defect_is_far_and_a_normal_patch_at_a_wrong_place_too() -> None:
    normal = [np.tile(np.linspace(0, 255, 96, dtype=np.uint8)[:, None, None], (1, 96, 3)) for _ in range(3)]
    detector = PNI(**{**QUICK, "near": 1, "bank_size": 10_000}).fit(normal)
    odd = normal[0].copy()
    odd[64:80, 16:32] = (255, 0, 0)
    values = next(detector.maps([odd]))
    y, x = np.unravel_index(values.argmax(), values.shape)
    assert 64 <= y < 80 and 16 <= x < 32
    turned = next(detector.maps([normal[0][::-1].copy()]))
    assert turned[:16].mean() > next(detector.maps(normal))[:16].mean() + 0.01


def test_held_out_images_are_compared_with_the_others() -> None:
    detector, normal = fitted()
    found = list(detector.held_out(iter(normal), [0, 1, 2]) or [])
    seen = list(detector.detect(normal))
    assert len(found) == 3 and all(one.score > other.score for one, other in zip(found, seen, strict=True))
    assert fitted(1)[0].held_out(normal[:1], [0]) is None


def test_saved_and_loaded_it_gives_the_same_maps(tmp_path: Path) -> None:
    detector, normal = fitted()
    detector.save(tmp_path)
    assert not [
        name for name in detector.tensors() if name.endswith("seen") and name != "seen"
    ]  # windows are made anew
    loaded = load_detector("pni", tmp_path, device="cpu")
    new = [*pictures(2, seed=5), *pictures(1, seed=6, shape=(48, 96))]
    for one, again in zip(detector.detect(new), loaded.detect(new), strict=True):
        np.testing.assert_array_equal(one.map, again.map)
    for one, again in zip(
        detector.held_out(normal, range(3)) or [], loaded.held_out(normal, range(3)) or [], strict=True
    ):
        np.testing.assert_array_equal(one.map, again.map)


def test_the_seed_decides_and_a_killed_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = pictures(1, seed=5)
    expected = next(fitted()[0].maps(new))
    np.testing.assert_array_equal(next(fitted()[0].maps(new)), expected)
    assert not np.array_equal(next(fitted(seed=1)[0].maps(new)), expected)
    detector = PNI(**QUICK)
    detector.workspace = tmp_path
    original, calls = F.cross_entropy, []

    def killed(*arguments: Any, **named: Any) -> Tensor:
        calls.append(1)
        if len(calls) == 2:  # three images are one batch, so this is the second epoch
            raise KeyboardInterrupt
        return original(*arguments, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(pni.F, "cross_entropy", killed)
        detector.fit(pictures(3))
    assert not detector.is_ready and any(tmp_path.iterdir())
    np.testing.assert_array_equal(next(detector.fit(pictures(3)).maps(new)), expected)


def test_few_images_of_any_shape_and_grey_ones() -> None:
    images = [np.full((64, 64, 3), level, np.uint8) for level in (0, 255)] + pictures(1, shape=(40, 96))
    for count in (1, 3):
        found = list(PNI(**QUICK).fit(images[:count]).maps(images))
        assert [values.shape for values in found] == [(96, 96), (96, 96), (40, 96)]
        assert all(np.isfinite(values).all() for values in found)


def test_memory_is_bounded_by_a_sample_of_the_images() -> None:
    memory = fitted(6, max_patches=100)[0].memory
    assert isinstance(memory, NormalPlaces)
    assert len(memory.words) == 72 and len(memory.seen.unique()) == 2


def test_not_fitted_and_no_image() -> None:
    with pytest.raises(DataError, match="not fitted"):
        list(PNI(**TINY).maps(pictures(1)))
    with pytest.raises(DataError, match="needs normal images"):
        PNI(**TINY).fit(iter([]))


@pytest.mark.parametrize(
    "settings",
    [{"window": 4}, {"window": 1}, {"bank_size": 0}, {"kinds": 0}, {"near": -1}, {"epochs": 0}, {"max_patches": 0}],
)
def test_bad_settings(settings: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match=f"{next(iter(settings))} must be"):
        PNI(**settings, **TINY)


def test_each_of_the_first_elements_is_its_own_kind() -> None:
    memory = fitted()[0].memory
    assert isinstance(memory, NormalPlaces) and len(memory.rows) > QUICK["kinds"]
    assert memory.kind[: QUICK["kinds"]].tolist() == list(range(QUICK["kinds"]))
    far = ((memory.rows[:, None] - memory.rows[None, : QUICK["kinds"]]) ** 2).sum(-1)
    assert memory.kind.tolist() == far.argmin(dim=1).tolist()
