"""What the network is shown of an image: crops, the whole image, and the maps and masks in their frames.

Covers prefetch, records.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd.assign.false_alarms import NormalScores
from anomalyncd.binarize.prepare import binarizer_for
from anomalyncd.config import make_config
from anomalyncd.data.dataset import Sample
from anomalyncd.errors import DataError
from anomalyncd.learn.features import CropBatch
from anomalyncd.progress import Silent
from anomalyncd.regions.extract import Extracted, Extractor, is_readable, shrink, shrink_map, solid
from anomalyncd.regions.find import Region, by_content, first_regions, strengths
from anomalyncd.regions.records import ImageRecord, report_files

SETTINGS: dict[str, Any] = {"model": {"input_size": 32, "image_size": 48}, "crop": {"size": 32}}


def scene() -> tuple[np.ndarray, np.ndarray]:
    """An image (96, 144, 3) with a large and a small defect, and their mask."""
    image = np.random.default_rng(0).integers(90, 110, (96, 144, 3), dtype=np.uint8)
    mask = np.zeros((96, 144), bool)
    mask[12:48, 12:48] = mask[72:84, 108:114] = True
    image[mask] = 250
    return image, mask


def prepared(
    given: dict[str, Any],
    normal: NormalScores | None = None,
    *,
    whole: bool = False,
    scenes: bool = False,
    **settings: Any,
) -> Extracted:
    config = make_config(SETTINGS, {"n_classes": 3, **settings})
    binarizer = None
    if "map" in given:
        binarizer = binarizer_for(config.binarize, has_normal=True).set_state({"low": 0.0, "high": 2.0})
    encoder: Any = SimpleNamespace(scenes=scenes)
    extractor = Extractor(config, binarizer, encoder, normal, whole=whole)
    return extractor.prepare((0, Sample("a", scene()[0], **given)))


def test_with_a_mask_the_whole_image_comes_with_all_its_regions_and_no_map() -> None:
    image, mask = scene()
    batch = prepared({"mask": mask}).batch
    assert batch is not None and len(batch) == 2 and batch.image_of.tolist() == [0, 0]
    assert batch.crops.shape == (2, 32, 32, 3) and batch.crop_maps is None and batch.context_maps is None
    assert np.array_equal(batch.contexts, shrink(image, 48)[None])
    share = mask.reshape(48, 2, 48, 3).mean(axis=(1, 3))
    assert batch.context_masks.shape == (2, 48, 48)  # each region in its image
    np.testing.assert_allclose(batch.context_masks.sum(axis=0), share, atol=1e-6)


def test_with_the_papers_rule_the_mask_of_a_crop_is_all_that_lies_in_its_square() -> None:
    # Squares of 28 pixels. Those of the first three spots overlap in a chain and grow to 82, the fourth is in there too.
    mask = np.zeros((96, 144), bool)
    for x, y in ((20, 40), (47, 40), (74, 40), (47, 69)):
        mask[y : y + 4, x : x + 4] = True
    for merge, squares, areas in (
        ("squares", [(8, 1, 82), (35, 57, 28)], [64, 16]),
        ("boxes", [(7, 27, 29), (34, 27, 29), (61, 27, 29), (34, 56, 29)], [16] * 4),
    ):
        found = prepared({"mask": mask}, crop={"size": 82, "merge": merge})
        assert found.batch is not None and [region.square for region in found.regions] == squares
        assert [region.area for region in found.regions] == areas
        pixels = found.batch.masks.sum(axis=(1, 2)) * (np.array(squares)[:, 2] / 82) ** 2
        np.testing.assert_allclose(pixels, areas, rtol=0.15)


@pytest.mark.parametrize("focus", [0.0, 0.5])
def test_with_a_map_the_whole_image_comes_with_it_and_crops_only_where_they_need_it(focus: float) -> None:
    scores = scene()[1].astype(np.float32) * 2
    found = prepared({"map": scores}, features={"focus": focus}, binarize={"min_map_size": 0, "erosion": 0})
    batch = found.batch
    assert batch is not None and batch.context_maps is not None and batch.context_maps.shape == (1, 48, 48)
    np.testing.assert_allclose(batch.context_maps[0], scores.reshape(48, 2, 48, 3).mean(axis=(1, 3)), atol=1e-5)
    assert (batch.crop_maps is not None) == (focus > 0)


def test_an_image_that_is_learned_without_a_region_keeps_its_map() -> None:
    scores = np.linspace(0, 0.4, 96 * 144, dtype=np.float32).reshape(96, 144)
    given = {"crop": {"size": 32, "no_region": "learned"}, "binarize": {"method": "fixed", "fixed_threshold": 0.9}}
    batch = prepared({"map": scores}, **given).batch
    assert batch is not None and not batch.masks.any() and not batch.context_masks.any()
    assert batch.context_maps is not None and np.ptp(batch.context_maps) > 0.1
    found = prepared({}, **given)  # as in a run on masks: there is no map to follow
    assert isinstance(found.batch, CropBatch) and found.batch.context_maps is None
    assert found.images[0].score == found.regions[0].score == 0


HIGH_THRESHOLD: dict[str, Any] = {"binarize": {"method": "fixed", "fixed_threshold": 0.9, "min_map_size": 0}}
USUAL = NormalScores(0.1, 0.02, 50)


def faint(level: float) -> np.ndarray:
    """A map (96, 144) in which a rectangle stands out, though below the binariser's threshold."""
    scores = np.full((96, 144), 0.05, np.float32)
    scores[20:50, 30:80] = level
    return scores


