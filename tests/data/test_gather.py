"""What a caller may hand over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.data.gather import gather, gather_base, gather_normal
from anomalyncd.errors import DataError, SettingsError

IMAGE = np.zeros((8, 8, 3), np.uint8)
MAP = np.zeros((8, 8), np.float32)


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(IMAGE).save(path)
    return path


def test_arrays_and_paths_mixed() -> None:
    items = gather([IMAGE, "a/b.png", Path("c.png")], masks=[None, MAP, "m.png"]).samples
    assert [item.id for item in items] == ["image_000000", "a/b.png", "c.png"]
    assert items[0].mask is None and items[1].mask is MAP and items[2].mask == Path("m.png")
    assert items[1].image == Path("a/b.png")


def test_stacked_arrays() -> None:
    items = gather(np.zeros((3, 8, 8, 3), np.uint8), maps=np.zeros((3, 8, 8))).samples
    assert len(items) == 3 and items[0].map is not None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"images": [IMAGE], "maps": [MAP], "bare": True}, "maps, masks or a detector"),
        ({"images": [IMAGE], "maps": [MAP], "masks": [MAP]}, "not both"),
        ({"images": [], "maps": []}, "at least one image"),
        ({"images": [IMAGE, IMAGE], "maps": [MAP]}, "one map for each of 2 images, but got 1"),
        ({"images": [IMAGE], "masks": [MAP, MAP]}, "one mask for each of 1 images, but got 2"),
        ({"images": [IMAGE], "maps": [None]}, "the map of image 0 is None"),
        ({"images": [3], "maps": [MAP]}, "image 0: expected a path or a NumPy array, but got int"),
        ({"images": [IMAGE], "masks": [True]}, "mask 0: expected a path or a NumPy array, but got bool"),
        ({"images": [IMAGE], "maps": "folder"}, "images are a list, so maps must be a list"),
        ({"images": "folder", "maps": [MAP]}, "must be a folder too"),
        ({"images": "nowhere", "maps": "nowhere"}, "nowhere"),
        ({"images": gather([IMAGE]), "maps": [MAP]}, "images are a Dataset, which holds its maps or masks"),
        ({"images": Dataset([Sample("a", IMAGE, MAP, MAP)])}, "the Dataset holds both maps and masks"),
    ],
)
def test_what_does_not_fit_together(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        gather(**arguments)


def test_folders_and_tables(tmp_path: Path) -> None:
    for name in ("crack/0", "good/0"):
        picture(tmp_path / "images" / f"{name}.png")
        picture(tmp_path / "maps" / f"{name}.png")
    picture(tmp_path / "masks/crack/0.png")
    inputs = gather(tmp_path / "images", maps=str(tmp_path / "maps"))
    assert [item.id for item in inputs.samples] == ["crack/0.png", "good/0.png"]
    assert inputs.truth == {"crack/0.png": "crack", "good/0.png": "good"}
    assert [item.mask is None for item in gather(tmp_path / "images", masks=tmp_path / "masks").samples] == [
        False,
        True,
    ]
    assert gather(tmp_path / "images").is_bare and not gather([IMAGE], masks=[None]).is_bare

    table = tmp_path / "table.csv"
    table.write_text("image,map,label\nimages/crack/0.png,maps/crack/0.png,x\nimages/good/0.png,maps/good/0.png,\n")
    inputs = gather(table)
    assert inputs.truth == {"images/crack/0.png": "x"} and all(item.map for item in inputs.samples)
    table.write_text("image,map,mask\nimages/crack/0.png,maps/crack/0.png,masks/crack/0.png\n")
    with pytest.raises(DataError, match="both maps and masks"):
        gather(table)
    assert gather(table, bare=True).is_bare
    table.write_text("image\nimages/crack/0.png\n")
    assert gather(table).is_bare


def test_a_run_must_lie_outside_of_what_is_read(tmp_path: Path) -> None:
    picture(tmp_path / "images/0.png")
    picture(tmp_path / "maps/0.png")
    inputs = gather(tmp_path / "images", maps=tmp_path / "maps")
    for inside in ("images", "images/run", "maps/x/run"):
        with pytest.raises(SettingsError, match="Choose a folder outside"):
            inputs.check_outside(tmp_path / inside)
    inputs.check_outside(tmp_path / "images-run")
    (tmp_path / "table.csv").write_text("image,map\nimages/0.png,maps/0.png\n")
    gather(tmp_path / "table.csv").check_outside(tmp_path / "run")


def test_base_sets(tmp_path: Path) -> None:
    assert gather_base(None) is None
    base = gather_base(([IMAGE] * 3, [MAP] * 3, ["b", "a", "b"]))
    assert base is not None and base.numbered_labels.tolist() == [1, 0, 1]
    assert gather_base(([IMAGE] * 3, [MAP] * 3, (label for label in ("b", "a", "b")))) == base
    for name in ("x/0", "y/0"):
        picture(tmp_path / "images" / f"{name}.png")
        picture(tmp_path / "masks" / f"{name}.png")
    base = gather_base(tmp_path)
    assert base is not None and base.numbered_labels.tolist() == [0, 1] and all(item.mask for item in base.samples)


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (([IMAGE], [MAP]), "three lists"),
        (([IMAGE], None, ["a"]), "three lists"),
        (([IMAGE], [MAP], ["a", "b"]), "one label for each of 1 images, but got 2"),
        (([IMAGE], [MAP, MAP], ["a"]), "one mask for each of 1 images"),
        (([], [], []), "at least one image"),
    ],
)
def test_wrong_base_sets(base: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        gather_base(base)


def test_normal_images(tmp_path: Path) -> None:
    assert len(gather_normal(None)) == 0 and len(gather_normal([IMAGE, "a.png"])) == 2
    picture(tmp_path / "train/good/0.png")
    assert gather_normal(tmp_path).ids == ["0.png"]
    with pytest.raises(DataError, match="normal: expected at least one image"):
        gather_normal([])


def test_normal_images_with_maps(tmp_path: Path) -> None:
    pairs = gather_normal([IMAGE, IMAGE], [MAP, MAP])
    assert [sample.map is MAP for sample in pairs] == [True, True] and pairs.has_maps and pairs[0].image is IMAGE
    for name in ("0", "1"):
        picture(tmp_path / f"train/good/{name}.png")
        (tmp_path / "maps").mkdir(exist_ok=True)
        np.save(tmp_path / f"maps/{name}.npy", MAP)
    for folder in (tmp_path / "train/good", tmp_path):  # also the product itself, in MVTec AD's layout
        found = gather_normal(folder, tmp_path / "maps")
        assert found.ids == ["0.png", "1.png"] and [sample.map for sample in found] == [
            tmp_path / "maps/0.npy", tmp_path / "maps/1.npy",
        ]  # fmt: skip
        assert set(found.folders) == {folder, tmp_path / "maps"}, "a run must lie outside of both"


def test_maps_of_normal_products_alone(tmp_path: Path) -> None:
    """Each sample's image is its map: it can be counted, not looked at."""
    (tmp_path / "maps/deep").mkdir(parents=True)
    np.save(tmp_path / "maps/deep/0.npy", MAP)
    picture(tmp_path / "maps/1.png")
    (tmp_path / "maps/notes.txt").touch()
    found = gather_normal(None, tmp_path / "maps")
    assert sorted(found.ids) == ["1.png", "deep/0.npy"] and found.has_maps
    assert all(sample.image is sample.map for sample in found)
    listed = gather_normal(None, [MAP, tmp_path / "maps/deep/0.npy", str(tmp_path / "maps/1.png")])
    assert len(listed) == 3 and all(sample.image is sample.map for sample in listed)


@pytest.mark.parametrize(
    ("normal", "maps", "words"),
    [
        ([IMAGE, IMAGE], [MAP], "expected one map for each of 2 images"),
        ([IMAGE], [None], "the map of image 0 is None"),
        ([IMAGE], "somewhere", "maps must be a list too"),
        ([], [], "the list of images is empty"),
        (None, "nowhere", "nowhere: expected a folder of anomaly maps of normal images"),
        (None, [3], "normal map 0: expected a path or a NumPy array, but got int"),
        (None, [], "expected at least one"),
        ("nowhere", "maps", "nowhere: expected a folder of normal images"),
    ],
)
def test_normal_maps_that_do_not_fit(normal: Any, maps: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        gather_normal(normal, maps)
