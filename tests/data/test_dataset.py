from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anomalyncd.data import Dataset, Sample, load_base, load_dataset, read_image, read_mask
from anomalyncd.errors import DataError


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def names(dataset: Dataset, kind: str, root: Path) -> list[str | None]:
    paths = [getattr(sample, kind) for sample in dataset]
    return [None if path is None else path.relative_to(root).as_posix() for path in paths]


def test_flat_folder_is_sorted_and_unlabelled(tmp_path: Path) -> None:
    touch(tmp_path, "b.png", "a.JPG", "c.Tiff", "Thumbs.db", "notes.txt", ".hidden.png", ".cache/d.png", "e.npy")
    dataset = load_dataset(tmp_path)
    assert dataset.ids == ["a.JPG", "b.png", "c.Tiff"]
    assert dataset.labels == [None] * 3
    assert dataset[0] == Sample("a.JPG", tmp_path / "a.JPG")
    assert (dataset.root, dataset.has_maps, dataset.has_masks, dataset.n_without_mask) == (
        tmp_path,
        False,
        False,
        3,
    )
    assert len(dataset) == 3 and dataset[1:] == dataset.samples[1:] and list(dataset) == list(dataset.samples)
    assert load_dataset(str(tmp_path)) == dataset


def test_class_folders_give_labels_from_the_first_folder(tmp_path: Path) -> None:
    touch(tmp_path, "good/1.png", "crack/deep/er/1.png", "crack/0.png", "loose.png")
    dataset = load_dataset(tmp_path)
    assert dataset.ids == ["crack/0.png", "crack/deep/er/1.png", "good/1.png", "loose.png"]
    assert dataset.labels == ["crack", "crack", "good", None]


def test_exclude_leaves_classes_out(tmp_path: Path) -> None:
    touch(tmp_path, "good/1.png", "combined/1.png", "crack/combined/1.png")
    assert load_dataset(tmp_path, exclude=["combined"]).ids == ["crack/combined/1.png", "good/1.png"]
    assert load_dataset(tmp_path, exclude="combined").ids == ["crack/combined/1.png", "good/1.png"]
    with pytest.raises(DataError, match="all 3 images are excluded"):
        load_dataset(tmp_path, exclude=["good", "combined", "crack"])


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """An MVTec AD product with real tiny files."""
    root = tmp_path / "hazelnut"
    for name in ("train/good/000.png", "test/good/000.png", "test/crack/000.png", "test/cut/000.png"):
        (root / name).parent.mkdir(parents=True)
        Image.new("RGB", (4, 3), "gray").save(root / name)
    for name in ("crack/000_mask.png", "cut/000_mask.png"):
        (root / "ground_truth" / name).parent.mkdir(parents=True)
        Image.new("L", (4, 3), 255).save(root / "ground_truth" / name)
    return root


@pytest.mark.parametrize("given", ["", "test"])
@pytest.mark.parametrize("masks", [None, "", "ground_truth"])
def test_mvtec_product(product: Path, given: str, masks: str | None) -> None:
    dataset = load_dataset(product / given, masks=None if masks is None else product / masks)
    assert dataset.ids == ["crack/000.png", "cut/000.png", "good/000.png"]
    assert dataset.labels == ["crack", "cut", "good"]
    assert dataset.root == product / "test"
    assert dataset.has_masks is (masks is not None)
    if masks is None:
        assert names(dataset, "mask", product) == [None] * 3
    else:
        truth = ["ground_truth/crack/000_mask.png", "ground_truth/cut/000_mask.png", None]
        assert names(dataset, "mask", product) == truth
        assert dataset.n_without_mask == 1
    for sample in dataset:
        assert read_image(sample.image).shape == (3, 4, 3)
        assert sample.mask is None or read_mask(sample.mask).all()


def test_maps_may_mirror_the_product_or_its_test_folder(product: Path, tmp_path: Path) -> None:
    ids = ("crack/000.tiff", "cut/000.npy", "good/000_map.png")
    touch(tmp_path / "short", *ids)
    touch(tmp_path / "long/test", *ids)
    for maps in (tmp_path / "short", tmp_path / "long"):
        dataset = load_dataset(product, maps=maps)
        assert dataset.has_maps
        assert [sample.map.suffix for sample in dataset if sample.map] == [".tiff", ".npy", ".png"]


