"""A run's networks, and all else that classing new images takes, in a folder for `anomalyncd.runtime`."""

from __future__ import annotations

import io
import logging
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..data.dataset import Sample
from ..data.images import read_image
from ..data.layouts import find_images
from ..detect import DETECTORS, MuSc
from ..detect.musc import References
from ..detect.tokens import TokenDetector
from ..errors import BadFileError, DataError, SettingsError
from ..grid import kept_patches
from ..learn.features import TokenNetwork
from ..learn.views import centre
from ..model.backbone import MaskGuidedViT
from ..model.convolutional import ConvTrunk
from ..model.seen import Picture, Seen, Tokens
from ..paths import resolved
from ..places.names import file_named, is_file, look_up, place_of
from ..places.stored import File
from ..progress import Silent
from ..regions.extract import shrink
from ..regions.find import Region
from ..run.finished import FinishedRun
from ..run.folder import CLASS_NAMES, MODEL_FILE
from ..runtime.folder import ExportInfo, GridInfo, NetworkInfo
from ..runtime.graphs import GraphNetwork, grid_inputs, load_engine, open_graph
from . import onnx
from .target import check_outside, whole_folder

COPIED = (MODEL_FILE, CLASS_NAMES, "config.yaml")
Writers = dict[str, Callable[[Path], onnx.Description]]  # graph → what writes it as ONNX
T = TypeVar("T")
Inputs = Mapping[str, npt.NDArray[Any]]  # input of a graph → its value
MOST_CROPS, MOST_IMAGES = 128, 32  # to take ranges from, evenly spread
MOST_AGAIN, AT_ONCE = 1000, 16  # images whose regions are described again, evenly spread


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
    calibration: str | File | None = None,
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
    if int8 and format != "openvino":
        raise SettingsError(f"--int8 is made for --format openvino, so it does not go with --format {format}.")
    if calibration is not None and not int8:
        raise SettingsError("--calibration says what to take the ranges of int8 from, so it goes with --int8 only.")
    for name in ["onnxscript", "onnxruntime"] + ["openvino"] * (format == "openvino") + ["nncf"] * int8:
        try:
            import_module(name)
        except ImportError as error:
            raise SettingsError(
                f"--format {format} needs {name} ({error}): pip install 'anomalyncd[export]'"
            ) from error
    progress = progress or Silent()
    out = out or run / "export" / (format + ("-int8" if int8 else ""))
    finished = FinishedRun(run, device="cpu")
    check_outside(out, finished.folder, ((name, finished.file(name)) for name in finished.images["image"]))
    vit = finished.model.vit(progress.say)
    network, writers = _network(finished, vit)
    detector, grid, detector_writers = _detector(finished)
    quantised = calibration_samples(finished, list(writers), network, calibration) if int8 else {}
    writers |= detector_writers
    ending = ".onnx" if format == "onnx" else ".xml"
    notes: dict[str, Any] = {"run": resolved(run).name, "inputs_and_outputs": {}}
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
            if grid is not None and grid.blocks:
                finished.model.seen = _SeenExactly(vit)
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


class _SeenExactly(Seen):
    """What the graph of a detector sees in whole images: it stays float32."""

    def __init__(self, vit: MaskGuidedViT) -> None:
        super().__init__()
        self._vit = vit

    def tokens(self, picture: Picture, blocks: Sequence[int], shape: tuple[int, int]) -> Tokens | None:
        tokens: Tokens = self._vit.patches(picture[None], blocks)[0].astype(np.float16)
        return tokens


def _network(run: FinishedRun, vit: MaskGuidedViT) -> tuple[NetworkInfo, Writers]:
    """The graphs that the run's features need."""
    features, size = run.model.config.features, run.model.config.model.input_size
    encoder = run.model.extractor(network=vit).encoder
    blocks = encoder.blocks
    own = {name: getattr(vit, name) for name in ("n_blocks", "width", "patch_size", "mask_threshold", "keep_thin")}
    writers: Writers = {}
    if features.class_token:
        writers["guided"] = lambda path: onnx.write_guided(path, vit, blocks if features.patches else (), size)
    # Crops and whole images differ in size.
    if (features.patches and not features.class_token) or features.image or encoder.scenes:
        writers["patches"] = lambda path: onnx.write_grid(path, vit, blocks)
    return NetworkInfo(grid=onnx.trained_grid(vit), blocks=blocks, **own), writers


def _detector(run: FinishedRun) -> tuple[TokenDetector | None, GridInfo | None, Writers]:
    """The run's detector and its graphs; none where maps or masks were given, or where it cannot be exported."""
    if run.model.config.detect.name not in DETECTORS:
        return None, None, {}
    detector = run.detector()
    assert isinstance(detector, TokenDetector)
    if isinstance(detector.vit, ConvTrunk):
        return None, None, {}
    vit, blocks, memory, pixels = detector.vit, detector.used_blocks, detector.memory, detector.with_pixels
    if memory is None:
        raise DataError(f"{run.path}: its detector has learned nothing. Make the run again.")
    writers: Writers = {"detector": lambda path: onnx.write_grid(path, vit, blocks, pixels)}
    if isinstance(memory, References):
        writers |= {"compare": lambda path: onnx.write_compare(path, memory), "lowest": onnx.write_lowest}
    else:
        width = vit.width + pixels * 3 * vit.patch_size[0] * vit.patch_size[1]
        writers["scores"] = lambda path: onnx.write_scores(path, memory, len(blocks), width)
    own = {name: getattr(detector, name) for name in ("size", "tile", "batch_size", "map_size", "sigma")}
    shared = blocks if detector.shares(run.model.config) and not pixels else ()
    grid = GridInfo(grid=onnx.trained_grid(vit), patch_size=vit.patch_size, halo=detector.reach, blocks=shared, **own)
    return detector, grid, writers


