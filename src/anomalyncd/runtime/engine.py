"""One graph in memory, ready to run on the processor."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import RunError, SettingsError

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