def test_a_folder_of_products_is_refused(tmp_path: Path, product: Path) -> None:
    with pytest.raises(DataError, match=r"folder of products \(hazelnut\)\. Give one"):
        load_dataset(tmp_path)


@pytest.fixture
def mtd(tmp_path: Path) -> Path:
    names = (
        "MT_Blowhole/Imgs/e1.jpg",
        "MT_Blowhole/Imgs/e1.png",
        "MT_Free/Imgs/e2.jpg",
        "MT_Free/Imgs/e2.png",
    )
    return touch(tmp_path / "mtd", *names, "MT_Crack/Imgs/e3.jpg", "README.md", "overview.png")


def test_mtd_as_downloaded(mtd: Path) -> None:
    dataset = load_dataset(mtd)
    assert dataset.ids == ["MT_Blowhole/Imgs/e1.jpg", "MT_Crack/Imgs/e3.jpg", "MT_Free/Imgs/e2.jpg"]
    assert dataset.labels == ["blowhole", "crack", "good"]
    assert not dataset.has_masks
    masked = load_dataset(mtd, masks=mtd)
    assert masked.ids == dataset.ids
    assert names(masked, "mask", mtd) == ["MT_Blowhole/Imgs/e1.png", None, "MT_Free/Imgs/e2.png"]
    assert load_dataset(mtd, exclude=["good"]).ids == load_dataset(mtd, exclude=["MT_Free"]).ids == dataset.ids[:2]
    assert [(sample.id, sample.label) for sample in load_base(mtd)] == [("MT_Blowhole/Imgs/e1.jpg", "blowhole")]


def test_mtd_png_without_photo_is_an_image(tmp_path: Path) -> None:
    touch(tmp_path, "MT_Crack/Imgs/a.png", "MT_Crack/Imgs/b.jpg", "MT_Crack/Imgs/b.png")
    assert load_dataset(tmp_path).ids == ["MT_Crack/Imgs/a.png", "MT_Crack/Imgs/b.jpg"]


def test_aebad(tmp_path: Path) -> None:
    root = touch(
        tmp_path / "AeBAD_S",
        "test/good/view/1.png",
        "test/groove/view/1.png",
        "test/groove/background/1.png",
        "ground_truth/groove/view/1.png",
        "ground_truth/groove/background/1.png",
        "train/good/view/9.png",
    )
    for given in (root, tmp_path):
        base = load_base(given)
        assert base.ids == ["groove/background/1.png", "groove/view/1.png"]
        assert base.labels == ["groove", "groove"]
        assert names(base, "mask", root / "ground_truth") == base.ids
    assert load_dataset(root).labels == ["good", "groove", "groove"]


@pytest.mark.parametrize("suffix", [".npy", ".tif", ".TIFF", ".png", "_map.npy"])
@pytest.mark.parametrize("flat", [True, False])
def test_maps_mirror_or_flat(tmp_path: Path, suffix: str, flat: bool) -> None:
    images = touch(tmp_path / "images", "crack/1.v2.png", "hole/2.png")
    stems = ("1.v2", "2") if flat else ("crack/1.v2", "hole/2")
    maps = touch(tmp_path / "maps", *(stem + suffix for stem in stems), "unrelated.npy", "readme.txt")
    dataset = load_dataset(images, maps=maps)
    assert names(dataset, "map", maps) == [stem + suffix for stem in stems]
    assert dataset.has_maps and not dataset.has_masks


def test_images_of_other_formats_are_told(tmp_path: Path) -> None:
    touch(
        tmp_path, "good/a.png", "good/b.GIF", "crack/c.heic", "crack/c.txt", "maps/x.svg", "out/y.dng", "crack/d.json"
    )
    dataset = load_dataset(tmp_path, exclude=["out"])
    note = "3 files of other formats left out: crack/c.heic, good/b.GIF, maps/x.svg; convert them to PNG"
    assert dataset.ids == ["good/a.png"] and dataset.notes == (note,)
    touch(tmp_path / "maps/good", "a.npy")
    dataset = load_dataset(tmp_path, maps=tmp_path / "maps", exclude=["out", "crack"])
    assert dataset.notes == ("1 file of other formats left out: good/b.GIF; convert them to PNG",)
    with pytest.raises(DataError, match=r"found none\. 1 file of other formats left out: y\.dng; convert"):
        load_dataset(tmp_path / "out")


