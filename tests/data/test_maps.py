from __future__ import annotations

import io
import pickle
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from anomalyncd.data.maps import read_map, read_mask
from anomalyncd.errors import BadFileError

RNG = np.random.default_rng(1)
SCORES = RNG.normal(size=(5, 7)).astype(np.float32)
GREY = RNG.integers(0, 256, (5, 7), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (5, 7), dtype=np.uint16)


def save_png(path: Path, array: np.ndarray) -> Path:
    Image.fromarray(array).save(path)
    return path


@pytest.mark.parametrize("axes", [(), (0,), (2,), (0, 1)])
@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", ">f4"])
def test_npy_and_arrays_keep_their_values(tmp_path: Path, axes: tuple[int, ...], dtype: str) -> None:
    values = np.expand_dims(SCORES.astype(dtype), axes)
    np.save(tmp_path / "m.npy", values)
    for source in (values, tmp_path / "m.npy", str(tmp_path / "m.npy")):
        result = read_map(source)
        assert result.dtype == np.float32 and result.flags.c_contiguous and result.dtype.isnative
        np.testing.assert_array_equal(result, SCORES.astype(dtype).astype(np.float32))


@pytest.mark.parametrize("axes", [(), (0,), (2,)])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_float_tiff_keeps_its_values(tmp_path: Path, axes: tuple[int, ...], compression: str | None) -> None:
    tifffile.imwrite(tmp_path / "m.tiff", np.expand_dims(SCORES, axes), compression=compression)
    np.testing.assert_array_equal(read_map(tmp_path / "m.tiff"), SCORES)


def test_lzw_float_tiff_keeps_its_values(tmp_path: Path) -> None:
    Image.fromarray(SCORES).save(tmp_path / "m.tif", compression="tiff_lzw")
    np.testing.assert_array_equal(read_map(tmp_path / "m.tif"), SCORES)


@pytest.mark.parametrize("values", [GREY, DEEP])
def test_png_is_a_fraction_of_full_range(tmp_path: Path, values: np.ndarray) -> None:
    expected = (values / np.iinfo(values.dtype).max).astype(np.float32)
    for source in (save_png(tmp_path / "m.png", values), values, values.astype(values.dtype.newbyteorder())):
        np.testing.assert_allclose(read_map(source), expected, rtol=1e-6)


def test_equal_channels_are_one_map_and_colours_are_none(tmp_path: Path) -> None:
    grey = GREY[..., None].repeat(3, 2)
    for channels in (grey, np.dstack([grey, GREY[::-1]])):
        np.testing.assert_array_equal(read_map(save_png(tmp_path / "g.png", channels)), read_map(GREY))
    coloured = grey.copy()
    coloured[2, 3, 1] ^= 1
    with pytest.raises(BadFileError, match=r"c\.png: expected one score a pixel, found a colour picture"):
        read_map(save_png(tmp_path / "c.png", coloured))


def test_one_row_colour_png_is_not_mistaken_for_channels_first(tmp_path: Path) -> None:
    row = np.array([[[9, 9, 9], [0, 0, 0]]], np.uint8)
    assert read_map(save_png(tmp_path / "r.png", row)).shape == (1, 2)
    assert read_mask(save_png(tmp_path / "r.png", row)).tolist() == [[True, False]]


def test_nan_and_infinity_are_kept() -> None:
    values = np.array([[np.nan, np.inf, -np.inf, 1e300]])
    np.testing.assert_array_equal(read_map(values), np.array([[np.nan, np.inf, -np.inf, np.inf]], np.float32))
    nan_channels = np.full((2, 2, 3), np.nan)
    assert np.isnan(read_map(nan_channels)).all()


def test_the_source_array_is_neither_changed_nor_shared() -> None:
    values = SCORES.copy()
    result = read_map(values)
    result[:] = 0
    np.testing.assert_array_equal(values, SCORES)


@pytest.mark.parametrize("read", [read_map, read_mask])
@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 4)),
        np.zeros(4),
        np.zeros((2, 4, 5)),
        np.zeros((4, 4), complex),
        np.array([["a"]]),
        np.array(3.0),
    ],
)
def test_arrays_that_are_no_map(tmp_path: Path, read: object, array: np.ndarray) -> None:
    np.save(tmp_path / "bad.npy", array)
    with pytest.raises(BadFileError, match="array"):
        read(array)  # type: ignore[operator]
    with pytest.raises(BadFileError, match=r"bad\.npy"):
        read(tmp_path / "bad.npy")  # type: ignore[operator]


class Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (pytest.fail, ("the pickle was run",))


@pytest.mark.parametrize("read", [read_map, read_mask])
def test_bad_files(tmp_path: Path, read: object) -> None:
    np.save(tmp_path / "objects.npy", np.array([[Trap()]], dtype=object), allow_pickle=True)
    (tmp_path / "pickle.npy").write_bytes(pickle.dumps(Trap()))
    np.savez(tmp_path / "zip.npz", SCORES)
    (tmp_path / "zip.npz").rename(tmp_path / "zip.npy")
    whole = io.BytesIO()
    np.save(whole, SCORES)
    (tmp_path / "short.npy").write_bytes(whole.getvalue()[:-8])
    (tmp_path / "empty.npy").touch()
    (tmp_path / "folder.npy").mkdir()
    (tmp_path / "text.png").write_text("no map")
    for name in ("objects", "pickle", "zip", "short", "empty", "folder", "missing"):
        with pytest.raises(BadFileError, match=rf"{name}\.npy"):
            read(tmp_path / f"{name}.npy")  # type: ignore[operator]
    with pytest.raises(BadFileError, match=r"text\.png"):
        read(tmp_path / "text.png")  # type: ignore[operator]
    with pytest.raises(BadFileError, match="NoneType"):
        read(None)  # type: ignore[operator]


