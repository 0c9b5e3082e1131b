"""Ray is started with a folder that does not stay; a cluster that is not there is said at once."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from anomalyncd.errors import RunError
from anomalyncd.ray.start import LONGEST, PREFIX, own_folder, ray_for, take_away_left


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short name, as that of a system is."""
    folder = Path(tempfile.mkdtemp(prefix="t", dir=Path(tempfile.gettempdir())))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_no_cluster_at_the_address() -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(RunError, match=r"no Ray cluster answers at 127\.0\.0\.1:1"), ray_for(1, "127.0.0.1:1"):
        pass


def test_the_folder_is_ones_own_and_does_not_stay(temporary: Path) -> None:
    with own_folder() as folder:
        assert folder is not None and folder.parent == temporary and folder.stat().st_mode & 0o777 == 0o700
        with own_folder() as second:
            assert second is None  # somebody has made it: Ray chooses a place itself
        (folder / "log").write_text("x")
    assert not list(temporary.iterdir())


def test_no_folder_where_the_names_of_sockets_would_be_too_long(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (temporary / ("x" * LONGEST)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary / ("x" * LONGEST)))
    with own_folder() as folder:
        assert folder is None


def test_what_killed_processes_left_is_taken_away_and_nothing_else(temporary: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    gone, stays = temporary / f"{PREFIX}{ended.pid}", [temporary / f"{PREFIX}{end}" for end in ("1", "x", "9" * 12)]
    for folder in (gone, *stays):
        folder.mkdir()
    take_away_left()
    assert sorted(temporary.iterdir()) == sorted(stays)
