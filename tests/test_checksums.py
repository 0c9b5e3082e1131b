"""Checksums: equal content has equal digests, and any flipped bit is noticed. Covers errors and labels by their examples."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anomalyncd.checksums import PIECE, seal, sha256, stable_hash, unseal
from anomalyncd.errors import RunError


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1])
def test_a_file_and_its_bytes_have_the_digest_of_hashlib(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * (size // 256 + 1)
    content = content[:size]
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == sha256(content) == hashlib.sha256(content).hexdigest()


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=4))
def test_the_order_of_keys_has_no_say(values: dict[str, object]) -> None:
    assert stable_hash(values) == stable_hash(dict(reversed(values.items())))


def test_a_sealed_file_is_read_as_it_was_written_and_damage_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    arrays = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 1), np.float16)}
    data = seal(arrays, {"note": "ü"})
    path.write_bytes(data)
    found, notes = unseal(path)
    assert notes == {"note": "ü"} and all((found[name] == values).all() for name, values in arrays.items())
    assert seal(dict(reversed(arrays.items())), {"note": "ü"}) == data
    broken = bytearray(data)
    broken[-1] ^= 1  # the last byte of the numbers
    path.write_bytes(bytes(broken))
    with pytest.raises(RunError, match="its checksum does not fit"):
        unseal(path)
