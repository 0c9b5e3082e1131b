"""How long MEBin takes, against the obvious way (64 erosions and labellings) and anomalib.

Run: python benchmarks/mebin.py
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import time
from collections.abc import Callable
from functools import partial

import cv2
import numba
import numpy as np
import numpy.typing as npt

from anomalyncd.binarize import MEBin
from anomalyncd.binarize.mebin import thresholds

Map = npt.NDArray[np.float32]


def blob_map(rng: np.random.Generator, size: int, n_blobs: int = 8, noise: float = 0.05) -> Map:
    """(size, size) float32: Gaussian blobs of random place, width and height, plus smoothed noise."""
    y, x = np.mgrid[:size, :size].astype(np.float32) / size
    anomaly_map = cv2.GaussianBlur(rng.standard_normal((size, size)).astype(np.float32), (0, 0), size / 64)
    anomaly_map *= noise / anomaly_map.std()
    for _ in range(n_blobs):
        center_y, center_x = rng.random(2)
        width, height = rng.uniform(0.02, 0.1), rng.uniform(0.2, 1)
        anomaly_map += height * np.exp(-((y - center_y) ** 2 + (x - center_x) ** 2) / (2 * width**2))
    return anomaly_map.astype(np.float32)


def noise_map(rng: np.random.Generator, size: int) -> Map:
    """(size, size) float32: white noise, smoothed."""
    noise: Map = rng.random((size, size), dtype=np.float32)
    return cv2.GaussianBlur(noise, (0, 0), 8).astype(np.float32)


def patch_map(rng: np.random.Generator, size: int) -> Map:
    """(size, size) float32: scores of a detector's patches of 8 pixels, a few of them defective, made smooth."""
    scores = rng.gamma(4, 1, (size // 8, size // 8)).astype(np.float32)
    y, x = rng.integers(0, size // 8 - 5, 2)
    scores[y : y + 5, x : x + 5] += 12
    enlarged = cv2.resize(scores, (size, size), interpolation=cv2.INTER_LINEAR)
    return cv2.GaussianBlur(enlarged, (0, 0), 4).astype(np.float32)


KINDS: dict[str, Callable[[np.random.Generator, int], Map]] = {
    "blobs": blob_map,
    "noise": noise_map,
    "patches": patch_map,
}


def obvious_way(binarizer: MEBin, anomaly_map: Map) -> list[int]:
    """Threshold, erode and label at every threshold."""
    low, high = np.float32(binarizer.low_), np.float32(binarizer.high_)
    scaled = np.where(anomaly_map < low, np.float32(0), (anomaly_map - low) / (high - low) * np.float32(255))
    kernel = np.ones((binarizer.erosion, binarizer.erosion), np.uint8)
    return [
        cv2.connectedComponents(cv2.erode((scaled > threshold).view(np.uint8), kernel), connectivity=8)[0] - 1
        for threshold in thresholds(binarizer.n_thresholds)
    ]


def seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def compare(binarizer: MEBin, maps: list[Map], repeats: int) -> tuple[list[float], list[float]]:
    """Seconds of each run of MEBin and of the obvious way, in turn: what slows the machine slows both."""
    ours, slow = [], []
    for _ in range(repeats):
        for anomaly_map in maps:
            slow.append(seconds(partial(obvious_way, binarizer, anomaly_map)))
            ours += [seconds(partial(binarizer.binarize, anomaly_map)) for _ in range(5)]
    return ours, slow


def anomalib_seconds(maps: list[Map]) -> float | None:
    """Seconds a map of anomalib's MEBin, or None where it isn't installed. Slow: measured once."""
    try:
        import torch
        from anomalib.metrics import MEBin as AnomalibMEBin  # type: ignore[import-not-found]
    except ImportError:
        return None
    batch = torch.from_numpy(np.stack(maps))
    low, high = batch.min(), batch.max()
    batch = ((batch - low) / (high - low) * 255)[:, None]
    return seconds(lambda: AnomalibMEBin(batch).binarize_anomaly_maps()) / len(maps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 256, 512, 1024])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--maps", type=int, default=2, help="maps of each kind and size")
    parser.add_argument("--repeats", type=int, default=5, help="runs of the obvious way on each map")
    parser.add_argument("--threads", type=int, default=1, help="of OpenCV; MEBin always uses one")
    arguments = parser.parse_args()
    cv2.setNumThreads(arguments.threads)

    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"numpy {np.__version__}, OpenCV {cv2.__version__}, numba {numba.__version__}")
    print(f"seed {arguments.seed}, {arguments.maps} maps of each kind and size, OpenCV threads: {arguments.threads}")
    print("ms a map, median (least) of runs in turn; ratio of the medians (of the least)\n")
    print(f"{'size':>5} {'kind':8} {'range':7} {'MEBin':>15} {'obvious':>17} {'ratio':>12}  counts  anomalib")
    for size, (kind, make_map) in itertools.product(arguments.sizes, KINDS.items()):
        rng = np.random.default_rng(arguments.seed)
        maps = [make_map(rng, size) for _ in range(arguments.maps)]
        normal = maps[0] / 2
        theirs = anomalib_seconds(maps) if size <= 256 else None
        # "fitted": with a normal image in the set, as in practice; "whole": all pixels are in the range.
        for name, binarizer in (
            ("fitted", MEBin().fit([normal, *maps])),
            ("whole", MEBin(has_normal=False).fit(maps)),
        ):
            same = all(binarizer.binarize(m).counts.tolist() == obvious_way(binarizer, m) for m in maps)
            ours, slow = compare(binarizer, maps, arguments.repeats)
            middle, least = 1e3 * np.median(ours), 1e3 * np.min(ours)
            slow_middle, slow_least = 1e3 * np.median(slow), 1e3 * np.min(slow)
            print(
                f"{size:5d} {kind:8} {name:7} {middle:6.2f} ({least:6.2f}) {slow_middle:7.1f} ({slow_least:7.1f})"
                f" {slow_middle / middle:5.0f}x ({slow_least / least:3.0f}x)  {'same' if same else 'DIFFER':6}"
                f"  {'–' if theirs is None else f'{theirs * 1e3:.0f}'}"
            )


if __name__ == "__main__":
    main()
