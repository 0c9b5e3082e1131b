"""Maps and tokens of blocks of images, as those of all images at once."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd.blocks.engine import Engine, blocks_of
from anomalyncd.blocks.maps import HeldOutWork, Looks, MapWork, NothingRead, Reading, TokenWork
from anomalyncd.data.dataset import Sample
from anomalyncd.detect import Detector, MuSc, PatchCore
from anomalyncd.errors import DataError

TINY: dict[str, Any] = {"backbone": "tiny", "size": 64, "map_size": 32, "batch_size": 4, "device": "cpu"}


@pytest.fixture
def samples(tmp_path: Path) -> list[Sample]:
    """Ten images, of which the fourth cannot be read."""
    rng, found = np.random.default_rng(0), []
    for number in range(10):
        picture = rng.integers(80, 100, (48, 64, 3), dtype=np.uint8)
        picture[10:20, 5 * number : 5 * number + 12] = 250
        path = tmp_path / f"{number}.png"
        cv2.imwrite(str(path), picture)
        found.append(Sample(path.name, path))
    (tmp_path / "3.png").write_bytes(b"no picture")
    return found


def images(samples: list[Sample]) -> list[np.ndarray]:
    return [cv2.imread(str(sample.image))[..., ::-1] for sample in samples if sample.id != "3.png"]


def array(content: bytes) -> np.ndarray:
    return np.load(io.BytesIO(content))


def test_maps_of_the_images_that_can_be_read_and_why_the_others_cannot(samples: list[Sample]) -> None:
    detector = PatchCore(**TINY).fit(images(samples))
    made = list(MapWork(lambda: detector)(list(enumerate(samples, start=5))))
    assert [record.index for record, _ in made] == [5, 6, 7, 9, 10, 11, 12, 13, 14, 8]
    for (record, content), expected in zip(made, detector.detect(images(samples)), strict=False):
        np.testing.assert_array_equal(array(content), expected.map)
        assert (record.score, record.height, record.width, record.error) == (expected.score, 48, 64, "")
    record, content = made[-1]
    assert "3.png" in record.error and np.isnan(record.score) and np.isnan(array(content)).all()
    left = [[[(0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)]]]
    some = next(MapWork(lambda: detector, left)([(0, samples[0])]))
    kept, hidden = array(some[1])[:, 20:], array(some[1])[:, :14]
    assert hidden.max() == hidden.min() == array(some[1]).min() and kept.max() > hidden.max()


def test_a_detector_is_not_asked_for_maps_of_nothing(samples: list[Sample]) -> None:
    unfitted = MuSc(**TINY)  # would say that it needs more images
    (made,) = MapWork(lambda: unfitted)([(3, samples[3])])
    assert made[0].index == 3 and "3.png" in made[0].error
    with pytest.raises(NothingRead):
        list(Reading([(3, samples[3])]))


class Forgetful(PatchCore):
    def detect(self, images: Iterable[np.ndarray]) -> Iterator[Any]:
        yield from list(super().detect(images))[1:]


def test_one_map_for_each_image(samples: list[Sample]) -> None:
    detector = Forgetful(**TINY).fit(images(samples))
    with pytest.raises(DataError, match="'patchcore' must give one map for each of 9 images, not 8"):
        list(MapWork(lambda: detector)(list(enumerate(samples))))


def test_what_goes_to_another_process_is_small_and_loads_the_detector_there(
    samples: list[Sample], tmp_path: Path
) -> None:
    detector = PatchCore(**TINY).fit(images(samples))
    detector.save(tmp_path / "stored")
    work = MapWork(partial(PatchCore.load, tmp_path / "stored", device="cpu"), here=detector)
    state = work.__getstate__()
    assert state["here"] is None and work.detector is detector
    there = MapWork(**state)
    expected = list(work([(0, samples[0])]))
    assert list(there([(0, samples[0])])) == expected and isinstance(there.detector, PatchCore)
    assert there.detector is there.detector is not detector


@pytest.mark.parametrize("rotations", [1, 3])
def test_a_detector_learns_the_same_from_what_others_have_read(rotations: int, samples: list[Sample]) -> None:
    own = PatchCore(**TINY, rotations=rotations)
    steps: list[int] = []
    seen = Looks(Engine(), own, list(enumerate(samples)), lambda: steps.append(1))
    own.fit_tokens(seen)
    assert [record.index for record in seen.fine] == [0, 1, 2, 4, 5, 6, 7, 8, 9] and len(steps) == 10
    assert sorted(record.index for record in seen.records) == list(range(10))
    whole = PatchCore(**TINY, rotations=rotations)
    by_batches = [image for k in (0, 4, 8) for image in images(samples[k : k + 4])]
    whole.fit(by_batches)
    assert own.tensors().keys() == whole.tensors().keys()
    for name, values in whole.tensors().items():
        np.testing.assert_allclose(own.tensors()[name], values, atol=1e-3)
    made = list(TokenWork(lambda: own)(list(enumerate(samples[:2]))))
    assert [len(grids) for _, grids in made] == [rotations] * 2
    assert all(
        isinstance(grid.blocks, np.ndarray) for _, grids in made for grid in grids
    )  # a tensor takes its batch along
    with pytest.raises(NothingRead):
        list(Looks(Engine(), own, [(3, samples[3])], lambda: None))


def test_images_are_compared_with_each_other_from_what_others_have_read(samples: list[Sample]) -> None:
    whole, own = MuSc(**TINY), MuSc(**TINY)
    assert own.compared == own.max_images
    expected = list(whole.detect(images(samples)))
    seen = Looks(Engine(), own, list(enumerate(samples)), lambda: None)
    for found, other in zip(own.detect_tokens(seen), expected, strict=True):
        np.testing.assert_allclose(found.map, other.map, atol=1e-4)
    assert own.compared == 0 and len(seen.fine) == 9


def test_held_out_maps_in_blocks_are_those_of_all_at_once(samples: list[Sample]) -> None:
    fine = [sample for sample in samples if sample.id != "3.png"]
    detector = PatchCore(**TINY).fit(images(fine))
    places = [0, 2, 4, 5, 8]
    whole = dict(HeldOutWork(lambda: detector)(blocks_of(fine, 9, places)[0]))
    assert sorted(whole) == places
    for block in blocks_of(fine, 4, places):
        assert all(whole[place] == content for place, content in HeldOutWork(lambda: detector)(block))
    alone = PatchCore(**TINY).fit(images(fine[:1]))
    assert list(HeldOutWork(lambda: alone)([(0, fine[0])])) == []  # compared with nothing


def test_how_many_images_must_come_together() -> None:
    class Own(Detector):
        name, needs_normal = "own", False

    assert PatchCore(**TINY).compared == 0 and Own.compared.fget(Own) is None  # type: ignore[attr-defined]
