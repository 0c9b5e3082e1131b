"""Files as they are given: opened without surprises, and called by their names, also where they are of no use here."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from ..errors import BadFileError
from ..places.plain import open_plain
from ..places.stored import File, Stored
from .limits import memory_limit

STARTS = {  # of the formats that are read
    b"\x89PNG\r\n\x1a\n": "PNG", b"\xff\xd8\xff": "JPEG", b"BM": "BMP", b"RIFF": "WEBP",
    b"II*\0": "TIFF", b"MM\0*": "TIFF", b"II+\0": "TIFF", b"MM\0+": "TIFF",
}  # fmt: skip
LONGEST_START = 132
_BMP_HEADERS = (12, 16, 40, 52, 56, 64, 108, 124)  # lengths, in bytes
_OTHER_STARTS = {  # so that people are told what they have
    b"GIF8": "GIF", b"\0\0\0\x0cjP  ": "JPEG 2000", b"\xff\x4f\xff\x51": "JPEG 2000", b"\xff\x0a": "JPEG XL",
    b"\0\0\0\x0cJXL ": "JPEG XL", b"8BPS": "Photoshop", b"v/1\x01": "OpenEXR", b"#?RADIANCE": "Radiance HDR", b"qoif": "QOI",
    b"II\xbc\x01": "JPEG XR", b"P4": "PBM", b"P5": "PGM", b"P6": "PPM", b"\0\0\1\0": "an icon", b"%PDF": "a PDF",
    b"<svg": "SVG", b"<?xml": "XML", b"<!DOCTYPE": "a web page", b"<html": "a web page", b"PK\3\4": "a zip archive",
    b"\x1f\x8b": "a gzip archive", b"\x93NUMPY": "a NumPy array",
}  # fmt: skip
_BRANDS = {  # of ISO media files
    b"avi": "AVIF", b"he": "HEIC", b"mif": "HEIF", b"msf": "HEIF", b"mia": "HEIF", b"crx": "Canon CR3", b"": "a video"
}  # fmt: skip


def name_of(source: File | bytes) -> str:
    """What messages call a file; its bytes alone have no name."""
    return "data" if isinstance(source, bytes) else str(source)


def as_file(source: object) -> File:
    """The file that `source` is or names, or a BadFileError that says what is expected."""
    if isinstance(source, Stored):
        return source
    if isinstance(source, str | Path):
        return Path(source)
    raise BadFileError(f"expected a path or a NumPy array, got {type(source).__name__}")


def open_file(place: File) -> BinaryIO:
    """The file opened for reading bytes; a BadFileError if it is missing, a folder, a pipe, a device, locked or empty.

    What lies in a store is fetched, if it is not larger than anything that is read here.
    """
    if isinstance(place, Path):
        return open_plain(place)
    try:
        n_bytes = place.stat().st_size
    except FileNotFoundError as error:
        raise BadFileError(f"{place}: cannot be read (No such file or directory)") from error
    if n_bytes > memory_limit():
        raise BadFileError(
            f"{place}: too large: the file has {n_bytes:,} bytes, more than the limit of {memory_limit():,}"
        )
    return place.open()


def begins_as_image(path: File) -> bool:
    """Whether a file begins as images do that are read: enough to hand it on, not to say that it is whole."""
    try:
        with open_file(path) as file:
            return format_of(file.read(LONGEST_START)) is not None
    except (BadFileError, OSError):
        return False


def format_of(start: bytes) -> str | None:
    """The format of an image file that is read, by its first bytes; None for all others."""
    found = next((name for begin, name in STARTS.items() if start.startswith(begin)), None)
    if found == "BMP" and int.from_bytes(start[14:18], "little") not in _BMP_HEADERS:
        return None  # a letter may begin with these two characters too
    return None if found == "WEBP" and start[8:12] != b"WEBP" else found


def found_in(start: bytes) -> str:
    """What a file that is not read holds, by its first bytes.

    Examples
    --------
    >>> found_in(b"GIF89a"), found_in(b"    ftypheic"), found_in(b"Dear")
    ('GIF', 'HEIC', 'something else')
    """
    if start[4:8] == b"ftyp":
        return next(name for brand, name in _BRANDS.items() if start[8:].startswith(brand))
    if start[128:132] == b"DICM":
        return "DICOM"
    return next((name for begin, name in _OTHER_STARTS.items() if start.startswith(begin)), "something else")
