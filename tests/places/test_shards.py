from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anomalyncd.data.dataset import load_dataset
from anomalyncd.data.gather import gather
from anomalyncd.data.maps import read_map
from anomalyncd.errors import DataError
from anomalyncd.places.names import place_of
from anomalyncd.places.shards import LONGEST_LABEL, belonging, read_class

from .test_tars import write_tar

SUFFIXES = {"map": {".npy", ".png"}, "mask": {".png"}}


def npy(value: float) -> bytes:
    import io

    held = io.BytesIO()
    np.save(held, np.full((4, 4), value, np.float32))
    return held.getvalue()


def test_what_lies_beside_an_image_belongs_to_it(tmp_path: Path) -> None:
    names = (
        "a.jpg",
        "a.map.npy",
        "a.mask.png",
        "a.cls",
        "b/c.png",
        "b/c.mask.png",
        "d.map.npy",
        "e.2.png",
        "e.2.map.png",
    )
    root = place_of(write_tar(tmp_path / "a.tar", **dict.fromkeys(names, b"x")), "images")
    images = [name for name in names if name.endswith(("g",))]
    found = belonging(images, root, SUFFIXES)
    assert {kind: {id_: file.inner for id_, file in some.items()} for kind, some in found.items()} == {
        "map": {"a.jpg": "a.map.npy", "e.2.png": "e.2.map.png"},
        "mask": {"a.jpg": "a.mask.png", "b/c.png": "b/c.mask.png"},
        "cls": {"a.jpg": "a.cls"},
    }


def test_shards_are_a_data_set(tmp_path: Path) -> None:
    write_tar(tmp_path / "0.tar", **{"dent/1.png": b"x", "dent/1.map.npy": npy(1), "dent/1.cls": b" scratch\n"})
    write_tar(tmp_path / "1.tar", **{"dent/2.png": b"x", "dent/2.map.npy": npy(2)})
    dataset = load_dataset(tmp_path)
    assert dataset.ids == ["dent/1.png", "dent/2.png"] and dataset.labels == ["scratch", "dent"]
    assert [float(read_map(sample.map).mean()) for sample in dataset] == [1, 2]
    assert dataset.has_maps and not dataset.has_masks
    assert gather(tmp_path, bare=True).is_bare
    assert load_dataset(tmp_path, exclude=["scratch"]).ids == ["dent/2.png"]
    assert (
        load_dataset(tmp_path / "{0..1}.tar").samples
        == dataset.samples
        == load_dataset(str(tmp_path / "*.tar")).samples
    )


def test_masks_of_shards_are_masks_and_no_images(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "0.tar", **{"1.png": b"x", "1.mask.png": b"x", "2.png": b"x"})
    dataset = load_dataset(path)
    assert dataset.ids == ["1.png", "2.png"] and dataset.has_masks and dataset.n_without_mask == 1


def test_some_maps_two_maps_and_no_class_are_told(tmp_path: Path) -> None:
    some = write_tar(tmp_path / "some.tar", **{"1.png": b"x", "1.map.npy": b"x", "2.png": b"x"})
    with pytest.raises(DataError, match=r"some.tar: expected one map for each of 2 images, none found for 2.png"):
        load_dataset(some)
    two = write_tar(tmp_path / "two.tar", **{"1.png": b"x", "1.map.npy": b"x", "1.map.png": b"x"})
    with pytest.raises(DataError, match=r"two.tar: ambiguous, 1.map.npy and 1.map.png both belong to 1.png"):
        load_dataset(two)
    odd = write_tar(tmp_path / "odd.tar", long=b"x" * (LONGEST_LABEL + 1), odd=b"\xff\xfe", blank=b" \n")
    for name in ("long", "odd"):
        with pytest.raises(DataError, match="expected the name of a class"):
            read_class(place_of(odd, "images") / name)
    assert read_class(place_of(odd, "images") / "blank") is None
