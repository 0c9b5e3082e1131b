"""Whether a file is still what it was."""

from __future__ import annotations

import hashlib
from pathlib import Path

PIECE = 1 << 20  # bytes read at once


def sha256(path: Path) -> str:
    """SHA-256 of a file's content, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
    return digest.hexdigest()
