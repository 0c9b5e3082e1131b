"""Learn as normal: false alarms that are shown to a detector, and those that it raises on others afterwards.

    python benchmarks/learn_normal.py DATA/hazelnut … [--rate 0.2] [--draws 3] [--images 60] [--precision bfloat16]

PatchCore is fitted on normal images, and the line is where it calls so many of them defective when it has not seen them
(`held_out`; a loose one, so that there are false alarms). Half of the normal test images, drawn at random, are learned as
normal (`learn_more`, what `update --normal` does); false alarms are counted among the other half, before and after, at the
same line, and so are defects below it. AUROC of images is of the other half and all defects. Data and options as in
benchmarks/contamination.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import machine, positive, print_table
from contamination import Case, ReadOnce
from sklearn.metrics import roc_auc_score

from anomalyncd.assign.false_alarms import NormalScores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--rate", type=float, default=0.2, help="of normal images that may be called defective")
    parser.add_argument("--draws", type=positive, default=3)
    parser.add_argument("--images", type=positive, default=60, help="normal images")
    parser.add_argument("--tests", type=positive, default=60, help="defects; half as many normal test images")
    parser.add_argument("--bank", type=positive, default=10_000)
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    print(machine(), f"\n{options}", flush=True)
    rows, every = [], []
    for path in options.sets:
        case = Case(path, options)
        figures = np.mean([measure(case, options.rate, seed) for seed in range(options.draws)], axis=0)
        every.append(figures)
        rows.append([path.name, *texts(figures)])
        print(*rows[-1], flush=True)
    rows.append(["mean", *texts(np.mean(every, axis=0))])
    columns = ["set", "other normal images", "false alarms among them", "defects missed", "AUROC"]
    print_table(columns, rows)


def texts(figures: np.ndarray) -> list[str]:
    count, before, after, missed, missed_after, auroc, auroc_after = figures
    pairs = f"{before:.1f} → {after:.1f}", f"{missed:.3f} → {missed_after:.3f}", f"{auroc:.3f} → {auroc_after:.3f}"
    return [f"{count:.0f}", *pairs]


def measure(case: Case, rate: float, seed: int) -> tuple[float, ...]:
    """How many other normal images there are; false alarms, share of missed defects and AUROC, before and after."""
    detector = case.fitted(case.normal)
    unseen = NormalScores.fit([found.score for found in detector.held_out(case.normal, range(len(case.normal))) or ()])
    assert unseen is not None
    line = unseen.level(rate)
    order = np.random.default_rng(seed).permutation(len(case.good))
    shown, others = np.array_split(order, 2)
    before = figures(case, detector, others.tolist(), line)
    detector.learn_more(case.good[place] for place in shown)
    after = figures(case, detector, others.tolist(), line)
    return len(others), *(value for pair in zip(before, after, strict=True) for value in pair)


def figures(case: Case, detector: ReadOnce, others: list[int], line: float) -> tuple[float, float, float]:
    """False alarms among these normal images, share of defects that are missed, and AUROC."""
    tests = [*(case.good[place] for place in others), *case.bad]
    scores, truth = np.array([found.score for found in detector.detect(tests)]), np.arange(len(tests)) >= len(others)
    return (
        float((scores[~truth] > line).sum()),
        float((scores[truth] <= line).mean()),
        float(roc_auc_score(truth, scores)),
    )


if __name__ == "__main__":
    main()
