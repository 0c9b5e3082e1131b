"""The first page of a TIFF, a few strips or tiles at a time.

Tags are read and checked here, before anything is decoded. To unpack is left to libtiff inside Pillow, which is handed small
files of a few strips each, written here: it never meets the tags of a stranger, and never unpacks more than we have made
room for. Grey and RGB are unpacked as mere bytes, whatever their depth; of other colours Pillow is told what they mean.
"""

from __future__ import annotations

import ctypes
import io
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import TiffImagePlugin, _imaging

from .limits import check_size, room
from .pictures import ORIENTATION_TAG, Convert, pillow_pixels, quiet_pillow, strips

WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, SAMPLES = 256, 257, 258, 259, 262, 266, 277
STRIPS, STRIP_HEIGHT, STRIP_BYTES, TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES = 273, 278, 279, 322, 323, 324, 325
PLANAR, FAX_3, FAX_4, PREDICTOR, COLOUR_MAP, EXTRA, FORMAT, JPEG_TABLES = 284, 292, 293, 317, 320, 338, 339, 347
SUBSAMPLING = 530
COLOUR_TAGS = {
    BITS, COMPRESSION, PHOTOMETRIC, FILL_ORDER, SAMPLES, FAX_3, FAX_4, PREDICTOR, COLOUR_MAP, EXTRA, FORMAT, JPEG_TABLES,
    SUBSAMPLING,
}  # fmt: skip
LONG_TAGS = {WIDTH, HEIGHT, STRIPS, STRIP_HEIGHT, STRIP_BYTES, FAX_3, FAX_4}
WANTED = COLOUR_TAGS | LONG_TAGS | {TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES, PLANAR, ORIENTATION_TAG}
SHORT, LONG, UNDEFINED = 3, 4, 7
TYPES = {1: "u1", SHORT: "u2", LONG: "u4", UNDEFINED: "u1", 16: "u8"}  # the whole numbers of TIFF
RAW, LZW, DEFLATE, OLD_DEFLATE, PACK_BITS, LZMA, ZSTD = 1, 5, 8, 32946, 32773, 34925, 50000
BYTE_CODES = {RAW, LZW, DEFLATE, OLD_DEFLATE, PACK_BITS, LZMA, ZSTD}
PREDICTED_CODES = BYTE_CODES - {RAW, PACK_BITS}
PICTURE_CODES = {2, 3, 4, 7}  # fax and JPEG
OTHER_CODES = {
    6: "old JPEG", 33003: "JPEG 2000", 33005: "JPEG 2000", 34712: "JPEG 2000", 34887: "LERC", 34892: "lossy JPEG",
    34933: "PNG", 34934: "JPEG XR", 50001: "WebP", 50002: "JPEG XL", 52546: "JPEG XL",
}  # fmt: skip
WHITE_IS_ZERO, RGB, CMYK, YCBCR = 0, 2, 5, 6
MOST_ENTRIES = 65_535
MOST_VALUES = 2_000_000  # of a tag
MOST_CHUNKS = 1_000_000  # strips or tiles
BAND = 8_000_000  # bytes that are unpacked at once, unless a strip or tile is larger

with suppress(OSError, AttributeError):  # libtiff would print what is wrong with a file; an error says it as well
    ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(None)


def read_tiff(
    file: BinaryIO, palette_indices: bool, max_pixels: int | None, convert: Convert | None
) -> tuple[NDArray[Any], int]:
    """Pixels (H, W) or (H, W, 3) as they are stored or converted, and their orientation.

    Raises TooLarge, or almost anything where the file is damaged.

    convert : makes (h, w, 3) uint8 of some rows, so that the stored pixels are never held all at once
    """
    page = _Page(file, max_pixels)
    with room(page.memory(convert is not None), f"its {page.width} × {page.height} pixels"):
        out: NDArray[Any] | None = None
        for rows, columns, pixels in page.bands(palette_indices):
            pixels = pixels if convert is None else convert(pixels)
            if out is None:
                out = np.empty((page.height, page.width, *pixels.shape[2:]), pixels.dtype)
            out[rows, columns] = pixels
    assert out is not None
    return out, page.number(ORIENTATION_TAG, 1)


