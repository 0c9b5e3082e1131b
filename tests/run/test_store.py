"""The regions of a run, before and after there are any."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from anomalyncd.blocks.shards import extract, file_stem, pack_shard
from anomalyncd.data.dataset import Sample
from anomalyncd.errors import RunError
from anomalyncd.learn.features import CropBatch
from anomalyncd.regions.crops import read_crop
from anomalyncd.regions.extract import Extracted
from anomalyncd.regions.find import Region
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.store import RegionStore, map_names, numbered_maps


def test_a_new_store_is_empty_and_grows(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run").writing() as folder:
        store = RegionStore(folder)
        assert (store.images, store.regions, store.parts, store.scenes, store.n_shards) == ([], [], {}, None, 0)
        for count in (1, 20):
            store.append(items(count), lambda: Made(), lambda _: None)  # type: ignore[arg-type, return-value]
        assert [image.id for image in store.images] == [f"{k}.png" for k in range(21)] and store.n_shards == 3
        again = RegionStore(folder).read(17)
        assert [image.id for image in again.images] == [f"{k}.png" for k in range(17)] and len(again.regions) == 17


def shard(first: int, count: int, *, scenes: bool = True, error: int | None = None) -> Extracted:
    """Images with a region each, pictures and masks; all but one can be read."""
    records = [ImageRecord(first + k, f"{first + k}.png", 8, 8, 1, 0.5, 0.25) for k in range(count)]
    if error is not None:
        records[error].error = "damaged"
    own = [record for record in records if not record.error]
    rng = np.random.default_rng(first)
    pictures = rng.integers(0, 256, (len(own), 6, 6, 3), dtype=np.uint8)
    masks = rng.random((len(own), 6, 6)) > 0.5
    batch = CropBatch(pictures, masks, pictures, masks.astype(np.float32), np.arange(len(own)))
    regions = [
        Region(
            index=record.index, image=record.id, box=(1, 2, 3, 4), square=(0, 1, 6), area=2.5, score=0.75, digest="ab",
            labels=(1,),
        )
        for record in own
    ]  # fmt: skip
    return Extracted(
        records, regions, batch, {"patches": rng.random((len(own), 1, 2, 3)).astype(np.float16)},
        {record.index: mask for record, mask in zip(own, masks, strict=True)},
        rng.random((count, 5)).astype(np.float16) if scenes else None,
    )  # fmt: skip


class Made:
    """An extractor that gives shards like these, and notes what it was asked for."""

    def __init__(self, *, scenes: bool = True) -> None:
        self.asked: list[tuple[int, int]] = []
        self.scenes = scenes

    def __call__(self, items: list[Sample], first_index: int) -> Extracted:
        self.asked.append((first_index, len(items)))
        return shard(first_index, len(items), scenes=self.scenes)


def items(count: int) -> list[Sample]:
    return [Sample(f"{k}.png", np.zeros((8, 8, 3), np.uint8)) for k in range(count)]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[RunFolder]:
    with RunFolder(tmp_path / "run").writing() as opened:
        yield opened


def filled(folder: RunFolder, count: int, made: Made, key: str = "k", *, scenes: bool = True) -> RegionStore:
    seen: list[int] = []
    store = RegionStore(folder).fill(items(count), lambda: made, key, seen.append, scenes=scenes)  # type: ignore[arg-type, return-value]
    assert sum(seen) == count
    return store


def test_shards_of_sixteen_images_are_kept_and_read_again(folder: RunFolder) -> None:
    made = Made()
    store = filled(folder, 20, made)
    assert made.asked == [(0, 16), (16, 4)] and len(store.images) == len(store.regions) == 20
    assert store.parts["patches"].shape == (20, 1, 2, 3) and store.scenes is not None and store.scenes.shape == (20, 5)
    again, silent = RegionStore(folder).read(), Made()
    assert filled(folder, 20, silent).images == store.images and not silent.asked
    assert again.n_shards == 2 and again.images == store.images
    assert [replace(region, labels=()) for region in store.regions] == again.regions
    np.testing.assert_array_equal(again.parts["patches"], store.parts["patches"])
    np.testing.assert_array_equal(again.scenes, store.scenes)
    assert len(RegionStore(folder).read(16).images) == 16 and RegionStore(folder).read(0).images == []
    crop, mask = again.crop(17)
    expected = shard(16, 4)
    np.testing.assert_array_equal(crop, expected.batch.crops[1])  # type: ignore[union-attr]
    np.testing.assert_array_equal(mask, expected.batch.masks[1])  # type: ignore[union-attr]


def test_features_are_not_there_twice_when_shards_are_joined(folder: RunFolder, monkeypatch: Any) -> None:
    names, size = [f"part {k}" for k in range(8)], 1 << 20

    def read(self: RegionStore, number: int) -> Extracted | None:
        found = shard(number, 1)
        found.parts = {name: np.full((1, 1, 1, size), number, np.uint8) for name in names}
        return found if number < 4 else None

    monkeypatch.setattr(RegionStore, "_read", read)
    tracemalloc.start()
    store = RegionStore(folder).read()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all(store.parts[name][:, 0, 0, 0].tolist() == [0, 1, 2, 3] for name in names)
    assert peak < 1.4 * len(names) * 4 * size


def test_names_of_pictures(folder: RunFolder) -> None:
    store = filled(folder, 1, Made())
    assert sorted(folder.files())[1:] == [
        "crops/000/000000_0_0.png", "crops/000/000000_0_0_mask.png", "masks/000/000000_0.png", "stages.json",
        "tokens/00000.safetensors",
    ]  # fmt: skip
    based = RegionStore(folder, "base")
    assert (based.tokens, based.crops, based.masks) == ("base/tokens", "base/crops", "base/masks")
    assert based.stage == "base: regions" and store.stage == "images: regions"
    assert file_stem(12_345, "a b/ü_c.tar.png") == "012/012345_a_b_ü_c.tar" and file_stem(7, "__/..") == "000/000007_"
    assert file_stem(1, "x" * 60 + ".png") == "000/000001_" + "x" * 40


@pytest.mark.parametrize(
    "lost", ["crops/000/000003_3_0.png", "crops/000/000003_3_0_mask.png", "masks/000/000003_3.png"]
)
def test_a_shard_whose_pictures_are_gone_is_made_again(lost: str, folder: RunFolder) -> None:
    filled(folder, 20, Made())
    folder.remove(lost)
    made = Made()
    assert len(filled(folder, 20, made).regions) == 20 and made.asked == [(0, 16)]
    assert folder.place(lost).is_file()


def test_other_inputs_or_scenes_make_all_of_it_anew(folder: RunFolder) -> None:
    filled(folder, 3, Made(scenes=False), scenes=False)
    made = Made()
    assert filled(folder, 3, made).scenes is not None and made.asked == [(0, 3)]
    made = Made()
    filled(folder, 3, made, "other")
    assert made.asked == [(0, 3)]
    made = Made()
    assert filled(folder, 3, made, "other", scenes=False).scenes is not None and not made.asked


def test_a_file_that_can_be_read_by_now_is_read(folder: RunFolder, tmp_path: Path) -> None:
    def broken(some: list[Sample], first_index: int) -> Extracted:
        return shard(first_index, len(some), error=1)

    store = RegionStore(folder).fill(items(3), lambda: broken, "k", lambda _: None)  # type: ignore[arg-type, return-value]
    assert len(store.regions) == 2 and store.images[1].error
    folder.write_text("images.csv", "a result")
    made = Made()
    assert len(filled(folder, 3, made).regions) == 3 and made.asked == [(0, 3)]
    assert not folder.place("images.csv").exists(), "what the run ended with is of another file"


def test_files_are_known_again_by_size_time_and_content(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"one")
    samples = [Sample("a.png", file), Sample("b.png", np.zeros((2, 2, 3), np.uint8))]
    found = extract(Made(), samples, 5)  # type: ignore[arg-type]
    first, second = found.images
    assert (first.n_bytes, first.modified) == ("3", str(file.stat().st_mtime_ns)) and first.sha256.startswith(
        "7692c3ad"
    )
    assert (second.n_bytes, second.modified, second.sha256) == ("", "", "") and first.index == 5


def packed(folder: RunFolder, change: Any) -> RegionStore:
    """A store whose only shard was changed before it was written."""
    found = shard(0, 3)
    change(found)
    folder.write("tokens/00000.safetensors", pack_shard(found))
    return RegionStore(folder).read()


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.parts.update(patches=np.zeros((3, 2, 3), np.float16)),
        lambda found: found.parts.update(patches=np.zeros((2, 1, 2, 3), np.float16)),
        lambda found: setattr(found, "scenes", np.zeros((2, 5), np.float16)),
        lambda found: setattr(found, "scenes", np.zeros((3, 5, 1), np.float16)),
        lambda found: setattr(found.images[1], "error", "damaged"),
        lambda found: setattr(found.images[1], "height", "8"),
        lambda found: setattr(found.images[1], "id", 8),
        lambda found: found.regions.__setitem__(0, replace(found.regions[0], box=(1, 2, 3))),
        lambda found: found.regions.__setitem__(0, replace(found.regions[0], square=(1, 2, 3, 4))),
        lambda found: found.regions.__setitem__(0, replace(found.regions[0], score="high")),
        lambda found: found.regions.__setitem__(0, replace(found.regions[0], index=9)),
    ],
)
def test_a_shard_that_cannot_be_is_none(change: Any, folder: RunFolder) -> None:
    assert len(packed(folder, lambda found: None).regions) == 3
    assert packed(folder, change).images == []


def test_arrays_of_several_networks_are_said(folder: RunFolder) -> None:
    store = RegionStore(folder)
    other = shard(3, 2)
    other.parts = {"patches": np.zeros((2, 1, 2, 7), np.float16)}
    for number, found in enumerate((shard(0, 3), other)):
        folder.write(store.shard_name(number), pack_shard(found))
    with pytest.raises(RunError, match="arrays of several networks"):
        store.read()
    some = RegionStore(folder)._join([shard(0, 3), shard(3, 2, scenes=False)])
    assert some.scenes is None, "not of all images"
    none = Extracted([])
    assert RegionStore(folder)._join([none, shard(0, 3)]).scenes is not None


def test_features_after_training(folder: RunFolder) -> None:
    store = filled(folder, 2, Made())
    assert store.features(retrained=False) is store.parts
    with pytest.raises(RunError, match="missing or damaged"):
        store.features(retrained=True)
    store.keep_features({"patches": np.ones((2, 1, 2, 3), np.float16)})
    assert (store.features(retrained=True)["patches"] == 1).all()


def test_a_crop_that_is_damaged_is_said(folder: RunFolder) -> None:
    store = filled(folder, 2, Made())
    for name in ("crops/000/000001_1_0.png", "crops/000/000001_1_0_mask.png"):
        before = folder.place(name).read_bytes()
        folder.place(name).write_bytes(b"")
        with pytest.raises(RunError, match="a crop of this run is missing or damaged"):
            store.crop(1)
        folder.place(name).write_bytes(before)
    assert read_crop(folder.place("crops/none.png")) == (None, None)
    picture = folder.place("crops/000/000001_1_0.png")
    assert read_crop(picture)[0] is not None
    picture.rename(picture.with_name("real.png"))
    picture.symlink_to("real.png")
    assert read_crop(picture)[0] is None, "a link is no picture of a run"


@pytest.mark.parametrize("more", [0, 1])
def test_a_picture_may_be_so_large(more: int, folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(folder, 1, Made())
    picture = folder.place("crops/000/000000_0_0.png")
    monkeypatch.setattr("anomalyncd.regions.crops.LARGEST_PICTURE", picture.stat().st_size - more)
    assert (read_crop(picture)[0] is None) == bool(more)


def test_maps_are_called_as_their_images_where_names_allow_it() -> None:
    def names(*ids: str) -> list[str]:
        return map_names([Sample(name, Path(name)) for name in ids])

    assert names("a/1.png", "b/1.png") == ["maps/a/1.npy", "maps/b/1.npy"]
    for odd in (
        ("a.png", "a.jpg"),
        ("../a.png", "b.png"),
        ("/a.png", "b.png"),
        ("c:/a.png", "b.png"),
        ("a.partial/b.png",),
    ):
        assert all(name.startswith("maps/000/00000") for name in names(*odd)), odd
    assert names("x" * 200 + ".png") == [f"maps/{'x' * 200}.npy"] and names("x" * 201 + ".png")[0].startswith(
        "maps/000/"
    )
    assert numbered_maps([Sample("a.png", Path("a.png"))], 7) == ["maps/000/000007_a.npy"]


def test_regions_are_put_behind_those_of_their_images(folder: RunFolder) -> None:
    """Two shards; a person draws on images 2, 2 and 17."""
    store = filled(folder, 20, Made())
    before = {k: store.parts["patches"][k] for k in range(20)}
    more = [
        Region(index=index, image=f"{index}.png", region=number, box=(0, 0, 1, 1), square=(0, 0, 6), area=1, score=1)
        for index, number in ((2, 1), (2, 2), (17, 1))
    ]  # fmt: skip
    parts = {"patches": np.arange(18, dtype=np.float16).reshape(3, 1, 2, 3)}
    pictures, masks = np.full((3, 6, 6, 3), 9, np.uint8), np.ones((3, 6, 6), bool)
    batch = CropBatch(pictures, masks, pictures, masks.astype(np.float32), np.arange(3))
    drawn = [np.eye(8, dtype=bool), np.zeros((8, 8), bool), np.ones((8, 8), bool)]
    files = store.insert(Extracted([], more, batch, parts, {0: np.ones((2, 2), bool)}), drawn)
    assert sorted(files) == ["tokens/00000.safetensors", "tokens/00001.safetensors"]
    folder.commit(files)
    for found in (store, RegionStore(folder).read()):
        keys = [(region.index, region.region) for region in found.regions]
        assert keys == sorted([*((k, 0) for k in range(20)), (2, 1), (2, 2), (17, 1)])
        assert [found.images[k].n_regions for k in (1, 2, 17)] == [1, 3, 2]
        for place, key in enumerate(keys):
            own = before[key[0]] if key[1] == 0 else parts["patches"][[(2, 1), (2, 2), (17, 1)].index(key)]
            np.testing.assert_array_equal(found.parts["patches"][place], own)
    written = cv2.imread(str(folder.place("masks/000/000002_2_1.png")), cv2.IMREAD_GRAYSCALE)
    np.testing.assert_array_equal(written, np.eye(8) * 255)
    assert folder.place("masks/000/000017_17_1.png").is_file() and folder.place("crops/000/000002_2_2.png").is_file()
    assert store.crop([(r.index, r.region) for r in store.regions].index((17, 1)))[0].max() == 9
    assert not Made().asked and len(filled(folder, 20, Made()).regions) == 23, "whole, with all their pictures"
    folder.remove("tokens/00001.safetensors")
    with pytest.raises(RunError, match=r"00001\.safetensors: missing or damaged"):
        store.insert(Extracted([], more, batch, parts), drawn)