@pytest.mark.parametrize("suffix", [".png", "_mask.png", ".npy", "_mask.BMP", ".jpg"])
@pytest.mark.parametrize("flat", [True, False])
def test_masks_mirror_or_flat(tmp_path: Path, suffix: str, flat: bool) -> None:
    images = touch(tmp_path / "images", "crack/1.jpg", "good/2.jpg")
    masks = touch(tmp_path / "masks", ("1" if flat else "crack/1") + suffix)
    dataset = load_dataset(images, masks=masks)
    assert names(dataset, "mask", masks) == [("1" if flat else "crack/1") + suffix, None]
    assert dataset.has_masks and dataset.n_without_mask == 1


def test_missing_maps_are_named_and_counted_and_so_are_those_of_no_image(tmp_path: Path) -> None:
    images = touch(tmp_path / "images", *(f"{i:03}.png" for i in range(10)))
    maps = touch(tmp_path / "maps", *(f"{i:03}.npy" for i in range(3)), *(f"{i}.npy" for i in range(3, 10)))
    with pytest.raises(
        DataError,
        match=r"maps: expected one map for each of 10 images, none found for 003\.png, 004\.png, 005\.png, 006\.png, "
        r"007\.png and 2 more \(7 of 10\)\. 7 maps of no image: 3\.npy, 4\.npy, 5\.npy, 6\.npy, 7\.npy and 2 more\. "
        r".*Pass --detector",
    ):
        load_dataset(images, maps=maps)
    with pytest.raises(DataError, match=r"none found for 000\.png.* \(10 of 10\)\. A map has"):
        load_dataset(images, maps=touch(tmp_path / "empty", "x.txt"))


def test_no_mask_at_all_is_an_error(tmp_path: Path) -> None:
    images = touch(tmp_path / "images", "crack/1.png")
    masks = touch(tmp_path / "masks", "hole/7_mask.png")
    with pytest.raises(
        DataError,
        match=r"masks: expected masks for 1 images, found none.*crack/1_mask\.png\. 1 mask of no image: hole/7_mask\.png",
    ):
        load_dataset(images, masks=masks)


@pytest.mark.parametrize(
    ("image_names", "map_names", "named"),
    [
        (["1.png"], ["1.png", "1.npy"], ["1.png", "1.npy"]),
        (["1.png"], ["1.npy", "1_map.npy"], ["1.npy", "1_map.npy"]),
        (["a/1.png", "b/1.png"], ["1.npy"], ["1.npy", "a/1.png", "b/1.png"]),
        (["1.png", "1.jpg"], ["1.npy"], ["1.npy", "1.png", "1.jpg"]),
    ],
)
def test_ambiguous_maps(tmp_path: Path, image_names: list[str], map_names: list[str], named: list[str]) -> None:
    images, maps = touch(tmp_path / "images", *image_names), touch(tmp_path / "maps", *map_names)
    with pytest.raises(DataError, match="ambiguous") as caught:
        load_dataset(images, maps=maps)
    assert all(name in str(caught.value) for name in named)


def test_ambiguous_masks(tmp_path: Path) -> None:
    images = touch(tmp_path / "images", "c/1.png")
    masks = touch(tmp_path / "masks", "c/1.png", "c/1_mask.png")
    with pytest.raises(DataError, match=r"ambiguous, c/1\.png, c/1_mask\.png all belong to c/1\.png"):
        load_dataset(images, masks=masks)


def test_maps_and_masks_inside_the_image_folder_are_no_images(tmp_path: Path) -> None:
    touch(tmp_path, "1.png", "2.png", "out/maps/1.png", "out/maps/2.png", "masks/1.png")
    dataset = load_dataset(tmp_path, maps=tmp_path / "out/maps", masks=tmp_path / "masks")
    assert dataset.ids == ["1.png", "2.png"]
    assert names(dataset, "map", tmp_path) == ["out/maps/1.png", "out/maps/2.png"]
    assert names(dataset, "mask", tmp_path) == ["masks/1.png", None]


