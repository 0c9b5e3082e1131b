"""What one image costs, stage by stage, on one core; and how many cores, and how much room, that makes a day.

    OMP_NUM_THREADS=1 python benchmarks/scale.py RUN IMAGES [--maps MAPS] [--images 96] [--a-day 10000000]

Times are of the processor, not of the clock (`time.process_time`), so that other work on the machine counts little. Stages
run one after the other, in batches as `predict` has them; without maps the run's detector makes them.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import cv2
import torch
from common import evenly, machine, peak_mb, positive, print_table

from anomalyncd.data.gather import gather
from anomalyncd.data.images import read_image
from anomalyncd.data.maps import read_map
from anomalyncd.discovery.classify import joined
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.ray.blocks import pack
from anomalyncd.run.store import SHARD

DAY = 24 * 3600
seconds: dict[str, float] = defaultdict(float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", metavar="IMAGES", type=Path)
    parser.add_argument("--maps", type=Path)
    parser.add_argument("--images", type=positive, default=96, help="at most so many, evenly spread")
    parser.add_argument("--a-day", type=positive, default=10_000_000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    print(machine(), flush=True)

    model = AnomalyNCD.load(options.run, device="cpu")
    inputs = gather(options.data, maps=options.maps, bare=options.maps is None)
    predictor = model.predictor(bare=inputs.is_bare)
    items = evenly(inputs.samples, options.images)
    warm = list(predictor.extract(items[:SHARD]))  # weights, compiled sweeps
    predictor.classify(warm[0])

    found = []
    for start in range(0, len(items), SHARD):
        with stage("read image"):
            shard = [replace(item, image=read_image(item.image)) for item in items[start : start + SHARD]]
        if predictor.detector is None:
            with stage("read map"):
                shard = [replace(item, map=read_map(item.map)) for item in shard]
        else:
            with stage("map (detector)"):
                maps = list(predictor.detector.maps(item.image for item in shard))
            shard = [replace(item, map=one) for item, one in zip(shard, maps, strict=True)]
        with stage("mask and crops"):
            prepared = [predictor.extractor.prepare(numbered) for numbered in enumerate(shard)]
        with stage("network"):
            extracted = predictor.extractor.encode(prepared)
        with stage("class"):
            found.append(predictor.classify(extracted))
    result = joined(found)
    with stage("table"):
        part = pack("key", result.images, result.regions, [])

    backbone = model.model_.config.model.backbone
    print(f"{len(items)} images, {len(result.regions)} regions, {backbone}; peak {peak_mb():.0f} MB")
    total = sum(seconds.values()) / len(items)
    rows = [[name, f"{1000 * spent / len(items):.2f}"] for name, spent in seconds.items()]
    print_table(["stage", "ms of one core an image"], [*rows, ["all", f"{1000 * total:.1f}"]])
    cores = options.a_day * total / DAY
    print(f"{options.a_day:,} a day = {options.a_day / DAY:.0f} a second: {cores:.1f} cores at work all day")
    sizes = {
        "image": mean_size([item.image for item in items]),
        "map": mean_size([item.map for item in items if isinstance(item.map, Path)]),
        "row of images": len(part["images"]) / len(result.images),
        "rows of regions": len(part["regions"]) / len(result.images),
    }
    for name, size in sizes.items():
        print(f"{name}: {size / 1000:.2f} kB an image, {size * options.a_day / 1e9:.1f} GB a day")


@contextmanager
def stage(name: str) -> Iterator[None]:
    started = time.process_time()
    yield
    seconds[name] += time.process_time() - started


def mean_size(files: list[Path]) -> float:
    return sum(file.stat().st_size for file in files) / max(1, len(files))


if __name__ == "__main__":
    main()
