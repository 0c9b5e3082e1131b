"""Maps from elsewhere on their way into a run: what is told, and what identifies them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anomalyncd import AnomalyNCD
from anomalyncd.binarize import MEBin
from anomalyncd.binarize.prepare import fit_binarizer, prepare_map
from anomalyncd.data.dataset import Sample
from anomalyncd.data.gather import gather
from anomalyncd.data.maps import StackRow
from anomalyncd.errors import BadFileError
from anomalyncd.regions.extract import is_readable
from anomalyncd.run.finished import FinishedRun
from anomalyncd.run.stages import fingerprint

MAPS = np.linspace(0, 1, 3 * 8 * 8, dtype=np.float32).reshape(3, 8, 8)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for name in ("crack/0.png", "crack/1.png", "good/0.png"):
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / name)
    (tmp_path / "images/crack/2.gif").touch()
    return tmp_path / "images"


def test_notes_reach_the_caller(tmp_path: Path, images: Path) -> None:
    np.save(tmp_path / "maps.npy", np.zeros((4, 8, 8)))
    (tmp_path / "maps.txt").write_text("crack/0\ncrack/1\ngood/0\ngood/1\n")
    for inputs in (gather(images, maps=tmp_path / "maps.npy"), gather(images, maps=str(tmp_path / "maps.npy"))):
        other_format, surplus = inputs.notes
        assert other_format == "1 file of other formats left out: crack/2.gif; convert them to PNG"
        assert surplus == f"{tmp_path / 'maps.npy'}: 1 map of no image left out: good/1"
    (images / "crack/2.gif").unlink()
    assert gather(images, bare=True).notes == ()
    assert gather([np.zeros((4, 4, 3), np.uint8)], masks=[None]).notes == ()


def test_a_stack_gives_the_maps_of_single_files(tmp_path: Path, images: Path) -> None:
    np.save(tmp_path / "maps.npy", MAPS)
    stacked = gather(images, maps=tmp_path / "maps.npy").samples
    for item, values in zip(stacked, MAPS, strict=True):
        assert item.map is not None and is_readable(item)
        np.testing.assert_array_equal(prepare_map(item.map, 0), values)
    single = [Sample(item.id, item.image, map=values) for item, values in zip(stacked, MAPS, strict=True)]
    states = [fit_binarizer(MEBin(), items, 0).get_state() for items in (stacked, single)]
    assert states[0] == states[1]


def test_a_stack_is_identified_by_file_and_row(tmp_path: Path, images: Path) -> None:
    path = tmp_path / "maps.npy"
    np.save(path, MAPS)
    first = fingerprint(gather(images, maps=path).samples)
    assert first == fingerprint(gather(images, maps=path).samples)
    assert len({str(maps) for _, _, maps, _ in first}) == 3
    os.utime(path, ns=(1, 1))
    changed = fingerprint(gather(images, maps=path).samples)
    assert all(old[2] != new[2] and old[1] == new[1] for old, new in zip(first, changed, strict=True))
    (tmp_path / "maps.txt").write_text("good/0\ncrack/1\ncrack/0\n")
    assert fingerprint(gather(images, maps=path).samples) != changed
    path.unlink()
    assert fingerprint([Sample("a", images, StackRow(path, 0))])[0][2] == [f"{path}[0]", "missing"]


def test_bad_rows_are_skipped_by_name(tmp_path: Path) -> None:
    values = MAPS.copy()
    values[1], values[2, 0, 0] = np.nan, np.nan
    np.save(tmp_path / "maps.npy", values)
    with pytest.raises(BadFileError, match=r"maps\.npy\[1\]: expected an anomaly map, but every pixel is NaN"):
        prepare_map(StackRow(tmp_path / "maps.npy", 1), 0)
    assert np.isnan(prepare_map(StackRow(tmp_path / "maps.npy", 2), 0)).sum() == 1


def test_pictures_find_the_rows_of_a_stack_again(tmp_path: Path, images: Path) -> None:
    (images / "crack/2.gif").unlink()
    np.save(tmp_path / "maps.npy", MAPS)
    settings = {"backbone": "tiny", "features": {"views": 1}, "learn": {"epochs": 1}, "binarize": {"method": "otsu"}}
    AnomalyNCD(2, **settings).fit(images, maps=tmp_path / "maps.npy", run=tmp_path / "run")
    pictures = FinishedRun(tmp_path / "run")
    for name, expected in zip(("crack/0.png", "crack/1.png", "good/0.png"), MAPS, strict=True):
        np.testing.assert_array_equal(pictures.map(name), expected)
    odd = tmp_path / "one.npy[1]"
    odd.touch()
    assert StackRow.parse(str(odd)) == odd and StackRow.parse("a/b.npy[12]") == StackRow(Path("a/b.npy"), 12)