def test_where_no_region_is_stable_the_highest_part_of_an_odd_map_is_cut_out() -> None:
    found = prepared({"map": faint(0.5)}, USUAL, **HIGH_THRESHOLD)
    assert [region.box for region in found.regions] == [(30, 20, 50, 30)]
    assert found.images[0].threshold == pytest.approx(USUAL.level(0.05)) and found.images[0].score == 0.5
    assert np.array_equal(found.masks[0], faint(0.5) > 0.1)
    assert not prepared({"map": faint(0.5)}, None, **HIGH_THRESHOLD).regions, "nothing says what is odd"
    assert not prepared({"map": faint(0.1)}, USUAL, **HIGH_THRESHOLD).regions, "it scores as normal images do"
    assert not prepared({"map": faint(0.5)}, USUAL, crop={"no_region": "normal"}, **HIGH_THRESHOLD).regions


def test_regions_do_not_depend_on_the_wanted_rate_of_false_alarms() -> None:
    for level in (0.11, 0.13, 0.15, 0.5):
        found = [
            prepared({"map": faint(level)}, USUAL, detect={"false_alarms": rate}, **HIGH_THRESHOLD)
            for rate in (0.001, 0.3)
        ]
        assert found[0].regions == found[1].regions


def test_an_odd_image_has_a_region_even_of_hot_pixels() -> None:
    scores = np.full((96, 144), 0.05, np.float32)
    scores[::5, ::5] = 0.9  # none of them outlives the erosion
    found = prepared({"map": scores}, USUAL, **HIGH_THRESHOLD)
    assert found.regions and found.masks[0].sum() == (scores > 0.5).sum()


def test_the_whole_image_where_only_its_looks_matter() -> None:
    for level in (0.05, 1.9):
        found = prepared({"map": faint(level)}, whole=True, crop={"size": 32, "no_region": "learned"})
        assert [region.box for region in found.regions] == [(0, 0, 144, 96)]
        assert found.images[0].score == pytest.approx(level)
        assert found.regions[0].score == pytest.approx(level / 2), "on the range of 0 to 2"


def test_a_hair_does_not_vanish_when_it_is_shrunk() -> None:
    mask = np.zeros((1000, 800), bool)
    mask[:, 401] = True
    small = shrink_map(mask, 100)
    assert small.dtype == np.float32 and small.shape == (100, 100)
    np.testing.assert_allclose(small.sum(axis=1), 1 / 8, rtol=1e-4)


