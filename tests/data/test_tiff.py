"""TIFFs of every layout against what was written into them, and against Pillow and tifffile."""

from __future__ import annotations

import contextlib
import io
import itertools
import lzma
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from anomalyncd.data import tiff
from anomalyncd.data.images import decode, read_image
from anomalyncd.errors import BadFileError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.mutate import tiff_file

RNG = np.random.default_rng(0)
CODES = ("none", "zlib", "lzw", "packbits", "lzma", "zstd")
DTYPES = ("u1", "u2", "u4", "u8", "i1", "i2", "i4", "f2", "f4", "f8")


def write(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    tifffile.imwrite(buffer, pixels, **options)
    return buffer.getvalue()


def noise(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Smooth enough to be packed, with values of the whole range."""
    if dtype.startswith("f"):
        return RNG.normal(size=shape).astype(dtype)
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


def stored(data: bytes) -> np.ndarray:
    pixels, file_format = decode(data)
    assert file_format == "TIFF"
    return pixels


@pytest.fixture(autouse=True, params=[8_000_000, 200], ids=["one band", "many bands"])
def band(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff, "BAND", request.param)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_whatever_was_written_is_read(data: st.DataObject) -> None:
    code, dtype = data.draw(st.sampled_from(CODES)), data.draw(st.sampled_from(DTYPES))
    height, width = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    n_samples = data.draw(st.sampled_from([1, 2, 3, 4]))
    separate = n_samples > 1 and data.draw(st.booleans())
    options: dict[str, object] = {
        "byteorder": data.draw(st.sampled_from("<>")), "bigtiff": data.draw(st.booleans()), "photometric": "minisblack",
    }  # fmt: skip
    if n_samples > 1:
        options["planarconfig"] = "separate" if separate else "contig"
        options["photometric"] = "rgb" if n_samples > 2 else "minisblack"
    if code != "none":
        options["compression"] = code
        if code != "packbits":
            predictors = [1, 2] if dtype[0] in "ui" else [1, 3]
            options["predictor"] = data.draw(st.sampled_from(predictors))
    if data.draw(st.booleans()):
        options["tile"] = data.draw(st.sampled_from([(16, 16), (16, 48), (32, 16), (80, 80)]))
    else:
        options["rowsperstrip"] = data.draw(st.sampled_from([1, 7, 100]))
    pixels = noise((height, width, n_samples), dtype)
    laid = np.moveaxis(pixels, 2, 0) if separate else pixels if n_samples > 1 else pixels[..., 0]
    found = stored(write(laid, **options))
    expected = pixels[..., :3] if n_samples > 2 else pixels[..., 0]
    assert found.dtype.kind == expected.dtype.kind and found.dtype.itemsize == expected.dtype.itemsize
    np.testing.assert_array_equal(found, expected)


def pillow(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "TIFF", **options)
    return buffer.getvalue()


def blobs(mode: str) -> Image.Image:
    """A picture (37 × 53) that is not too rough for JPEG."""
    small = Image.fromarray(RNG.integers(0, 256, (5, 7, 3), dtype=np.uint8))
    image = small.resize((53, 37), Image.Resampling.BICUBIC)
    if mode == "RGBA":
        image.putalpha(Image.fromarray(RNG.integers(1, 256, (37, 53), dtype=np.uint8)))
    return image.convert(mode)


PILLOW = [
    *itertools.product(
        ["1", "L", "P", "RGB", "RGBA", "CMYK", "LAB", "YCbCr"],
        ["raw", "tiff_lzw", "tiff_adobe_deflate", "packbits", "lzma", "zstd"],
    ),
    *itertools.product(["1"], ["group3", "group4", "tiff_ccitt"]),
    *itertools.product(["L", "RGB", "CMYK", "YCbCr"], ["jpeg"]),
]


@pytest.mark.parametrize(("mode", "code"), PILLOW)
def test_what_pillow_writes_is_read_as_pillow_reads_it(mode: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("PIL.TiffImagePlugin.STRIP_SIZE", 700)  # several strips
    data = pillow(blobs(mode), compression=code)
    with Image.open(io.BytesIO(data)) as image:
        assert image.mode == mode or mode in ("LAB", "YCbCr")
        try:
            expected = np.asarray(image.convert("RGB"))
        except OSError as error:  # Pillow 12 does not read the YCbCr without compression that it writes
            pytest.skip(str(error))
    np.testing.assert_array_equal(read_image(data), expected)


def test_alpha_that_the_colours_were_multiplied_with() -> None:
    half = np.full((4, 4, 4), (60, 30, 10, 128), np.uint8)
    image = read_image(write(half, photometric="rgb", extrasamples=["assocalpha"]))
    assert image[0, 0].tolist() == pytest.approx([120, 60, 20], abs=1)
    deep = write(half.astype(np.uint16) * 257, photometric="rgb", extrasamples=["unassalpha"])
    assert read_image(deep)[0, 0].tolist() == [60, 30, 10]


@pytest.mark.parametrize("tile", [None, (16, 16), (32, 48)])
@pytest.mark.parametrize("planar", ["rgb", "minisblack"])
def test_jpeg_in_strips_and_tiles(tile: tuple[int, int] | None, planar: str) -> None:
    pytest.importorskip("imagecodecs")
    colours = np.asarray(blobs("RGB"))
    pixels = colours if planar == "rgb" else colours[..., 0]
    layout = {"rowsperstrip": 16} if tile is None else {"tile": tile}
    data = write(pixels, photometric=planar, compression="jpeg", compressionargs={"level": 98}, **layout)
    expected = tifffile.imread(io.BytesIO(data)).astype(int)
    found = read_image(data).astype(int)
    assert found.shape == colours.shape
    assert np.abs(found - (expected if expected.ndim == 3 else expected[..., None])).max() < 4


@pytest.mark.parametrize("code", [1, 32773, 8])
@pytest.mark.parametrize("bits", [1, 8])
def test_bits_from_right_to_left(code: int, bits: int) -> None:
    """FillOrder 2: the bits of each byte of the file are turned around, packed or not."""
    pixels = RNG.integers(0, 256, (6, 5), dtype=np.uint8)
    pack = {1: bytes, 8: zlib.compress, 32773: lambda data: bytes([len(data) - 1]) + data}[code]
    chunk = pack(pixels.tobytes())
    turned = np.packbits(np.unpackbits(np.frombuffer(chunk, np.uint8)), bitorder="little").tobytes()
    tags = {256: 40 // bits, 257: 6, 258: bits, 259: code, 262: 1, 266: 2, 277: 1, 278: 6}
    expected = pixels if bits == 8 else np.unpackbits(pixels, axis=1) * 255
    np.testing.assert_array_equal(read_image(tiff_file(tags, [turned]))[..., 0], expected)


GREY = {256: 64, 257: 48, 258: 8, 259: 1, 262: 1, 277: 1, 278: 48}


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("order", "<>")
def test_strips_that_lie_anywhere(big: bool, order: str) -> None:
    pixels = RNG.integers(0, 256, (48, 64), dtype=np.uint8)
    rows = [pixels[at : at + 10].tobytes() for at in range(0, 48, 10)]
    data = tiff_file({**GREY, 278: 10}, rows, order=order, big=big)
    np.testing.assert_array_equal(stored(data), pixels)
    start = 16 if big else 8
    apart = [start + 2 * sum(map(len, rows[:n])) for n in range(5)]
    spread = [part for row in rows for part in (row, bytes(len(row)))]
    tags = {**GREY, 278: 10, 273: apart, 279: [len(row) for row in rows]}
    np.testing.assert_array_equal(stored(tiff_file(tags, spread, order=order, big=big)), pixels)


BAD = {
    "no width": ({257: 4, 273: 8}, "tag 256 is missing"),
    "no strips": ({**GREY, 273: [], 279: []}, "asks for 1 strips or tiles, and it has 0"),
    "no byte counts": ({**GREY, 259: 8, 279: []}, "how long"),
    "too few strips": ({**GREY, 278: 1}, "asks for 48 strips or tiles, and it has 1"),
    "strips behind the end": ({**GREY, 273: 1 << 30}, "ends before its pixels"),
    "strips far behind the end": ({**GREY, 273: (1 << 64) - 1}, "ends before its pixels"),
    "strips that overlap": ({**GREY, 259: 5, 278: 1, 273: [8] * 48, 279: [3000] * 48}, "overlap"),
    "strips without rows": ({**GREY, 278: 0}, "no pixels"),
    "tiles without pixels": ({**GREY, 322: 0, 323: 0, 324: 8, 325: 8}, "no pixels"),
    "a hundred million tiles": ({**GREY, 256: 10_000, 257: 10_000, 322: 1, 323: 1, 324: 8}, "100,000,000 strips or tiles"),
    "samples of different depths": ({**GREY, 258: [8, 16, 8], 277: 3}, "different kinds"),
    "no samples": ({**GREY, 277: 0}, "0 samples"),
    "a thousand samples": ({**GREY, 277: 1000}, "1000 samples"),
    "12 bits": ({**GREY, 258: 12}, "12 bits"),
    "complex numbers": ({**GREY, 258: 64, 339: 6}, "unknown kind"),
    "PNG inside": ({**GREY, 259: 34933}, "compression, PNG, is not read"),
    "WebP inside": ({**GREY, 259: 50001}, "compression, WebP, is not read"),
    "JPEG 2000 inside": ({**GREY, 259: 34712}, "compression, JPEG 2000, is not read"),
    "old JPEG inside": ({**GREY, 259: 6}, "compression, old JPEG, is not read"),
    "an unknown code": ({**GREY, 259: 12345}, "compression, number 12345, is not read"),
    "ink in planes": ({**GREY, 262: 5, 277: 4, 284: 2}, "separate planes"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_tags_that_cannot_be_right(kind: str) -> None:
    tags, words = BAD[kind]
    chunks = [] if kind.startswith("no strips") else [bytes(48 * 64)]
    for big, order in itertools.product((False, True), "<>"):
        with pytest.raises(BadFileError, match=words):
            read_image(tiff_file(tags, chunks, big=big or kind == "strips far behind the end", order=order))


TOO_LARGE = {
    "one tile of 60,000 × 60,000": {322: 60_000, 323: 60_000, 324: 8, 325: 8, 259: 8},
    "a tile of the longest sides": {322: (1 << 32) - 1, 323: (1 << 32) - 1, 324: 8, 325: 8, 259: 34925},
    "60,000 × 60,000 pixels": {256: 60_000, 257: 60_000, 278: 60_000, 259: 50000},
    "64-bit colours": {256: 9000, 257: 9000, 258: 64, 277: 4, 278: 9000, 259: 8},
    "a fax": {256: 30_000, 257: 30_000, 258: 1, 278: 30_000, 259: 4},
}


@pytest.mark.parametrize("kind", TOO_LARGE)
def test_what_tags_promise_is_refused_before_it_is_unpacked(kind: str) -> None:
    data = tiff_file({**GREY, **TOO_LARGE[kind]}, [zlib.compress(bytes(3000))])
    with pytest.raises(BadFileError, match=r"too large: .* limit of 1,200 MB"):
        read_image(data)


@pytest.mark.parametrize("code", [5, 8, 34925, 50000, 32773, 32946])
def test_a_strip_unpacks_to_no_more_than_its_rows(code: int) -> None:
    """A strip that holds a thousand times more than its tags say is cut, or refused."""
    more = bytes(3_000_000)
    packed = {8: zlib.compress(more), 32946: zlib.compress(more), 34925: lzma.compress(more)}.get(code)
    if packed is None:
        whole = pillow(
            Image.new("L", (3000, 1000)), compression={5: "tiff_lzw", 32773: "packbits", 50000: "zstd"}[code]
        )
        with tifffile.TiffFile(io.BytesIO(whole)) as file:
            page = file.pages[0]
            packed = whole[page.dataoffsets[0] : page.dataoffsets[0] + page.databytecounts[0]]
    try:
        assert not read_image(tiff_file({**GREY, 259: code}, [packed])).any()
    except BadFileError as error:
        assert "damaged" in str(error)


def test_a_million_tags_and_values() -> None:
    with pytest.raises(BadFileError, match="tags"):
        read_image(b"II+\0\x08\0\0\0" + struct.pack("<Q", 16) + struct.pack("<Q", 1 << 40) + bytes(100))
    with pytest.raises(BadFileError, match="values"):
        read_image(b"II*\0\x08\0\0\0" + struct.pack("<HHHII", 1, 273, 4, 1 << 31, 8) + bytes(100))
    many = (
        struct.pack("<HHII", 700, 1, 1 << 31, 8) * 65_535
    )  # all point to the same two billion bytes, and none is read
    with pytest.raises(BadFileError, match="tag 256 is missing"):
        read_image(b"II*\0\x08\0\0\0" + struct.pack("<H", 65_535) + many)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_a_file_that_was_cut(code: str, share: float) -> None:
    data = write(noise((60, 50), "u2"), compression=None if code == "none" else code, rowsperstrip=9)
    with pytest.raises(BadFileError, match="damaged"):
        read_image(data[: int(len(data) * share)])


def test_damage_is_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    for code, options in itertools.product(CODES[1:], ({"rowsperstrip": 9}, {"tile": (16, 16)})):
        data = bytearray(write(noise((60, 50), "u2"), compression=code, **options))
        for at in range(400, len(data) - 400, 97):
            data[at] ^= 0xFF
        with contextlib.suppress(BadFileError):
            read_image(bytes(data))
    out, said = capfd.readouterr()
    assert not out and not said
