"""Images, maps and masks that promise, unpack to, or cost far more than they hold; and some that are merely large."""

from __future__ import annotations

import lzma
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from .mutate import npy, png, tiff_file
from .seeds import pillow

Make = Callable[[Path], "bytes | Path"]
GREY = {256: 64, 257: 48, 258: 8, 259: 1, 262: 1, 277: 1, 278: 48}
NPY = "{'descr': %r, 'fortran_order': %s, 'shape': %s}"


def tiff(tags: dict[int, Any], chunks: list[bytes], **how: bool) -> Make:
    return lambda _: tiff_file({**GREY, **tags}, chunks, **how)


def deflated(gigabytes: float) -> bytes:
    """Zeros, a thousandth as long: blocks that know nothing of each other, and a wrong checksum at the end."""
    packer = zlib.compressobj(9)
    first, block = (packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    return first + block * int(64 * gigabytes) + b"\x03\0\0\0\0\0"


def lzma_packed(gigabytes: float) -> bytes:
    return lzma.compress(bytes(1 << 26)) * int(16 * gigabytes)


def sparse(start: bytes, size: int, suffix: str) -> Make:
    """A file whose end takes no room."""

    def make(case: Path) -> Path:
        path = case / f"sparse{suffix}"
        path.write_bytes(start)
        os.truncate(path, size)
        return path

    return make


def raw_tiff(width: int, height: int, n_samples: int = 1, bits: int = 8, form: int = 1) -> Make:
    tags = {
        256: width, 257: height, 258: [bits] * n_samples, 262: 2 if n_samples > 2 else 1, 277: n_samples, 278: height,
        273: 4096, 279: 0, 339: [form] * n_samples,
    }  # fmt: skip
    return sparse(tiff_file({**GREY, **tags}, []), 4096 + width * height * n_samples * bits // 8, ".tif")


def strips_of(tags: dict[int, Any], packed: bytes) -> Make:
    """Strips that are alike, each with bytes of its own."""
    return lambda _: tiff_file({**GREY, **tags}, [packed] * -(-tags[257] // tags[278]))


def chunk(kind: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def in_png(part: bytes, times: int = 1) -> bytes:
    small = png(8, 8)
    return small[:33] + part * times + small[33:]


def in_jpeg(part: bytes, times: int = 1) -> bytes:
    return b"\xff\xd8" + part * times + pillow(Image.new("RGB", (16, 16)), "JPEG")[2:]


def segment(marker: int, body: bytes = b"") -> bytes:
    return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body


def huge_jpeg(case: Path) -> bytes:
    data = bytearray(pillow(Image.new("RGB", (16, 16)), "JPEG"))
    data[(at := data.index(b"\xff\xc0")) + 5 : at + 9] = struct.pack(">HH", 65_000, 65_000)
    return bytes(data)


def bmp(width: int, height: int, bits: int, packing: int, part: bytes = b"", times: int = 1, size: int = 0) -> Make:
    palette = bytes(4 << bits) if bits <= 8 else b""
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, packing, 0, 0, 0, 0, 0)
    start = 14 + len(header) + len(palette)
    head = struct.pack("<2sIHHI", b"BM", 0, 0, 0, start) + header + palette
    return sparse(head, start + size, ".bmp") if size else lambda _: head + part * times


def webp(width: int, height: int, start: bytes = b"", part: bytes = b"", times: int = 0) -> bytes:
    """A canvas, moving where it has a start, and chunks."""
    sides = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBPVP8X" + struct.pack("<II", 10, 2 * bool(start)) + sides + start + part * times
    return b"RIFF" + struct.pack("<I", len(body)) + body


def array(kind: str, shape: tuple[int, ...], size: int, by_columns: bool = False) -> Make:
    head = npy(NPY % (kind, by_columns, shape))
    return sparse(head, len(head) + size, ".npy")


def many_pages(case: Path) -> bytes:
    return pillow(Image.new("L", (8, 8)), "TIFF", save_all=True, append_images=[Image.new("L", (8, 8))] * 2000)


def page_loop(case: Path) -> bytes:
    """The page after the first one is the first one."""
    data = bytearray(tiff_file(GREY, [bytes(64 * 48)]))
    at = 8 + 64 * 48
    n_tags = int.from_bytes(data[at : at + 2], "little")
    data[at + 2 + 12 * n_tags : at + 6 + 12 * n_tags] = struct.pack("<I", at)
    return bytes(data)


def one_place(case: Path) -> bytes:
    """65,535 tags, each of the same 30 million bytes."""
    entry = b"".join(struct.pack("<HHII", tag, 7, 30_000_000, 8 + 2 + 12 * 65_535) for tag in range(65_535))
    return struct.pack("<2sHIH", b"II", 42, 8, 65_535) + entry + bytes(30_000_004)


SMALL = zlib.compress(bytes(64 * 48))
# What is refused, or read at the size that it says: the worst that a reader did with each is in the name.
TIFF_BOMBS: dict[str, Make] = {
    "8 GB in LZMA": lambda _: tiff_file({**GREY, 259: 34925}, [lzma_packed(8)]),
    "8 GB in LZMA, of floats": lambda _: tiff_file({**GREY, 258: 32, 259: 34925, 339: 3}, [lzma_packed(8)]),
    "8 GB in deflate": lambda _: tiff_file({**GREY, 259: 8}, [deflated(8)]),
    "8 GB in deflate, of 16 bits": lambda _: tiff_file({**GREY, 258: 16, 259: 32946}, [deflated(8)]),
    "8 GB in deflate, of doubles": lambda _: tiff_file({**GREY, 258: 64, 259: 8, 339: 3, 317: 3}, [deflated(8)]),
    "a PNG of 400 megapixels": lambda _: tiff_file({**GREY, 259: 34933}, [png(20_000, 20_000)]),
    "a PNG of 289 megapixels, of 64 bits": lambda _: tiff_file({**GREY, 258: 16, 259: 34933}, [png(17_000, 17_000, 16, 6)]),
    "a WebP": tiff({259: 50001, 258: 16}, [webp(1 << 24, 1 << 24)]),
    "a JPEG that says 65,000 × 65,000": lambda _: tiff_file({**GREY, 259: 7, 262: 6, 277: 3, 258: [8] * 3}, [huge_jpeg(_)]),
    **{f"compression {code}": tiff({259: code, 258: 16}, [SMALL]) for code in (34712, 34887, 34934, 50002, 6, 32908, 34676)},
    **{
        f"60,000 × 60,000 pixels of compression {code}": tiff({256: 60_000, 257: 60_000, 278: 60_000, 259: code}, [SMALL])
        for code in (1, 3, 4, 5, 7, 8, 32773, 34925, 50000)
    },
    "a hundred million tiles": tiff({256: 10_000, 257: 10_000, 322: 1, 323: 1}, [SMALL], tiled=True),
    "one tile of 60,000 × 60,000": tiff({322: 60_000, 323: 60_000, 259: 8}, [SMALL], tiled=True),
    "one tile of 2³² × 2³²": tiff({322: 2**32 - 1, 323: 2**32 - 1, 259: 34925}, [SMALL], tiled=True),
    "a million strips of the same 30 MB": lambda _: tiff_file(
        {**GREY, 257: 1_000_000, 278: 1, 259: 5, 273: [8] * 1_000_000, 279: [30_000_000] * 1_000_000}, [bytes(30_000_000)]
    ),
    "65,535 tags of the same 30 MB": one_place,
    "2⁴⁰ tags": lambda _: b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 1 << 40) + bytes(1000),
    "2⁶⁰ strips": lambda _: b"II+\0\x08\0\0\0" + struct.pack("<QQHHQQ", 16, 1, 273, 16, 1 << 60, 8) + bytes(1000),
    "four planes of doubles": tiff(
        {256: 9000, 257: 9000, 258: [64] * 4, 262: 2, 277: 4, 278: 9000, 284: 2, 259: 8}, [SMALL] * 4
    ),
    "a thousand samples": tiff({277: 1000, 258: [8] * 1000}, [SMALL]),
    "2,000 pages": many_pages,
    "pages in a loop": page_loop,
}  # fmt: skip
LARGE_TIFFS: dict[str, Make] = {
    "340 megapixels, grey": raw_tiff(10_000, 34_000),
    "340 megapixels, RGB": raw_tiff(10_000, 34_000, 3),
    "340 megapixels, 16 bits": raw_tiff(10_000, 34_000, 3, 16),
    "340 megapixels in deflated strips": strips_of(
        {256: 20_000, 257: 17_000, 278: 64, 259: 8}, zlib.compress(bytes(64 * 20_000))
    ),
    "340 megapixels in fax strips": strips_of({256: 20_000, 257: 17_000, 278: 64, 258: 1, 259: 4, 262: 0}, b"\xff" * 8),
    "130 megapixels in one deflated strip": lambda _: tiff_file(
        {**GREY, 256: 10_000, 257: 13_000, 278: 13_000, 259: 8}, [zlib.compress(bytes(130_000_000))]
    ),
    "1,000 megapixels": raw_tiff(25_000, 40_000),
}
PNG_BOMBS: dict[str, Make] = {
    "a packed profile of 64 MB": lambda _: in_png(chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(1 << 26), 9))),
    "a packed text of 1 GB": lambda _: in_png(chunk(b"iTXt", b"a\0\1\0\0\0" + deflated(1))),
    "a thousand packed texts": lambda _: in_png(chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(900_000), 9)), 990),
    "two million chunks": lambda _: in_png(chunk(b"prVt"), 2_000_000),
    "two million texts": lambda _: in_png(chunk(b"tEXt", b"a\0b"), 2_000_000),
    "two million pixel chunks": lambda _: in_png(chunk(b"IDAT"), 2_000_000),
    "a chunk of 100 MB": lambda _: in_png(chunk(b"prVt", bytes(100_000_000))),
    "EXIF of 31 MB": lambda _: in_png(chunk(b"eXIf", b"II*\0\x08\0\0\0\xff\xff" + bytes(31_000_000))),
}
JPEG_BOMBS: dict[str, Make] = {
    "five million empty segments": lambda _: in_jpeg(segment(0xE5), 5_000_000),
    "five million comments": lambda _: in_jpeg(segment(0xFE, b"a"), 5_000_000),
    "EXIF in 990 segments": lambda _: in_jpeg(segment(0xE1, b"Exif\0\0" + bytes(32_000)), 990),
    "a profile in 990 segments": lambda _: in_jpeg(segment(0xE2, b"ICC_PROFILE\0\1\1" + bytes(32_000)), 990),
    "100 MB between two segments": lambda _: in_jpeg(segment(0xE5) + bytes(100_000_000)),
    "100 MB of filling": lambda _: in_jpeg(b"\xff", 100_000_000),
    "five million restarts": lambda _: in_jpeg(b"\xff\xd0", 5_000_000),
}
OTHER_BOMBS: dict[str, Make] = {
    "BMP of 90 megapixels in run lengths": bmp(10_000, 9000, 8, 1, b"\1\0\0\0", 9000),
    "BMP of 30 MB of run lengths": bmp(4, 4, 8, 1, b"\1\0", 15_000_000),
    "BMP of 16 megapixels in run lengths": bmp(4000, 4000, 8, 1, b"\1\0\0\0", 4000),
    "BMP of 16 megapixels in short run lengths": bmp(4000, 4000, 4, 2, b"\xff\1", 64_000),
    "BMP of 2³¹ × 2³¹": bmp(2**31 - 1, -(2**31), 24, 0, bytes(100)),
    "WebP of 2²⁴ × 2²⁴": lambda _: webp(1 << 24, 1 << 24),
    "WebP of two million chunks": lambda _: webp(16, 16, b"", b"abcd\0\0\0\0", 2_000_000),
    "WebP of a million frames": lambda _: webp(
        16, 16, b"ANIM\6\0\0\0" + bytes(6), b"ANMF\x10\0\0\0" + bytes(16), 1_000_000
    ),
}
BOMBS = {
    f"{kind}{name}": make
    for kind, found in {
        "TIFF of ": TIFF_BOMBS,
        "PNG with ": PNG_BOMBS,
        "JPEG with ": JPEG_BOMBS,
        "": OTHER_BOMBS,
    }.items()
    for name, make in found.items()
}
LARGE_IMAGES: dict[str, Make] = {
    "PNG of 145 megapixels": lambda _: png(10_000, 14_500),
    "PNG of 145 megapixels, one bit": lambda _: png(10_000, 14_500, 1, 0),
    "PNG of 145 megapixels, grey and alpha": lambda _: png(10_000, 14_500, 8, 4),
    "PNG of 74 megapixels, 16 bits": lambda _: png(10_000, 7400, 16, 6),
    "PNG of 145 megapixels, 16-bit grey": lambda _: png(10_000, 14_500, 16, 0),
    "BMP of 145 megapixels": bmp(10_000, 14_500, 24, 0, size=435_000_000),
    "BMP of 145 megapixels, palette": bmp(10_000, 14_500, 8, 0, size=145_000_000),
    "progressive JPEG of 95 megapixels, four colours": lambda _: pillow(
        Image.new("CMYK", (10_000, 9500)), "JPEG", progressive=True, subsampling=0
    ),
    "JPEG of 145 megapixels": lambda _: pillow(Image.new("RGB", (10_000, 14_500)), "JPEG"),
    "WebP of 69 megapixels": lambda _: pillow(Image.new("RGB", (16_000, 4300)), "WEBP", lossless=True, method=0),
}
ARRAYS: dict[str, Make] = {
    "of 99 million doubles": array("<f8", (9900, 10_000), 792_000_000),
    "of 99 million doubles, by columns": array("<f8", (9900, 10_000), 792_000_000, by_columns=True),
    "of 230 million bytes": array("|u1", (10_000, 23_000), 230_000_000),
    "of 99 million long doubles": array("<f16", (9900, 10_000), 1_584_000_000),
    "of 40 GB": array("<f4", (100_000, 100_000), 40_000_000_000),
    "of rows without length": lambda _: npy(NPY % ("|V0", False, (10**9, 10**9))),
    "of arrays": lambda _: npy("{'descr': ('<f4', (1000, 1000)), 'fortran_order': False, 'shape': (2, 2)}", bytes(64)),
    "of text of 10⁹ letters": lambda _: npy(NPY % ("<U1000000000", False, (1, 1)), bytes(64)),
    "that is a zip": lambda _: b"PK\3\4" + bytes(1000),
}
