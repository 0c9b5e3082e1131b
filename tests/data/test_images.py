from __future__ import annotations

import io
import re
import struct
import sys
import threading
import warnings
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anomalyncd.data.images import IMAGE_SUFFIXES, read_image
from anomalyncd.errors import BadFileError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.mutate import tiff_file

RNG = np.random.default_rng(0)
RGB = RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8)
DEEP = RNG.integers(0, 65536, (5, 7, 3), dtype=np.uint16)
DEEP_AS_RGB = np.round(DEEP / 257).astype(np.uint8)


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def png(depth: int, colour_type: int, rows: np.ndarray, size: tuple[int, int] | None = None) -> bytes:
    """A PNG written by hand, for the kinds that no library here writes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = size or rows.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    body = b"".join(b"\0" + row.astype(">u2").tobytes() for row in rows)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


@pytest.mark.parametrize("suffix", ["png", "PNG", "bmp", "tif", "tiff"])
def test_lossless_rgb_is_exact(tmp_path: Path, suffix: str) -> None:
    path = save(tmp_path / f"a.{suffix}", Image.fromarray(RGB))
    result = read_image(path)
    np.testing.assert_array_equal(result, RGB)
    assert result.dtype == np.uint8 and result.flags.c_contiguous
    np.testing.assert_array_equal(read_image(str(path)), RGB)


def test_webp_and_jpeg(tmp_path: Path) -> None:
    np.testing.assert_array_equal(read_image(save(tmp_path / "a.webp", Image.fromarray(RGB), lossless=True)), RGB)
    flat = np.full((16, 16, 3), (200, 30, 90), np.uint8)
    jpeg = read_image(save(tmp_path / "a.jpg", Image.fromarray(flat), quality=95))
    assert np.abs(jpeg.astype(int) - flat).max() < 5


def test_suffix_does_not_decide(tmp_path: Path) -> None:
    path = tmp_path / "really_a_png.jpg"
    Image.fromarray(RGB).save(path, format="PNG")
    np.testing.assert_array_equal(read_image(path), RGB)


def test_grey_and_bilevel_become_three_equal_channels(tmp_path: Path) -> None:
    grey = RGB[..., 0]
    np.testing.assert_array_equal(
        read_image(save(tmp_path / "g.png", Image.fromarray(grey))), grey[..., None].repeat(3, 2)
    )
    bits = grey > 127
    expected = (bits * np.uint8(255))[..., None].repeat(3, 2)
    np.testing.assert_array_equal(read_image(save(tmp_path / "b.png", Image.fromarray(bits))), expected)
    np.testing.assert_array_equal(read_image(save(tmp_path / "b.tif", Image.fromarray(bits))), expected)


def test_alpha_is_dropped_and_colours_stay(tmp_path: Path) -> None:
    alpha = RNG.integers(0, 2, (5, 7, 1), dtype=np.uint8) * 255
    rgba = Image.fromarray(np.dstack([RGB, alpha]))
    for suffix in ("png", "tif"):
        np.testing.assert_array_equal(read_image(save(tmp_path / f"a.{suffix}", rgba)), RGB)
    grey_alpha = Image.fromarray(np.dstack([RGB[..., 0], alpha]))
    assert grey_alpha.mode == "LA"
    np.testing.assert_array_equal(read_image(save(tmp_path / "la.png", grey_alpha)), RGB[..., :1].repeat(3, 2))


def test_palette_becomes_its_colours_even_with_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90])
    image.putdata([0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = read_image(save(tmp_path / "p.png", image))
        clear = read_image(save(tmp_path / "t.png", image, transparency=bytes([0, 128, 255])))
    np.testing.assert_array_equal(plain, [[[10, 20, 30], [40, 50, 60], [70, 80, 90]]])
    np.testing.assert_array_equal(clear, plain)


def test_cmyk_jpeg(tmp_path: Path) -> None:
    path = save(tmp_path / "c.jpg", Image.new("CMYK", (8, 8), (0, 255, 255, 0)), quality=95)  # pure red ink
    assert np.abs(read_image(path).astype(int) - [255, 0, 0]).max() < 6


@pytest.mark.parametrize("channels", ["grey", "rgb", "rgba", "grey+alpha"])
def test_16_bit_png_is_divided_by_257_and_rounded(tmp_path: Path, channels: str) -> None:
    path = tmp_path / "deep.png"
    expected = DEEP_AS_RGB
    if channels == "grey":
        path.write_bytes(png(16, 0, DEEP[..., 0]))
    elif channels == "grey+alpha":
        path.write_bytes(png(16, 4, DEEP[..., :2]))
    elif channels == "rgb":
        path.write_bytes(png(16, 2, DEEP))
    else:
        path.write_bytes(png(16, 6, np.dstack([DEEP, DEEP[..., 1]])))
    if channels.startswith("grey"):
        expected = DEEP_AS_RGB[..., :1].repeat(3, 2)
    np.testing.assert_array_equal(read_image(path), expected)


@pytest.mark.parametrize("byteorder", ["<", ">"])
@pytest.mark.parametrize("layout", ["contig", "separate", "alpha", "grey", "white is zero", "zlib"])
def test_16_bit_tiff(tmp_path: Path, layout: str, byteorder: str) -> None:
    path, expected = tmp_path / "deep.tif", DEEP_AS_RGB
    grey = DEEP_AS_RGB[..., :1].repeat(3, 2)
    if layout == "contig":
        tifffile.imwrite(path, DEEP, byteorder=byteorder, photometric="rgb")
    elif layout == "zlib":
        tifffile.imwrite(path, DEEP, byteorder=byteorder, photometric="rgb", compression="zlib", predictor=True)
    elif layout == "separate":
        tifffile.imwrite(path, np.moveaxis(DEEP, 2, 0), byteorder=byteorder, photometric="rgb")
    elif layout == "alpha":
        tifffile.imwrite(path, np.dstack([DEEP, DEEP[..., 0]]), byteorder=byteorder, photometric="rgb")
    elif layout == "grey":
        tifffile.imwrite(path, DEEP[..., 0], byteorder=byteorder)
        expected = grey
    else:
        tifffile.imwrite(path, 65535 - DEEP[..., 0], byteorder=byteorder, photometric="miniswhite")
        expected = grey
    np.testing.assert_array_equal(read_image(path), expected)


@pytest.mark.parametrize("compression", [5, 8])
@pytest.mark.parametrize("colour", [True, False])
def test_compressed_16_bit_tiff_of_opencv(tmp_path: Path, compression: int, colour: bool) -> None:
    path = tmp_path / "deep.tif"
    pixels = DEEP[..., ::-1] if colour else DEEP[..., 0]
    cv2.imwrite(str(path), pixels, [cv2.IMWRITE_TIFF_COMPRESSION, compression])
    expected = DEEP_AS_RGB if colour else DEEP_AS_RGB[..., :1].repeat(3, 2)
    np.testing.assert_array_equal(read_image(path), expected)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_float_tiff(tmp_path: Path, dtype: type) -> None:
    values = np.array([[0, 0.25, 0.5, 1]], dtype=dtype)
    tifffile.imwrite(tmp_path / "f.tif", values)
    assert read_image(tmp_path / "f.tif")[0, :, 1].tolist() == [0, 64, 128, 255]
    tifffile.imwrite(tmp_path / "bad.tif", values * 255)
    with pytest.raises(BadFileError, match=r"bad\.tif: a float image must lie in 0\.\.1.*0\.\.255"):
        read_image(tmp_path / "bad.tif")


def as_stored(upright: np.ndarray, orientation: int) -> np.ndarray:
    """What a camera stores for each EXIF orientation, from the standard's words on row 0 and column 0."""
    return {
        1: upright,
        2: np.fliplr(upright),
        3: np.rot90(upright, 2),
        4: np.flipud(upright),
        5: upright.swapaxes(0, 1),
        6: np.rot90(upright, 1),  # shown after a quarter turn clockwise
        7: np.rot90(upright, 2).swapaxes(0, 1),
        8: np.rot90(upright, -1),
    }[orientation]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["png", "webp", "tif", "deep tif", "deep lzw tif", "deep png", "jpg"])
