"""The user's end of an exported run: as the estimator's `predict`, without torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path

from ..data.dataset import Dataset
from ..data.gather import Sources, gather
from ..discovery.classify import MapMaker, Prediction, Predictor
from ..discovery.model import DiscoveryModel
from ..errors import DataError
from ..progress import Silent
from .folder import ENGINE_OF, read_export
from .graphs import ENGINES, Graph, GraphDetector, GraphNetwork, check_engine, open_graph

NETWORK_GRAPHS = ("patches", "guided", "detector")


class Runtime:
    """Classes of new images by an exported run.

    Parameters
    ----------
    folder : that `anomalyncd export RUN --format onnx` or `openvino` wrote
    engine : `onnxruntime` or `openvino`, which reads both formats; by default the one of the format
    precision : `float32`, which gives what the run gives, or `bfloat16` (openvino), faster on processors that have it
    threads : to compute with; by default as many as the engine thinks best
    progress : how work is shown, silent by default

    Attributes
    ----------
    classes : (K,) int, the columns of all probabilities
    names : label → name
    detector_name : of the run's detector, None where maps or masks were given
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        engine: str | None = None,
        precision: str = "float32",
        threads: int | None = None,
        progress: Silent | None = None,
    ) -> None:
        path = Path(folder)
        if engine is not None:
            check_engine(engine, precision, threads)
        info = read_export(path)
        self.engine = engine or _default_engine(info.format, precision)
        self.precision = info.precision if precision == "float32" else precision
        self.progress = progress or Silent()
        self.model = DiscoveryModel.read(path, device="cpu")
        self.classes, self.names = self.model.classes, self.model.names
        self.detector_name = info.detector
        graphs: dict[str, Graph] = {}
        for name, file in info.graphs.items():
            # Distances are differences of nearly equal numbers: only networks bear a coarse precision.
            chosen = precision if name in NETWORK_GRAPHS else "float32"
            graphs[name] = open_graph(path / file, self.engine, precision=chosen, threads=threads)
        self._extractor = self.model.extractor(network=GraphNetwork(info.network, graphs))
        self._detector: MapMaker | None = None
        if info.detector_grid is not None:
            self._detector = GraphDetector(path, info.detector_grid, graphs)
        elif info.detector:  # its maps come from outside, so the model must take them
            detect = self.model.config.detect.model_copy(update={"name": None})
            self.model.config = self.model.config.model_copy(update={"detect": detect})

    def predict(self, images: Sources, *, maps: Sources | None = None, masks: Sources | None = None) -> Prediction:
        """Classes of images.

        Parameters
        ----------
        images : paths or (H, W, 3) uint8 RGB arrays; or a folder or CSV
        maps : one anomaly map for each image, paths or (H, W) float arrays; or a folder. Left out where the run has its own
            detector, unless that is one that cannot be exported: then maps that it made
        masks : instead of maps: one mask for each image, None where there is no defect; or a folder
        """
        dataset = self.gather(images, maps, masks)
        return self.predictor(bare=dataset.is_bare)(dataset, self.progress)

    def gather(
        self,
        images: Sources | Dataset,
        maps: Sources | None = None,
        masks: Sources | None = None,
        exclude: Collection[str] = (),
    ) -> Dataset:
        """New images as the exported run needs them; arguments as in `predict`, and class names to leave out."""
        if self.detector_name and self._detector is None and gather(images, maps, masks, exclude=exclude).is_bare:
            raise DataError(
                f"the maps of this run were made by {self.detector_name}, which is not part of the export. Give maps that "
                "the same detector made of the new images: the values of others mean something else."
            )
        return self.model.gather(images, maps, masks, exclude)

    def stream(self, dataset: Dataset) -> Iterator[Prediction]:
        """As `predict`, a few images at a time, of what `gather` returned: memory does not grow with their number."""
        return self.predictor(bare=dataset.is_bare).stream(dataset, self.progress)

    def predictor(self, *, bare: bool = True) -> Predictor:
        """For callers that take the results of images a few at a time; bare : images come without maps and masks."""
        return Predictor(self.model, self._extractor, self._detector if bare else None)


def _default_engine(format: str, precision: str) -> str:
    wanted = "openvino" if precision != "float32" else ENGINE_OF[format]
    if format == "onnx" and find_spec(wanted) is None:
        return next((name for name in ENGINES if find_spec(name)), wanted)
    return wanted
