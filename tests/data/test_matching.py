"""Maps that were made elsewhere: in trees of one or many products, in flat folders, with other names.

Covers companions and layouts.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.data import load_dataset
from anomalyncd.data.companions import match_names
from anomalyncd.errors import DataError

IDS = ["crack/000.png", "cut/000.png", "good/000.png", "good/001.png"]


def touch(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def maps_of(images: Path, maps: Path, **options: object) -> list[str]:
    dataset = load_dataset(images, maps=maps, **options)  # type: ignore[arg-type]
    return [sample.map.relative_to(maps).as_posix() for sample in dataset if isinstance(sample.map, Path)]


@pytest.fixture(params=["mvtec/hazelnut/test", "mvtec/hazelnut"])
def images(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return touch(tmp_path / request.param, *IDS)


@pytest.mark.parametrize("inner", ["", "test/"])
@pytest.mark.parametrize("ending", [".png", "_map.png", ".npy", ".tiff"])
def test_maps_of_many_products(tmp_path: Path, images: Path, inner: str, ending: str) -> None:
    own = [f"hazelnut/{inner}{id_.removesuffix('.png')}{ending}" for id_ in IDS]
    others = [f"{product}/{inner}{id_}" for product in ("bottle", "zipper", "chazelnut") for id_ in [*IDS, "new/9.png"]]
    maps = touch(tmp_path / "maps", *own, *others)
    assert maps_of(images, maps) == own
    assert maps_of(images.parent if images.name == "test" else images, maps) == own
    assert load_dataset(images, maps=maps).notes == ()  # of other products nothing is said
    assert maps_of(images, maps / "hazelnut") == [name.removeprefix("hazelnut/") for name in own]


def test_images_and_maps_as_seen_from_the_working_folder(
    tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(tmp_path / "maps/hazelnut", *IDS)
    touch(tmp_path / "maps/bottle", *IDS)
    monkeypatch.chdir(images)
    maps = tmp_path / "maps"
    assert maps_of(Path("."), maps) == [f"hazelnut/{id_}" for id_ in IDS]
    assert maps_of(Path("good"), maps) == ["hazelnut/good/000.png", "hazelnut/good/001.png"]


def test_another_product_is_never_taken(tmp_path: Path, images: Path) -> None:
    maps = touch(tmp_path / "maps", *(f"bottle/{id_}" for id_ in IDS))
    with pytest.raises(DataError, match=r"\(4 of 4\)\. 4 maps of no image: bottle/crack/000\.png, bottle/cut"):
        load_dataset(images, maps=maps)


def test_surplus_maps_are_noted_and_those_of_excluded_classes_are_not(tmp_path: Path, images: Path) -> None:
    maps = touch(tmp_path / "maps", *(f"hazelnut/{id_}" for id_ in IDS), "hazelnut/print/1.png", "bottle/good/7.png")
    note = f"{maps}: 1 map of no image left out: hazelnut/print/1.png"
    assert load_dataset(images, maps=maps).notes == (note,)
    assert load_dataset(images, maps=maps, exclude=["good", "cut"]).notes == (note,)
    flat_images = touch(tmp_path / "flat", "a.png")
    flat = touch(tmp_path / "flat_maps", "a.npy", "b.npy", "c.npy", "bottle/a.npy")
    assert load_dataset(flat_images, maps=flat).notes == (f"{flat}: 2 maps of no image left out: b.npy, c.npy",)
    beside = touch(tmp_path / "beside", "a.png", "a_map.npy", "a_mask.png", "loose.npy")
    assert load_dataset(beside, maps=beside, masks=beside).notes == ()


def test_surplus_masks_are_noted(tmp_path: Path) -> None:
    images = touch(tmp_path / "images", "crack/0.png", "crack/1.png")
    masks = touch(tmp_path / "masks", "crack/0_mask.png", "crack/01_mask.png")
    assert load_dataset(images, masks=masks).notes == (f"{masks}: 1 mask of no image left out: crack/01_mask.png",)


def test_masks_of_many_products_even_in_the_data_set_itself(tmp_path: Path) -> None:
    for product in ("bottle", "hazelnut"):
        touch(tmp_path / product, *(f"test/{id_}" for id_ in IDS), "ground_truth/crack/000_mask.png")
        touch(tmp_path / product, "train/good/000.png")
    dataset = load_dataset(tmp_path / "hazelnut/test", masks=tmp_path)
    truth = tmp_path / "hazelnut/ground_truth/crack/000_mask.png"
    assert [sample.mask for sample in dataset] == [truth, None, None, None] and not dataset.notes


def test_flat_maps_need_unique_names(tmp_path: Path, images: Path) -> None:
    maps = touch(tmp_path / "maps", "000.png", "001.png")
    with pytest.raises(DataError, match=r"ambiguous, 000\.png may belong to crack/000\.png or to cut/000\.png\. Put"):
        load_dataset(images, maps=maps)
    unique = touch(tmp_path / "unique/hazelnut", "crack/a.png", "cut/b.png")
    assert maps_of(unique, touch(tmp_path / "few", "a.npy", "b_map.tif", "crack.npy")) == ["a.npy", "b_map.tif"]


def test_a_table_elsewhere_finds_maps_by_the_paths_of_its_images(tmp_path: Path, images: Path) -> None:
    table = touch(tmp_path / "lists", "set.csv") / "set.csv"
    table.write_text("image\n" + "\n".join(str(images / id_) for id_ in IDS))
    own, others = [f"hazelnut/{id_}" for id_ in IDS], [f"bottle/{id_}" for id_ in IDS]
    maps = touch(tmp_path / "maps", *own, *others)
    assert maps_of(table, maps) == own
    assert maps_of(table, maps / "hazelnut") == IDS


def test_a_class_folder_called_as_its_product(tmp_path: Path) -> None:
    ids = ("000.png", "broken/000.png", "broken/broken/000.png")
    images, maps = touch(tmp_path / "broken", *ids), touch(tmp_path / "maps", *ids)
    assert maps_of(images, maps) == list(ids)
    assert maps_of(images, touch(tmp_path / "all", *(f"broken/{id_}" for id_ in ids))) == [f"broken/{i}" for i in ids]


STEPS = st.sampled_from(["a", "b", "a_map", "ab", "hazelnut", "test", "Größe"])
PATHS = st.lists(STEPS, min_size=1, max_size=3).map("/".join)


@settings(max_examples=200, deadline=None)
@given(
    st.sets(PATHS.filter(lambda path: "_map" not in path), min_size=1, max_size=8), st.sets(PATHS, max_size=6),
    st.sampled_from(["", "hazelnut/", "hazelnut/test/", "mvtec/hazelnut/"]),
)  # fmt: skip
def test_a_mirror_matches_itself_at_any_depth(stems: set[str], others: set[str], prefix: str) -> None:
    def plain(path: str) -> str:
        *folders, name = path.split("/")
        return "/".join([*(folder for folder in folders if folder != "test"), name])

    stems = set({plain(stem): stem for stem in sorted(stems)}.values())
    ids = [f"{stem}.jpg" for stem in sorted(stems)]
    names = [f"{prefix}{stem}.png" for stem in sorted(stems)]
    names += [f"zipper/{other}.npy" for other in sorted(others)]
    found, _ = match_names(ids, names, ending="_map", root=Path("/data/mvtec/hazelnut/test"), source=Path("maps"))
    assert found == {id_: position for position, id_ in enumerate(ids)}


@settings(max_examples=300, deadline=None)
@given(st.sets(PATHS, min_size=1, max_size=6), st.sets(PATHS, max_size=8))
def test_whatever_matches_is_the_end_of_the_images_path(stems: set[str], others: set[str]) -> None:
    ids, names = sorted(f"{stem}.png" for stem in stems), sorted(f"{other}.npy" for other in others)
    try:
        found, surplus = match_names(ids, names, ending="_map", root=Path("/mvtec/hazelnut"), source=Path("maps"))
    except DataError as error:
        assert "ambiguous" in str(error)
        return
    assert len(set(found.values())) == len(found)
    for id_, position in found.items():
        whole = [s for s in f"/mvtec/hazelnut/{id_}".removesuffix(".png").split("/")[:-1] if s != "test"]
        *folders, name = names[position].removesuffix(".npy").split("/")
        folders = [folder for folder in folders if folder != "test"]
        assert name.removesuffix("_map") == id_.removesuffix(".png").split("/")[-1].removesuffix("_map")
        assert folders == whole[len(whole) - len(folders) :]
    assert not {names[position] for position in found.values()} & set(surplus)
    if not found:
        assert surplus == names