def test_exif_orientation(tmp_path: Path, orientation: int, kind: str) -> None:
    path = tmp_path / f"o.{kind.split()[-1]}"
    exif = Image.Exif()
    exif[274] = orientation
    tag = [(274, "H", 1, orientation, True)]
    stored = np.ascontiguousarray(as_stored(RGB, orientation))
    deep = np.ascontiguousarray(as_stored(DEEP, orientation))
    expected, tolerance = RGB, 0
    if kind == "jpg":
        blocks = RGB.repeat(16, 0).repeat(16, 1)
        stored, expected, tolerance = as_stored(blocks, orientation), blocks, 60
        save(path, Image.fromarray(np.ascontiguousarray(stored)), exif=exif, quality=100, subsampling=0)
    elif kind == "deep tif":
        tifffile.imwrite(path, deep, photometric="rgb", extratags=tag)
        expected = DEEP_AS_RGB
    elif kind == "deep lzw tif":
        deep_grey = Image.fromarray(np.ascontiguousarray(deep[..., 0]))
        save(path, deep_grey, compression="tiff_lzw", tiffinfo={274: orientation})
        expected = DEEP_AS_RGB[..., :1].repeat(3, 2)
    elif kind == "deep png":
        data = png(16, 2, deep)
        eight_bit = io.BytesIO()
        Image.new("RGB", (1, 1)).save(eight_bit, "PNG", exif=exif)
        start = eight_bit.getvalue().index(b"eXIf") - 4
        length = struct.unpack_from(">I", eight_bit.getvalue(), start)[0] + 12
        path.write_bytes(data[:33] + eight_bit.getvalue()[start : start + length] + data[33:])
        expected = DEEP_AS_RGB
    elif kind == "webp":
        save(path, Image.fromarray(stored), exif=exif, lossless=True)
    else:
        save(path, Image.fromarray(stored), exif=exif)
    result = read_image(path)
    assert result.shape == expected.shape
    if tolerance:
        assert np.abs(result.astype(int) - expected).max() < tolerance
    else:
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (RGB, RGB),
        (RGB[..., 0], RGB[..., :1].repeat(3, 2)),
        (RGB[..., :1], RGB[..., :1].repeat(3, 2)),
        (np.dstack([RGB, RGB[..., 0]]), RGB),
        (DEEP, DEEP_AS_RGB),
        (DEEP.astype(">u2"), DEEP_AS_RGB),
        (RGB / 255, RGB),
        ((RGB / 255).astype(np.float32) + np.float32(1e-7), RGB),
        (RGB[::-1, ::2], RGB[::-1, ::2]),
    ],
)
def test_arrays(array: np.ndarray, expected: np.ndarray) -> None:
    before = array.copy()
    result = read_image(array)
    np.testing.assert_array_equal(result, expected)
    assert result.dtype == np.uint8 and result.flags.c_contiguous
    np.testing.assert_array_equal(array, before)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 8, 9), np.uint8), r"\(3, 8, 9\)"),
        (np.zeros((8, 9, 2), np.uint8), r"\(8, 9, 2\)"),
        (np.zeros(5, np.uint8), r"\(5,\)"),
        (np.zeros((0, 5, 3), np.uint8), "at least one pixel"),
        (np.zeros((4, 4), np.int64), "int64"),
        (np.zeros((4, 4), complex), "complex"),
        (np.zeros((4, 4), object), "object"),
        (np.full((4, 4), np.nan), "nan"),
        (np.full((4, 4), 1.5), r"1\.5"),
        (np.full((4, 4), -0.5), r"-0\.5"),
        (None, "NoneType"),
        ([[1, 2]], "list"),
    ],
)
def test_bad_arrays(array: np.ndarray, message: str) -> None:
    with pytest.raises(BadFileError, match=message):
        read_image(array)


