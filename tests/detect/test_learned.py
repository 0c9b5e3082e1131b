"""Detectors that train a network: from images to maps, stored, killed, with few, grey and large images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from anomalyncd.detect import EfficientAD, RDPlusPlus
from anomalyncd.detect.base import Picture
from anomalyncd.detect.learned import LearnedDetector, draw_alike
from anomalyncd.detect.training import seeded
from anomalyncd.errors import DataError, SettingsError
from anomalyncd.progress import Advance, Silent

KINDS: list[Any] = [EfficientAD, RDPlusPlus]
TINY: dict[str, Any] = {"backbone": "tiny", "size": 64, "map_size": 64, "device": "cpu", "steps": 12}


def pictures(count: int, seed: int = 0, shape: tuple[int, int] = (64, 64)) -> list[Picture]:
    """Grey stripes with some noise."""
    rng = np.random.default_rng(seed)
    stripes = 110 + 30 * np.sin(np.arange(shape[1]) / 3)[None, :, None]
    return [(stripes + rng.normal(0, 4, (*shape, 3))).clip(0, 255).astype(np.uint8) for _ in range(count)]


def maps(detector: LearnedDetector, images: list[Picture]) -> list[np.ndarray]:
    return list(detector.maps(images))


@pytest.mark.parametrize("kind", KINDS)
def test_a_defect_stands_out(kind: Any) -> None:
    odd = pictures(1, seed=9)[0]
    odd[16:48, 16:48] = np.random.default_rng(0).integers(0, 256, (32, 32, 3))
    detector = kind(**{**TINY, "steps": 60, "sigma": 0}).fit(iter(pictures(8)))
    normal, found = detector.detect([pictures(1, seed=8)[0], odd])
    assert found.map.shape == (64, 64) and found.map.dtype == np.float32
    assert found.score > normal.score
    inside = found.map[16:48, 16:48].mean()
    assert inside > found.map[:8].mean() and inside > normal.map.max()


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_after_saving_and_by_the_same_seed(kind: Any, tmp_path: Path) -> None:
    new = pictures(2, seed=5)
    detector = kind(**TINY).fit(pictures(3))
    expected = maps(detector, new)
    detector.save(tmp_path / "stored")
    loaded = kind.load(tmp_path / "stored", device="cpu")
    assert loaded.is_ready and loaded.settings == detector.settings
    np.testing.assert_array_equal(maps(loaded, new), expected)
    np.testing.assert_array_equal(maps(kind(**TINY).fit(pictures(3)), new), expected)
    assert not np.array_equal(maps(kind(**TINY, seed=1).fit(pictures(3)), new), expected)
    assert loaded.held_out(pictures(3), [0, 1, 2]) is None


class Killed(Exception):
    pass


class Killer(Silent):
    """Ends a training after its first round."""

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        rounds = 0

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal rounds
            rounds += steps
            if name == "Training" and rounds:
                raise Killed

        yield advance


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_called_again(kind: Any, tmp_path: Path) -> None:
    settings = {**TINY, "steps": 25}  # three rounds, the last of them short
    expected = maps(kind(**settings).fit(pictures(3)), pictures(1, seed=5))
    detector = kind(**settings)
    detector.workspace, detector.progress = tmp_path, Killer()
    with pytest.raises(Killed):
        detector.fit(pictures(3))
    again = kind(**settings)
    again.workspace = tmp_path
    np.testing.assert_array_equal(maps(again.fit(pictures(3)), pictures(1, seed=5)), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("normal", "new", "shape"),
    [
        (pictures(1), pictures(1, seed=2), (64, 64)),
        ([image[..., :1].repeat(3, axis=2) for image in pictures(2)], pictures(1, seed=2), (64, 64)),
        ([*pictures(2), *pictures(1, shape=(64, 30))], pictures(1, shape=(30, 64)), (30, 64)),
        ([np.full((64, 64, 3), 7, np.uint8)] * 2, [np.full((64, 64, 3), 7, np.uint8)], (64, 64)),
        (pictures(1, shape=(3, 5)), pictures(1, shape=(5, 3)), (64, 38)),
    ],
    ids=["one image", "grey", "several shapes", "all alike", "tiny"],
)
def test_few_and_odd_images(kind: Any, normal: list[Picture], new: list[Picture], shape: tuple[int, int]) -> None:
    (found,) = kind(**{**TINY, "steps": 3}).fit(normal).detect(new)
    assert found.map.shape == shape and np.isfinite(found.map).all() and np.isfinite(found.score)


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_of_a_single_patch(kind: Any) -> None:
    (found,) = kind(**{**TINY, "size": 16, "steps": 2}).fit(pictures(1)).maps(pictures(1, seed=3))
    assert np.isfinite(found).all()


@pytest.mark.parametrize("kind", KINDS)
def test_large_images_are_learned_from_in_tiles(kind: Any) -> None:
    large = pictures(1, shape=(128, 200))
    detector = kind(**{**TINY, "tile": 64, "steps": 3})
    assert {unit.shape for unit in detector._draw(large)[0]} == {(64, 64, 3)}
    (found,) = detector.fit(large).maps(large)
    assert found.shape == (128, 200) and np.isfinite(found).all()


def test_at_most_so_many_are_learned_from_and_each_may_be_one_of_them() -> None:
    images = [np.full((16, 16, 3), value, np.uint8) for value in range(12)]
    seen: set[int] = set()
    for seed in range(20):
        units, places = RDPlusPlus(**TINY, max_images=4, seed=seed)._draw(images)
        assert [int(unit.mean()) for unit in units] == places and len(set(places)) == 4
        seen |= set(places)
    assert seen == set(range(12))


def test_some_are_kept_back_and_seen_as_new_ones() -> None:
    normal = pictures(24)
    detector = RDPlusPlus(**{**TINY, "steps": 2, "max_images": 22}).fit(normal)
    found = detector.held_out(iter(normal), range(24))
    assert found is not None
    known = list(found)
    told = [place for place, one in enumerate(known) if one is not None]
    assert len(told) == 5 + 2  # a fifth of 22 and those that were not drawn
    for place in told:
        np.testing.assert_array_equal(known[place].map, maps(detector, [normal[place]])[0])  # type: ignore[union-attr]
    assert RDPlusPlus(**{**TINY, "steps": 2}).fit(normal[:19]).held_out(normal[:19], range(19)) is None


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be(kind: Any) -> None:
    for name in ("steps", "max_images"):
        with pytest.raises(SettingsError, match=f"{name} must be at least 1, but got 0"):
            kind(**{**TINY, name: 0})
        with pytest.raises(SettingsError, match=f"{name} must be a whole number, but got 2.5"):
            kind(**{**TINY, name: 2.5})
    with pytest.raises(DataError, match="needs normal images to learn from"):
        kind(**TINY).fit([])
    with pytest.raises(DataError, match="was not fitted"):
        next(kind(**TINY).maps(pictures(1)))


def test_batches_are_of_one_shape() -> None:
    shapes = [(1, 2), (2, 1), (1, 2), (1, 2), (2, 1)]
    firsts = set()
    for seed in range(20):
        with seeded(seed):
            drawn = draw_alike(shapes, 3)
        assert len(drawn) == 3 and len({shapes[place] for place in drawn}) == 1
        assert shapes[drawn[0]] == (2, 1) or sorted(drawn) == [0, 2, 3]
        firsts.add(shapes[drawn[0]])
    assert len(firsts) == 2


class Recording(LearnedDetector):
    """Learns nothing, and notes which pictures, known by their grey, it was to learn from."""

    name = "recording"

    def remember(self, tensors: dict[str, torch.Tensor]) -> nn.Module:
        raise AssertionError

    def trained(self, pictures: Any, unseen: Any) -> nn.Module:
        self.learned, self.unseen = ([int(picture.mean()) for picture in some] for some in (pictures, unseen))

        class Brightness(nn.Module):
            def forward(self, tokens: torch.Tensor) -> torch.Tensor:
                return tokens[0].mean(dim=-1)

        return Brightness()


def plain(count: int) -> list[Picture]:
    return [np.full((16, 16, 3), value, np.uint8) for value in range(count)]


@pytest.mark.parametrize(("count", "kept_back"), [(1, 0), (19, 0), (20, 5), (50, 5), (59, 5), (60, 6), (75, 7)])
def test_one_of_ten_images_is_kept_back_but_five_of_twenty(count: int, kept_back: int) -> None:
    detector = Recording(backbone="tiny", size=16, map_size=16, steps=1, device="cpu").fit(plain(count))
    assert isinstance(detector, Recording) and detector.is_ready and not detector.memory.training
    assert len(detector.learned) == count - kept_back
    if kept_back:
        assert sorted(detector.learned + detector.unseen) == list(range(count))
        found = list(detector.held_out(plain(count), range(count)) or [])
        assert [place for place, one in enumerate(found) if one is not None] == sorted(detector.unseen)
        assert detector.held_out(plain(1), detector.learned[:1]) is None
        told = list(detector.held_out(plain(2), [detector.learned[0], detector.unseen[0]]) or [])
        assert told[0] is None and told[1] is not None
    else:
        assert detector.unseen == detector.learned and detector.held_out(plain(count), range(count)) is None


def test_the_score_is_the_mean_of_the_highest_hundredth() -> None:
    detector = Recording(backbone="tiny", size=32, map_size=40, steps=1, device="cpu", sigma=0).fit(plain(1))
    (found,) = detector.detect(pictures(1, shape=(32, 32)))
    assert found.score == pytest.approx(np.sort(found.map.ravel())[-16:].mean(), rel=1e-5)


def test_tokens_are_read_in_order_and_in_batches_of_one_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    detector = Recording(backbone="tiny", size=32, steps=1, batch_size=2, device="cpu")
    images = [*pictures(3, shape=(32, 32)), *pictures(2, shape=(16, 32))]
    sizes: list[int] = []
    original = detector._tokens
    monkeypatch.setattr(detector, "_tokens", lambda batch: (sizes.append(len(batch)), original(batch))[1])
    told: list[Any] = []

    class Shown(Silent):
        @contextmanager
        def task(self, name: str, total: int) -> Iterator[Advance]:
            told.append((name, total))
            yield lambda steps=1, note="": told.append(steps)

    detector.progress = Shown()
    found = detector.read(images, "Looking")
    assert sizes == [2, 1, 2] and told == [("Looking", 5), 2, 1, 2]
    assert [tuple(tokens.shape[1:3]) for tokens in found] == [(2, 2)] * 3 + [(1, 2)] * 2
    for image, tokens in zip(images, found, strict=True):
        assert tokens.dtype == torch.float16
        torch.testing.assert_close(tokens.float(), original(image[None])[0][0], atol=1e-2, rtol=1e-2)
    stacked = detector.stacked(found, [2, 0])
    assert stacked.dtype == torch.float32 and stacked[0].equal(found[2].float()) and stacked[1].equal(found[0].float())


@pytest.mark.parametrize(("steps", "rounds"), [(1, [0.0]), (10, [0.0]), (25, [0.0, 1 / 3, 2 / 3])])
def test_learning_takes_its_steps_in_rounds_of_ten(steps: int, rounds: list[float]) -> None:
    detector = Recording(backbone="tiny", size=16, steps=steps, device="cpu")
    net, batches, shares = nn.Linear(1, 1), [], []

    def loss(places: list[int]) -> torch.Tensor:
        batches.append(places)
        return net(torch.ones(1, 1)).sum()

    grids = [torch.zeros(1, 2, 3, 4)] * 3
    detector.learn(
        net, torch.optim.SGD(net.parameters()), grids, loss, batch=2, rate=lambda done: shares.append(done) or 0.1
    )
    assert len(batches) == steps and all(len(places) == 2 for places in batches)
    assert shares == pytest.approx(rounds)


@pytest.mark.parametrize(
    ("shape", "corners"),
    [
        ((32, 32), [(0, 0)]),
        ((32, 40), [(0, 0), (0, 8)]),
        ((48, 32), [(0, 0), (16, 0)]),
        ((64, 80), [(0, 0), (0, 24), (0, 48), (16, 0), (16, 24), (16, 48), (32, 0), (32, 24), (32, 48)]),
        ((16, 64), [(0, 0), (0, 16), (0, 32)]),
    ],
)
def test_tiles_cover_a_picture_and_overlap(shape: tuple[int, int], corners: list[tuple[int, int]]) -> None:
    detector = Recording(backbone="tiny", size=32, tile=32, steps=1, device="cpu")
    detector._vit = type("Trunk", (), {"patch_size": (8, 8)})()  # type: ignore[assignment]
    picture = np.arange(shape[0] * shape[1]).reshape(*shape, 1)
    expected = [picture[top : top + 32, left : left + 32] for top, left in corners]
    found = list(detector._tiles(picture))
    assert [tile.tolist() for tile in found] == [tile.tolist() for tile in expected]
    detector.tile = None
    (whole,) = detector._tiles(picture)
    np.testing.assert_array_equal(whole, picture)


def test_each_image_is_drawn_alike_often() -> None:
    images, count = plain(6), np.zeros(6)
    for seed in range(300):
        detector = Recording(backbone="tiny", size=16, steps=1, max_images=2, seed=seed, device="cpu")
        detector._vit = type("Trunk", (), {"patch_size": (16, 16)})()  # type: ignore[assignment]
        units, places = detector._draw(images)
        assert [int(unit.mean()) for unit in units] == places and len(set(places)) == 2
        count[places] += 1
    assert (np.abs(count / 300 - 1 / 3) < 0.1).all()
