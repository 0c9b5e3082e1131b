"""Valid files made malformed: a byte fuzzer that also knows checksums, headers and text."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

Rng = np.random.Generator
NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF)
WORDS = (
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b'"', b"'", b",", b"\n", b"\r\n", b"\t", b"{", b"}", b"[", b"]", b":", b"- ",
    b"&a ", b"*a", b"!!python/object/apply:os.system [id]", b"=cmd|' /C calc'!A0",
    b"../../../../etc/passwd", b"/dev/zero", b"/dev/stdin",
    b"file:///etc/passwd", b"http://127.0.0.1/x.png", b"C:\\x.png", b"\\\\host\\share\\x.png",
    b"nan", b"NaN", b"inf", b"-inf",
    b"1e999", b"-1", b"1e-999", b"99999999999999999999999", b"null", b"true",
    "größe 缺陷 😀".encode(), b"\xed\xa0\x80", b"\xc3",
    "\u202e\u0000\u2028".encode(), b"x" * 50_000, b"[" * 20_000, b"{\"a\":" * 5_000, b"((" * 3_000,
    b"a: " * 300, b"<<: *a\n", b"%s%n",
)  # fmt: skip


def mutate(data: bytes, other: bytes, rng: Rng) -> tuple[str, bytes]:
    """One to three random changes; other : a second valid file, for splices. Returns what was done, and the bytes."""
    names = []
    for _ in range(int(rng.choice([1, 1, 1, 2, 3]))):
        name, change = MUTATIONS[rng.integers(len(MUTATIONS))]
        names.append(name)
        data = change(data, other, rng)
    if rng.random() < 0.7:
        data = _mended(data)
    return names[0] if len(names) == 1 else "several", data


def _flip(data: bytes, _: bytes, rng: Rng) -> bytes:
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 17)) if out else 0):
        out[_place(out, rng)] ^= 1 << int(rng.integers(8))
    return bytes(out)


def _number(data: bytes, _: bytes, rng: Rng) -> bytes:
    """An extreme number somewhere, most often in the header: that is where sizes are."""
    form = str(rng.choice(["<H", ">H", "<I", ">I", "<Q", ">Q", "B"]))
    size = struct.calcsize(form)
    value = NUMBERS[rng.integers(len(NUMBERS))] & (256**size - 1)
    at = _place(data, rng)
    return data[:at] + struct.pack(form, value) + data[at + size :]


def _cut(data: bytes, _: bytes, rng: Rng) -> bytes:
    return data[: _place(data, rng)]


def _remove(data: bytes, _: bytes, rng: Rng) -> bytes:
    low, high = _range(data, rng)
    return data[:low] + data[high:]


def _repeat(data: bytes, _: bytes, rng: Rng) -> bytes:
    low, high = _range(data, rng)
    times = min(int(rng.choice([2, 3, 10, 1000])), 1 + 1_000_000 // max(1, high - low))
    return data[:low] + data[low:high] * times + data[high:]


def _blank(data: bytes, _: bytes, rng: Rng) -> bytes:
    low, high = _range(data, rng)
    return data[:low] + bytes([int(rng.choice([0, 255, 32]))]) * (high - low) + data[high:]


def _noise(data: bytes, _: bytes, rng: Rng) -> bytes:
    low, high = _range(data, rng)
    return data[:low] + rng.bytes(high - low) + data[high:]


def _splice(data: bytes, other: bytes, rng: Rng) -> bytes:
    low, high = _range(other, rng)
    at = _place(data, rng)
    return data[:at] + other[low:high] + data[at + int(rng.integers(2)) * (high - low) :]


def _word(data: bytes, _: bytes, rng: Rng) -> bytes:
    at = int(rng.integers(len(data) + 1))
    return data[:at] + WORDS[rng.integers(len(WORDS))] + data[at + int(rng.integers(4)) :]


def _append(data: bytes, _: bytes, rng: Rng) -> bytes:
    return data + rng.bytes(int(rng.integers(1, 5000)))


def _random(data: bytes, _: bytes, rng: Rng) -> bytes:
    return data[: int(rng.integers(0, 16))] + rng.bytes(int(rng.integers(0, 600)))


MUTATIONS: list[tuple[str, Callable[[bytes, bytes, Rng], bytes]]] = [
    ("bit flips", _flip), ("extreme number", _number), ("extreme number", _number), ("truncated", _cut),
    ("chunk removed", _remove),
    ("chunk repeated", _repeat), ("chunk blanked", _blank), ("chunk of noise", _noise), ("splice", _splice),
    ("odd text", _word),
    ("appended", _append), ("noise", _random),
]  # fmt: skip


def _place(data: bytes | bytearray, rng: Rng) -> int:
    if not data:
        return 0
    return int(rng.integers(min(len(data), 64) if rng.random() < 0.4 else len(data)))


def _range(data: bytes, rng: Rng) -> tuple[int, int]:
    low = _place(data, rng)
    return low, min(len(data), low + int(rng.integers(1, 2 + len(data) // 3)))


def _mended(data: bytes) -> bytes:
    """Right checksums and lengths again, so that the damage behind them is met."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return mended_png(data)
    size = int.from_bytes(data[:8], "little")
    if data[8:9] == b"{" and data.count(b"}", 8, 8 + 2 * size):  # safetensors: the length of its header
        end = data.find(b"}}", 8)
        return data if end < 0 else (end + 2 - 8).to_bytes(8, "little") + data[8:]
    return data


