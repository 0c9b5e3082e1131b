"""Has quality or speed fallen since the last release? Three procedural sets, in a few minutes of two cores.

    python benchmarks/quality.py            compares with benchmarks/quality.json, and fails where something fell
    python benchmarks/quality.py --write    writes it anew: for a release, or where quality is changed on purpose

The demo's metal, fabric and terrazzo, 45 images each, with the default network. Quality is the mean over the three, in which
one image weighs .007. Speed is processor time of `fit` over that of matrix products before and after it in the same process,
so that machines compare roughly.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from anomalyncd import AnomalyNCD, __version__
from anomalyncd.demo import DEFECT_KINDS, make_line
from anomalyncd.run.evaluate import evaluate_run

STORED = Path(__file__).with_name("quality.json")
SETS = {"demo": "brushed_metal", "fabric": "woven_fabric", "terrazzo": "terrazzo"}
IMAGES, NORMAL, SIZE = 6, 9, 256
FALL = 0.01  # of the mean NMI, ARI and F1
SLOWER = 1.5  # times: processor time differs by a third between two calls on a busy machine
Figures = dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if not given.write and not STORED.exists():
        sys.exit(f"{STORED}: no figures of a release to compare with. Make them with --write.")
    found = {name: measure(texture) for name, texture in SETS.items()}
    found["mean"] = mean(list(found.values()))
    stored = None if given.write else json.loads(STORED.read_text(encoding="utf-8"))
    print("| set | NMI | ARI | F1 | fit / product |\n|---|---|---|---|---|")
    for name, figures in found.items():
        print(row(name, figures))
        if stored:
            print(row(f"– in {stored['version']}", stored["sets"][name]))
    if given.write:
        text = json.dumps({"version": __version__, "sets": found}, indent=1)
        STORED.write_text(text + "\n", encoding="utf-8")
    elif fallen := falls(found["mean"], stored["sets"]["mean"]):
        sys.exit("\n".join(fallen))


def row(name: str, figures: Figures) -> str:
    """Of the table."""
    scores = " | ".join(f"{figures[key]:.3f}" for key in ("nmi", "ari", "f1"))
    return f"| {name} | {scores} | {figures['time']:.0f} |"


def measure(texture: str) -> Figures:
    """Scores of one set, and the time of `fit` in matrix products."""
    with TemporaryDirectory() as folder:
        line = Path(folder) / "line"
        make_line(line, texture=texture, n_per_class=IMAGES, n_normal=NORMAL, n_combined=0, size=SIZE)
        model = AnomalyNCD(len(DEFECT_KINDS) + 1)
        before, start = product(), time.process_time()
        model.fit(line / "images", maps=line / "maps", run=Path(folder) / "run")
        seconds, after = time.process_time() - start, product()
        scores, _ = evaluate_run(Path(folder) / "run")
    return {"nmi": scores.nmi, "ari": scores.ari, "f1": scores.f1, "time": 2 * seconds / (before + after)}


def product(side: int = 1024, repeats: int = 5) -> float:
    """Processor time of a matrix product, the least of a few."""
    a = torch.rand(side, side, generator=torch.Generator().manual_seed(0))
    times = []
    for _ in range(repeats):
        start = time.process_time()
        for _ in range(4):
            a @ a
        times.append((time.process_time() - start) / 4)
    return min(times)


def mean(several: list[Figures]) -> Figures:
    """Of each figure.

    >>> mean([{"f1": 0.5}, {"f1": 1.0}])
    {'f1': 0.75}
    """
    return {name: sum(figures[name] for figures in several) / len(several) for name in several[0]}


def falls(now: Figures, before: Figures) -> list[str]:
    """What has become worse by more than chance, in words.

    >>> falls({"nmi": 0.9, "ari": 0.9, "f1": 0.95, "time": 9}, {"nmi": 0.92, "ari": 0.9, "f1": 0.9, "time": 8})
    ['nmi fell from 0.920 to 0.900']
    >>> falls({"nmi": 1, "ari": 1, "f1": 1, "time": 20}, {"nmi": 1, "ari": 1, "f1": 1, "time": 10})
    ['fit takes 20 matrix products, 10 before']
    """
    words = [
        f"{name} fell from {before[name]:.3f} to {now[name]:.3f}"
        for name in ("nmi", "ari", "f1")
        if now[name] < before[name] - FALL
    ]
    slower = now["time"] > SLOWER * before["time"]
    return words + [f"fit takes {now['time']:.0f} matrix products, {before['time']:.0f} before"] * slower


if __name__ == "__main__":
    main()
