"""What all benchmarks share: the line about the machine, a part of a list, tables. Runs with any version of the package."""

from __future__ import annotations

import argparse
import os
import platform
import resource
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TypeVar

import numpy as np
import torch

import anomalyncd

EXCLUDED = ("combined",)  # images with several kinds of defect, which the paper leaves out
T = TypeVar("T")


def machine() -> str:
    """Versions, machine, and how busy it is: others at work on the same cores make times worthless."""
    versions = [f"Python {platform.python_version()}", f"anomalyncd {anomalyncd.__version__}"]
    for name in ("torch", "timm", "numpy", "anomalib"):
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} not installed")
    processor = platform.processor() or platform.machine()
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    cores = f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, load before the start {os.getloadavg()[0]:.1f}"
    return f"{', '.join(versions)}; {processor}, {cores}, {device}"


def seeds_up_to(count: int) -> str:
    """Which seeds are used, in words."""
    return "seed 0" if count == 1 else f"seeds 0–{count - 1} (mean ± standard deviation)"


def peak_mb() -> float:
    """The largest memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def positive(text: str) -> int:
    """A number of images or seeds, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, but got {text!r}")
    return int(text)


def evenly(values: Sequence[T], limit: int | None) -> list[T]:
    """At most `limit` of them, evenly spread over the list, so that every class folder keeps its share."""
    if limit is None or limit >= len(values):
        return list(values)
    return [values[(2 * place + 1) * len(values) // (2 * limit)] for place in range(limit)]


def cell(values: Sequence[float | None], form: str = ".3f") -> str:
    """Mean ± standard deviation, the latter where there is more than one value; a dash where one is missing."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "–"
    spread = f" ± {np.std(known):{form}}" if len(known) > 1 else ""
    return f"{np.mean(known):{form}}{spread}"


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A Markdown table."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    for row in (columns, ["-" * width for width in widths], *rows):
        print("| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |")
