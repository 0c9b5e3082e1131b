"""A Ray of two processors on this machine, for all tests of real workers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from anomalyncd.errors import RunError
from anomalyncd.ray.start import PREFIX, ray_for


@pytest.fixture(scope="package")
def cluster() -> Iterator[None]:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    for patience in (2, 1, 0):  # Ray gives up a start that takes 30 s, as on a busy machine
        try:
            running = ray_for(2, None)
            running.__enter__()
            break
        except RunError:
            ray.shutdown()
            if not patience:
                raise
    own = Path(tempfile.gettempdir()) / f"{PREFIX}{os.getpid()}"
    assert any(own.iterdir())
    yield
    running.__exit__(None, None, None)
    assert not own.exists()
