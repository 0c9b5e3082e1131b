"""Any picture a camera, a scanner or a script may write → (H, W, 3) uint8 RGB, or one clear error."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AnomalyNCDError, BadFileError
from ..places.plain import reason
from ..places.stored import File
from .files import LONGEST_START, as_file, format_of, found_in, name_of, open_file
from .limits import TooLarge
from .pictures import Convert, read_picture, strips
from .tiff import read_tiff

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"})
OTHER_IMAGE_SUFFIXES = frozenset({  # of images that users have but that are not read, so that they can be told
    ".gif", ".jp2", ".j2k", ".jpx", ".jxl", ".jfif", ".avif", ".heic", ".heif", ".svg", ".psd", ".tga", ".ico",
    ".ppm", ".pgm", ".pbm", ".pnm", ".exr", ".hdr", ".dcm", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".raf", ".rw2",
})  # fmt: skip
_FLOAT_TOLERANCE = 1e-4  # arithmetic on 0..1 images overshoots by a little


def read_image(source: str | File | bytes | NDArray[Any], *, max_pixels: int | None = None) -> NDArray[np.uint8]:
    """Read one image, whatever its kind, as 8-bit RGB.

    Grey becomes three equal channels, palette and CMYK become RGB, EXIF orientation is applied, and 16-bit
    values are divided by 257 and rounded. Alpha is dropped: the stored colours are used as they are. Of
    several pages or frames the first is read.

    Parameters
    ----------
    source : path, bytes of a file, or array (H, W), (H, W, 1), (H, W, 3) or (H, W, 4)
        Arrays are RGB(A): uint8 0..255, uint16 0..65535 or float 0..1.
    max_pixels : a file that says it has more is refused before it is decoded, as one is that takes more memory to read than
        ANOMALYNCD_READ_MB allows

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
    held = source if isinstance(source, bytes) else as_file(source)
    pixels, _ = decode(held, max_pixels=max_pixels, convert=lambda some: _to_rgb8(some, name_of(held)))
    return np.ascontiguousarray(pixels)


def decode(
    source: File | bytes,
    *,
    palette_indices: bool = False,
    max_pixels: int | None = None,
    convert: Convert | None = None,
) -> tuple[NDArray[Any], str]:
    """Pixels of an image file as they are stored, upright, and the file's format ("PNG", "JPEG", "TIFF", …).

    (H, W) for grey, (H, W, 3) for RGB; uint8, uint16, or any type that a TIFF holds. With `palette_indices` a palette
    image gives its indices (H, W) uint8 in place of its colours.

    convert : makes (h, w, 3) uint8 of the stored pixels, in a TIFF of some rows at a time
    """
    name = name_of(source)
    try:
        with io.BytesIO(source) if isinstance(source, bytes) else open_file(source) as file:
            start = file.read(LONGEST_START)
            file_format = format_of(start)
            if file_format is None:
                words = "expected a PNG, JPEG, BMP, TIFF or WebP image"
                raise BadFileError(f"{name}: {words}, found {found_in(start)}")
            how = (palette_indices, max_pixels, convert)
            found = read_tiff(file, *how) if file_format == "TIFF" else read_picture(file, file_format, *how)
        return _upright(*found), file_format
    except TooLarge as error:
        raise BadFileError(f"{name}: too large: {error}") from None
    except AnomalyNCDError:
        raise
    except Exception as error:  # decoders raise almost anything on damaged files
        raise BadFileError(f"{name}: the image is damaged or of an unsupported kind ({reason(error)})") from error


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
    for rows in strips(*pixels.shape[:2]):  # what lies between is several times as large
        some = pixels[rows]
        whole = (some.astype(np.uint32) + 128) // 257 if kind == "u" else np.clip(some.astype(np.float64), 0, 1) * 255
        out[rows] = np.rint(whole)
    return out


def _upright(pixels: NDArray[Any], orientation: object) -> NDArray[Any]:
    """Undo an EXIF orientation (1 … 8; anything else counts as 1)."""
    if orientation in (5, 6, 7, 8):
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return pixels
