"""A run's networks, and all else that classing new images takes, in a folder for `anomalyncd.runtime`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..detect import MuSc, PatchCore
from ..detect.musc import References
from ..detect.patchcore import PatchBank
from ..errors import DataError, SettingsError
from ..model.backbone import MaskGuidedViT
from ..progress import Silent
from ..run.finished import FinishedRun
from ..run.folder import CLASS_NAMES, MODEL_FILE
from ..runtime.engine import open_graph
from ..runtime.folder import ExportInfo, GridInfo, NetworkInfo
from ..runtime.graphs import GraphNetwork
from . import onnx
from .openvino import calibration_samples, convert, fit_unknown_again
from .target import check_outside, whole_folder

COPIED = (MODEL_FILE, CLASS_NAMES, "config.yaml")
Writers = dict[str, Callable[[Path], onnx.Description]]  # graph → what writes it as ONNX


@dataclass(frozen=True)
class ExportedNetworks:
    """What was written.

    n_bytes : of all files
    detector : name of the run's detector, None where maps or masks were given; has_detector : whether it is in the export
    as_float : graphs that int8 was asked for and that stayed float32, because there was nothing to calibrate them with
    refitted : False where int8 was asked for and the unknown score could not be fitted to it, because the images are gone
    """

    folder: Path
    n_bytes: int
    detector: str | None
    has_detector: bool
    as_float: list[str]
    refitted: bool = True


def export_networks(
    run: Path,
    format: str,
    out: Path | None = None,
    *,
    int8: bool = False,
    calibration: Path | None = None,
    progress: Silent | None = None,
) -> ExportedNetworks:
    """Write what `anomalyncd.runtime.Runtime` needs to class new images as the run does, whole or not at all.

    Parameters
    ----------
    format : `onnx` or `openvino`
    out : folder to write, `export/<format>` in the run folder by default, with `-int8` behind where it is so
    int8 : for `openvino`: quantise what describes the regions, with ranges from the run's own crops and images; the
        detector stays float32, because a map that is a bit off moves a mask by much
    calibration : folder of images to take the ranges from instead of the run's own images
    """
    _check(format, int8, calibration)
    progress = progress or Silent()
    out = out or run / "export" / (format + ("-int8" if int8 else ""))
    finished = FinishedRun(run, device="cpu")
    check_outside(out, finished)
    vit = finished.model.vit(progress.say)
    network, writers = _network(finished, vit)
    detector, grid, detector_writers = _detector(finished)
    quantised = calibration_samples(finished, list(writers), vit, calibration) if int8 else {}
    writers |= detector_writers
    ending = ".onnx" if format == "onnx" else ".xml"
    notes: dict[str, Any] = {"run": run.resolve().name, "inputs_and_outputs": {}}
    with whole_folder(out, format, notes) as folder, tempfile.TemporaryDirectory(prefix="anomalyncd-") as workspace:
        for path in [run / name for name in COPIED if (run / name).exists()]:
            shutil.copyfile(path, folder / path.name)
        if isinstance(detector, MuSc):
            detector.save(folder)  # with its references
        with progress.task("Graphs", len(writers)) as advance:
            for name, write in writers.items():
                path = (folder if format == "onnx" else Path(workspace)) / f"{name}.onnx"
                notes["inputs_and_outputs"][name + ending] = write(path)
                if format == "openvino":
                    convert(path, folder / f"{name}.xml", quantised.get(name, []))
                advance()
        refitted = True
        if int8:
            graphs = {name: open_graph(folder / f"{name}.xml", "openvino") for name in quantised}
            refitted = fit_unknown_again(finished, GraphNetwork(network, graphs), progress)
            (folder / MODEL_FILE).write_bytes(finished.model.pack())
        info = ExportInfo(
            format=format,
            precision="int8" if int8 else "float32",
            network=network,
            graphs={name: name + ending for name in writers},
            detector=finished.model.config.detect.name,
            detector_grid=grid,
        )
        packages = ("torch", "timm", "onnx", *(("openvino",) if format == "openvino" else ()))
        notes |= {"made_with": {name: version(name) for name in packages}, **info.notes(folder)}
    n_bytes = sum(path.stat().st_size for path in out.iterdir())
    as_float = [name for name, samples in quantised.items() if not samples]
    return ExportedNetworks(out, n_bytes, info.detector, grid is not None, as_float, refitted)


def _network(run: FinishedRun, vit: MaskGuidedViT) -> tuple[NetworkInfo, Writers]:
    """The graphs that the run's features need."""
    features, size = run.model.config.features, run.model.config.model.input_size
    block = run.model.extractor(network=vit).encoder.block
    own = {name: getattr(vit, name) for name in NetworkInfo.model_fields if name != "block"}
    writers: Writers = {}
    if features.class_token:
        writers["guided"] = lambda path: onnx.write_guided(path, vit, block, size)
    if (features.patches and not features.class_token) or features.context or features.surround:
        writers["patches"] = lambda path: onnx.write_patches(path, vit, block, size)
    return NetworkInfo(block=block, **own), writers


def _detector(run: FinishedRun) -> tuple[PatchCore | MuSc | None, GridInfo | None, Writers]:
    """The run's detector and its graphs; none where maps or masks were given, or where it cannot be exported."""
    if run.model.config.detect.name not in (PatchCore.name, MuSc.name):
        return None, None, {}
    detector = run.detector()
    assert isinstance(detector, PatchCore | MuSc)
    vit, blocks, memory = detector.vit, detector.used_blocks, detector.memory
    writers: Writers = {"detector": lambda path: onnx.write_grid(path, vit, blocks)}
    if isinstance(memory, PatchBank):
        writers["scores"] = lambda path: onnx.write_scores(path, memory, len(blocks))
    elif isinstance(memory, References):
        writers |= {"compare": lambda path: onnx.write_compare(path, memory), "lowest": onnx.write_lowest}
    else:
        raise DataError(f"{run.path}: its detector has learned nothing. Make the run again.")
    widest = detector.radius if isinstance(detector, PatchCore) else max(detector.windows)
    own = {name: getattr(detector, name) for name in ("size", "tile", "batch_size", "map_size", "sigma")}
    grid = GridInfo(grid=onnx.trained_grid(vit), patch_size=vit.patch_size, halo=widest // 2, **own)
    return detector, grid, writers


def _check(format: str, int8: bool, calibration: Path | None) -> None:
    if int8 and format != "openvino":
        raise SettingsError(f"--int8 is made for --format openvino, so it does not go with --format {format}.")
    if calibration is not None and not int8:
        raise SettingsError("--calibration says what to take the ranges of int8 from, so it goes with --int8 only.")
    needed = ["onnxscript", "onnxruntime"] + ["openvino"] * (format == "openvino") + ["nncf"] * int8
    for name in needed:
        try:
            import_module(name)
        except ImportError as error:
            raise SettingsError(
                f"--format {format} needs {name} ({error}): pip install 'anomalyncd[export]'"
            ) from error
