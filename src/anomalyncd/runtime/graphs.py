"""Graphs at work: one in memory, ready to run, and the network and the detector of an exported run, made of such."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from ..config import Config
from ..errors import RunError, SettingsError
from ..grid import Flags, GridReader, Picture, Values, kept_patches, place_of, to_map
from ..model.seen import Seen
from .folder import DETECTOR_FILE, GridInfo, NetworkInfo

MOST_PATCHES = 1024  # that are scored at once: what they are compared with may have ten thousand
Array = npt.NDArray[Any]
ENGINES = ("onnxruntime", "openvino")
PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}
Graph = Callable[[Mapping[str, Array]], list[Array]]  # named arrays → its outputs, in its order; threads may share it


def open_graph(path: Path, engine: str, *, precision: str = "float32", threads: int | None = None) -> Graph:
    """Load a graph.

    Parameters
    ----------
    path : .onnx, or .xml of OpenVINO
    engine : one of `ENGINES`
    precision : of the computation, float32 or, with openvino, bfloat16
    threads : how many to compute with; None leaves it to the engine
    """
    check_engine(engine, precision, threads)
    module = load_engine(engine)
    try:
        return (_onnx_graph if engine == "onnxruntime" else _openvino_graph)(module, path, precision, threads)
    except Exception as error:  # each engine has its own types, and all mean the same to the user
        reason = str(error).strip().splitlines()[0]
        raise RunError(f"{path}: {engine} {module.__version__} cannot load this graph ({reason}).") from error


def check_engine(engine: str, precision: str, threads: int | None) -> None:
    """Refuse what cannot be chosen."""
    if engine not in ENGINES:
        raise SettingsError(f"engine must be one of {', '.join(ENGINES)}, but got {engine!r}.")
    if precision not in PRECISIONS:
        raise SettingsError(f"precision must be one of {', '.join(PRECISIONS)}, but got {precision!r}.")
    if precision != "float32" and engine != "openvino":
        raise SettingsError(f"precision {precision} needs the engine openvino, but the engine is {engine}.")
    if threads is not None and threads < 1:
        raise SettingsError(f"threads must be at least 1, but got {threads}.")


def _onnx_graph(module: Any, path: Path, precision: str, threads: int | None) -> Graph:
    options = module.SessionOptions()
    options.log_severity_level = 3  # errors only
    # It does not look how many cores it has, and threads that share one wait for each other by spinning.
    options.intra_op_num_threads = threads or _allowed_cores()
    session = module.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: list(session.run(None, dict(inputs)))


def _openvino_graph(module: Any, path: Path, precision: str, threads: int | None) -> Graph:
    """OpenVINO reads its own graphs, and ONNX too."""
    core = module.Core()
    # Left alone it takes bfloat16 where the processor has it, and the results are others there.
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": PRECISIONS[precision], "PERFORMANCE_HINT": "LATENCY"}
    if threads is not None:
        settings["INFERENCE_NUM_THREADS"] = threads
    compiled = core.compile_model(core.read_model(path), "CPU", settings)
    lock = threading.Lock()  # one request, which computes on all threads

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        with lock:
            found = compiled({name: np.ascontiguousarray(value) for name, value in inputs.items()})
            return [np.array(value) for value in found.values()]

    return run


def _allowed_cores() -> int:
    """How many cores this process is confined to; 0, which leaves it to the engine, where it is not."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    return allowed if allowed < (os.cpu_count() or 1) else 0


def load_engine(engine: str) -> Any:
    """The module; OpenVINO would tell its maker that it was imported, and is kept from that."""
    if engine == "openvino":
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return import_module(engine)
    except ImportError as error:
        raise SettingsError(f"the engine {engine} is not installed ({error}): pip install {engine}") from error