def test_maps_and_masks_beside_the_images(tmp_path: Path) -> None:
    touch(tmp_path, "c/1.png", "c/1_map.npy", "c/1_mask.png", "c/2.png", "c/2_map.png")
    dataset = load_dataset(tmp_path, maps=tmp_path, masks=tmp_path / "c/..")
    assert dataset.ids == ["c/1.png", "c/2.png"]
    assert names(dataset, "map", tmp_path) == ["c/1_map.npy", "c/2_map.png"]
    assert names(dataset, "mask", tmp_path / "c/..") == ["c/1_mask.png", None]


def test_no_images(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    with pytest.raises(DataError, match=r"expected images \(\.bmp, \.jpeg.*found none"):
        load_dataset(tmp_path)
    with pytest.raises(DataError, match="a folder of images, or a CSV or Parquet file, found nothing there"):
        load_dataset(tmp_path / "nothing")
    with pytest.raises(
        DataError, match=r"a\.txt: expected a folder of images, or a CSV or Parquet file, found this file"
    ):
        load_dataset(tmp_path / "a.txt")
    touch(tmp_path, "a.png")
    with pytest.raises(DataError, match="gone: expected a folder of maps"):
        load_dataset(tmp_path, maps=tmp_path / "gone")
    with pytest.raises(DataError, match="gone: expected a folder of masks"):
        load_dataset(tmp_path, masks=tmp_path / "gone")


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows")
def test_links_are_followed_once_and_loops_end(tmp_path: Path) -> None:
    root = touch(tmp_path / "images", "crack/1.png")
    elsewhere = touch(tmp_path / "elsewhere", "2.png")
    (root / "hole").symlink_to(elsewhere)
    (root / "a_link_to_crack").symlink_to(root / "crack")
    (root / "crack/up").symlink_to(root)
    (elsewhere / "back").symlink_to(root / "crack")
    (root / "self.png").symlink_to(root / "self.png")
    (root / "broken.png").symlink_to(root / "gone.png")
    assert load_dataset(root).ids == ["broken.png", "crack/1.png", "hole/2.png", "self.png"]


@pytest.mark.skipif(os.name == "nt", reason="Windows names are always Unicode")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xf6sse.png")).touch()
    except OSError:
        pytest.skip("this file system allows Unicode names only")
    with pytest.raises(DataError, match="not valid UTF-8"):
        load_dataset(tmp_path)


def test_unusual_names(tmp_path: Path) -> None:
    unusual = ["Größe/图 1.png", "a b/c,d.png", "x/y...png", "z/[1].png"]
    images = touch(tmp_path / "images", *unusual)
    maps = touch(tmp_path / "maps", *(name.removesuffix(".png") + ".npy" for name in unusual))
    assert load_dataset(images, maps=maps).ids == sorted(unusual)


def write_csv(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_text(text, encoding=encoding)
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv(tmp_path: Path, encoding: str) -> None:
    touch(tmp_path, "data/b.png", "data/a.png", "maps/a.npy", "maps/b.npy", "m/b.png", "ö.png")
    (tmp_path / "table").mkdir()
    absolute = (tmp_path / "ö.png").as_posix()
    table = write_csv(
        tmp_path / "table/set.CSV",
        "image,map,mask,label\r\n"
        "..\\data\\b.png,../maps/b.npy,../m/b.png,crack\r\n"
        "\r\n"
        "./../data//a.png,../maps/a.npy,,\r\n"
        f'"{absolute}",../maps/a.npy,,good\r\n',
        encoding,
    )
    dataset = load_dataset(table)
    assert dataset.ids == sorted(["../data/a.png", "../data/b.png", absolute])
    by_id = {sample.id: sample for sample in dataset}
    assert by_id["../data/b.png"].label == "crack" and by_id["../data/a.png"].label is None
    assert by_id["../data/b.png"].mask is not None and by_id["../data/b.png"].mask.samefile(tmp_path / "m/b.png")
    assert by_id[absolute].image == tmp_path / "ö.png"
    assert dataset.has_maps and dataset.has_masks and dataset.n_without_mask == 2
    assert dataset.root == tmp_path / "table"
    assert all((dataset.root / sample.id).samefile(sample.image) for sample in dataset)
    assert load_dataset(table, exclude=["crack"]).labels.count("crack") == 0


def test_csv_with_only_images_and_maps_from_a_folder(tmp_path: Path) -> None:
    touch(tmp_path, "c/1.png", "c/2.png", "maps/c/1.npy", "maps/c/2.npy", "old/1.npy")
    table = write_csv(tmp_path / "t.csv", "Image , map,mask\nc/1.png,,\nc/2.png,,\n")
    assert not load_dataset(table).has_maps and not load_dataset(table).has_masks
    dataset = load_dataset(table, maps=tmp_path / "maps")
    assert names(dataset, "map", tmp_path) == ["maps/c/1.npy", "maps/c/2.npy"]
    partly = write_csv(tmp_path / "p.csv", "image,map\nc/1.png,old/1.npy\nc/2.png,\n")
    with pytest.raises(DataError, match=r"p\.csv: expected one map for each of 2 images, none found for c/2\.png"):
        load_dataset(partly)
    assert load_dataset(partly, maps=tmp_path / "maps")[0].map == tmp_path / "maps/c/1.npy"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("image\n1.png\ngone.png\n", r"line 3: the image .*gone\.png does not exist"),
        ("image,map\n1.png,gone.npy\n", r"line 2: the map .*gone\.npy does not exist"),
        ("image,mask\n1.png,gone.png\n", r"line 2: the mask .*gone\.png does not exist"),
        ("image\n1.png\n./1.png\n", r"line 3: the image 1\.png is already in line 2"),
        ("image\n1.png\nsub/../1.png\n", "already in line 2"),
        ("image,label\n1.png,a\n,b\n", "line 3: the column 'image' is empty"),
        ("file,label\n1.png,a\n", "expected a column 'image', found file, label"),
        ("", "expected a column 'image', found none"),
        ("image\n", "found none"),
    ],
)
def test_bad_csv(tmp_path: Path, text: str, message: str) -> None:
    touch(tmp_path, "1.png", "sub/2.png")
    with pytest.raises(DataError, match=message) as caught:
        load_dataset(write_csv(tmp_path / "t.csv", text))
    assert "t.csv" in str(caught.value)


