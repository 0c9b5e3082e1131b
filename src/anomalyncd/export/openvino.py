"""Graphs as OpenVINO reads them, in float32 or quantised to int8, and the unknown score of those."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..data.dataset import Sample
from ..data.images import read_image
from ..data.layouts import find_images
from ..errors import BadFileError, DataError
from ..grid import kept_patches
from ..learn.features import TokenNetwork
from ..learn.views import centre
from ..progress import Silent
from ..regions.extract import shrink
from ..regions.find import Region
from ..run.finished import FinishedRun
from ..runtime.engine import load_engine

T = TypeVar("T")
Inputs = Mapping[str, npt.NDArray[Any]]  # input of a graph → its value
MOST_CROPS, MOST_IMAGES = 128, 32  # to take ranges from, evenly spread
MOST_AGAIN, AT_ONCE = 1000, 16  # images whose regions are described again, evenly spread


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
    run: FinishedRun, graphs: Sequence[str], network: TokenNetwork, folder: Path | None = None
) -> dict[str, list[Inputs]]:
    """What the graphs of a run will be given: its stored crops, and its images where they still are.

    Parameters
    ----------
    graphs : `patches`, images → tokens, and `guided`, images and kept patches → tokens; those of them that there are
    folder : of images to take instead of the run's own
    """
    files = [Path(name) for name in run.manifest["file"].dropna()]
    if folder is not None:
        if not folder.is_dir():
            raise DataError(f"{folder}: expected a folder of images (--calibration).")
        files = [folder / name for name, _ in find_images(folder)[0]]
        if not files:
            raise DataError(f"{folder}: expected images to take the ranges of int8 from (--calibration), none found.")
    size = run.config.model.input_size
    stored = _spread(np.flatnonzero(run.regions["crop"].notna()).tolist(), MOST_CROPS)
    pairs = [(crop, mask) for crop, mask in map(run.crop, stored) if crop is not None and mask is not None]
    crops = [(centre(crop[None], size), centre(mask[None], size)) for crop, mask in pairs]
    found: dict[str, list[Inputs]] = {}
    if "guided" in graphs:
        grid = (size // network.patch_size[0], size // network.patch_size[1])
        how: Any = {"threshold": network.mask_threshold, "keep_thin": network.keep_thin}
        found["guided"] = [{"images": crop, "keep": kept_patches(mask, grid, **how)} for crop, mask in crops]
    if "patches" in graphs:
        found["patches"] = [{"images": crop} for crop, _ in crops]
        for file in _spread([file for file in files if file.is_file()], MOST_IMAGES):
            with suppress(BadFileError):
                found["patches"].append({"images": shrink(read_image(file), size)[None]})
    return found


def fit_unknown_again(run: FinishedRun, network: TokenNetwork, progress: Silent) -> bool:
    """Fit `run.model.unknown` to the run's own regions as `network`, which is rounded, describes them.

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
    with progress.task("Unknown score", len(names)) as advance:
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            found = extract([sample for name in some if (sample := _sample(run, name)) is not None])
            regions += found.regions
            for name, values in found.parts.items():
                parts.setdefault(name, []).append(values)
            advance(len(some))
    keys = [(region.image, region.region) for region in regions]
    if len({name for name, _ in keys}) * 2 < len(names) or any(key not in run.rows for key in keys):
        return False
    place = {name: index for index, name in enumerate(names)}
    # Regions of one image don't count as each other's neighbours.
    regions = [replace(region, index=place[region.image]) for region in regions]
    known = np.array([labels[run.rows[key]] >= 0 for key in keys])
    model.fit_unknown({name: np.concatenate(values) for name, values in parts.items()}, regions, known)
    return True


def _sample(run: FinishedRun, name: str) -> Sample | None:
    """An image of the run with the map or mask that it had; None where a file is gone."""
    file = run.file(name)
    if file is None or not file.is_file():
        return None
    if run.model.binarizer is None:
        return Sample(name, file, mask=run.mask(name))
    values = run.map(name)
    return None if values is None else Sample(name, file, map=values)


def _spread(values: list[T], most: int) -> list[T]:
    return values[:: max(1, -(-len(values) // most))]