def test_bad_files_name_the_file_and_the_fault(tmp_path: Path) -> None:
    cases = {"text.png": b"hello, I am a text file", "empty.png": b"", "magic.png": b"\x89PNG\r\n\x1a\n"}
    for name, data in cases.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / "folder.png").mkdir()
    for name, fault in {
        "text.png": "something else",
        "empty.png": "empty",
        "magic.png": "something else|damaged",
        "folder.png": "folder",
        "missing.png": "No such file",
        "nul\0.png": "null",
    }.items():
        with pytest.raises(BadFileError, match=fault) as caught:
            read_image(tmp_path / name)
        assert name.replace("\0", " ") in str(caught.value)


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "tif", "webp", "deep png", "deep tif", "deep lzw tif"])
@pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
def test_truncated_files(tmp_path: Path, kind: str, fraction: float) -> None:
    path = tmp_path / f"t.{kind.split()[-1]}"
    noise = RNG.integers(0, 65536, (40, 50, 3), dtype=np.uint16)
    if kind == "deep png":
        path.write_bytes(png(16, 2, noise))
    elif kind == "deep tif":
        tifffile.imwrite(path, noise, photometric="rgb")
    elif kind == "deep lzw tif":
        cv2.imwrite(str(path), noise, [cv2.IMWRITE_TIFF_COMPRESSION, 5])
    else:
        Image.fromarray((noise >> 8).astype(np.uint8)).save(path)
    assert read_image(path).shape == (40, 50, 3)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * fraction)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadFileError, match=path.name):
            read_image(path)


