"""What the figures of a bench were made on: versions, processor, memory."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

import torch

from .. import __version__


def peak_memory() -> float | None:
    """The most memory that this process has held so far, in MB of 10⁶ bytes; None on Windows, which does not tell.

    Examples
    --------
    >>> peak_memory() is None or peak_memory() > 10
    True
    """
    if sys.platform == "win32":
        return None
    import resource  # which Windows is without

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, KiB on Linux
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)


def machine() -> str:
    """Versions and machine in one line."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "timm", "numpy", "scikit-learn"))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads"
    python = f"anomalyncd {__version__}, Python {platform.python_version()}"
    return f"{python}, {versions}; {_processor()}, {cores}, {device}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