def test_infinite_values_of_a_map_are_as_high_as_it_gets() -> None:
    scores = np.zeros((96, 144), np.float32)
    scores[20:60, 30:90] = np.inf
    scores[0] = -np.inf
    scores[1] = np.nan
    found = prepared({"map": scores}, binarize={"min_map_size": 0, "erosion": 0})
    assert [region.box for region in found.regions] == [(30, 20, 60, 40)] and found.regions[0].score == 1
    assert found.images[0].score == np.inf and "infinite" in found.images[0].note and "NaN" in found.images[0].note
    batch = found.batch
    assert batch is not None and batch.context_maps is not None
    assert np.isfinite(batch.context_maps).all() and batch.context_maps.max() == 2, "the end of the range"


def test_an_image_without_a_region_is_shown_to_the_network_where_scenes_are_wanted() -> None:
    image, _ = scene()
    nothing = {"binarize": {"method": "fixed", "fixed_threshold": 0.9, "min_map_size": 0}}
    for given, has_map in (({}, False), ({"map": faint(0.1)}, True)):
        assert prepared(given, **nothing).batch is None
        batch = prepared(given, scenes=True, **nothing).batch
        assert batch is not None and len(batch) == 0
        assert np.array_equal(batch.contexts, shrink(image, 48)[None])
        assert (batch.context_maps is not None) == (batch.crop_maps is not None) == has_map


@pytest.mark.parametrize(("n_skipped", "last"), [(19, "skipped 18"), (20, "skipped 19"), (22, "skipped 2 more files")])
def test_at_most_twenty_skipped_files_are_named(n_skipped: int, last: str) -> None:
    class Told(Silent):
        def warn(self, message: str) -> None:
            words.append(message)

    words: list[str] = []
    records = [ImageRecord(0, "fine"), *(ImageRecord(n + 1, f"image {n}", error=str(n)) for n in range(n_skipped))]
    assert report_files(records, Told()) == {f"image {n}": str(n) for n in range(n_skipped)}
    assert words[:19] == [f"skipped {n}" for n in range(19)] and words[-1] == last and len(words) <= 21


class Encoder:
    """Describes a picture by its mean colour, and notes what it was shown."""

    scenes, network = True, SimpleNamespace(width=3)

    def __init__(self) -> None:
        self.shown: list[CropBatch] = []

    def encode(self, batch: CropBatch) -> dict[str, np.ndarray]:
        self.shown.append(batch)
        parts = {"patches": np.ones((len(batch), 1, 1, 3), np.float16)} if len(batch) else {}
        return {**parts, "scenes": batch.contexts.mean(axis=(1, 2)).astype(np.float16) / 100}


