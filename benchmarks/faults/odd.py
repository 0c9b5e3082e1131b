"""Dataset that no byte fuzzer finds: bombs, pipes and devices, loops of links, names that are too long or mean something."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from . import bombs
from .mutate import npy, png, safetensors
from .seeds import pillow

LONG = "n" * 50_000


@dataclass(frozen=True)
class Odd:
    """make : folder for the case → content of the file, or the path of something that is no plain file"""

    reader: str
    name: str
    make: Callable[[Path], bytes | Path]
    suffix: str = ".png"


def _pipe(case: Path) -> Path:
    os.mkfifo(case / "pipe")
    return case / "pipe"


def _linked(target: str) -> Callable[[Path], Path]:
    def make(case: Path) -> Path:
        (case / "link").symlink_to(target)
        return case / "link"

    return make


def _folder(case: Path) -> Path:
    (case / "folder").mkdir()
    return case / "folder"


def _sparse(case: Path) -> Path:
    """A hundred gigabytes that take no room."""
    path = case / "sparse"
    path.write_bytes(png(8, 8))
    os.truncate(path, 100 << 30)
    return path


SPECIAL: list[tuple[str, Callable[[Path], Path]]] = [
    ("a pipe", _pipe), ("/dev/zero", _linked("/dev/zero")), ("/dev/stdin", _linked("/dev/stdin")), ("a folder", _folder),
    ("a link to itself", _linked("link")), ("a link to nothing", _linked("nowhere")), ("100 GB of zeros", _sparse),
]  # fmt: skip
IN_A_RUN = ("a folder", "a link to itself", "a link to nothing")
NAMES = [
    ("a name of 50,000 characters", f"{LONG}.png"), ("a path of 50,000 folders", "a/" * 50_000 + "x.png"),
    ("a NUL in the name", "a\0b.png"), ("half a character", "a\udc80b.png"), ("a line break", "a\nb.png"), ("an address", "http://a/b.png"),
    ("Windows", "C:\\a\\b.png"), ("nothing", ""),
]  # fmt: skip


def _many_scans(case: Path) -> bytes:
    """A small progressive JPEG of a large picture whose scans come again and again."""
    data = pillow(Image.new("RGB", (4000, 4000)), "JPEG", progressive=True)
    starts = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    scan = data[starts[-1] : -2]
    return data[:-2] + scan * 3000 + data[-2:]


def _black(form: str, size: tuple[int, int], **options: object) -> bytes:
    return pillow(Image.new("RGB", size), form, **options)


def _pickle(made: Path) -> bytes:
    return b"cos\nsystem\n(S'touch " + str(made).encode() + b"'\ntR."


def _zip_bomb(case: Path) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("archive/data.pkl", "w") as file:
        for _ in range(40):
            file.write(bytes(1 << 24))
    return buffer.getvalue()


def _laughs(case: Path) -> bytes:
    lines = ["a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    return ("\n".join(lines) + "\nlearn: *a11\n").encode()


def _given(text: str) -> Callable[[Path], bytes]:
    return lambda _: text.encode("utf-8", "surrogateescape")


OUTSIDE = ("image", "map", "mask", "weights", "settings", "table of labels")
RUN_FILES = ("classes.json", "stages.json", "images.csv", "model.safetensors", "review.sqlite", "config.yaml")
ODD: list[Odd] = []
for _reader in (*OUTSIDE, "list of images"):
    ODD += [Odd(_reader, name, make) for name, make in SPECIAL]
for _reader in RUN_FILES:
    ODD += [Odd(_reader, name, make) for name, make in SPECIAL if name in IN_A_RUN]
for _reader in OUTSIDE:
    ODD += [Odd(_reader, name, lambda _, text=text: Path(text)) for name, text in NAMES]
ODD += [Odd("list of images", f"names {name}", _given(f'image,label\n"{text}",x\n'), ".csv") for name, text in NAMES]
ODD += [
    Odd("list of images", f"a map at {text[:40]}", _given(f"image,map\nimages/a.png,{text}\n"), ".csv")
    for text in ("/dev/zero", "../../etc/passwd", LONG, "/proc/self/mem")
]
ODD += [
    Odd("list of images", "a pipe in it", lambda case: f"image\n{_pipe(case)}\n".encode(), ".csv"),
    Odd("list of images", "a million rows of one image", _given("image\n" + "a.png\n" * 1_000_000), ".csv"),
    Odd("list of images", "one cell of 10 MB", _given("image\n" + "a" * 10_000_000), ".csv"),
]
PNG_SIZES: dict[str, tuple[int, ...]] = {
    "of 400 million black pixels": (20_000, 20_000),
    "of 99 million black pixels": (10_000, 9_900),
    "one pixel high": (1_000_000, 1),
    "one pixel wide": (1, 1_000_000),
    "50 million pixels high": (1, 50_000_000),
    "16 bits, 99 million": (10_000, 9_900, 16, 6),
    "palette, 99 million": (10_000, 9_900, 8, 3),
}
ODD += [Odd("image", f"PNG {words}", lambda _, size=size: png(*size)) for words, size in PNG_SIZES.items()]
for _reader in ("map", "mask"):
    ODD += [Odd(_reader, f"PNG {words}", lambda _, size=size: png(*size)) for words, size in [*PNG_SIZES.items()][:2]]
ODD += [
    Odd("image", "PNG that claims 60,000 × 60,000", lambda _: png(60_000, 60_000, rows=10)),
    Odd("image", "PNG that claims 2³¹ × 1", lambda _: png(2**31 - 1, 1, rows=0)),
    Odd("image", "JPEG that claims 65,000 × 65,000", bombs.huge_jpeg, ".jpg"),
    Odd("image", "JPEG of 3,000 scans", _many_scans, ".jpg"),
    Odd(
        "image",
        "black progressive JPEG, 99 million",
        lambda _: _black("JPEG", (10_000, 9_900), progressive=True),
        ".jpg",
    ),
    Odd("image", "black WebP, 49 million", lambda _: _black("WEBP", (16_383, 3_000), lossless=True, method=0), ".webp"),
    Odd("image", "black WebP, 98 million", lambda _: _black("WEBP", (16_383, 6_000), lossless=True, method=0), ".webp"),
    Odd("map", "TIFF of 400 MB of floats", bombs.raw_tiff(10_000, 9900, 1, 32, 3), ".tif"),
]
for _reader in ("image", "image of a request"):
    ODD += [Odd(_reader, name, make) for name, make in bombs.BOMBS.items()]
for _reader in ("map", "mask"):
    ODD += [Odd(_reader, f"TIFF of {name}", make, ".tif") for name, make in bombs.TIFF_BOMBS.items()]
for _reader in ("image", "map", "mask"):
    ODD += [Odd(_reader, f"TIFF of {name}", make, ".tif") for name, make in bombs.LARGE_TIFFS.items()]
    ODD += [Odd(_reader, name, make) for name, make in bombs.LARGE_IMAGES.items() if _reader != "mask"]
for _reader in ("map", "mask"):
    ODD += [Odd(_reader, f"NPY {name}", make, ".npy") for name, make in bombs.ARRAYS.items()]
NPY = "{'descr': %r, 'fortran_order': False, 'shape': %s}"
NPY_HEADERS = {
    "of 10¹⁸ values": NPY % ("<f4", (10**9, 10**9)),
    "of a negative size": NPY % ("<f4", (-1, 4)),
    "of objects": NPY % ("|O", (1, 1)),
    "of a thousand axes": NPY % ("<f4", (1,) * 1000),
    "of a structure": NPY % ([("a", "<f4")], (1, 1)),
    "nested a thousand times": "(" * 1000 + ")" * 1000,
}
HUGE = {"a": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4 * 10**18]}}
ODD += [Odd("map", f"NPY {words}", lambda _, text=text: npy(text), ".npy") for words, text in NPY_HEADERS.items()]
ODD += [
    Odd("weights", "pickle that runs a command", lambda case: _pickle(case / "owned"), ".pth"),
    Odd("weights", "zip of 670 MB of zeros", _zip_bomb, ".pth"),
    Odd("weights", "header nested 100,000 deep", lambda _: safetensors("[" * 100_000), ".safetensors"),
    Odd("weights", "header of 10¹⁸ bytes", lambda _: safetensors(HUGE), ".safetensors"),
    Odd("settings", "a billion laughs", _laughs, ".yaml"),
    Odd("settings", "a Python object", _given("learn: !!python/object/apply:os.system ['exit']\n"), ".yaml"),
    Odd("settings", "a number of 100,000 digits", _given("random_state: " + "9" * 100_000), ".yaml"),
    Odd("classes.json", "a number of 100,000 digits", _given('{"' + "9" * 100_000 + '": "x"}'), ".json"),
]
for _reader in ("settings", "classes.json", "stages.json", "range.json"):
    ODD += [Odd(_reader, "lists nested 100,000 deep", lambda _: b"[" * 100_000, ".json")]
    ODD += [Odd(_reader, "objects nested 100,000 deep", lambda _: b'{"1":' * 100_000, ".json")]
