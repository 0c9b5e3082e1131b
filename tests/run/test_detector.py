"""The detector that a run keeps: whole, known again, and not used where it is damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from anomalyncd.config import make_config
from anomalyncd.detect import PatchCore
from anomalyncd.errors import RunError
from anomalyncd.run.detector import (
    CHECKSUMS,
    DETECTOR,
    detector_config,
    is_whole,
    read_detector,
    save_detector,
    state_of,
)
from anomalyncd.run.folder import RunFolder

NORMAL = [np.full((32, 32, 3), 100, np.uint8)] * 2
CONFIG = make_config({"detect": {"name": "patchcore"}, "device": "cpu", "precision": "float32"})


@pytest.fixture
def fitted() -> PatchCore:
    return PatchCore(backbone="tiny", size=32, map_size=16, device="cpu").fit(NORMAL)


def test_it_is_read_as_it_was_saved(fitted: PatchCore, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    (tmp_path / f"{DETECTOR}.partial").mkdir()
    (tmp_path / DETECTOR).mkdir()
    (tmp_path / DETECTOR / "old").touch()
    save_detector(fitted, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == [DETECTOR, CHECKSUMS]
    assert [path.name for path in (tmp_path / DETECTOR).iterdir()] == ["detector.safetensors"]
    again = read_detector(tmp_path, CONFIG)
    assert isinstance(again, PatchCore) and again.precision == "float32" and str(again.device) == "cpu"
    np.testing.assert_array_equal(next(again.maps(NORMAL)), next(fitted.maps(NORMAL)))


def test_a_damaged_one_is_not_used(fitted: PatchCore, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    save_detector(fitted, folder)
    assert is_whole(folder)
    file = tmp_path / DETECTOR / "detector.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert not is_whole(folder)
    with pytest.raises(RunError, match="the stored detector is damaged, its checksums do not fit"):
        read_detector(tmp_path, CONFIG)
    file.unlink()
    assert not is_whole(folder)
    (tmp_path / CHECKSUMS).unlink()
    assert not is_whole(folder)


def test_checksums_that_cannot_be_read(fitted: PatchCore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_detector(fitted, RunFolder(tmp_path))

    def refused(path: Path) -> str:
        raise PermissionError("no")

    monkeypatch.setattr("anomalyncd.run.detector.sha256", refused)
    assert is_whole(RunFolder(tmp_path)) is False


def test_settings_of_an_earlier_run(fitted: PatchCore, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="it has no detector/"):
        detector_config(tmp_path)
    save_detector(fitted, RunFolder(tmp_path))
    (tmp_path / "config.yaml").write_text("detect:\n  name: patchcore\n  settings:\n    bank_size: 7\n")
    config = detector_config(tmp_path)
    assert config.detect.name == "patchcore" and config.detect.settings == {"bank_size": 7}
    (tmp_path / "config.yaml").write_text("learn:\n  epochs: 1\n")
    with pytest.raises(RunError, match=r"expected the name of the detector as detect\.name, but there is none"):
        detector_config(tmp_path)


def test_two_detectors_are_the_same_where_they_would_store_the_same(
    fitted: PatchCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = PatchCore(backbone="tiny", size=32, map_size=16, device="cpu").fit(NORMAL)
    other = PatchCore(backbone="tiny", size=32, map_size=8, device="cpu").fit(NORMAL)
    assert state_of(fitted) == state_of(twin) != state_of(other)
    ((name, digest),) = state_of(fitted)
    assert name == "detector.safetensors" and len(digest) == 64

    def broken(folder: Path) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(fitted, "save", broken)
    assert state_of(fitted) != state_of(fitted)
