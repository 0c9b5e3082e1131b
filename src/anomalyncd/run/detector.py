"""The fitted detector that a run keeps, with checksums of its files: one that was damaged is not used."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from safetensors import SafetensorError

from ..checksums import sha256
from ..config import Config, make_config
from ..detect import Detector, load_detector
from ..detect.tokens import TokenDetector
from ..errors import RunError
from ..settings_text import read_config
from .folder import PARTIAL, RunFolder

DETECTOR = "detector"  # its folder inside a run
CHECKSUMS = "detector.json"


def save_detector(detector: Detector, folder: RunFolder) -> None:
    """Into an empty folder, whatever a killed call may have left."""
    partial = folder.place(DETECTOR + PARTIAL)
    try:
        detector.save(partial)
    except SafetensorError as error:  # what the library makes of a full disk
        raise OSError(str(error)) from error
    folder.remove(DETECTOR)
    partial.rename(folder.place(DETECTOR))
    folder.write_json(CHECKSUMS, _checksums(folder))


def read_detector(run: Path, config: Config) -> Detector:
    """The detector of a run, for new images; config : that of the run."""
    folder = RunFolder(run)
    if not is_whole(folder):
        raise RunError(
            f"{run / DETECTOR}: the stored detector is damaged, its checksums do not fit. Call the command that "
            "made it again."
        )
    detector = load_detector(config.detect.name or "", folder.place(DETECTOR), device=config.device)
    if isinstance(detector, TokenDetector):
        detector.precision = config.precision
    return detector


def detector_config(run: Path) -> Config:
    """Settings of an earlier run that keeps a fitted detector."""
    folder = RunFolder(run)
    folder.recover()
    if not folder.place(DETECTOR).is_dir():
        raise RunError(
            f"{run}: expected a folder of `anomalyncd detect`, or a run whose maps a detector made, but it has no "
            f"{DETECTOR}/."
        )
    config = make_config(read_config(folder.place("config.yaml")))
    if not config.detect.name:
        raise RunError(f"{run / 'config.yaml'}: expected the name of the detector as detect.name, but there is none.")
    return config


def is_whole(folder: RunFolder) -> bool:
    """Whether the stored detector is there as it was written."""
    try:
        return bool(folder.read_json(CHECKSUMS) == _checksums(folder))
    except OSError:
        return False


def state_of(detector: Detector) -> Sequence[object]:
    """Identity of a detector that a caller has made: what it would store."""
    with tempfile.TemporaryDirectory(prefix="anomalyncd-") as place:
        try:
            detector.save(Path(place) / DETECTOR)
            return sorted(_checksums(RunFolder(Path(place))).items())
        except Exception:  # a user's own code may raise anything; then nothing is known to be the same
            return [uuid.uuid4().hex]


def _checksums(folder: RunFolder) -> dict[str, str]:
    """SHA-256 of each file, by its name inside the detector's folder."""
    return {name.removeprefix(f"{DETECTOR}/"): sha256(folder.path / name) for name in folder.files(DETECTOR)}
