"""Valid files made malformed: a byte fuzzer that also knows checksums, headers and text."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable

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


def npy(header: str, body: bytes = b"") -> bytes:
    """A .npy file with a header of one's own."""
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text + body


def safetensors(header: object, body: bytes = b"") -> bytes:
    """A .safetensors file with a header of one's own, text or JSON."""
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body