def test_npy_that_promises_too_much_takes_no_memory(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**7, 10**7)})
    (tmp_path / "huge.npy").write_bytes(buffer.getvalue() + b"1234")
    with pytest.raises(BadFileError, match=r"huge\.npy"):
        read_map(tmp_path / "huge.npy")


DEFECT = np.zeros((24, 32), bool)
DEFECT[5:17, 8:24] = True


@pytest.mark.parametrize("value", [1, 128, 255])
def test_mask_png_is_defect_where_not_zero(tmp_path: Path, value: int) -> None:
    grey = DEFECT * np.uint8(value)
    opaque = np.full_like(grey, 255)
    red = np.dstack([grey, grey * 0, grey * 0])
    for channels in (grey, red, np.dstack([red, opaque]), np.dstack([grey, opaque]), grey.astype(np.uint16)):
        result = read_mask(save_png(tmp_path / "m.png", channels))
        assert result.dtype == np.bool_
        np.testing.assert_array_equal(result, DEFECT)


def test_mask_of_one_bit_and_tiff_and_npy(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_mask(save_png(tmp_path / "m.png", DEFECT)), DEFECT)
    tifffile.imwrite(tmp_path / "m.tif", DEFECT.astype(np.float32))
    np.testing.assert_array_equal(read_mask(tmp_path / "m.tif"), DEFECT)
    np.save(tmp_path / "m.npy", DEFECT[None])
    np.testing.assert_array_equal(read_mask(tmp_path / "m.npy"), DEFECT)


def test_mask_with_palette_goes_by_index(tmp_path: Path) -> None:
    image = Image.fromarray(DEFECT.astype(np.uint8)).convert("P")
    image.putpalette([255, 255, 255, 0, 0, 0])  # background white, defect black
    image.putdata(DEFECT.astype(np.uint8).ravel().tolist())
    image.save(tmp_path / "p.png")
    with Image.open(tmp_path / "p.png") as saved:
        assert saved.mode == "P"
    np.testing.assert_array_equal(read_mask(tmp_path / "p.png"), DEFECT)


@pytest.mark.parametrize("suffix", ["jpg", "webp"])
def test_lossy_mask_is_cut_at_half(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    Image.fromarray(DEFECT * np.uint8(255)).save(path, quality=60)
    with Image.open(path) as stored:
        assert len(np.unique(np.asarray(stored))) > 2, "the case needs blurred edges"
    np.testing.assert_array_equal(read_mask(path), DEFECT)


@given(
    hnp.arrays(
        st.sampled_from([np.bool_, np.uint8, np.int16, np.int64, np.float32]),
        hnp.array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6),
        elements={"allow_nan": False},
    ),
    st.sampled_from([(), (0,), (2,)]),
)
def test_mask_arrays_of_any_number_type(values: np.ndarray, axes: tuple[int, ...]) -> None:
    expected = [[bool(value) for value in row] for row in values.tolist()]
    assert read_mask(np.expand_dims(values, axes)).tolist() == expected


def test_mask_with_nan_is_refused() -> None:
    with pytest.raises(BadFileError, match="NaN"):
        read_mask(np.array([[0.0, np.nan]]))


def _npy() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, SCORES)
    return buffer.getvalue()


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([b"", _npy()[:10], _npy()]),
    st.binary(max_size=120),
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 255)), max_size=4),
    st.sampled_from([".npy", ".png", ".tif"]),
)
def test_random_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    start: bytes,
    tail: bytes,
    changes: list[tuple[int, int]],
    suffix: str,
) -> None:
    data = bytearray(start + tail)
    for position, value in changes:
        if data:
            data[position % len(data)] = value
    path = tmp_path_factory.getbasetemp() / f"fuzz_map{suffix}"
    path.write_bytes(data)
    for read, dtype in ((read_map, np.float32), (read_mask, np.bool_)):
        try:
            result = read(path)  # type: ignore[operator]
        except BadFileError as error:
            assert str(path) in str(error)
        else:
            assert result.ndim == 2 and result.size and result.dtype == dtype


def test_soft_edges_and_noise_of_a_bright_mask_are_no_defect(tmp_path: Path) -> None:
    """As in MTD's own masks, whose background holds values of 1, 2, …"""
    noisy = np.array([[0, 1, 2], [100, 200, 255]], dtype=np.uint8)
    expected = [[False, False, False], [False, True, True]]
    assert read_mask(save_png(tmp_path / "noisy.png", noisy)).tolist() == expected
    numbers = np.array([[0, 1, 2], [3, 0, 4]], dtype=np.uint8)
    assert read_mask(save_png(tmp_path / "numbers.png", numbers)).tolist() == (numbers > 0).tolist()