def test_scenes_stand_in_the_order_of_the_images_and_unreadable_ones_have_none(tmp_path: Path) -> None:
    image, mask = scene()
    encoder: Any = Encoder()
    extractor = Extractor(make_config(SETTINGS, {"n_classes": 3}), None, encoder)
    items = [
        Sample("normal", image), Sample("gone", tmp_path / "gone.png"), Sample("defect", image // 2, mask=mask),
        Sample("black", np.zeros_like(image)),
    ]  # fmt: skip
    found = extractor(items)
    assert len(encoder.shown) == 1 and len(encoder.shown[0].contexts) == 3, "one pass for all of them"
    assert encoder.shown[0].image_of.tolist() == [1, 1] and [region.image for region in found.regions] == ["defect"] * 2
    assert found.scenes is not None and found.scenes.shape == (4, 5) and list(found.parts) == ["patches"]
    assert np.isnan(found.scenes[1]).all() and np.isfinite(found.scenes[[0, 2, 3]]).all()
    np.testing.assert_allclose(found.scenes[0, :3], shrink(image, 48).mean(axis=(0, 1)) / 100, atol=1e-2)
    assert found.scenes[3].tolist() == [0] * 5, "no light, no contrast"
    assert found.scenes[0, 3] - found.scenes[2, 3] == pytest.approx(1, abs=0.05), "half the light is a stop"
    assert extractor([items[1]]).scenes is not None and np.isnan(extractor([items[1]]).scenes).all()  # type: ignore[arg-type]


def test_only_components_that_outlive_the_erosion_are_solid() -> None:
    mask = np.zeros((30, 30), bool)
    mask[2:8, 2:8] = mask[12:17, 12:17] = mask[20:26, 2:26] = True  # sides of 6, 5, and 6 by 24
    mask[8, 8] = True  # which touches the first at its corner
    expected = mask.copy()
    expected[12:17, 12:17] = False
    np.testing.assert_array_equal(solid(mask, 6), expected)
    np.testing.assert_array_equal(solid(mask, 5), mask)
    assert solid(mask, 0) is mask and not solid(mask, 7).any()


def test_whether_all_files_can_be_read_by_now(tmp_path: Path) -> None:
    image, mask = scene()
    array = np.zeros((4, 4), np.float32)
    for name in ("image.png", "map.npy", "mask.png"):
        (tmp_path / name).write_bytes(b"nonsense")
    assert is_readable(Sample("a", image)) and is_readable(Sample("a", image, array, mask))
    assert not is_readable(Sample("a", tmp_path / "image.png"))
    assert not is_readable(Sample("a", image, tmp_path / "map.npy"))
    assert not is_readable(Sample("a", image, None, tmp_path / "mask.png"))


@pytest.mark.parametrize("side", [47, 48, 49, 96])
def test_whole_images_are_averaged_where_they_shrink_and_interpolated_where_they_grow(side: int) -> None:
    image = np.random.default_rng(0).integers(0, 256, (20, side, 3), dtype=np.uint8)
    method = cv2.INTER_AREA if side > 48 else cv2.INTER_CUBIC
    np.testing.assert_array_equal(shrink(image, 48), cv2.resize(image, (48, 48), interpolation=method))
    values = np.random.default_rng(0).random((20, side), np.float32)
    method = cv2.INTER_AREA if side > 48 else cv2.INTER_LINEAR
    found = shrink_map(values, 48)
    np.testing.assert_array_equal(found, cv2.resize(values, (48, 48), interpolation=method))
    assert found.dtype == np.float32 and shrink_map(values > 0.5, 48).dtype == np.float32


def test_an_image_without_anything_beside_it_is_normal_and_has_no_region() -> None:
    found = prepared({})
    record = found.images[0]
    assert not found.regions and found.batch is None and not found.masks
    assert (record.height, record.width, record.n_regions, record.score) == (96, 144, 0, 0) and np.isnan(
        record.threshold
    )
    empty = prepared({"mask": np.zeros((96, 144), bool)})
    assert not empty.regions and list(empty.masks) == [0] and empty.images[0].score == 0


def test_without_normal_images_an_image_is_one_region_where_nothing_was_found() -> None:
    found = prepared({"mask": np.zeros((96, 144), bool)}, has_normal=False)
    assert [(region.box, region.score) for region in found.regions] == [((0, 0, 144, 96), 1.0)]
    assert found.images[0].score == 1 and found.batch is not None and found.batch.masks.any()
    learned = prepared({"mask": np.zeros((96, 144), bool)}, crop={"size": 32, "no_region": "learned"})
    assert len(learned.regions) == 1 and learned.batch is not None and learned.images[0].score == 0
    assert not learned.batch.masks.any() and not learned.batch.context_masks.any(), "nothing was found in it"


def test_regions_know_their_image_and_their_content() -> None:
    config = make_config(SETTINGS, {"n_classes": 3})
    image, mask = scene()
    extractor = Extractor(config, None, SimpleNamespace(scenes=False), most_regions=1)  # type: ignore[arg-type]
    found = extractor.prepare((7, Sample("a", image, mask=mask)))
    (region,) = found.regions
    assert (region.index, region.image, region.region, region.labels) == (7, "a", 0, ()) and found.images[
        0
    ].n_regions == 1
    assert found.batch is not None
    pictures = found.batch.crops[0].tobytes() + found.batch.masks[0].tobytes()
    assert region.digest == hashlib.blake2b(pictures, digest_size=16).hexdigest()
    assert list(found.masks) == [7] and region.area == 36 * 36, "the largest is kept"
    both = Extractor(config, None, SimpleNamespace(scenes=False)).prepare((7, Sample("a", image, mask=mask)))  # type: ignore[arg-type]
    assert [own.region for own in both.regions] == [0, 1] and both.images[0].n_regions == 2
    assert both.batch is not None and both.batch.image_of.tolist() == [0, 0]
    assert both.batch.context_masks.shape == (2, 48, 48) and both.batch.crops.shape == (2, 32, 32, 3)


def test_images_are_prepared_in_order_and_joined() -> None:
    image, mask = scene()
    encoder: Any = Encoder()
    encoder.scenes = False
    extractor = Extractor(make_config(SETTINGS, {"n_classes": 3}), None, encoder)
    found = extractor([Sample("a", image, mask=mask), Sample("b", image), Sample("c", image, mask=mask)], first_index=5)
    assert [record.index for record in found.images] == [5, 6, 7] and found.scenes is None
    assert [region.index for region in found.regions] == [5, 5, 7, 7] and sorted(found.masks) == [5, 7]
    assert found.batch is not None and found.batch.image_of.tolist() == [0, 0, 1, 1]
    assert found.batch.contexts.shape == (2, 48, 48, 3) and found.batch.crop_maps is None
    nothing = extractor([Sample("b", image)])
    assert nothing.batch is None and nothing.parts == {} and len(encoder.shown) == 1


def test_what_is_ignored_is_no_part_of_a_mask_or_a_map() -> None:
    left = [[[[0, 0], [0.5, 0], [0.5, 1], [0, 1]]]]
    _, mask = scene()
    found = prepared({"mask": mask}, ignore=left)
    assert [region.box for region in found.regions] == [(108, 72, 6, 12)] and not found.masks[0][:, :70].any()
    values = np.where(mask, np.float32(1.5), np.float32(0.1))
    fixed = {"binarize": {"method": "fixed", "fixed_threshold": 0.5, "min_map_size": 0}}
    assert [region.box[0] for region in prepared({"map": values}, **fixed).regions] == [12, 108]
    assert [region.box[0] for region in prepared({"map": values}, ignore=left, **fixed).regions] == [108]


@pytest.mark.parametrize(("level", "is_cut"), [(0.10, False), (0.11, False), (0.12, True), (0.2, True)])
def test_maps_from_where_normal_images_rarely_score_are_cut(level: float, is_cut: bool) -> None:
    """Less than three of ten normal images score so high: from 0.1108 on."""
    found = prepared({"map": faint(level)}, USUAL, **HIGH_THRESHOLD)
    assert bool(found.regions) is is_cut
    if is_cut:
        assert found.images[0].threshold == pytest.approx(min(USUAL.level(0.05), found.images[0].score))


def test_odd_maps_and_files_are_said_once() -> None:
    class Told(Silent):
        def warn(self, message: str) -> None:
            words.append(message)

    words: list[str] = []
    records = [ImageRecord(0, "a", note="is flat"), ImageRecord(1, "b"), ImageRecord(2, "c", note="is flat")]
    assert report_files(records, Told()) == {} and words == ["a: is flat (and so for 1 more images)"]
    assert report_files([], Told()) == {}
    with pytest.raises(DataError, match="none of the 2 images could be read, the first because: gone"):
        report_files([ImageRecord(0, "a", error="gone"), ImageRecord(1, "b", error="too")], Told())


def test_which_region_stands_for_an_image() -> None:
    def region(index: int, area: float, score: float, digest: str) -> Region:
        return Region(index=index, box=(0, 0, 1, 1), square=(0, 0, 1), area=area, score=score, digest=digest)

    some = [region(3, 16, 0.5, "b"), region(1, 4, 1.0, "c"), region(3, 1, 0.25, "a"), region(1, 9, 0.1, "d")]
    assert first_regions(some) == {3: 0, 1: 1} and list(first_regions(some)) == [3, 1]
    np.testing.assert_allclose(strengths(some), [2, 2, 0.25, 0.3])
    assert by_content(some).tolist() == [2, 0, 1, 3] and by_content([]).dtype == np.int64
