"""Detectors that train a network: from images to maps, stored, killed, with few, grey and large images."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

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
