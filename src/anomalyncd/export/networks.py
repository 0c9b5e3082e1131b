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

from torch import nn

from ..detect import DETECTORS, MuSc, PatchCore
from ..detect.musc import References
from ..detect.patchcore import PatchBank
from ..detect.stored import FILE
from ..discovery.maps import DETECTOR, detect_again
from ..discovery.model import DiscoveryModel, make_encoder
from ..errors import DataError, SettingsError
from ..progress import Silent
from ..run.folder import CLASS_NAMES, MODEL_FILE
from ..runtime.engine import open_graph
from ..runtime.folder import DETECTOR_FILE, ExportInfo, GridInfo, NetworkInfo
from ..runtime.network import GraphNetwork
from .onnx import (
    Description,
    trained_grid,
    write_compare,
    write_grid,
    write_guided,
    write_lowest,
    write_patches,
    write_scores,
)
from .openvino import Calibration, Sample, convert
from .rounded import fit_unknown_again
from .source import Results
from .target import check_outside, whole_folder

COPIED = (MODEL_FILE, CLASS_NAMES, "config.yaml")


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
        detector stays float32
    calibration : folder of images to take the ranges from instead of the run's own images
    """
    _check(format, int8, calibration)
    out = out or run / "export" / (format + ("-int8" if int8 else ""))
    check_outside(out, run, Results(run).images)
    networks = RunNetworks(run, progress or Silent())
    samples = Calibration(run, networks.model.config, calibration) if int8 else None
    ending = ".onnx" if format == "onnx" else ".xml"
    notes: dict[str, Any] = {}
    as_float = []
    descriptions: dict[str, Description] = {}
    with whole_folder(out, format, notes) as folder, tempfile.TemporaryDirectory(prefix="anomalyncd-") as workspace:
        for path in [run / name for name in COPIED if (run / name).exists()]:
            shutil.copyfile(path, folder / path.name)
        if isinstance(networks.memory, References):
            shutil.copyfile(run / DETECTOR / FILE, folder / DETECTOR_FILE)
        with (progress or Silent()).task("Graphs", len(networks.writers)) as advance:
            for name, write in networks.writers.items():
                onnx = (folder if format == "onnx" else Path(workspace)) / f"{name}.onnx"
                descriptions[name] = write(onnx)
                if format == "openvino":
                    found = networks.samples(name, samples) if samples else []
                    as_float += [name] if samples and not found and name in ("patches", "guided") else []
                    convert(onnx, folder / f"{name}.xml", found)
                advance()
        refitted = True
        if int8:
            graphs = {name: open_graph(folder / f"{name}.xml", "openvino") for name in networks.writers}
            rounded = GraphNetwork(networks.network, graphs)
            refitted = fit_unknown_again(run, networks.model, rounded, progress or Silent())
            (folder / MODEL_FILE).write_bytes(networks.model.pack())
        packages = ("torch", "timm", "onnx", *(("openvino",) if format == "openvino" else ()))
        info = ExportInfo(
            format=format,
            precision="int8" if int8 else "float32",
            network=networks.network,
            graphs={name: name + ending for name in networks.writers},
            detector=networks.model.config.detect.name,
            detector_grid=networks.detector_grid,
        )
        notes |= {
            "run": run.resolve().name,
            "made_with": {name: version(name) for name in packages},
            "inputs_and_outputs": {name + ending: text for name, text in descriptions.items()},
            **info.notes(folder),
        }
    n_bytes = sum(path.stat().st_size for path in out.iterdir())
    detector = networks.model.config.detect.name
    return ExportedNetworks(out, n_bytes, detector, networks.detector_grid is not None, as_float, refitted)


class RunNetworks:
    """The networks of a run on the processor.

    Attributes
    ----------
    writers : graph → what writes it as ONNX; only graphs that the run's features and detector need
    memory, detector_grid : of the run's detector; None where maps or masks were given, or where it cannot be exported
    """

    def __init__(self, run: Path, progress: Silent) -> None:
        self.model = DiscoveryModel.read(run, device="cpu")
        config, features = self.model.config, self.model.config.features
        self.vit = vit = self.model.vit(progress.say)
        block, size = make_encoder(vit, config).block, config.model.input_size
        own = {name: getattr(vit, name) for name in NetworkInfo.model_fields if name != "block"}
        self.network = NetworkInfo(block=block, **own)
        self.writers: dict[str, Callable[[Path], Description]] = {}
        if features.class_token:
            self.writers["guided"] = lambda path: write_guided(path, vit, block, size)
        if (features.patches and not features.class_token) or features.context or features.surround:
            self.writers["patches"] = lambda path: write_patches(path, vit, block, size)
        self.memory: nn.Module | None = None
        self.detector_grid: GridInfo | None = None
        if config.detect.name in DETECTORS:
            self._add_detector(run)

    def _add_detector(self, run: Path) -> None:
        detector = detect_again(run, self.model.config)
        assert isinstance(detector, PatchCore | MuSc)
        vit, blocks, memory = detector.vit, detector.used_blocks, detector.memory
        self.writers["detector"] = lambda path: write_grid(path, vit, blocks)
        if isinstance(memory, PatchBank):
            self.writers["scores"] = lambda path: write_scores(path, memory, len(blocks))
        elif isinstance(memory, References):
            self.writers["compare"] = lambda path: write_compare(path, memory)
            self.writers["lowest"] = write_lowest
        else:
            raise DataError(f"{run / DETECTOR / FILE}: this detector has learned nothing. Make the run again.")
        self.memory = memory
        widest = detector.radius if isinstance(detector, PatchCore) else max(detector.windows)
        own = {name: getattr(detector, name) for name in ("size", "tile", "batch_size", "map_size", "sigma")}
        self.detector_grid = GridInfo(grid=trained_grid(vit), patch_size=vit.patch_size, halo=widest // 2, **own)

    def samples(self, name: str, calibration: Calibration) -> list[Sample]:
        """Inputs of a graph to take ranges from; none for the detector: a map that is a bit off moves a mask by much."""
        if name == "patches":
            return calibration.of_patches()
        return calibration.of_guided(self.vit) if name == "guided" else []


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
