"""What headers and metadata of PNG, JPEG, BMP and WebP may do, and what they may not."""

from __future__ import annotations

import io
import struct
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from anomalyncd.data import pictures
from anomalyncd.data.images import decode, read_image
from anomalyncd.data.maps import read_mask
from anomalyncd.errors import BadFileError

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from faults.mutate import png

RGB = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def saved(file_format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(RGB).save(buffer, file_format, **options)
    return buffer.getvalue()


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def segment(marker: int, body: bytes = b"") -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


FLOODS = {
    "PNG, private chunks": lambda n: saved("PNG")[:33] + chunk(b"prVt") * n + saved("PNG")[33:],
    "PNG, texts": lambda n: saved("PNG")[:33] + chunk(b"tEXt", b"a\0b") * n + saved("PNG")[33:],
    "PNG, texts at the end": lambda n: saved("PNG")[:-12] + chunk(b"tEXt", b"a\0b") * n + saved("PNG")[-12:],
    "JPEG, empty segments": lambda n: b"\xff\xd8" + segment(0xE5) * n + saved("JPEG")[2:],
    "JPEG, comments": lambda n: b"\xff\xd8" + segment(0xFE, b"a") * n + saved("JPEG")[2:],
    "JPEG, filling": lambda n: b"\xff\xd8" + b"\xff" * n + saved("JPEG")[2:],
    "JPEG, bytes between segments": lambda n: b"\xff\xd8" + segment(0xE5) + bytes(n) + saved("JPEG")[2:],
    "JPEG, markers without content": lambda n: b"\xff\xd8" + b"\xff\xd0" * n + saved("JPEG")[2:],
}


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_of_metadata_is_refused_at_once(kind: str) -> None:
    assert read_image(FLOODS[kind](900)).shape == (5, 7, 3)
    for count in (1100, 3_000_000):
        flood = FLOODS[kind](count)
        started = time.process_time()
        with pytest.raises(BadFileError, match=r"more than 1,000 parts that are not pixels"):
            read_image(flood)
        assert time.process_time() - started < 1


def test_large_metadata_are_refused() -> None:
    large = bytes(17_000_000)
    one, two = (saved("PNG")[:33] + chunk(b"prVt", large) * n + saved("PNG")[33:] for n in (1, 2))
    assert read_image(one).shape == (5, 7, 3)
    with pytest.raises(BadFileError, match="more than 32,000,000 bytes that are not pixels"):
        read_image(two)
    with pytest.raises(BadFileError, match="more than 32,000,000 bytes that are not pixels"):
        read_image(b"\xff\xd8" + segment(0xE5, bytes(60_000)) * 600 + saved("JPEG")[2:])


def test_a_text_that_is_packed_takes_no_memory() -> None:
    for kind, head in ((b"zTXt", b"Comment\0\0"), (b"iCCP", b"name\0\0"), (b"iTXt", b"a\0\1\0\0\0")):
        data = saved("PNG")
        bomb = data[:33] + chunk(kind, head + zlib.compress(bytes(1 << 26), 9)) + data[33:]
        with pytest.raises(BadFileError, match="data: "):
            read_image(bomb)


def test_many_pixel_chunks() -> None:
    data = saved("PNG")
    start = data.index(b"IDAT") - 4
    body = data[start + 8 : start + 8 + int.from_bytes(data[start : start + 4], "big")]
    many = data[:start] + b"".join(chunk(b"IDAT", body[at : at + 1]) for at in range(len(body))) + chunk(b"IEND")
    np.testing.assert_array_equal(read_image(many), RGB)
    started = time.process_time()
    with pytest.raises(BadFileError, match="1,000,000 chunks"):
        read_image(data[:start] + chunk(b"IDAT") * 1_200_000)
    assert time.process_time() - started < 8


def test_headers_that_contradict_each_other() -> None:
    data = saved("JPEG")
    at = data.index(b"\xff\xc0")
    length = 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    other = bytearray(data[at : at + length])
    other[5:9] = struct.pack(">HH", 60_000, 60_000)
    for double in (bytes(other) + data[at : at + length], data[at : at + length] + bytes(other)):
        with pytest.raises(BadFileError, match="2 headers"):
            read_image(data[:at] + double + data[at + length :])


def test_scans_are_counted_where_the_pixels_are(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, progressive = saved("JPEG"), saved("JPEG", progressive=True)
    hidden = b"\xff\xd8" + segment(0xE5, b"\xff\xda" * 50) + plain[2:]  # as a thumbnail has them
    monkeypatch.setattr(pictures, "MOST_SCANNED", 35)
    assert read_image(hidden).shape == read_image(plain).shape
    with pytest.raises(BadFileError, match="scans"):
        read_image(progressive)
    monkeypatch.setattr(pictures, "BLOCK", 1)  # a marker may lie across two blocks
    monkeypatch.setattr(pictures, "MOST_SCANNED", 35 * progressive.count(b"\xff\xda"))
    assert read_image(progressive).shape == (5, 7, 3)
    monkeypatch.setattr(pictures, "MOST_SCANNED", 35 * progressive.count(b"\xff\xda") - 1)
    with pytest.raises(BadFileError, match="scans"):
        read_image(progressive)


def test_an_orientation_that_is_none() -> None:
    ifd = struct.pack("<2sHI", b"II", 42, 8) + struct.pack("<HHHI4sI", 1, 274, 2, 2, b"x\0", 0)  # text
    data = saved("PNG")
    np.testing.assert_array_equal(read_image(data[:33] + chunk(b"eXIf", ifd) + data[33:]), RGB)


def run_length_bmp(width: int, height: int, body: bytes) -> bytes:
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(body), 0, 0, 256, 0)
    start = 14 + len(header) + 1024
    palette = b"".join(bytes([n, n, n, 0]) for n in range(256))
    return struct.pack("<2sIHHI", b"BM", start + len(body), 0, 0, start) + header + palette + body


def test_run_lengths_of_a_bmp() -> None:
    body = b"\x04\x09\0\0\x04\x07\0\1"  # four of 9, end of line, four of 7, end
    assert read_image(run_length_bmp(4, 2, body))[..., 0].tolist() == [[7] * 4, [9] * 4]
    for bomb in (run_length_bmp(10_000, 9000, b"\x01\0\0\0" * 9000), run_length_bmp(4, 2, b"\x01\0" * 9_000_000)):
        started = time.process_time()
        with pytest.raises(BadFileError, match="too large: with run lengths"):
            read_image(bomb)
        assert time.process_time() - started < 1


@pytest.mark.parametrize("options", [{}, {"lossless": True}, {"exif": b"Exif\0\0"}], ids=["VP8", "VP8L", "VP8X"])
def test_the_size_of_a_webp_is_known_before_it_is_opened(options: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    data = saved("WEBP", **options)
    assert read_image(data).shape == (5, 7, 3)
    monkeypatch.setattr(pictures, "_PLUGINS", {})  # anything that is opened fails
    with pytest.raises(BadFileError, match="too large: it has 7 × 5 pixels"):
        read_image(data, max_pixels=34)


@pytest.mark.parametrize("top_down", [False, True])
def test_a_bmp_of_either_direction(top_down: bool) -> None:
    data = bytearray(saved("BMP"))
    if top_down:
        data[22:26] = struct.pack("<i", -5)
    np.testing.assert_array_equal(read_image(bytes(data)), RGB[::-1] if top_down else RGB)


def test_the_first_frame_of_a_moving_picture() -> None:
    frames = {"save_all": True, "append_images": [Image.new("RGB", (7, 5), "red")]}
    for data in (saved("PNG", **frames), saved("WEBP", lossless=True, **frames)):
        np.testing.assert_array_equal(read_image(data), RGB)


def test_palettes_as_colours_and_as_indices() -> None:
    data = png(9, 8, 8, 3)
    assert decode(data)[0].shape == (8, 9, 3)
    assert decode(data, palette_indices=True)[0].shape == (8, 9)
    assert not read_mask(data).any()


@pytest.mark.parametrize("size", [(20_000, 20_000), (40_000, 20_000, 1, 0), (9000, 9000, 16, 6), (60_000, 2500, 8, 2)])
def test_a_png_that_needs_more_than_the_limit_is_not_begun(size: tuple[int, ...]) -> None:
    with pytest.raises(BadFileError, match=r"too large: .* limit of 1,200 MB"):
        read_image(png(*size, rows=1))
