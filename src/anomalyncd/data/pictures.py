"""PNG, JPEG, BMP and WebP → pixels, by Pillow, after a look at what their headers would make it do."""

from __future__ import annotations

import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import BmpImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from .limits import TooLarge, check_size, memory_limit, room

# Metadata cost far more memory and time than they have bytes, and none of it is used but the orientation.
MOST_PARTS = 1000  # chunks or segments that are not pixels
MOST_METADATA = 32_000_000  # bytes of them
MOST_CHUNKS = 1_000_000  # of a PNG, with its pixels
MOST_SCANNED = 3_000_000_000  # pixels times scans of a progressive JPEG, each of which goes over all of them
MOST_RUN_LENGTHS = 16_000_000  # pixels, and bytes, of a packed BMP, which Pillow unpacks byte by byte
BLOCK = 1 << 20

ORIENTATION_TAG = 274
Convert = Callable[[NDArray[Any]], NDArray[np.uint8]]
_STRIP = 4_000_000  # pixels that are converted at once
_pillow_globals = threading.Lock()
_PLUGINS: dict[str, type[ImageFile.ImageFile]] = {
    "PNG": PngImagePlugin.PngImageFile, "JPEG": JpegImagePlugin.JpegImageFile, "BMP": BmpImagePlugin.BmpImageFile,
    "WEBP": WebPImagePlugin.WebPImageFile,
}  # fmt: skip


class _Look(NamedTuple):
    """What a header says; per_pixel : bytes that it takes to read a pixel; more : and beside them; deep : 16-bit colours."""

    width: int
    height: int
    per_pixel: int
    more: int = 0
    deep: bool = False


def read_picture(
    file: BinaryIO, file_format: str, palette_indices: bool, max_pixels: int | None, convert: Convert | None
) -> tuple[NDArray[Any], object]:
    """Pixels (H, W) or (H, W, 3) as they are stored or converted, and their EXIF orientation.

    Raises TooLarge, or almost anything where the file is damaged.
    """
    n_bytes = file.seek(0, 2)
    if n_bytes > memory_limit():
        raise TooLarge(f"the file has {n_bytes:,} bytes, more than the limit of {memory_limit():,}")
    file.seek(0)
    look = _LOOKS[file_format](file, n_bytes)
    check_size(look.width, look.height, max_pixels)
    with room(look.width * look.height * look.per_pixel + look.more, f"its {look.width} × {look.height} pixels"):
        file.seek(0)
        pixels, orientation = _load(file, file_format, look, palette_indices)
        if pixels is None:
            # Of deep colour Pillow would keep the high bytes only; it has just checked that the file is whole.
            pixels = _deep_colours(file)
        return pixels if convert is None else convert(pixels), orientation


def _load(file: BinaryIO, file_format: str, look: _Look, palette_indices: bool) -> tuple[NDArray[Any] | None, object]:
    with quiet_pillow():
        image = _PLUGINS[file_format](file)
    if image.size != (look.width, look.height):
        raise ValueError("its headers contradict each other")
    image.load()
    with quiet_pillow():
        orientation = image.getexif().get(ORIENTATION_TAG, 1)
    return None if look.deep else pillow_pixels(image, palette_indices), orientation


def pillow_pixels(image: Image.Image, palette_indices: bool) -> NDArray[Any]:
    """A loaded image as an array: (H, W) for grey, palette indices if asked for, and one bit; (H, W, 3) for all others."""
    if image.mode in ("P", "PA") and palette_indices:
        return np.asarray(image.getchannel(0))
    if image.mode == "1":
        return np.asarray(image.convert("L"))
    if image.mode.startswith("I"):  # 16-bit grey, which older Pillows widen to 32 bits
        return np.asarray(image).astype(np.uint16)
    if image.mode in ("L", "LA", "La"):
        return np.asarray(image.getchannel(0))
    if image.mode == "RGBa":
        image = image.convert("RGBA")
    image.info.pop("transparency", None)
    parts = list(strips(image.height, image.width))
    if len(parts) == 1:
        return np.asarray(image.convert("RGB"))
    out = np.empty((image.height, image.width, 3), np.uint8)
    for rows in parts:  # Pillow copies twice on the way
        out[rows] = np.asarray(image.crop((0, rows.start, image.width, rows.stop)).convert("RGB"))
    return out