def mended_png(data: bytes) -> bytes:
    """A PNG whose chunks have right checksums; what does not look like a chunk stays."""
    out, at = bytearray(data[:8]), 8
    while at + 12 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 12 + size > len(data):
            break
        body = data[at + 4 : at + 8 + size]
        out += data[at : at + 4] + body + struct.pack(">I", zlib.crc32(body))
        at += 12 + size
    return bytes(out) + data[at:]


def png(
    width: int, height: int, depth: int = 8, colour: int = 2, *, rows: int | None = None, interlaced: int = 0
) -> bytes:
    """A black PNG of any claimed size that holds `rows` rows (all by default): a few kilobytes for a gigabyte."""
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour]
    line = 1 + (width * channels * depth + 7) // 8
    packer = zlib.compressobj(9)
    packed = bytearray()
    left = line * (height if rows is None else rows)
    while left > 0:
        packed += packer.compress(bytes(min(left, 1 << 24)))
        left -= 1 << 24
    packed += packer.flush()
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced))]
    chunks += [(b"PLTE", bytes(768))] if colour == 3 else []
    chunks += [(b"IDAT", bytes(packed)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


def tiff_file(
    tags: dict[int, int | list[int] | bytes],
    chunks: list[bytes],
    *,
    order: str = "<",
    big: bool = False,
    tiled: bool = False,
) -> bytes:
    """A TIFF with tags and packed strips or tiles of one's own; tags that place the chunks are added unless given."""
    word, start = ("Q", 16) if big else ("I", 8)
    places = [start + sum(map(len, chunks[:n])) for n in range(len(chunks))]
    own: dict[int, Any] = {
        324 if tiled else 273: places,
        325 if tiled else 279: [len(chunk) for chunk in chunks],
    }
    tags = own | tags
    body = b"".join(chunks)
    at = start + len(body)
    entries, values = b"", b""
    end = at + (8 + 20 * len(tags) + 8 if big else 2 + 12 * len(tags) + 4)
    for tag in sorted(tags):
        value = tags[tag]
        numbers = [value] if isinstance(value, int) else list(value)
        kind, form = (
            (7, "B") if isinstance(value, bytes) else (16, "Q") if max(numbers, default=0) >= 1 << 32 else (4, "I")
        )
        data = struct.pack(f"{order}{len(numbers)}{form}", *numbers)
        entries += struct.pack(f"{order}HH{word}", tag, kind, len(numbers))
        if len(data) > struct.calcsize(order + word):
            entries += struct.pack(order + word, end + len(values))
            values += data
        else:
            entries += data.ljust(struct.calcsize(order + word), b"\0")
    mark = b"II" if order == "<" else b"MM"
    head = struct.pack(f"{order}2sHHHQ", mark, 43, 8, 0, at) if big else struct.pack(f"{order}2sHI", mark, 42, at)
    count = struct.pack(order + ("Q" if big else "H"), len(tags))
    return head + body + count + entries + bytes(struct.calcsize(order + word)) + values


def npy(header: str, body: bytes = b"") -> bytes:
    """A .npy file with a header of one's own."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + body


def safetensors(header: object, body: bytes = b"") -> bytes:
    """A .safetensors file with a header of one's own, text or JSON."""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body