def convert(onnx: Path, xml: Path, samples: Sequence[Inputs] = ()) -> None:
    """ONNX → .xml and .bin, with the weights as they are; to int8 where there are samples, inputs like those to come."""
    openvino = load_engine("openvino")
    model = openvino.convert_model(onnx)
    openvino.save_model(_quantized(model, samples) if samples else model, xml, compress_to_fp16=False)


def _quantized(model: Any, samples: Sequence[Inputs]) -> Any:
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)  # looks for a CUDA that nobody needs here
    import nncf

    nncf.set_log_level(logging.ERROR)
    # The first layer, pixels to patches, is a hundredth of the work and most of the loss: it stays as it is.
    as_it_is = nncf.IgnoredScope(types=["Convolution"], validate=False)
    with redirect_stdout(io.StringIO()):  # its bars are drawn where results belong
        return nncf.quantize(
            model, nncf.Dataset(samples), subset_size=len(samples), model_type=nncf.ModelType.TRANSFORMER,
            ignored_scope=as_it_is,
        )  # fmt: skip


def calibration_samples(
    run: FinishedRun, graphs: Sequence[str], network: NetworkInfo, folder: str | File | None = None
) -> dict[str, list[Inputs]]:
    """What the graphs of a run will be given: its stored crops, and its images where they still are.

    Parameters
    ----------
    graphs : `patches`, images of any size → tokens, and `guided`, images and kept patches → tokens; those of them that
        there are
    folder : of images to take instead of the run's own
    """
    files = [file_named(name) for name in run.manifest["file"].dropna()]
    if folder is not None:
        folder = place_of(folder, "calibration")
        if not folder.is_dir():
            raise DataError(f"{folder}: expected a folder of images (--calibration).")
        files = [folder / name for name, _ in find_images(folder)[0]]
        if not files:
            raise DataError(f"{folder}: expected images to take the ranges of int8 from (--calibration), none found.")
    look_up(files if folder is None else ())
    size, features = run.config.model.input_size, run.config.features
    stored = _spread(np.flatnonzero(run.regions["crop"].notna()).tolist(), MOST_CROPS)
    pairs = [(crop, mask) for crop, mask in map(run.crop, stored) if crop is not None and mask is not None]
    crops = [(centre(crop[None], size), centre(mask[None], size)) for crop, mask in pairs]
    found: dict[str, list[Inputs]] = {}
    if "guided" in graphs:
        grid = (size // network.patch_size[0], size // network.patch_size[1])
        how: Any = {"threshold": network.mask_threshold, "keep_thin": network.keep_thin}
        found["guided"] = [{"images": crop, "keep": kept_patches(mask, grid, **how)} for crop, mask in crops]
    if "patches" in graphs:
        pictures = [crop for crop, _ in crops] if features.patches and "guided" not in graphs else []
        seen = features.image or run.config.unknown.foreign_rate
        for file in _spread([file for file in files if is_file(file) and seen], MOST_IMAGES):
            with suppress(BadFileError):
                pictures.append(shrink(read_image(file), run.config.model.image_size)[None])
        found["patches"] = [grid_inputs(picture, network.patch_size, network.grid) for picture in pictures]
    return found


def fit_unknown_again(run: FinishedRun, network: TokenNetwork, progress: Silent) -> bool:
    """Fit what `run.model` knows to the run's own regions and their images as `network`, which is rounded, describes them.

    It moves all regions a little away from where the exact one saw them. Classes bear that, but a limit that a share of
    known regions barely keeps does not: measured against the old places, more of them would be unknown.

    Returns False, and leaves the score as it is, where less than half of their images are still there.
    """
    model, labels = run.model, run.regions["label"].tolist()
    if model.unknown is None or not labels:
        return True
    names = _spread(list(dict.fromkeys(run.regions["image"])), MOST_AGAIN)
    extract = model.extractor(network=network)
    regions: list[Region] = []
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    scenes: list[npt.NDArray[np.float16]] = []
    with progress.task("Unknown score", len(names)) as advance:
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            found = extract([sample for name in some if (sample := _sample(run, name)) is not None])
            regions += found.regions
            for name, values in found.parts.items():
                parts.setdefault(name, []).append(values)
            scenes += [] if found.scenes is None else [found.scenes]
            advance(len(some))
    keys = [(region.image, region.region) for region in regions]
    if len({name for name, _ in keys}) * 2 < len(names) or any(key not in run.rows for key in keys):
        return False
    place = {name: index for index, name in enumerate(names)}
    # Regions of one image don't count as each other's neighbours.
    regions = [replace(region, index=place[region.image]) for region in regions]
    known = np.array([labels[run.rows[key]] >= 0 for key in keys])
    model.fit_unknown({name: np.concatenate(values) for name, values in parts.items()}, regions, known)
    model.fit_product(np.concatenate(scenes) if scenes else None)
    return True


def _sample(run: FinishedRun, name: str) -> Sample | None:
    """An image of the run with the map or mask that it had; None where a file is gone."""
    file = run.file(name)
    if file is None or not is_file(file):
        return None
    if run.model.binarizer is None:
        return Sample(name, file, mask=run.mask(name))
    values = run.map(name)
    return None if values is None else Sample(name, file, map=values)


def _spread(values: list[T], most: int) -> list[T]:
    return values[:: max(1, -(-len(values) // most))]
