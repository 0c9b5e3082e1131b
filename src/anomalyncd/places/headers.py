"""Where the members of a tar archive lie, by its headers alone. Archives may be anybody's: what they say is checked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ..errors import DataError

BLOCK = 512  # bytes: headers and contents begin at multiples
MOST_WORDS = 1_000_000  # bytes of words about one member
LONGEST_NAME = 4096  # bytes, as file systems have it
LATEST = 2**63 - 1  # ns, as tables can hold them
_FILE, _LINKS, _WORDS, _LONG_NAME = b"\0" + b"07", b"123456", b"x", b"L"
_SECOND = 1_000_000_000
_MOMENT = re.compile(r"\d{1,12}(?:\.\d{1,9})?")


class Member(NamedTuple):
    """A plain file in an archive; begin, size : bytes; modified : ns."""

    name: str
    begin: int
    size: int
    modified: int


def members(read: Callable[[int, int], bytes], size: int, archive: str) -> Iterator[Member]:
    """The plain files of an archive, in order; links, devices, folders and sparse files are left out.

    Parameters
    ----------
    read : (begin, end) → these bytes of the archive
    size : of the archive in bytes
    archive : its name, in messages

    Examples
    --------
    >>> import io, tarfile
    >>> held = io.BytesIO()
    >>> with tarfile.open(fileobj=held, mode="w") as tar:
    ...     tar.addfile(tarfile.TarInfo("empty.png"))
    >>> data = held.getvalue()
    >>> list(members(lambda begin, end: data[begin:end], len(data), "a.tar"))
    [Member(name='empty.png', begin=512, size=0, modified=0)]
    """
    place, words, long_name = 0, dict[str, str](), None
    if size < BLOCK:
        _check(read(0, size), 0, archive)
    while place + BLOCK <= size:
        head = read(place, place + BLOCK)
        if not head.strip(b"\0"):
            return  # the end; what lies behind was there before
        _check(head, place, archive)
        kind, length = head[156:157], _number(head[124:136])
        own = kind in (_WORDS, _LONG_NAME)
        if not own and "size" in words and words["size"].isdecimal() and len(words["size"]) < 20:
            length = int(words["size"])
        if length < 0:
            raise DataError(f"{archive}: the archive is damaged at byte {place:,}: a size in it is none")
        begin = place + BLOCK
        place = begin if kind in _LINKS else begin + -(-length // BLOCK) * BLOCK
        if begin + (0 if kind in _LINKS else length) > size:
            raise DataError(f"{archive}: the archive is cut short. Copy it again")
        if own:
            if length > MOST_WORDS:
                raise DataError(f"{archive}: the words about a file in the archive are too long")
            text = read(begin, begin + length)
            if kind == _LONG_NAME:
                long_name = text.split(b"\0")[0]
            else:
                words = _records(text)
            continue
        if kind in _FILE and not any(key.startswith("GNU.sparse") for key in words):
            name = words.get("path") or _decoded(_name(head) if long_name is None else long_name)
            if len(name.encode("utf-8", "surrogateescape")) > LONGEST_NAME:
                raise DataError(f"{archive}: a name in the archive is too long")
            moment = _MOMENT.fullmatch(words.get("mtime", ""))
            modified = round(float(moment[0]) * _SECOND) if moment else max(_number(head[136:148]), 0) * _SECOND
            yield Member(name, begin, length, min(modified, LATEST))
        words, long_name = {}, None


def _check(head: bytes, place: int, archive: str) -> None:
    told = head[148:156].strip(b" \0")
    sums = sum(head[:148]) + 8 * 0x20 + sum(head[156:])
    if len(head) == BLOCK and re.fullmatch(rb"[0-7]{1,8}", told) and int(told, 8) == sums:
        return
    if place:
        raise DataError(f"{archive}: the archive is damaged at byte {place:,}. Copy it again")
    packed = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
    found = next((name for start, name in packed.items() if head.startswith(start)), None)
    if found:
        raise DataError(
            f"{archive}: packed with {found}, so that its files can't be read by where they lie. Unpack that"
        )
    raise DataError(f"{archive}: expected a tar archive, found something else")


def _number(field: bytes) -> int:
    """-1 where it is none, or negative."""
    if field[0] == 0x80:  # larger than eight gigabytes
        return int.from_bytes(field[1:], "big")
    text = field.strip(b" \0")
    return int(text or b"0", 8) if re.fullmatch(rb"[0-7]{0,12}", text) else -1


def _name(head: bytes) -> bytes:
    name, prefix = (part.split(b"\0")[0] for part in (head[:100], head[345:500]))
    return prefix + b"/" + name if prefix and head[257:263] == b"ustar\0" else name


def _decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _records(text: bytes) -> dict[str, str]:
    """Key → value of the lines `length key=value`, of which a value may hold anything; what is no such line ends them."""
    found, place = {}, 0
    while match := re.compile(rb"(\d{1,7}) ([^=]{1,200})=").match(text, place):
        end = place + int(match[1])
        if end <= match.end() or text[end - 1 : end] != b"\n":
            break
        found[_decoded(match[2])] = _decoded(text[match.end() : end - 1])
        place = end
    return found