def strips(height: int, width: int) -> Iterator[slice]:
    """Rows that are worked on at once, so that what lies between takes little memory."""
    step = max(1, _STRIP // width)
    return (slice(top, min(top + step, height)) for top in range(0, height, step))


def _look_at_png(file: BinaryIO, n_bytes: int) -> _Look:
    width, height, depth, colours = struct.unpack(">16xIIBB", file.read(26))
    n_others = n_metadata = 0
    for kind, _, length in _png_chunks(file):
        if kind != b"IDAT":
            n_others, n_metadata = n_others + 1, n_metadata + length
            _check_metadata(n_others, n_metadata)
    deep = depth == 16 and colours != 0
    return _Look(width, height, 16 if deep else 8, 2 * n_metadata + (2 * n_bytes if deep else 0), deep)


def _png_chunks(file: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Kind, place of the length before it, and length of each chunk."""
    place = 8
    for _ in range(MOST_CHUNKS):
        file.seek(place)
        head = file.read(8)
        if len(head) < 8:  # cut short: decoding says so
            return
        length, kind = struct.unpack(">I4s", head)
        yield kind, place, length
        if kind == b"IEND":
            return
        place += length + 12
    raise ValueError(f"it has more than {MOST_CHUNKS:,} chunks")


def _look_at_jpeg(file: BinaryIO, n_bytes: int) -> _Look:
    file.seek(2)
    sizes: list[tuple[int, int, int]] = []
    n_metadata = 0
    for step in range(MOST_PARTS + 1):
        _check_metadata(step, n_metadata)
        byte = file.read(1)
        if not byte:
            break
        if byte != b"\xff":  # between segments, where Pillow skips bytes one by one as well
            continue
        marker = file.read(1)
        if marker == b"\xff":  # filling
            file.seek(-1, 1)
        if not b"\xc0" <= marker <= b"\xfe" or b"\xd0" <= marker <= b"\xd9":  # nothing follows these
            continue
        head = file.read(8)
        length = int.from_bytes(head[:2], "big")
        if b"\xc0" <= marker <= b"\xcf" and marker not in (b"\xc4", b"\xc8", b"\xcc"):
            height, width, n_colours = struct.unpack(">3xHHB", head)
            sizes.append((width, height, n_colours))
        n_metadata += length
        file.seek(length - len(head), 1)
        if marker == b"\xda":
            break
    if len(sizes) != 1:
        raise ValueError(f"it has {len(sizes)} headers")
    width, height, n_colours = sizes[0]
    n_scans = 1 + _count(file, b"\xff\xda")
    if n_scans * width * height > MOST_SCANNED:
        raise ValueError(f"it has {n_scans} scans")
    per_pixel = 4 + 2 * max(2, n_colours) if n_scans > 1 else 8  # all scans are gathered before the first row
    return _Look(width, height, per_pixel, 2 * n_metadata)


def _count(file: BinaryIO, pair: bytes) -> int:
    """How often two bytes come from here on."""
    count, last = 0, b""
    while block := file.read(BLOCK):
        count += (last + block).count(pair)
        last = block[-1:]
    return count


def _check_metadata(n_parts: int, n_bytes: int) -> None:
    if n_parts >= MOST_PARTS:
        raise ValueError(f"it has more than {MOST_PARTS:,} parts that are not pixels")
    if n_bytes > MOST_METADATA:
        raise ValueError(f"it has more than {MOST_METADATA:,} bytes that are not pixels")


def _look_at_bmp(file: BinaryIO, n_bytes: int) -> _Look:
    head = file.read(34).ljust(34, b"\0")
    if head[14:18] == struct.pack("<I", 12):
        width, height = struct.unpack_from("<HH", head, 18)
        return _Look(width, height, per_pixel=8)
    width, height, packing = *struct.unpack_from("<ii", head, 18), head[30]
    if packing in (1, 2) and max(width * abs(height), n_bytes) > MOST_RUN_LENGTHS:
        raise TooLarge(
            f"with run lengths at most {MOST_RUN_LENGTHS:,} pixels and bytes are read, and it has {width} × {abs(height)} "
            f"pixels and {n_bytes:,} bytes. Save it without, or as PNG"
        )
    return _Look(width, abs(height), per_pixel=8)


def _look_at_webp(file: BinaryIO, n_bytes: int) -> _Look:
    head = file.read(30).ljust(30, b"\0")
    if head[12:16] == b"VP8X":
        width, height = (1 + int.from_bytes(head[place : place + 3], "little") for place in (24, 27))
    elif head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = (number & 0x3FFF for number in struct.unpack_from("<HH", head, 26))
    return _Look(width, height, per_pixel=17, more=5 * n_bytes)


_LOOKS = {"PNG": _look_at_png, "JPEG": _look_at_jpeg, "BMP": _look_at_bmp, "WEBP": _look_at_webp}


def _deep_colours(file: BinaryIO) -> NDArray[Any]:
    """The pixels of a PNG of 16-bit colours, without what else is in the file."""
    kept = [b"\x89PNG\r\n\x1a\n"]
    for kind, place, length in list(_png_chunks(file)):
        if kind in (b"IHDR", b"PLTE", b"IDAT", b"IEND"):
            file.seek(place)
            kept.append(file.read(length + 12))
    pixels = cv2.imdecode(np.frombuffer(b"".join(kept), np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ValueError("OpenCV cannot decode it")
    return pixels if pixels.ndim == 2 else np.asarray(pixels[..., 2::-1])  # BGR(A) → RGB


@contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warnings about metadata, and no pixel limit but our own. Both are global, hence the lock."""
    with _pillow_globals, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit
