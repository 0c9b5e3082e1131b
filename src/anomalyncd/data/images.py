"""Any picture a camera, a scanner or a script may write → (H, W, 3) uint8 RGB, or one clear error."""

from __future__ import annotations

import io
import math
import stat
import struct
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import cv2
import numpy as np
import tifffile
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from ..errors import BadFileError

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
OTHER_IMAGE_SUFFIXES = frozenset({  # of images that users have but that are not read, so that they can be told
    ".gif", ".jp2", ".j2k", ".jpx", ".jxl", ".jfif", ".avif", ".heic", ".heif", ".svg", ".psd", ".tga", ".ico",
    ".ppm", ".pgm", ".pbm", ".pnm", ".exr", ".hdr", ".dcm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2",
})  # fmt: skip
# Whatever a file says of itself, reading it stays below 2 GB of memory: some decoders take twelve bytes a pixel.
MAX_PIXELS = 100_000_000
MAX_BYTES = 600_000_000  # of a file, and of its pixels as they are stored
MAX_SIDE = 1_000_000  # each row costs time, however short it is

_FORMATS = ("PNG", "JPEG", "BMP", "TIFF", "WEBP")
_TIFF_STARTS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_STARTS = (b"\x89PNG", b"\xff\xd8\xff", b"BM", *_TIFF_STARTS, b"RIFF")
_ORIENTATION_TAG = 274
_FLOAT_TOLERANCE = 1e-4  # arithmetic on 0..1 images overshoots by a little
_MAX_SCANNED = 2_000_000_000  # pixels times scans of a progressive JPEG, each of which goes over all of them
_WEBP_BYTES = 12  # that its decoder takes for a pixel
_STRIP = 4_000_000  # pixels that are converted at once
_pillow_globals = threading.Lock()


def read_image(source: str | Path | bytes | NDArray[Any], *, max_pixels: int | None = None) -> NDArray[np.uint8]:
    """Read one image, whatever its kind, as 8-bit RGB.

    Grey becomes three equal channels, palette and CMYK become RGB, EXIF orientation is applied, and 16-bit
    values are divided by 257 and rounded. Alpha is dropped: the stored colours are used as they are. Of
    several pages or frames the first is read.

    Parameters
    ----------
    source : path, bytes of a file, or array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)
        Arrays are RGB(A): uint8 0..255, uint16 0..65535 or float 0..1.
    max_pixels : a file that says it has more is refused before it is decoded; None = MAX_PIXELS

    Returns
    -------
    (H, W, 3) uint8, RGB, C-contiguous. A uint8 array of that shape is returned without a copy.

    Raises
    ------
    BadFileError
        The file or array is no image; the message names the file and says why.

    Examples
    --------
    >>> import numpy as np
    >>> read_image(np.array([[0, 257, 65535]], dtype=np.uint16))[..., 0]
    array([[  0,   1, 255]], dtype=uint8)
    """
    if isinstance(source, np.ndarray):
        return _to_rgb8(source, "image array")
    held = source if isinstance(source, bytes) else as_path(source)
    pixels, _ = decode(held, max_pixels=max_pixels)
    return _to_rgb8(pixels, name_of(held))


def decode(
    source: Path | bytes, *, palette_indices: bool = False, max_pixels: int | None = None
) -> tuple[NDArray[Any], str]:
    """Pixels of an image file as they are stored, upright, and the file's format ("PNG", "JPEG", "TIFF", …).

    (H, W) for grey, (H, W, 3) for RGB, (H, W, 4) for some TIFFs with alpha; uint8, uint16, or any type that a
    TIFF holds. With `palette_indices` a palette image gives its indices (H, W) uint8 in place of its colours.
    """
    name = name_of(source)
    try:
        data = source if isinstance(source, bytes) else _content(source)
        if data.startswith(_TIFF_STARTS):
            deep = _decode_deep_tiff(data, max_pixels)
            if deep is not None:
                return deep, "TIFF"
        return _decode_with_pillow(data, palette_indices, max_pixels)
    except BadFileError:
        raise
    except UnidentifiedImageError:
        raise BadFileError(f"{name}: expected a PNG, JPEG, BMP, TIFF or WebP image, found something else") from None
    except Exception as error:  # decoders raise almost anything on damaged files
        raise BadFileError(f"{name}: the image is damaged or of an unsupported kind ({_reason(error)})") from error


def name_of(source: Path | bytes) -> str:
    """What messages call a file; its bytes alone have no name."""
    return "data" if isinstance(source, bytes) else str(source)


def as_path(source: object) -> Path:
    """The path that `source` names, or a BadFileError that says what is expected."""
    if isinstance(source, str | Path):
        return Path(source)
    raise BadFileError(f"expected a path or a NumPy array, got {type(source).__name__}")


def open_file(path: Path) -> BinaryIO:
    """The file opened for reading bytes; a BadFileError if it is missing, a folder, locked or empty."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # a pipe would never end
            found = "a folder" if stat.S_ISDIR(status.st_mode) else "a device or pipe"
            raise BadFileError(f"{path}: expected a file, found {found}")
        if status.st_size == 0:
            raise BadFileError(f"{path}: the file is empty")
        return path.open("rb")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise BadFileError(f"{path}: cannot be read ({_reason(error)})") from error


def begins_as_image(path: Path) -> bool:
    """Whether a file begins as images do that are read: enough to hand it on, not to say that it is whole."""
    try:
        with open_file(path) as file:
            return file.read(4).startswith(_STARTS)
    except BadFileError:
        return False


def _content(path: Path) -> bytes:
    with open_file(path) as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise BadFileError(f"{path}: the file is larger than the limit of {MAX_BYTES:,} bytes")
    return data


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _to_rgb8(pixels: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (1, 3, 4)) or pixels.size == 0:
        raise BadFileError(
            f"{name}: expected shape (H, W), (H, W, 1), (H, W, 3) or (H, W, 4), with at least one pixel, "
            f"got {pixels.shape}"
        )
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    pixels = pixels[..., :3]
    kind, n_bytes = pixels.dtype.kind, pixels.dtype.itemsize  # true of either byte order
    if kind == "f":
        low, high = float(pixels.min()), float(pixels.max())
        if not (low >= -_FLOAT_TOLERANCE and high <= 1 + _FLOAT_TOLERANCE):  # so written, NaN fails too
            raise BadFileError(f"{name}: a float image must lie in 0..1, but its values span {low:g}..{high:g}")
    elif (kind, n_bytes) == ("u", 1):
        return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))
    elif (kind, n_bytes) != ("u", 2):
        raise BadFileError(f"{name}: expected uint8, uint16 or float pixels, got {pixels.dtype}")
    out = np.empty((*pixels.shape[:2], 3), np.uint8)
    for rows in _strips(*pixels.shape[:2]):  # what lies between is several times as large
        some = pixels[rows]
        whole = (some.astype(np.uint32) + 128) // 257 if kind == "u" else np.clip(some.astype(np.float64), 0, 1) * 255
        out[rows] = np.rint(whole)
    return out


def _strips(height: int, width: int) -> Iterator[slice]:
    step = max(1, _STRIP // width)
    return (slice(top, min(top + step, height)) for top in range(0, height, step))


def _decode_with_pillow(data: bytes, palette_indices: bool, max_pixels: int | None) -> tuple[NDArray[Any], str]:
    with _quiet_pillow():
        image = Image.open(io.BytesIO(data), formats=_FORMATS)
    with image:
        deep, file_format = _is_deep_colour_png(data), str(image.format)
        _check_size(*image.size, max_pixels, n_bytes=8 if deep else _WEBP_BYTES if file_format == "WEBP" else 4)
        n_scans = data.count(b"\xff\xda") if file_format in ("JPEG", "MPO") else 0
        if n_scans * image.width * image.height > _MAX_SCANNED:
            raise ValueError(f"it has {n_scans} scans")
        image.load()
        with _quiet_pillow():
            orientation = image.getexif().get(_ORIENTATION_TAG, 1)
        if not deep:
            return _upright(_pillow_pixels(image, palette_indices), orientation), file_format
        image.close()
    # Of deep colour Pillow would keep the high bytes only; it has just checked that the file is whole.
    return _upright(_decode_with_cv2(data), orientation), file_format


def _pillow_pixels(image: Image.Image, palette_indices: bool) -> NDArray[Any]:
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
    strips = list(_strips(image.height, image.width))
    if len(strips) == 1:
        return np.asarray(image.convert("RGB"))
    out = np.empty((image.height, image.width, 3), np.uint8)
    for rows in strips:  # Pillow copies twice on the way
        out[rows] = np.asarray(image.crop((0, rows.start, image.width, rows.stop)).convert("RGB"))
    return out


def _decode_deep_tiff(data: bytes, max_pixels: int | None) -> NDArray[Any] | None:
    """First page of a TIFF of 16 or more bits a sample; None for the 8-bit kinds, which Pillow reads well."""
    with tifffile.TiffFile(io.BytesIO(data)) as tiff:
        page = tiff.pages.first
        _check_size(page.imagewidth, page.imagelength, max_pixels)
        if page.bitspersample <= 8:
            return None
        if max(page.nbytes, math.prod(page.chunks) * page.bitspersample // 8) > MAX_BYTES:
            raise ValueError(f"its pixels take more than the limit of {MAX_BYTES:,} bytes")
        if page.bitspersample not in (16, 32, 64):
            raise ValueError(f"{page.bitspersample} bits a sample")
        try:
            pixels = page.asarray()
        except ValueError:
            if page.compression == 1:
                raise
            return _decode_with_cv2(data)  # knows more compressions, and turns the image upright itself
        if page.axes.startswith("S"):
            pixels = np.moveaxis(pixels, 0, -1)
        if page.photometric == 0 and pixels.dtype.kind == "u":  # white is zero
            pixels = ~pixels
        tag = page.tags.get(_ORIENTATION_TAG)
    if pixels.ndim == 3 and pixels.shape[2] == 2:
        pixels = pixels[..., 0]
    return _upright(pixels, int(tag.value) if tag else 1)


def _decode_with_cv2(data: bytes) -> NDArray[Any]:
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED)
    if pixels is None:
        raise ValueError("OpenCV cannot decode it")
    return pixels if pixels.ndim == 2 else np.asarray(pixels[..., 2::-1])  # BGR(A) → RGB


def _is_deep_colour_png(data: bytes) -> bool:
    if not data.startswith(b"\x89PNG"):
        return False
    depth, colour_type = struct.unpack_from("BB", data, 24)
    return bool(depth == 16 and colour_type != 0)


def _check_size(width: int, height: int, max_pixels: int | None, n_bytes: int = 1) -> None:
    if width < 1 or height < 1:
        raise ValueError(f"it has {width} × {height} pixels")
    limit = MAX_PIXELS if max_pixels is None else max_pixels
    if width * height > limit:
        raise ValueError(f"it has {width} × {height} pixels, more than the limit of {limit:,}")
    if max(width, height) > MAX_SIDE:
        raise ValueError(f"it has {width} × {height} pixels, and a side longer than the limit of {MAX_SIDE:,}")
    if width * height * n_bytes > MAX_BYTES:
        raise ValueError(f"its {width} × {height} pixels take more than the limit of {MAX_BYTES:,} bytes")


def _upright(pixels: NDArray[Any], orientation: int) -> NDArray[Any]:
    """Undo an EXIF orientation (1 … 8; anything else counts as 1)."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels


@contextmanager
def _quiet_pillow() -> Iterator[None]:
    """No warnings about metadata, and no pixel limit but our own. Both are global, hence the lock."""
    with _pillow_globals, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        limit, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = limit
