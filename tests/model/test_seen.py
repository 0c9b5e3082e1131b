"""What a network saw once is found again, by pixels, shape and block, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anomalyncd.model.seen import MOST, Seen, tokens_of
from anomalyncd.run.folder import RunFolder

SHAPE = (6, 4)  # patches and numbers of each


def picture(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (4, 6, 3), dtype=np.uint8)


def tokens(seed: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, *SHAPE)).astype(np.float32)


@pytest.fixture(params=["memory", "folder"])
def seen(request: pytest.FixtureRequest, tmp_path: Path) -> Seen:
    return Seen(RunFolder(tmp_path), "seen") if request.param == "folder" else Seen()


def test_tokens_are_found_by_what_the_picture_shows(seen: Seen) -> None:
    for seed in range(3):
        seen.add(picture(seed), (2, 5, 7), tokens(seed))
    found = seen.tokens(picture(1).copy(), (7, 2), SHAPE)
    assert found is not None and found.dtype == np.float16
    np.testing.assert_array_equal(found, tokens(1)[[2, 0]].astype(np.float16))
    assert seen.tokens(picture(9), (2,), SHAPE) is None, "never seen"
    assert seen.tokens(picture(2), (2, 3), SHAPE) is None, "a block of which nothing is known"
    assert seen.tokens(picture(0).reshape(6, 4, 3), (2,), SHAPE) is None, "the same bytes in another shape"


def test_only_what_is_wanted_is_kept(seen: Seen) -> None:
    seen.keep((5,), places={0, 2})
    for seed in range(3):
        seen.add(picture(seed), (2, 5), tokens(seed, 2))
    assert seen.tokens(picture(1), (5,), SHAPE) is None, "not at one of the places"
    assert seen.tokens(picture(0), (2,), SHAPE) is None, "not one of the blocks"
    assert seen.tokens(picture(2), (5,), SHAPE) is not None
    seen.keep((5, 6))
    seen.add(picture(7), (2, 5), tokens(7, 2))
    assert seen.tokens(picture(7), (5,), SHAPE) is None, "one of the blocks that are needed together is missing"


def test_in_memory_each_is_handed_out_once_and_the_oldest_go() -> None:
    seen = Seen()
    for seed in range(MOST + 1):
        seen.add(picture(seed), (0,), tokens(seed, 1))
    assert seen.tokens(picture(0), (0,), SHAPE) is None and seen.tokens(picture(1), (0,), SHAPE) is not None
    assert seen.tokens(picture(1), (0,), SHAPE) is None


def test_a_file_that_was_cut_off_is_none(tmp_path: Path) -> None:
    seen = Seen(RunFolder(tmp_path), "seen")
    seen.add(picture(0), (1,), tokens(0, 1))
    (file,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert seen.tokens(picture(0), (1,), (3, 8)) is not None and seen.tokens(picture(0), (1,), (5, 5)) is None
    file.write_bytes(file.read_bytes()[:-2])
    assert seen.tokens(picture(0), (1,), SHAPE) is None


def test_a_network_is_asked_only_for_what_it_has_not_seen(seen: Seen) -> None:
    asked: list[int] = []

    def look(pictures: np.ndarray, blocks: tuple[int, ...]) -> np.ndarray:
        asked.append(len(pictures))
        return np.stack([tokens(100, len(blocks)) for _ in pictures])

    seen.add(picture(1), (2, 5), tokens(1, 2))
    batch = np.stack([picture(0), picture(1), picture(2)])
    found = tokens_of(batch, (2, 5), SHAPE, look, seen)  # type: ignore[arg-type]
    assert asked == [2] and found.shape == (3, 2, *SHAPE) and found.dtype == np.float32
    np.testing.assert_array_equal(found[1], tokens(1, 2).astype(np.float16))
    np.testing.assert_array_equal(found[0], tokens(100, 2).astype(np.float16))
    assert tokens_of(batch, (2, 5), SHAPE, look, None).shape == found.shape and asked == [2, 3]  # type: ignore[arg-type]
