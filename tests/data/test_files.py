from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

from anomalyncd.data.files import begins_as_image, found_in, open_file
from anomalyncd.data.images import IMAGE_SUFFIXES, read_image
from anomalyncd.data.maps import read_map, read_mask
from anomalyncd.errors import BadFileError

FOREIGN = {
    "HEIC": b"\0\0\0\x18ftypheic", "AVIF": b"\0\0\0\x1cftypavif", "HEIF": b"\0\0\0\x18ftypmif1", "GIF": b"GIF89a",
    "JPEG 2000": b"\0\0\0\x0cjP  \r\n\x87\n", "JPEG XL": b"\xff\x0a", "Photoshop": b"8BPS\0\1", "a PDF": b"%PDF-1.7",
    "SVG": b"<svg ", "DICOM": bytes(128) + b"DICM", "a NumPy array": b"\x93NUMPY\1\0", "something else": b"Dear",
    "a video": b"\0\0\0\x18ftypisom", "Canon CR3": b"\0\0\0\x18ftypcrx ", "OpenEXR": b"v/1\x01\2\0", "PGM": b"P5 2 2 255\n",
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_other_formats_are_called_by_their_names(name: str, tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(FOREIGN[name].ljust(140, b"\0"))
    assert found_in(FOREIGN[name]) == name
    for read in (read_image, read_map, read_mask):
        with pytest.raises(BadFileError, match=f"expected a PNG, JPEG, BMP, TIFF or WebP image, found {name}$"):
            read(path)


def test_real_ones(tmp_path: Path) -> None:
    for file_format in ("GIF", "AVIF")[: 1 + features.check("avif")]:
        Image.new("RGB", (8, 8)).save(tmp_path / "a.png", file_format)
        with pytest.raises(BadFileError, match=f"found {file_format}$"):
            read_image(tmp_path / "a.png")


def test_what_begins_as_an_image(tmp_path: Path) -> None:
    for suffix in IMAGE_SUFFIXES:
        Image.fromarray(np.zeros((5, 7, 3), np.uint8)).save(tmp_path / f"a{suffix}")
        assert begins_as_image(tmp_path / f"a{suffix}")
    (tmp_path / "letter.png").write_text("Dear")
    (tmp_path / "sound.webp").write_bytes(b"RIFF\0\0\0\0WAVEfmt ")
    (tmp_path / "empty.png").touch()
    names = ("letter.png", "sound.webp", "empty.png", "gone.png", ".", "a\0b.png")
    assert not any(begins_as_image(tmp_path / name) for name in names)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes")
def test_a_pipe_is_refused_even_if_it_took_the_place_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, file = tmp_path / "pipe.png", tmp_path / "file.png"
    os.mkfifo(pipe)
    file.write_bytes(b"x")
    with pytest.raises(BadFileError, match="device or pipe"):
        open_file(pipe)
    before = file.stat()
    monkeypatch.setattr(Path, "stat", lambda self, **_: before)  # as it was a moment ago
    with pytest.raises(BadFileError, match="device or pipe"):  # and this did not wait for a writer
        open_file(pipe)
