"""Anomaly maps → (H, W) float32, defect masks → (H, W) bool, from files of any usual kind or from arrays."""

from __future__ import annotations

import io
import math
import mmap
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import AnomalyNCDError, BadFileError, DataError
from ..paths import posix
from ..places.names import file_named
from ..places.stored import File
from .files import as_file, name_of, open_file
from .images import decode
from .limits import TooLarge, room
from .lists import read_table
from .pictures import strips

MAP_SUFFIXES = frozenset({".npy", ".tif", ".tiff", ".png"})
_LOSSY_FORMATS = ("JPEG", "WEBP")
_NPY_START = b"\x93NUMPY"
_LONGEST_HEADER = 100_000  # bytes; NumPy itself reads no more than a tenth of this


@dataclass(frozen=True, slots=True)
class StackRow:
    """One map of a stack of maps, which is read when it is needed; in messages it is called `maps.npy[17]`."""

    path: Path
    index: int

    def __str__(self) -> str:
        return f"{self.path}[{self.index}]"

    @staticmethod
    def parse(text: str) -> File | StackRow:
        """The inverse of `str`, of a row or of a path; a file that is called like a row stays one.

        Examples
        --------
        >>> StackRow.parse("maps.npy[17]").index
        17
        """
        found = re.fullmatch(r"(.+\.npy)\[(\d+)\]", text, flags=re.IGNORECASE | re.DOTALL)
        return StackRow(Path(found[1]), int(found[2])) if found and not os.path.exists(text) else file_named(text)

    def stat(self) -> os.stat_result:
        """Of the whole stack: a row is as new as its file."""
        return self.path.stat()


def read_map(
    source: str | File | bytes | StackRow | NDArray[Any], *, max_pixels: int | None = None
) -> NDArray[np.float32]:
    """Read one anomaly map.

    Unsigned 8- and 16-bit values, of a PNG or of an array, become fractions of their full range, 0..1; all
    other numbers are kept. NaN and infinity are kept too: whoever uses the map decides about them.

    Parameters
    ----------
    source : path of an NPY, TIFF or PNG file or its bytes, row of a stack, or array
        (H, W), with any leading or trailing axes of length 1.
        Three equal channels count as one; alpha is ignored.
    max_pixels : a picture that says it has more is refused before it is decoded

    Returns
    -------
    (H, W) float32

    Raises
    ------
    BadFileError
        Unreadable, empty, or a colour-mapped picture, whose colours are not scores.

    Examples
    --------
    >>> import numpy as np
    >>> read_map(np.array([[[0, 51, 255]]], dtype=np.uint8))
    array([[0. , 0.2, 1. ]], dtype=float32)
    """
    with _opened(source, "map array", max_pixels) as (values, name, _):
        values = _numbers(values, name)
        is_colour = values.ndim == 3 and values.shape[2] in (3, 4)
        if not (values.ndim == 2 or is_colour) or values.size == 0:
            raise BadFileError(f"{name}: expected a map of shape (H, W) with at least one pixel, got {values.shape}")
        is_fraction = values.dtype.kind == "u" and values.dtype.itemsize <= 2
        full_range = np.float32(np.iinfo(values.dtype).max if is_fraction else 1)
        out = np.empty(values.shape[:2], np.float32)
        for rows in strips(*values.shape[:2]):  # what lies between is several times as large
            some = values[rows]
            if is_colour and not _is_grey(some):
                raise BadFileError(
                    f"{name}: expected one score a pixel, found a colour picture. "
                    "Save the map itself, as NPY, float TIFF or grey PNG"
                )
            with np.errstate(over="ignore", invalid="ignore"):  # beyond float32 becomes infinity, odd NaNs plain NaN
                np.divide((some[..., 0] if is_colour else some).astype(np.float32), full_range, out=out[rows])
        return out


def read_mask(source: str | File | bytes | NDArray[Any], *, max_pixels: int | None = None) -> NDArray[np.bool_]:
    """Read one defect mask: whatever is not zero is defect, in a picture whatever is brighter than half.

    A picture that reaches the upper half of its range (0/255, often with soft or noisy edges, as MTD's masks have) is cut
    at half; one that does not (0/1, class numbers) counts whatever is not zero. JPEG and WebP are always cut at half. In a
    colour file any channel may be set; alpha is ignored; in a palette file index 0 is background whatever its colour.

    Parameters
    ----------
    source : path of an image or NPY file or its bytes, or array of bool, integers or floats
        (H, W), (H, W, 3) or (H, W, 4), with any leading or trailing axes of length 1.
    max_pixels : a picture that says it has more is refused before it is decoded

    Returns
    -------
    (H, W) bool, True where the defect is

    Raises
    ------
    BadFileError
        Unreadable, empty, holding NaN, or not of such a shape.

    Examples
    --------
    >>> import numpy as np
    >>> read_mask(np.array([[0, 1], [255, 0]]))
    array([[False,  True],
           [ True, False]])
    """
    threshold = 0
    with _opened(source, "mask array", max_pixels, palette_indices=True) as (values, name, picture_format):
        if picture_format:
            half = np.iinfo(values.dtype).max // 2 if values.dtype.kind == "u" else 0
            is_bright = values.max(initial=0) > half
            threshold = half if picture_format in _LOSSY_FORMATS or is_bright else 0
        values = _numbers(values, name)
        if values.ndim not in (2, 3) or (values.ndim == 3 and values.shape[2] not in (3, 4)) or values.size == 0:
            raise BadFileError(f"{name}: expected a mask of shape (H, W) with at least one pixel, got {values.shape}")
        if values.dtype.kind == "f" and np.isnan(values).any():
            raise BadFileError(f"{name}: a mask says yes or no, but this one holds NaN")
        defect = values > threshold if threshold else values != 0
        return np.ascontiguousarray(defect if defect.ndim == 2 else defect[..., :3].any(axis=2))


