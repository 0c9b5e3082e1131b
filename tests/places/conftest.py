from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import fsspec
import pytest

from anomalyncd.places import names, patience, remote


@pytest.fixture(autouse=True)
def nothing_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process, and without waits."""
    monkeypatch.setattr(names, "_opened", set())
    monkeypatch.setattr(remote, "_stores", {})
    monkeypatch.setattr(patience, "WAITS", (0.0,) * len(patience.WAITS))
    monkeypatch.delenv(names.VARIABLE, raising=False)


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield files
    files.store.clear()
