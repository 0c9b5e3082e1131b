"""What an exported folder holds, and whether it is whole."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..checksums import sha256
from ..errors import RunError
from ..run.folder import IMAGES_TABLE

MARKER = "export.json"  # in every export: what it is, and which files belong to it
DETECTOR_FILE = "detector.safetensors"  # settings, and the bank or the references
VERSION = 1  # of what an exported folder holds
ENGINE_OF = {"onnx": "onnxruntime", "openvino": "openvino"}  # format → what runs it by default
AGAIN = "Export the run again with `anomalyncd export RUN --format onnx` or `openvino`."


@dataclass(frozen=True)
class NetworkInfo:
    """What an encoder must know of the network behind its graphs; block : whose patch tokens the graphs give."""

    n_blocks: int
    width: int
    patch_size: tuple[int, int]
    mask_threshold: float
    keep_thin: bool
    block: int


@dataclass(frozen=True)
class DetectorInfo:
    """The detector of the run.

    name : as in the settings
    grid : patches (h, w) that the network has positions for, and patch_size : in pixels; None where it is not exported
    """

    name: str
    grid: tuple[int, int] | None = None
    patch_size: tuple[int, int] | None = None


@dataclass(frozen=True)
class ExportInfo:
    """What export.json says, as far as the runtime needs it.

    graphs : `patches`, `guided` and `detector`, those of them that are needed → file name
    """

    format: str
    precision: str
    network: NetworkInfo
    graphs: dict[str, str]
    detector: DetectorInfo | None

    def notes(self, folder: Path) -> dict[str, Any]:
        """What to write into export.json beside the format: versions, files, and the checksum of each file in the folder."""
        files = sorted(path.name for path in folder.iterdir() if path.name != MARKER)
        own = {name: value for name, value in asdict(self).items() if name != "format"}
        return {"version": VERSION, **own, "sha256": {name: sha256(folder / name) for name in files}}


def is_exported(folder: Path) -> bool:
    """Whether this is a folder that `Runtime` opens, whole or damaged, and not a run folder or another export."""
    if not (folder / MARKER).is_file():  # nor a pipe, which would never end
        return False
    try:
        return json.loads((folder / MARKER).read_text(encoding="utf-8")).get("format") in ENGINE_OF
    except (OSError, ValueError, AttributeError, RecursionError):
        return not (folder / IMAGES_TABLE).exists()


def read_export(folder: Path) -> ExportInfo:
    """What the folder is; fails where a file is missing, changed, or of another version."""
    path = folder / MARKER
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        format, version = stored["format"], stored.get("version")
    except FileNotFoundError:
        raise RunError(f"{folder}: expected an exported run with {MARKER}, none found. {AGAIN}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: damaged, or not of anomalyncd ({error}). {AGAIN}") from error
    if format not in ENGINE_OF:
        raise RunError(f"{folder}: is an export to {format}, which holds no network. {AGAIN}")
    if version != VERSION:
        raise RunError(
            f"{path}: written by anomalyncd {stored.get('anomalyncd')} as version {version}, but this one reads version "
            f"{VERSION}. {AGAIN}"
        )
    try:
        info = _parsed(stored)
        sums = {str(name): str(value) for name, value in stored["sha256"].items()}
        strangers = [name for name in (*sums, *info.graphs.values()) if name not in sums or Path(name).name != name]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}: {error}). {AGAIN}") from error
    if strangers:
        raise RunError(f"{path}: damaged, it names {strangers[0]!r} and no checksum of it. {AGAIN}")
    for name, expected in sums.items():
        try:
            found = sha256(folder / name)
        except OSError as error:
            raise RunError(f"{folder / name}: cannot be read ({error.strerror or error}). {AGAIN}") from error
        if found != expected:
            raise RunError(f"{folder / name}: damaged or changed, its checksum is not that of {MARKER}. {AGAIN}")
    return info


def _parsed(stored: dict[str, Any]) -> ExportInfo:
    network, detector = stored["network"], stored["detector"]
    return ExportInfo(
        stored["format"], stored["precision"],
        NetworkInfo(**{**network, "patch_size": tuple(network["patch_size"])}),
        {str(name): str(file) for name, file in stored["graphs"].items()},
        None if detector is None else DetectorInfo(
            detector["name"], *(None if detector[key] is None else tuple(detector[key]) for key in ("grid", "patch_size"))
        ),
    )  # fmt: skip
