"""All maps of a set in one .npy file."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest

from anomalyncd.data import load_dataset, read_map
from anomalyncd.data.maps import StackRow, open_stack
from anomalyncd.errors import AnomalyNCDError, BadFileError, DataError

IDS = ["crack/10.png", "crack/2.png", "good/2.png"]
MAPS = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


@pytest.fixture
def images(tmp_path: Path) -> Path:
    for id_ in IDS:
        (tmp_path / "hazelnut" / id_).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hazelnut" / id_).touch()
    return tmp_path / "hazelnut"


def save(path: Path, values: np.ndarray) -> Path:
    np.save(path, values)
    return path


def rows(images: Path, stack: Path, **options: object) -> dict[str, int]:
    dataset = load_dataset(images, maps=stack, **options)  # type: ignore[arg-type]
    assert dataset.has_maps and all(isinstance(s.map, StackRow) and s.map.path == stack for s in dataset)
    return {sample.id: sample.map.index for sample in dataset if isinstance(sample.map, StackRow)}


@pytest.mark.parametrize("dtype", ["f2", "f4", ">f8", "u1", "u2"])
@pytest.mark.parametrize("axes", [(), (1,), (3,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_row_is_read_as_the_array_would_be(tmp_path: Path, dtype: str, axes: tuple[int, ...], order: str) -> None:
    values = (np.abs(MAPS) * 50).astype(dtype)
    stack = save(tmp_path / "maps.npy", np.asarray(np.expand_dims(values, axes), order=order))  # type: ignore[call-overload]
    for index in range(3):
        result = read_map(StackRow(stack, index))
        assert result.dtype == np.float32 and result.flags.c_contiguous and type(result) is np.ndarray
        np.testing.assert_array_equal(result, read_map(values[index]))


def test_without_names_rows_are_in_the_order_of_the_ids(tmp_path: Path, images: Path) -> None:
    stack = save(tmp_path / "maps.npy", MAPS)
    assert rows(images, stack) == {"crack/10.png": 0, "crack/2.png": 1, "good/2.png": 2}
    assert rows(images, stack, exclude=["crack"]) == {"good/2.png": 2}
    assert rows(images, save(tmp_path / "two.npy", MAPS[:2]), exclude=["good"]) == {"crack/10.png": 0, "crack/2.png": 1}
    table = images / "t.csv"
    table.write_text("image,label\ngood/2.png,a\ncrack/2.png,b\ncrack/10.png,\n")
    assert rows(table, stack) == {"good/2.png": 0, "crack/2.png": 1, "crack/10.png": 2}
    assert rows(table, stack, exclude=["a"]) == {"crack/2.png": 1, "crack/10.png": 2}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_another_number_of_maps_is_refused(tmp_path: Path, images: Path, count: int) -> None:
    stack = save(tmp_path / "maps.npy", np.zeros((count, 2, 2)))
    words = (
        rf"maps\.npy: expected one map for each of 3 images, found {count} .*maps\.csv \(column 'image'\) or maps\.txt"
    )
    with pytest.raises(DataError, match=words):
        load_dataset(images, maps=stack)


@pytest.mark.parametrize(
    "text",
    [
        "good/2.png\ncrack/2.png\ncrack/10.png\n",
        "\ufeffgood/2\r\ncrack/2\r\n\r\ncrack/10",
        "hazelnut\\test\\good\\2.bmp\nhazelnut\\test\\crack\\2.bmp\nhazelnut\\test\\crack\\10.bmp\n",
        "./good/2_map.npy\n./crack/2_map.npy\n ./crack/10_map.npy \n",
        "{images}/good/2.png\n{images}/crack/2.png\n{images}/crack/10.png\n",
    ],
)
def test_rows_that_a_text_or_a_table_names(tmp_path: Path, images: Path, text: str) -> None:
    stack, text = save(tmp_path / "maps.npy", MAPS), text.format(images=images)
    expected = {"good/2.png": 0, "crack/2.png": 1, "crack/10.png": 2}
    (tmp_path / "maps.txt").write_text(text, encoding="utf-8", newline="")
    assert rows(images, stack) == expected
    (tmp_path / "maps.txt").write_text("nonsense")  # a table goes first
    lines = [line for line in text.removeprefix("\ufeff").splitlines() if line]
    (tmp_path / "maps.csv").write_text("\n".join(["score, Image", *(f"0.1,{line}" for line in lines)]))
    assert rows(images, stack) == expected


def test_rows_of_no_image_are_noted_and_images_without_one_are_an_error(tmp_path: Path, images: Path) -> None:
    stack, names = save(tmp_path / "maps.npy", np.zeros((5, 2, 2))), tmp_path / "maps.txt"
    names.write_text("crack/10\ncrack/2\nextra/1\ngood/2\nextra/2\n")
    dataset = load_dataset(images, maps=stack)
    assert dataset.notes == (f"{stack}: 2 maps of no image left out: extra/1, extra/2",)
    names.write_text("crack/10\ncrack/02\nextra/1\ngood/2\nextra/2\n")
    words = (
        r"maps\.npy: .*none found for crack/2\.png \(1 of 3\)\. 3 maps of no image: crack/02, extra/1, extra/2\. A map"
    )
    with pytest.raises(DataError, match=words):
        load_dataset(images, maps=stack)
    assert rows(images, stack, exclude=["crack"]) == {"good/2.png": 3}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("maps.txt", b"crack/2\n", r"maps\.txt: expected a name for each of 3 maps in maps\.npy, found 1 name"),
        ("maps.txt", b"", "found 0 names"),
        ("maps.txt", b"\xff\xfe\x00", r"maps\.txt: expected one image name a line, in UTF-8"),
        (
            "maps.txt",
            b"crack/2\ncrack/2.png\ngood/2",
            r"maps\.txt: ambiguous, crack/2, crack/2\.png all belong to crack/2",
        ),
        ("maps.txt", b"10\n2\n3", r"ambiguous, 2 may belong to crack/2\.png or to good/2\.png"),
        ("maps.csv", b"file\na\nb\nc", r"maps\.csv: expected a column 'image', found file"),
        ("maps.csv", b"image,x\na,1\n,2\nc,3", r"maps\.csv, line 3: the column 'image' is empty"),
    ],
)
def test_bad_names(tmp_path: Path, images: Path, name: str, text: bytes, words: str) -> None:
    stack = save(tmp_path / "maps.npy", MAPS)
    (tmp_path / name).write_bytes(text)
    with pytest.raises(DataError, match=words):
        load_dataset(images, maps=stack)


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values, allow_pickle=True)
    return buffer.getvalue()


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("the pickle was run",))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (npy(np.zeros((4, 5))), r"shape \(N, H, W\) or \(N, 1, H, W\), got \(4, 5\)"),
        (npy(np.zeros((3, 2, 4, 5))), r"got \(3, 2, 4, 5\)"),
        (npy(np.zeros((3, 4, 5, 3))), r"got \(3, 4, 5, 3\)"),
        (npy(np.zeros((0, 4, 5))), "maps"),
        (npy(np.zeros((3, 0, 5))), "maps"),
        (npy(np.array([[[Trap()]]], dtype=object)), "array of numbers"),
        (npy(np.full((3, 1, 1), "a")), "expected real numbers"),
        (npy(np.zeros((3, 2, 2), complex)), "expected real numbers"),
        (npy(MAPS)[:-1], "array of numbers"),
        (npy(MAPS)[:20], "array of numbers"),
        (pickle.dumps(Trap()), "array of numbers"),
        (b"", "empty"),
    ],
)
def test_bad_stacks(tmp_path: Path, images: Path, data: bytes, words: str) -> None:
    stack = tmp_path / "maps.npy"
    stack.write_bytes(data)
    with pytest.raises(AnomalyNCDError, match=words) as caught:
        load_dataset(images, maps=stack)
    assert "maps.npy" in str(caught.value)
    with pytest.raises(BadFileError, match=words):
        read_map(StackRow(stack, 0))


def test_files_that_are_no_stack(tmp_path: Path, images: Path) -> None:
    np.savez(tmp_path / "maps.npz", MAPS)
    with pytest.raises(DataError, match=r"maps\.npz: .*Save its array with numpy\.save"):
        load_dataset(images, maps=tmp_path / "maps.npz")
    with pytest.raises(
        DataError, match=r"2\.png: expected a folder of maps, or a \.npy stack of maps, found this file"
    ):
        load_dataset(images, maps=images / "good/2.png")
    with pytest.raises(DataError, match=r"gone\.npy: expected a folder of maps, .* found nothing there"):
        load_dataset(images, maps=tmp_path / "gone.npy")


def test_a_stack_that_changes_after_it_was_found(tmp_path: Path) -> None:
    row = StackRow(save(tmp_path / "maps.npy", MAPS), 2)
    save(row.path, MAPS[:2])
    with pytest.raises(BadFileError, match=r"maps\.npy\[2\]: the stack holds only 2 maps by now"):
        read_map(row)
    row.path.unlink()
    with pytest.raises(BadFileError, match=r"maps\.npy"):
        read_map(row)


def test_a_stack_larger_than_memory_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.npy"
    shape = (1_000_000, 512, 512)  # 1 TB, of which nothing is on the disk
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        try:
            file.truncate(file.tell() + 4 * int(np.prod(shape)))
        except OSError:
            pytest.skip("this file system has no sparse files")
    assert open_stack(path).shape == shape
    assert read_map(StackRow(path, 999_999)).sum() == 0


def test_a_stack_and_its_names_may_lie_among_the_images(images: Path) -> None:
    stack = save(images / "maps.npy", MAPS)
    (images / "maps.txt").write_text("good/2\ncrack/2\ncrack/10\n")
    assert rows(images, stack)["good/2.png"] == 0
