"""Graphs as OpenVINO reads them, in float32 or quantised to int8."""

from __future__ import annotations

import io
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..config import Config
from ..data.images import read_image
from ..data.layouts import find_images
from ..errors import BadFileError, DataError
from ..grid import kept_patches
from ..learn.features import TokenNetwork
from ..learn.views import centre
from ..regions.extract import shrink
from ..run.folder import MANIFEST, REGIONS_TABLE
from ..run.store import read_crop
from ..run.tables import read_csv
from ..runtime.engine import load_engine

Sample = Mapping[str, npt.NDArray[Any]]
MOST_CROPS, MOST_IMAGES = 128, 32  # to take ranges from, evenly spread


def convert(onnx: Path, xml: Path, samples: Sequence[Sample] = ()) -> None:
    """ONNX → .xml and .bin, with the weights as they are; to int8 where there are samples, inputs like those to come."""
    openvino = load_engine("openvino")
    model = openvino.convert_model(onnx)
    openvino.save_model(_quantized(model, samples) if samples else model, xml, compress_to_fp16=False)


def _quantized(model: Any, samples: Sequence[Sample]) -> Any:
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


class Calibration:
    """What the graphs of a run will be given: its stored crops, and its images where they still are.

    Parameters
    ----------
    folder : of images to take instead of the run's own
    """

    def __init__(self, run: Path, config: Config, folder: Path | None = None) -> None:
        self.config = config
        self.crops = [run / str(name) for name in _spread(read_csv(run / REGIONS_TABLE)["crop"].dropna(), MOST_CROPS)]
        if folder is None:
            self.files = [Path(str(name)) for name in read_csv(run / MANIFEST)["file"].dropna()]
        else:
            if not folder.is_dir():
                raise DataError(f"{folder}: expected a folder of images (--calibration).")
            self.files = [folder / name for name, _ in find_images(folder)]
            if not self.files:
                raise DataError(
                    f"{folder}: expected images to take the ranges of int8 from (--calibration), none found."
                )

    def of_patches(self) -> list[Sample]:
        """For `images → tokens`: crops, and whole images."""
        size = self.config.model.input_size
        crops = [{"images": centre(crop[None], size)} for crop, _ in self._crops()]
        return [*crops, *({"images": shrink(image, size)[None]} for image in self.images())]

    def of_guided(self, network: TokenNetwork) -> list[Sample]:
        """For `images, keep → class_token, tokens`."""
        size = self.config.model.input_size
        grid = (size // network.patch_size[0], size // network.patch_size[1])
        samples: list[Sample] = []
        for crop, mask in self._crops():
            keep = kept_patches(
                centre(mask[None], size), grid, threshold=network.mask_threshold, keep_thin=network.keep_thin
            )
            samples.append({"images": centre(crop[None], size), "keep": keep})
        return samples

    def images(self) -> list[npt.NDArray[np.uint8]]:
        """A few that can be read."""
        found = []
        for file in _spread([file for file in self.files if file.is_file()], MOST_IMAGES):
            try:
                found.append(read_image(file))
            except BadFileError:
                continue
        return found

    def _crops(self) -> list[tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]]:
        pairs = [read_crop(path) for path in self.crops]
        return [(crop, mask) for crop, mask in pairs if crop is not None and mask is not None]


def _spread(values: Any, most: int) -> list[Any]:
    listed = list(values)
    return listed[:: max(1, -(-len(listed) // most))]
