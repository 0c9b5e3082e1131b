"""The bytes of a file are read as the file is."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anomalyncd.data.images import read_image
from anomalyncd.data.maps import read_map, read_mask
from anomalyncd.errors import BadFileError


def npy(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp", ".tiff", ".webp"])
@pytest.mark.parametrize("read", [read_image, read_map, read_mask])
def test_pictures(tmp_path: Path, suffix: str, read):
    values = np.random.default_rng(0).integers(0, 255, (9, 7), dtype=np.uint8)
    path = tmp_path / f"a{suffix}"
    cv2.imwrite(str(path), values)
    assert np.array_equal(read(path.read_bytes()), read(path))
    with pytest.raises(BadFileError, match="more than the limit of 62"):
        read(path.read_bytes(), max_pixels=62)
    with pytest.raises(BadFileError, match="data: "):
        read(path.read_bytes()[:15])


@pytest.mark.parametrize("dtype", ["f4", ">f8", "u1", "i8", "?"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays(tmp_path: Path, dtype: str, order: str):
    values = np.asarray(np.arange(12).reshape(1, 3, 4) % 3, dtype=dtype, order=order)
    path = tmp_path / "a.npy"
    path.write_bytes(npy(values))
    assert np.array_equal(read_map(path.read_bytes()), read_map(path))
    assert np.array_equal(read_mask(path.read_bytes()), read_mask(path))


def test_a_header_that_promises_more_takes_no_memory():
    small = npy(np.zeros((4, 4), np.float32))
    for content in (small.replace(b"(4, 4), }      ", b"(99999, 99999)}"), small[:-1]):
        assert len(content) >= len(small) - 1 and content != small
        with pytest.raises(BadFileError, match="smaller than requested"):
            read_map(content)
    for values in (np.array([["a"]]), np.array([[None]]), np.zeros((2, 2), complex)):
        with pytest.raises(BadFileError, match="numbers"):
            read_map(npy(values))


STARTS = [b"", b"\x93NUMPY\x01\x00", b"\x93NUMPY\x02\x00", b"II*\0", b"\x89PNG"]


@settings(deadline=None)
@given(content=st.binary(max_size=200), start=st.sampled_from(STARTS))
def test_any_bytes_are_read_or_refused(content: bytes, start: bytes):
    for read in (read_image, read_map, read_mask):
        try:
            found = read(start + content)
        except BadFileError as error:
            assert str(error).startswith("data: ")
        else:
            assert found.size
