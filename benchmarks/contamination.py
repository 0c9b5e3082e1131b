"""Defects among the normal images: how many are found, and what they cost with and without the filter.

    python benchmarks/contamination.py DATA/hazelnut … [--images 60] [--tests 60] [--bank 10000] [--precision bfloat16]

Each set has `train/good` and `test/<class>`. So many images of each, evenly spread, are read once. For each share, so many
defects, drawn at random among those of the test images, are put into the normal folder, so that they are this share of it;
they leave the test images. PatchCore is fitted on it as it is, and with nothing left out; the same test images give both
AUROCs of images. Share 0 tells what the filter does to a clean folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from unittest import mock

import numpy as np
from common import EXCLUDED, evenly, machine, positive, print_table
from sklearn.metrics import roc_auc_score

from anomalyncd.data import NORMAL_NAMES
from anomalyncd.data.images import read_image
from anomalyncd.detect import PatchCore
from anomalyncd.grid import TokenGrid


def address(image: np.ndarray) -> int:
    return int(image.__array_interface__["data"][0])


class ReadOnce(PatchCore):
    """PatchCore that has the tokens of each picture from the first time that it saw it."""

    grids: dict[int, TokenGrid]

    @property
    def reader(self):  # type: ignore[no-untyped-def, override]
        def read(images: Iterable[np.ndarray]) -> Iterator[TokenGrid]:
            return (self.grids[address(image)] for image in images)

        return read


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+", type=Path)
    parser.add_argument("--images", type=positive, default=60, help="normal images")
    parser.add_argument(
        "--tests", type=positive, default=60, help="test images, and as many that defects are drawn from"
    )
    parser.add_argument("--bank", type=positive, default=10_000)
    parser.add_argument("--draws", type=positive, default=1)
    parser.add_argument("--shares", nargs="+", type=float, default=[0, 0.05, 0.1, 0.2])
    parser.add_argument("--precision", default="auto")
    options = parser.parse_args()
    print(machine(), f"\n{options}", flush=True)
    rows, all_rows = [], []
    for path in options.sets:
        case = Case(path, options)
        for share in options.shares:
            figures = np.array([case.measure(share, seed) for seed in range(options.draws if share else 1)])
            all_rows.append((share, figures.mean(axis=0)))
            put, found, wrong, n_normal, before, after = figures.mean(axis=0)
            cells = (
                f"{share:.0%}",
                f"{found:g} of {put:g}",
                f"{wrong:g} of {n_normal:g}",
                f"{before:.3f}",
                f"{after:.3f}",
            )
            rows.append([path.name, *cells])
            print(*rows[-1], flush=True)
    for share in options.shares:
        mean = np.mean([figures for own, figures in all_rows if own == share], axis=0)
        rows.append(["mean", f"{share:.0%}", "", "", f"{mean[4]:.3f}", f"{mean[5]:.3f}"])
    print_table(
        ["set", "defects put in", "found", "normal ones suspected", "AUROC, all learned", "with the filter"], rows
    )


class Case:
    """Pictures of a set, and their tokens."""

    def __init__(self, path: Path, options: argparse.Namespace) -> None:
        self.settings = {"bank_size": options.bank, "precision": options.precision}
        self.normal = [read_image(file) for file in evenly(sorted((path / "train" / "good").iterdir()), options.images)]
        files = [file for file in sorted((path / "test").glob("*/*")) if file.parent.name not in EXCLUDED]
        is_good = [file.parent.name.lower() in NORMAL_NAMES for file in files]
        good = [file for file, own in zip(files, is_good, strict=True) if own]
        bad = [file for file, own in zip(files, is_good, strict=True) if not own]
        self.good = [read_image(file) for file in evenly(good, options.tests // 2)]
        self.bad = [read_image(file) for file in evenly(bad, options.tests)]
        pictures = [*self.normal, *self.good, *self.bad]
        self.grids = dict(zip(map(address, pictures), PatchCore(**self.settings).reader(pictures), strict=True))

    def measure(self, share: float, seed: int) -> tuple[float, ...]:
        """Defects put in, found, normal ones suspected, and all normal ones; AUROC without and with the filter."""
        count = round(share * len(self.normal) / (1 - share))
        order = np.random.default_rng(seed).permutation(len(self.bad))
        folder = [*self.normal, *(self.bad[place] for place in order[:count])]
        tests = [*self.good, *(self.bad[place] for place in order[count:])]
        truth = np.arange(len(tests)) >= len(self.good)
        filtered = self.fitted(folder)
        after = self._auroc(filtered, tests, truth)
        before = after
        if filtered.suspects:  # else they are the same
            with mock.patch("anomalyncd.detect.patchcore.odd_images", return_value={}):
                before = self._auroc(self.fitted(folder), tests, truth)
        found = sum(place >= len(self.normal) for place in filtered.suspects)
        return count, found, len(filtered.suspects) - found, len(self.normal), before, after

    def fitted(self, folder: list[np.ndarray]) -> ReadOnce:
        detector = ReadOnce(**self.settings)
        detector.grids = self.grids
        detector.fit(folder)
        return detector

    @staticmethod
    def _auroc(detector: ReadOnce, tests: list[np.ndarray], truth: np.ndarray) -> float:
        return float(roc_auc_score(truth, [found.score for found in detector.detect(tests)]))


if __name__ == "__main__":
    main()
