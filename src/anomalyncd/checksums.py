"""Whether something is still what it was: a file, a folder, arrays with texts, or any values. SHA-256 everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import safe_open

from .errors import RunError
from .places.stored import File

PIECE = 1 << 20  # bytes read at once
SEALED = "sealed"
Arrays = dict[str, npt.NDArray[Any]]


def seal(arrays: Mapping[str, npt.NDArray[Any]], notes: Mapping[str, str]) -> bytes:
    """The content of a file of arrays and texts.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.safetensors"
    >>> _ = path.write_bytes(seal({"a": np.arange(3)}, {"who": "me"}))
    >>> unseal(path)
    ({'a': array([0, 1, 2])}, {'who': 'me'})
    """
    # One entry, because the library writes several in any order.
    sealed = json.dumps({"sha256": _digest(arrays, notes), "notes": dict(notes)}, sort_keys=True)
    data: bytes = safetensors.numpy.save(dict(arrays), metadata={SEALED: sealed})
    return data


def unseal(path: Path) -> tuple[Arrays, dict[str, str]]:
    """Arrays and texts of a file that `seal` made; a RunError where they are not what they were."""
    with safe_open(path, framework="numpy") as file:
        notes = dict(file.metadata() or {})
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if SEALED not in notes:
        raise RunError(f"{path}: expected a file with a checksum in it, but there is none.")
    sealed = json.loads(notes[SEALED])
    if sealed["sha256"] != _digest(arrays, sealed["notes"]):
        raise RunError(f"{path}: damaged since it was written, its checksum does not fit.")
    return arrays, sealed["notes"]


def _digest(arrays: Mapping[str, npt.NDArray[Any]], notes: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(notes), sort_keys=True).encode())
    for name, values in sorted(arrays.items()):
        digest.update(json.dumps([name, str(values.dtype), values.shape]).encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


def from_json(text: str) -> Any:
    """What JSON holds; a ValueError also where it names half a character, which no file can hold.

    Examples
    --------
    >>> from_json('["dent"]')
    ['dent']
    """
    found = json.loads(text)
    json.dumps(found, ensure_ascii=False).encode()
    return found


def sha256(content: File | bytes) -> str:
    """SHA-256 of a file's content, or of bytes, as hexadecimal digits.

    Examples
    --------
    >>> sha256(b"")[:8]
    'e3b0c442'
    """
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    digest = hashlib.sha256()
    with content.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()


def file_marks(path: File) -> tuple[str, str, str] | None:
    """Size in bytes, time of the last change in ns, and SHA-256 of a file, as texts; None where it cannot be read."""
    try:
        status = path.stat()
        return (str(status.st_size), str(status.st_mtime_ns), sha256(path)) if S_ISREG(status.st_mode) else None
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def stable_hash(*values: Any) -> str:
    """SHA-256 of JSON-like values, the same on every machine and day.

    Examples
    --------
    >>> stable_hash({"a": 1, "b": 2}) == stable_hash({"b": 2, "a": 1})
    True
    """
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, default=str)
    return sha256(text.encode("utf-8", "surrogatepass"))  # halves of characters stand in names of files
