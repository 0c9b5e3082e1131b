"""What an exported folder holds, and whether it is whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ..checksums import sha256
from ..errors import AnomalyNCDError, MissingRunError, RunError
from ..run.folder import IMAGES_TABLE, RunFolder

MARKER = "export.json"  # in every export: what it is, and which files belong to it
DETECTOR_FILE = "detector.safetensors"  # the references of MuSc
LARGEST_MARKER = 10_000_000  # bytes
VERSION = 3  # of what an exported folder holds
ENGINE_OF = {"onnx": "onnxruntime", "openvino": "openvino"}  # format → what runs it by default
AGAIN = "Export the run again with `anomalyncd export RUN --format onnx` or `openvino`."


class NetworkInfo(BaseModel):
    """What an encoder must know of the network behind its graphs.

    grid : patches (h, w) that it has positions for
    blocks : whose patch tokens the graphs give
    """

    n_blocks: int
    width: int
    patch_size: tuple[int, int]
    mask_threshold: float
    keep_thin: bool
    grid: tuple[int, int]
    blocks: tuple[int, ...]


class GridInfo(BaseModel):
    """What a detector must know of itself beside its graphs.

    grid : patches (h, w) that its network has positions for; patch_size : of these, in pixels
    halo : how many rows of patches above and below a patch have a say in its score
    size, tile, batch_size, map_size, sigma : see `detect.tokens.TokenDetector`
    blocks : whose tokens its graph gives, if its network is the one that describes regions; else none
    """

    grid: tuple[int, int]
    patch_size: tuple[int, int]
    halo: int
    size: int
    tile: int | None
    batch_size: int
    map_size: int
    sigma: float
    blocks: tuple[int, ...] = ()


class ExportInfo(BaseModel):
    """What export.json says, as far as the runtime needs it.

    graphs : name of a graph → file name; only those that are needed
    detector : name of the run's detector, None where maps or masks were given
    detector_grid : None where the detector is not exported
    """

    format: str
    precision: str
    network: NetworkInfo
    graphs: dict[str, str]
    detector: str | None
    detector_grid: GridInfo | None

    def notes(self, folder: Path) -> dict[str, Any]:
        """What to write into export.json beside the format: versions, files, and the checksum of each file in the folder."""
        files = sorted(path.name for path in folder.iterdir() if path.name != MARKER)
        sums = {name: sha256(folder / name) for name in files}
        return {"version": VERSION, **self.model_dump(exclude={"format"}), "sha256": sums}


def is_exported(folder: Path) -> bool:
    """Whether this is a folder that `Runtime` opens, whole or damaged, and not a run folder or another export."""
    if not (folder / MARKER).is_file():  # nor a pipe, which would never end
        return False
    try:
        return _is_known(_read_marker(folder).get("format"))
    except (OSError, ValueError, AttributeError, RecursionError):
        return not (folder / IMAGES_TABLE).exists()


def _read_marker(folder: Path) -> Any:
    """What export.json holds, of a stranger maybe: any JSON, or an OSError, ValueError or RecursionError."""
    path = RunFolder(folder).place(MARKER)
    if path.stat().st_size > LARGEST_MARKER:
        raise ValueError(f"it has more than {LARGEST_MARKER:,} bytes")
    return json.loads(path.read_text(encoding="utf-8"))


def _is_known(format: object) -> bool:
    return isinstance(format, str) and format in ENGINE_OF


def read_export(folder: Path) -> ExportInfo:
    """What the folder is; fails where a file is missing, changed, or of another version."""
    path = folder / MARKER
    try:
        stored = _read_marker(folder)
        format, version = stored["format"], stored.get("version")
    except AnomalyNCDError:  # a link or a pipe, said already
        raise
    except FileNotFoundError:
        raise MissingRunError(f"{folder}: expected an exported run with {MARKER}, none found. {AGAIN}") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{path}: damaged, or not of anomalyncd ({error}). {AGAIN}") from error
    if not _is_known(format):
        raise RunError(f"{folder}: is an export to {format}, which holds no network. {AGAIN}")
    if version != VERSION:
        raise RunError(
            f"{path}: written by anomalyncd {stored.get('anomalyncd')} as version {version}, but this one reads version "
            f"{VERSION}. {AGAIN}"
        )
    try:
        info = ExportInfo.model_validate(stored)
        sums = {str(name): str(value) for name, value in stored["sha256"].items()}
    except (KeyError, ValueError, AttributeError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}: {error}). {AGAIN}") from error
    for name in (*sums, *info.graphs.values()):
        if name not in sums or Path(name).name != name:
            raise RunError(f"{path}: damaged, it names {name!r} and no checksum of it. {AGAIN}")
    for name, expected in sums.items():
        try:
            found = sha256(RunFolder(folder).place(name))
        except OSError as error:
            raise RunError(f"{folder / name}: cannot be read ({error.strerror or error}). {AGAIN}") from error
        if found != expected:
            raise RunError(f"{folder / name}: damaged or changed, its checksum is not that of {MARKER}. {AGAIN}")
    return info