def test_csv_in_another_encoding(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"t\.csv: expected a CSV table in UTF-8"):
        load_dataset(write_csv(tmp_path / "t.csv", "image\nö.png\n", "utf-16"))


def test_base_with_images_and_masks(tmp_path: Path) -> None:
    touch(tmp_path, "images/scratch/1.jpg", "images/scratch/2.jpg", "images/Good/3.jpg", "images/patch/1.jpg")
    touch(tmp_path, "masks/scratch/1.png", "masks/Good/3.png", "masks/patch/1_mask.png")
    base = load_base(tmp_path)
    assert base.ids == ["patch/1.jpg", "scratch/1.jpg"] and base.labels == ["patch", "scratch"]
    assert names(base, "mask", tmp_path) == ["masks/patch/1_mask.png", "masks/scratch/1.png"]
    assert base.has_masks and base.n_without_mask == 0


def test_base_in_mvtec_layout_and_csv(product: Path) -> None:
    base = load_base(product)
    assert base.labels == ["crack", "cut"]
    lines = [f"{s.image.as_posix()},{s.mask},{s.label}" for s in base]
    table = write_csv(product / "base.csv", "\n".join(["image,mask,label", *lines]))
    assert [(s.image, s.mask, s.label) for s in load_base(table)] == [(s.image, s.mask, s.label) for s in base]


@pytest.mark.parametrize(
    "files",
    [
        ["a.png"],
        ["images/a.png", "masks/a.png"],
        ["images/good/a.png", "masks/good/a.png"],
        ["crack/a.png"],
        ["readme.txt"],
    ],
)
def test_no_base_set(tmp_path: Path, files: list[str]) -> None:
    touch(tmp_path, *files)
    with pytest.raises(DataError, match="A base set holds images/<class>/<name> and masks/<class>/<name>"):
        load_base(tmp_path)


def test_data_needs_no_torch() -> None:
    code = "import sys, anomalyncd.data; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_real_masks_reach_the_reader(product: Path) -> None:
    np.save(product / "ground_truth/cut/000_mask.npy", np.eye(3, 4))
    (product / "ground_truth/cut/000_mask.png").unlink()
    sample = load_dataset(product, masks=product)[1]
    assert sample.mask is not None and read_mask(sample.mask).sum() == 3