class GraphNetwork:
    """A `TokenNetwork` whose tokens come from graphs.

    Parameters
    ----------
    graphs : `patches`, see `grid_inputs`, and `guided`, images, keep → class_token and, where patches of crops are wanted,
        tokens; those that the features need
    """

    def __init__(self, info: NetworkInfo, graphs: Mapping[str, Graph]) -> None:
        self.n_blocks, self.width, self.patch_size = info.n_blocks, info.width, info.patch_size
        self.mask_threshold, self.keep_thin, self.blocks = info.mask_threshold, info.keep_thin, info.blocks
        self._grid, self._graphs = info.grid, graphs

    def patches(self, images: Picture, blocks: Sequence[int]) -> Values:
        """See `TokenNetwork`."""
        assert tuple(blocks) == self.blocks
        (tokens,) = self._graphs["patches"](grid_inputs(images, self.patch_size, self._grid))
        return tokens.reshape(*tokens.shape[:2], -1, self.width)

    def guided(self, images: Picture, masks: Flags, blocks: Sequence[int]) -> tuple[Values, Values]:
        """See `TokenNetwork`."""
        assert not blocks or tuple(blocks) == self.blocks
        grid = (masks.shape[1] // self.patch_size[0], masks.shape[2] // self.patch_size[1])
        keep = kept_patches(masks, grid, threshold=self.mask_threshold, keep_thin=self.keep_thin)
        class_token, *tokens = self._graphs["guided"]({"images": images, "keep": keep})
        return class_token, tokens[0] if tokens else np.empty((len(images), 0, keep.shape[1], self.width), np.float32)


class GraphDetector:
    """Images → anomaly maps, as the run's own detector makes them.

    Parameters
    ----------
    folder : of the export
    graphs : `detector`, images → tokens, and `scores`, tokens → scores; with MuSc instead of `scores` there are `compare`,
        tokens and those of a reference → cosines, and `lowest`, cosines with all references → scores
    """

    seen: Seen | None = None  # where what it sees in whole images is left for those who describe them

    def __init__(self, folder: Path, info: GridInfo, graphs: Mapping[str, Graph]) -> None:
        self.info, self.graphs = info, graphs
        self.reader = GridReader(self._tokens, info.patch_size, info.size, info.tile, info.batch_size)
        self.references = [] if "scores" in graphs else _references(folder / DETECTOR_FILE)

    def shares(self, config: Config) -> bool:
        """As `TokenDetector.shares`."""
        return bool(self.info.blocks) and self.info.tile is None

    def maps(self, images: Iterable[Picture]) -> Iterator[Values]:
        """One (h, w) float32 map for each (H, W, 3) uint8 image, in order, of the image's aspect."""
        info = self.info
        for grid in self.reader(images):
            scores = self.scores(grid.blocks)
            yield to_map(scores, grid.size, map_size=info.map_size, tile=info.tile, sigma=info.sigma)

    def scores(self, blocks: Values) -> Values:
        """Tokens (L, h, w, C) of an image → patch scores (h, w)."""
        own = place_of(blocks, self.references)
        others = [reference for place, reference in enumerate(self.references) if place != own]

        def score(band: Values) -> Values:
            if "scores" in self.graphs:
                return self.graphs["scores"]({"tokens": band})[0]
            cosines = [self.graphs["compare"]({"tokens": band, "reference": other})[0] for other in others]
            return self.graphs["lowest"]({"cosines": np.stack(cosines, axis=-1)})[0]

        return in_bands(score, blocks, self.info.halo)

    def _tokens(self, images: Picture) -> tuple[Values, Values]:
        """(B, H, W, 3) uint8 → tokens (B, L, h, w, C), and no summaries (B, 0): only image scores need them."""
        (tokens,) = self.graphs["detector"](grid_inputs(images, self.info.patch_size, self.info.grid))
        tokens = tokens.astype(np.float16).astype(np.float32)  # as `TokenDetector` rounds them
        for picture, own in zip(images, tokens, strict=True) if self.seen else ():
            self.seen.add(picture, self.info.blocks, own.reshape(len(own), -1, own.shape[-1]))  # type: ignore[union-attr]
        return tokens, np.empty((len(images), 0), np.float32)


def in_bands(score: Callable[[Values], Values], blocks: Values, halo: int, most: int = MOST_PATCHES) -> Values:
    """Patch scores of a few rows of the grid after the other, so that memory does not grow with it.

    Parameters
    ----------
    score : tokens (L, h, w, C) → (h, w)
    halo : how many rows above and below a patch have a say in its score

    Examples
    --------
    >>> in_bands(lambda band: band[0, ..., 0] * 2, np.ones((1, 5, 3, 1), np.float32), 1, most=6).shape
    (5, 3)
    """
    _, height, width, _ = blocks.shape
    rows = height if halo >= height else max(1, most // width)
    bands = []
    for top in range(0, height, rows):
        above = min(top, halo)
        bands.append(score(blocks[:, top - above : top + rows + halo])[above : above + rows])
    return np.concatenate(bands)


def grid_inputs(images: Picture, patch_size: tuple[int, int], grid: tuple[int, int]) -> dict[str, Array]:
    """What a graph `images, rows, columns → tokens` (B, L, h, w, C) takes for images (B, H, W, 3) uint8 of any size.

    grid : patches that its network has positions for, which rows and columns bring to those of the images
    """
    sides = zip(images.shape[1:3], patch_size, grid, strict=True)
    rows, columns = (resampling(side // patch, known) for side, patch, known in sides)
    return {"images": images, "rows": rows, "columns": columns}


@lru_cache(maxsize=64)
def resampling(n_new: int, n_old: int) -> Values:
    """Antialiased cubic interpolation of n_old values at n_new places, as a matrix (n_new, n_old).

    It is what timm does to the position embeddings of a network when an image has more or fewer patches than those that it
    was trained for.

    Examples
    --------
    >>> resampling(2, 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    scale = n_old / n_new
    stretch = max(scale, 1.0)
    centres = (np.arange(n_new) + 0.5)[:, None] * scale
    places = np.arange(n_old)[None]
    # The window is cut to whole places before the weights are taken.
    inside = (places >= np.floor(centres - 2 * stretch + 0.5)) & (places < np.floor(centres + 2 * stretch + 0.5))
    weights = np.where(inside, _cubic((places + 0.5 - centres) / stretch), 0.0)
    matrix: npt.NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return matrix


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keys' kernel with a = −0.5."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0.0))


def _references(file: Path) -> list[npt.NDArray[Any]]:
    """(L, h, w, C) float16 each."""
    try:
        with safe_open(file, framework="numpy") as stored:
            return [stored.get_tensor(name) for name in sorted(stored.keys()) if name.startswith("reference_")]
    except Exception as error:  # damage shows in many ways
        raise RunError(f"{file}: missing, damaged or not a detector of anomalyncd ({error}).") from error