def open_stack(path: Path) -> NDArray[Any]:
    """A stack of N maps, (N, H, W), (N, 1, H, W) or (N, H, W, 1), mapped into memory rather than read."""
    stack = _numbers(_open_npy(path), str(path))
    single = stack.ndim == 4 and 1 in (stack.shape[1], stack.shape[-1])
    if not (stack.ndim == 3 or single) or stack.size == 0:
        raise BadFileError(f"{path}: expected a stack of maps of shape (N, H, W) or (N, 1, H, W), got {stack.shape}")
    return stack


def read_row_names(stack: Path) -> tuple[Path, list[str]] | None:
    """The file beside a stack that names the image of each row (.csv or .txt) and the names; None without one."""
    table, text = stack.with_suffix(".csv"), stack.with_suffix(".txt")
    if table.is_file():
        return table, [posix(cells["image"]) for _, cells in read_table(table)]
    if not text.is_file():
        return None
    try:
        lines = text.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{text}: expected one image name a line, in UTF-8 ({error})") from error
    return text, [posix(line.strip()) for line in lines if line.strip()]


@contextmanager
def _opened(
    source: str | File | bytes | StackRow | NDArray[Any],
    name: str,
    max_pixels: int | None,
    *,
    palette_indices: bool = False,
) -> Iterator[tuple[NDArray[Any], str, str]]:
    """Values of an array or a file, what messages call it, and the format of a picture ("" for anything else)."""
    if isinstance(source, np.ndarray):
        yield _without_single_axes(source), name, ""
        return
    if isinstance(source, StackRow):
        stack, name = open_stack(source.path), str(source)
        if source.index >= len(stack):
            raise BadFileError(f"{name}: the stack holds only {len(stack)} maps by now")
        values = _without_single_axes(stack[source.index])
    else:
        held = source if isinstance(source, bytes) else as_file(source)
        name = name_of(held)
        if not (held.startswith(_NPY_START) if isinstance(held, bytes) else held.suffix.lower() == ".npy"):
            values, picture_format = decode(held, palette_indices=palette_indices, max_pixels=max_pixels)
            yield values, name, picture_format
            return
        values = _without_single_axes(_open_npy(held))
    with ExitStack() as reserved:
        try:
            if max_pixels is not None and (n_pixels := math.prod(values.shape[:2])) > max_pixels:
                raise TooLarge(f"it has {n_pixels:,} pixels, more than the limit of {max_pixels:,}")
            reserved.enter_context(room(values.nbytes + 4 * values.size, f"its {values.size:,} values"))
        except TooLarge as error:
            raise BadFileError(f"{name}: too large: {error}") from None
        yield values, name, ""


def _open_npy(source: File | bytes) -> NDArray[Any]:
    """The array of an NPY file, mapped into memory rather than read, or of its bytes.

    Not by `np.load`, which takes the memory that a header promises, whatever the file holds.
    """
    data: bytes | mmap.mmap
    try:
        if isinstance(source, bytes):
            data = source
        else:
            with open_file(source) as opened:
                try:
                    data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
                except io.UnsupportedOperation:  # a small one of a store, in memory already
                    data = opened.read()
        file = io.BytesIO(data[:_LONGEST_HEADER])
        version = np.lib.format.read_magic(file)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, by_columns, dtype = readers[version](file)
        if dtype.hasobject:
            raise ValueError("Python objects are not read")
        count = math.prod(shape)
        values = np.frombuffer(data, dtype, count, file.tell()) if count else np.empty(0, dtype)
        return values.reshape(shape, order="F" if by_columns else "C")
    except AnomalyNCDError:
        raise
    except Exception as error:  # the header is parsed as Python, so damage shows in many ways
        raise BadFileError(f"{name_of(source)}: expected a NumPy .npy array of numbers ({error})") from error


def _numbers(values: NDArray[Any], name: str) -> NDArray[Any]:
    if values.dtype.kind not in "buif":
        raise BadFileError(f"{name}: expected real numbers, got {values.dtype}")
    return values


def _is_grey(values: NDArray[Any]) -> bool:
    """Whether the colours (H, W, 3 or 4) of each pixel are equal."""
    grey, others = values[..., :1], values[..., 1:3]
    return np.array_equal(np.broadcast_to(grey, others.shape), others, equal_nan=values.dtype.kind == "f")


def _without_single_axes(values: NDArray[Any]) -> NDArray[Any]:
    while values.ndim > 2 and 1 in (values.shape[0], values.shape[-1]):
        values = values[0] if values.shape[0] == 1 else values[..., 0]
    return values