def test_zero_size_image(tmp_path: Path) -> None:
    path = tmp_path / "z.png"
    path.write_bytes(png(16, 2, DEEP, size=(0, 7)))
    with pytest.raises(BadFileError, match=r"z\.png"):
        read_image(path)


def test_pixel_limit(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(png(16, 2, DEEP, size=(100_000, 100_000)))
    with pytest.raises(BadFileError, match=r"too large.* 100000 × 100000 pixels .* 1,200 MB.*ANOMALYNCD_READ_MB"):
        read_image(bomb)
    deep = tmp_path / "deep.tif"
    tifffile.imwrite(deep, DEEP, photometric="rgb")
    for path in (deep, save(tmp_path / "a.png", Image.fromarray(RGB))):
        with pytest.raises(BadFileError, match="too large: it has 7 × 5 pixels, more than the limit of 34"):
            read_image(path, max_pixels=34)
        assert read_image(path, max_pixels=35).shape == (5, 7, 3)


def test_more_than_100_megapixels_are_read_up_to_a_limit_that_can_be_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "line.tif"
    data = tiff_file({256: 10_000, 257: 10_500, 258: 8, 262: 1, 278: 10_500, 273: 1000}, [])
    path.write_bytes(data)
    with path.open("r+b") as file:  # holes take no room
        file.truncate(1000 + 105_000_000)
    monkeypatch.setenv("ANOMALYNCD_READ_MB", "400")
    with pytest.raises(
        BadFileError, match=r"line\.tif: too large: to read its 10000 × 10500 pixels .* 400 MB"
    ) as caught:
        read_image(path)
    assert "damaged" not in str(caught.value)
    needed = re.search(r"ANOMALYNCD_READ_MB to (\d+)", str(caught.value))
    assert needed is not None
    monkeypatch.setenv("ANOMALYNCD_READ_MB", needed[1])
    assert read_image(path).shape == (10_500, 10_000, 3)


def test_more_pixels_than_pillow_likes_are_read_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(RGB))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)  # Pillow refuses 35 pixels now
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(read_image(path), RGB)
    assert Image.MAX_IMAGE_PIXELS == 10


def test_threads_leave_pillow_and_warnings_as_they_were(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(RGB))
    limit, filters = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    threads = [threading.Thread(target=lambda: [read_image(path) for _ in range(30)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert limit == Image.MAX_IMAGE_PIXELS
    assert warnings.filters == filters


def test_suffixes() -> None:
    assert {"png", "jpg", "jpeg", "bmp", "tif", "tiff", "webp"} == {suffix.lstrip(".") for suffix in IMAGE_SUFFIXES}


def _valid_files() -> list[bytes]:
    files = [png(16, 2, DEEP), png(16, 0, DEEP[..., 0])]
    for file_format in ("PNG", "JPEG", "BMP", "TIFF", "WEBP"):
        buffer = io.BytesIO()
        Image.fromarray(RGB).save(buffer, file_format)
        files.append(buffer.getvalue())
    for array in (DEEP, (DEEP / 65535).astype(np.float32)):
        buffer = io.BytesIO()
        tifffile.imwrite(buffer, array, photometric="rgb")
        files.append(buffer.getvalue())
    files.append(cv2.imencode(".tif", DEEP, [cv2.IMWRITE_TIFF_COMPRESSION, 5])[1].tobytes())
    return files


VALID_FILES = _valid_files()


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.sampled_from([b"", *(data[:12] for data in VALID_FILES)]))
def test_random_bytes_are_a_bad_file(tmp_path_factory: pytest.TempPathFactory, data: bytes, start: bytes) -> None:
    check_reads_or_refuses(tmp_path_factory.getbasetemp() / "fuzz.png", start + data)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(VALID_FILES),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=6),
)
def test_flipped_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(data)
    for position, value in changes:
        damaged[position % len(damaged)] = value
    check_reads_or_refuses(tmp_path_factory.getbasetemp() / "fuzz.tif", bytes(damaged))


def check_reads_or_refuses(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            result = read_image(path)
        except BadFileError as error:
            assert str(path) in str(error)
        else:
            assert result.ndim == 3 and result.shape[2] == 3 and result.dtype == np.uint8 and result.size