class _Page:
    """The first page of a file, by its tags.

    is_plain : grey or RGB, of bytes that can be unpacked without a thought of colours
    chunk_width, chunk_height : pixels of a strip or tile; row_bytes : of a row of it, unpacked
    _n_planes : that are read; the samples of a pixel lie together, in one plane, or each in a plane of its own
    """

    def __init__(self, file: BinaryIO, max_pixels: int | None) -> None:
        self._file, self._size = file, file.seek(0, 2)
        self._order, self._tags = _read_tags(file)
        self.width, self.height = self.number(WIDTH), self.number(HEIGHT)
        check_size(self.width, self.height, max_pixels)
        self._compression, self._photometric = self.number(COMPRESSION, RAW), self.number(PHOTOMETRIC, WHITE_IS_ZERO)
        self._samples, self._bits = self.number(SAMPLES, 1), self._same(BITS, 1)
        self._kind = {1: "u", 2: "i", 3: "f", 4: "u"}.get(self._same(FORMAT, 1), "")
        self._check_kind()
        self._lay_out()

    def number(self, tag: int, default: int | None = None) -> int:
        """The first value of a tag."""
        values = self._tags.get(tag)
        if values is None and default is None:
            raise ValueError(f"its tag {tag} is missing")
        return int(values[0]) if values is not None else int(default or 0)

    def memory(self, converted: bool) -> int:
        """Bytes that it takes to read the page."""
        n_pixels, row = self.width * self.height, (1 + self._n_planes) * self.row_bytes
        work = self.chunk_height * (row if self.is_plain else 7 * self.chunk_width)
        work += 3 * self._n_planes * int(self._counts.max()) + 16 * min(BAND, n_pixels * max(8, self._bits) // 2)
        if converted:
            return work + n_pixels * (3 if self.number(ORIENTATION_TAG, 1) == 1 else 6)
        stored = (3 if self._samples > 2 else 1) * (self._bits // 8) if self.is_plain else 3
        return work + n_pixels * (stored + 4)  # a map of float32 is made of it

    def bands(self, palette_indices: bool) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
        """Rows, columns, and their pixels (h, w) or (h, w, 3), until all are there."""
        step = max(1, BAND // (self.chunk_height * max(self.row_bytes, self.chunk_width)))
        row = self._across if self._across > 1 else self._n_chunks
        for first in range(0, self._n_chunks, row):
            for at in range(first, first + row, step):
                yield from self._place(slice(at, min(at + step, first + row)), palette_indices)

    def _place(self, chunks: slice, palette_indices: bool) -> Iterator[tuple[slice, slice, NDArray[Any]]]:
        down, across = divmod(chunks.start, self._across)
        top, left = down * self.chunk_height, across * self.chunk_width
        for start, pixels in self._unpack(chunks, palette_indices):
            if self._across > 1 and len(pixels) > self.chunk_height:  # tiles, one below the other → side by side
                tiles = pixels.reshape(-1, self.chunk_height, *pixels.shape[1:])
                pixels = np.concatenate(tiles, axis=1)
            pixels = pixels[: max(0, self.height - top - start), : self.width - left]  # tiles reach over the edges
            if len(pixels):
                yield slice(top + start, top + start + len(pixels)), slice(left, left + pixels.shape[1]), pixels

    def _unpack(self, chunks: slice, palette_indices: bool) -> Iterator[tuple[int, NDArray[Any]]]:
        """Pixels of some chunks, one below the other, and the row that they begin with; a large chunk comes in parts."""
        n_rows = (chunks.stop - chunks.start) * self.chunk_height
        if not self._is_tiled:
            n_rows = min(n_rows, self.height - chunks.start * self.chunk_height)
        if self.is_plain and self._compression == RAW and self.number(FILL_ORDER, 1) == 1:
            packed = (b"".join(self._chunks(plane, chunks)) for plane in range(self._n_planes))
            yield 0, self._values([np.frombuffer(data, np.uint8).reshape(n_rows, self.row_bytes) for data in packed])
            return
        images = [self._image(plane, chunks, n_rows) for plane in range(self._n_planes)]
        is_one = chunks.stop - chunks.start == 1
        for rows in strips(n_rows, images[0].width) if is_one else (slice(0, n_rows),):
            parts = [image.crop((0, rows.start, image.width, rows.stop)) for image in images]
            if self.is_plain:
                yield rows.start, self._values([np.asarray(part) for part in parts])
            else:
                yield rows.start, pillow_pixels(parts[0], palette_indices)

    def _values(self, planes: Sequence[NDArray[np.uint8]]) -> NDArray[Any]:
        """Bytes (rows, row_bytes) of each plane → numbers (rows, chunk_width) or (rows, chunk_width, 3)."""
        values = [self._numbers(rows) for rows in planes]
        pixels = values[0] if len(values) == 1 else np.concatenate(values, axis=2)
        pixels = pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., 0]
        return ~pixels if self._photometric == WHITE_IS_ZERO and self._kind == "u" else pixels

    def _numbers(self, rows: NDArray[np.uint8]) -> NDArray[Any]:
        """(rows, row_bytes) → (rows, chunk_width, samples), without the prediction of the code."""
        n_bytes, shape = self._bits // 8, (len(rows), self.chunk_width, -1)
        predictor = self.number(PREDICTOR, 1) if self._compression in PREDICTED_CODES else 1
        if predictor == 3:  # differences of bytes, the highest bytes of a row first
            n_samples = self.row_bytes // (self.chunk_width * n_bytes)
            sums = np.cumsum(rows.reshape(len(rows), -1, n_samples), axis=1, dtype=np.uint8)
            planes = np.ascontiguousarray(sums.reshape(len(rows), n_bytes, -1).swapaxes(1, 2))
            return planes.view(f">{self._kind}{n_bytes}").reshape(shape).astype(f"{self._kind}{n_bytes}")
        if predictor == 2:
            whole = rows.view(f"{self._order}u{n_bytes}").reshape(shape).astype(f"u{n_bytes}")
            return np.cumsum(whole, axis=1, dtype=whole.dtype).view(f"{self._kind}{n_bytes}")
        return rows.view(f"{self._order}{self._kind}{n_bytes}").reshape(shape)

    def _image(self, plane: int, chunks: slice, n_rows: int) -> TiffImagePlugin.TiffImageFile:
        """Some chunks, one below the other, as an image of Pillow."""
        tags = {tag: self._tags[tag] for tag in COLOUR_TAGS if tag in self._tags}
        if self.is_plain:
            tags = {tag: tags[tag][:1] for tag in (COMPRESSION, FILL_ORDER) if tag in tags}
            tags |= {tag: np.array([value]) for tag, value in ((BITS, 8), (PHOTOMETRIC, 1), (SAMPLES, 1))}
        width = self.row_bytes if self.is_plain else self.chunk_width
        for tag, value in ((WIDTH, width), (HEIGHT, n_rows), (STRIP_HEIGHT, self.chunk_height)):
            tags[tag] = np.array([value])
        image = TiffImagePlugin.TiffImageFile(io.BytesIO(_file_of(tags, self._chunks(plane, chunks), self._order)))
        with quiet_pillow():
            image.load_prepare()
        image.load()
        return image

    def _chunks(self, plane: int, chunks: slice) -> list[bytes]:
        places = zip(self._offsets[plane, chunks].tolist(), self._counts[plane, chunks].tolist(), strict=True)
        return [_exactly(self._file, count, place) for place, count in places]

    def _same(self, tag: int, default: int) -> int:
        """The value of a tag that has one for each sample, which must be the same."""
        values = np.unique(self._tags.get(tag, np.array([default])))
        if len(values) != 1:
            raise ValueError("samples of different kinds")
        return int(values[0])

    def _check_kind(self) -> None:
        if self._compression not in BYTE_CODES | PICTURE_CODES:
            named = OTHER_CODES.get(self._compression, f"number {self._compression}")
            raise ValueError(f"its compression, {named}, is not read: save it with another, such as LZW or deflate")
        if not 1 <= self._samples <= 4:
            raise ValueError(f"{self._samples} samples a pixel")
        is_premultiplied = self._bits == 8 and self._samples == 4 and self.number(EXTRA, 0) == 1
        is_grey_or_rgb = self._photometric <= RGB and self._bits in (8, 16, 32, 64)
        self.is_plain = is_grey_or_rgb and self._compression in BYTE_CODES and not is_premultiplied
        is_separate = self._samples > 1 and self.number(PLANAR, 1) == 2
        is_deep_ink = self._photometric == CMYK and self._bits == 16
        if not self.is_plain and (is_separate or not (self._bits in (1, 2, 4, 8) or is_deep_ink)):
            words = "in separate planes" if is_separate else f"of {self._bits} bits"
            raise ValueError(f"samples {words} of such colours or compression are not read")
        if self.is_plain and (not self._kind or (self._kind == "f" and self._bits == 8)):
            raise ValueError("numbers of an unknown kind")
        self._n_planes = (3 if self._samples > 2 else 1) if is_separate else 1
        self._n_together = 1 if is_separate else self._samples

    def _lay_out(self) -> None:
        self._is_tiled = TILES in self._tags
        if self._is_tiled:
            self.chunk_width, self.chunk_height = self.number(TILE_WIDTH), self.number(TILE_HEIGHT)
        else:
            self.chunk_width, self.chunk_height = self.width, min(self.height, self.number(STRIP_HEIGHT, self.height))
        if self.chunk_width < 1 or self.chunk_height < 1:
            raise ValueError("its strips or tiles have no pixels")
        self.row_bytes = -(-self.chunk_width * self._n_together * self._bits // 8)
        self._across, down = -(-self.width // self.chunk_width), -(-self.height // self.chunk_height)
        self._n_chunks = self._across * down
        n_all = self._n_chunks * (self._samples if self._n_together < self._samples else 1)
        places, sizes = (TILES, TILE_BYTES) if self._is_tiled else (STRIPS, STRIP_BYTES)
        offsets = self._tags.get(places, np.empty(0, np.int64))
        if n_all > MOST_CHUNKS or len(offsets) < n_all:
            raise ValueError(f"its size asks for {n_all:,} strips or tiles, and it has {len(offsets):,}")
        shape = (-1, self._n_chunks)
        self._offsets = offsets[:n_all].reshape(shape)[: self._n_planes]
        if self._compression != RAW or self._photometric == YCBCR:
            counts = self._tags.get(sizes, np.empty(0, np.int64))
            if len(counts) < n_all:
                raise ValueError("it does not say how long its strips or tiles are")
            self._counts = counts[:n_all].reshape(shape)[: self._n_planes]
        else:
            self._lay_out_bytes()
        if (self._offsets + self._counts > self._size).any():
            raise ValueError("it ends before its pixels do")
        if self._counts.sum() > 2 * self._size:
            raise ValueError("its strips or tiles overlap")

    def _lay_out_bytes(self) -> None:
        """What is not packed may be cut anywhere: strips that follow each other become others of a good size."""
        length = self.chunk_height * self.row_bytes
        if not self._is_tiled and (np.diff(self._offsets) == length).all():
            self.chunk_height = max(1, min(self.height, BAND // self.row_bytes))
            self._n_chunks = -(-self.height // self.chunk_height)
            length = self.chunk_height * self.row_bytes
            self._offsets = self._offsets[:, :1] + np.arange(self._n_chunks) * length
        self._counts = np.full(self._offsets.shape, length)
        if not self._is_tiled:
            self._counts[:, -1] = (self.height - (self._n_chunks - 1) * self.chunk_height) * self.row_bytes


def _read_tags(file: BinaryIO) -> tuple[str, dict[int, NDArray[np.int64]]]:
    """Byte order, and the values of the tags that are used, of the first page."""
    head = _exactly(file, 8, 0)
    order, is_big = "<" if head.startswith(b"I") else ">", b"+" in head
    offset, length, entry = ("Q", "Q", "HHQ8s") if is_big else ("I", "H", "HHI4s")
    size, n_length = struct.calcsize(order + entry), struct.calcsize(order + length)
    (start,) = struct.unpack(order + offset, _exactly(file, 8, 8) if is_big else head[4:])
    (count,) = struct.unpack(order + length, _exactly(file, n_length, start))
    if count > MOST_ENTRIES:
        raise ValueError(f"it has {count} tags")
    tags: dict[int, NDArray[np.int64]] = {}
    for tag, kind, n_values, value in struct.iter_unpack(order + entry, _exactly(file, count * size, start + n_length)):
        if tag not in WANTED or tag in tags or kind not in TYPES or not n_values:
            continue
        if n_values > MOST_VALUES:
            raise ValueError(f"its tag {tag} has {n_values:,} values")
        dtype = np.dtype(order + TYPES[kind])
        n_bytes = n_values * dtype.itemsize
        if n_bytes > len(value):
            value = _exactly(file, n_bytes, *struct.unpack(order + offset, value))
        values = np.frombuffer(value[:n_bytes], dtype).astype(np.uint64)
        tags[tag] = np.minimum(values, np.uint64(1 << 61)).astype(np.int64)  # no file is so long, and sums still fit
    return order, tags


def _exactly(file: BinaryIO, n_bytes: int, place: int) -> bytes:
    file.seek(place)
    data = file.read(n_bytes)
    if len(data) < n_bytes:
        raise ValueError("it ends before its pixels or tags do")
    return data


def _file_of(tags: dict[int, NDArray[np.int64]], chunks: Sequence[bytes], order: str) -> bytes:
    """A TIFF of some strips."""
    counts = np.array([len(chunk) for chunk in chunks])
    tags = {**tags, STRIPS: 8 + np.cumsum(counts) - counts, STRIP_BYTES: counts}
    start = 8 + int(counts.sum())
    entries, values, place = [], [], start + 2 + 12 * len(tags) + 4
    for tag in sorted(tags):
        kind = UNDEFINED if tag == JPEG_TABLES else LONG if tag in LONG_TAGS else SHORT
        data = tags[tag].astype(order + TYPES[kind]).tobytes()
        entries.append(struct.pack(order + "HHI", tag, kind, len(tags[tag])))
        if len(data) > 4:
            entries.append(struct.pack(order + "I", place))
            values.append(data)
            place += len(data)
        else:
            entries.append(data.ljust(4, b"\0"))
    head = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, start)
    return b"".join([head, *chunks, struct.pack(order + "H", len(tags)), *entries, bytes(4), *values])
