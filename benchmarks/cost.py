"""What one `discover` with PatchCore costs: seconds of the processor by stage, and pictures that went through the network.

    PYTHONPATH=CHECKOUT/src python benchmarks/cost.py DATA OUT CLASSES [options of discover]

DATA has MVTec AD's layout, OUT is a folder that is not there yet. Works with any checkout of the project, so that two can be
compared on the same machine: it calls the command and wraps what all of them have. Seconds are of the processor, not of the
clock (with `OMP_NUM_THREADS=1`), so that other work on the machine counts little.
"""

from __future__ import annotations

import csv
import functools
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from common import machine, peak_mb

import anomalyncd
from anomalyncd.cli import app
from anomalyncd.detect import patchcore
from anomalyncd.metrics import evaluate
from anomalyncd.model import backbone

spent: dict[str, float] = {}
passes: Counter[str] = Counter()


def timed(owner: Any, name: str, label: str) -> None:
    """Add the time of a function, in its own thread, to `spent`."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def timing(*given: Any, **named: Any) -> Any:
        started = time.thread_time()
        try:
            return function(*given, **named)
        finally:
            spent[label] = spent.get(label, 0.0) + time.thread_time() - started

    setattr(owner, name, timing)


def main() -> None:
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    data, out, classes = sys.argv[1:4]
    timed(backbone.MaskGuidedViT, "block_tokens", "network")
    timed(patchcore, "greedy_coreset", "coreset")
    timed(patchcore.PatchBank, "nearest", "search")
    embed = backbone.MaskGuidedViT._embed

    def counting(self: Any, images: Any) -> Any:
        passes[f"{images.shape[2]} x {images.shape[3]}"] += len(images)
        return embed(self, images)

    backbone.MaskGuidedViT._embed = counting  # type: ignore[method-assign]
    began = time.process_time()
    call = ["discover", f"{data}/test", "--normal", f"{data}/train/good", "--classes", classes, "--out", out]
    app([*call, "--exclude", "combined", "--quiet", *sys.argv[4:]], standalone_mode=False)
    total = time.process_time() - began
    spent["all else"] = total - sum(spent.values())
    with (Path(out) / "images.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    f1 = evaluate([row["true_label"] for row in rows], [int(row["label"]) for row in rows]).f1
    print(machine())
    print(f"{Path(anomalyncd.__file__).parent}: {Path(data).name}, {len(rows)} images, options {sys.argv[4:]}")
    seconds = {name: round(value, 1) for name, value in spent.items()}
    print(
        json.dumps(
            {"total": round(total, 1), **seconds, "passes": passes, "f1": round(f1, 4), "peak_mb": round(peak_mb())}
        )
    )


if __name__ == "__main__":
    main()
