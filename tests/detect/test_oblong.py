"""Images that are not square: patches are counted by both sides."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from anomalyncd.detect import CPR, PNI, MuSc

SETTINGS: dict[str, Any] = {"backbone": "tiny", "size": 64, "map_size": 32, "device": "cpu", "sigma": 0}


def oblong(count: int, shape: tuple[int, int]) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (count, *shape, 3), dtype=np.uint8))


@pytest.mark.parametrize("shape", [(64, 32), (32, 64)])  # 4 × 2 patches, or 2 × 4
def test_memory_holds_so_many_patches(shape: tuple[int, int]) -> None:
    detector = MuSc(**SETTINGS, max_patches=48)  # half of it for references: three images
    list(detector.detect(oblong(8, shape)))
    assert len(detector.memory.references) == 3  # type: ignore[union-attr]
    held = MuSc(**SETTINGS, max_patches=48)
    assert len(list(held._held(held.reader(oblong(9, shape))))) == 6
    assert len(list(held._held(held.reader(oblong(4, shape))))) == 4
    few = MuSc(**SETTINGS, max_patches=1)
    assert len(list(few._held(few.reader(oblong(9, shape))))) == 5, "fewer could not be compared"
    most = MuSc(**SETTINGS, max_images=7)
    assert len(list(most._held(most.reader(oblong(9, shape))))) == 7


@pytest.mark.parametrize("shape", [(64, 32), (32, 64)])
@pytest.mark.parametrize(("max_patches", "count"), [(7, 1), (8, 1), (15, 1), (16, 2), (23, 2), (24, 3), (99, 3)])
def test_as_many_normal_images_are_held(shape: tuple[int, int], max_patches: int, count: int) -> None:
    images = oblong(3, shape)
    kept, owners = PNI(**SETTINGS, max_patches=max_patches)._held(images)
    assert len(kept) == len(owners) == count and kept[0].shape[:2] == (shape[0] // 16, shape[1] // 16)
    held, grids, places = CPR(**SETTINGS, max_patches=max_patches)._held(images)
    assert len(held) == len(grids) == len(places) == count
    chance = torch.Generator().manual_seed(0)
    keys = [float(torch.rand(1, generator=chance)) for _ in range(3)]
    assert owners == places.tolist() == sorted(sorted(range(3), key=keys.__getitem__)[:count])


def test_a_patch_of_an_oblong_image_has_its_own_place() -> None:
    image = oblong(1, (32, 64))[0]
    detector = PNI(**SETTINGS, epochs=1, kinds=4, window=3).fit([image, image[:, ::-1].copy()])
    memory = detector.memory
    assert memory is not None and memory.place.tolist() == memory.place[:8].tolist() * 2
    rows, columns = memory.place[:8] // 24, memory.place[:8] % 24
    assert rows.tolist() == [6] * 4 + [18] * 4 and columns.tolist() == [3, 9, 15, 21] * 2
    assert memory.seen.tolist() == [0] * 8 + [1] * 8
    assert next(detector.maps([image])).shape == (16, 32)


def test_how_the_neighbourhood_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of four images of one shape; a rate that falls to a hundredth in three steps."""
    from anomalyncd.detect import pni

    seen: dict[str, Any] = {}

    def train(net: Any, optimiser: Any, losses: Any, **named: Any) -> None:
        seen.update(named, optimiser=optimiser, rates=[named["rate"](epoch) for epoch in range(6)])
        seen["losses"] = len(list(losses(0)))

    sizes: list[tuple[int, ...]] = []
    original = pni.F.cross_entropy
    monkeypatch.setattr(pni, "train", train)
    monkeypatch.setattr(
        pni.F, "cross_entropy", lambda logits, goals: (sizes.append(tuple(goals.shape)), original(logits, goals))[1]
    )
    PNI(**SETTINGS, epochs=6, kinds=4, window=3, seed=2).fit([*oblong(5, (32, 64)), *oblong(2, (64, 32))])
    assert seen["rates"] == pytest.approx([1e-3, 1e-3, 1e-4, 1e-4, 1e-5, 1e-5])
    assert seen["rounds"] == 6 and seen["seed"] == 2 and isinstance(seen["optimiser"], torch.optim.Adam)
    assert sorted(sizes) == [(1, 2, 4), (2, 4, 2), (4, 2, 4)] and seen["losses"] == 3
