"""How many workers are worth it: a discovery of a million images on a cluster that is simulated.

    OMP_NUM_THREADS=1 python benchmarks/cluster.py measure IMAGES --normal GOOD --times times.json [--images 64]
    python benchmarks/cluster.py simulate --times times.json [--images 1000000] [--workers 1 2 4 …] [--extra MS]

`measure` does the stages of `discover` on some images as a worker does, block by block, and notes the seconds of the
processor of each block, and of the calling process for what it writes of it. `simulate` draws blocks of a larger job from
these, with stragglers and workers that are lost (below), and prints hours, how busy workers and calling process are, and
what twice as many workers gain. Learning, which follows on the calling machine, is given in hours (--learning) and added.
Images and maps are read at once, as from a disk that is fast enough. The clock is not looked at: the machine may be shared.
"""

from __future__ import annotations

import argparse
import heapq
import json
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from common import evenly, machine, positive, print_table

from anomalyncd.blocks.engine import Block, Engine, Work
from anomalyncd.config import make_config
from anomalyncd.data.gather import gather, gather_normal
from anomalyncd.discovery.fit import discover
from anomalyncd.progress import Silent
from anomalyncd.ray.pool import AHEAD
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.stages import Stages

STAGES = ("MapWork", "RangeWork", "ShardWork")  # that are done for each image
HOUR = 3600.0
WORTH = 1.8  # times as fast, with twice as many workers


@dataclass(frozen=True)
class Cluster:
    """What goes wrong on it.

    start : seconds until a worker is ready: the process, imports, weights
    slow_share, slow : share of the workers that are slow, on a machine that others use, and how many times slower they are
    straggling_share, straggling : the same of single blocks
    lost : losses of a worker in an hour; it is replaced, and does its block again
    """

    start: float = 30.0
    slow_share: float = 0.05
    slow: float = 2.0
    straggling_share: float = 0.01
    straggling: float = 5.0
    lost: float = 0.01


class Timed(Engine):
    """Notes the seconds of the processor of each block: of the work, and of whoever takes its result."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[tuple[int, float, float]]] = {}

    def each(self, work: Work[Any], blocks: Sequence[Block], *, in_order: bool = False) -> Iterable[Any]:  # type: ignore[override]
        for place, block in enumerate(blocks):
            began = time.process_time()
            made = list(work(block))
            done = time.process_time()
            yield place, made
            taken = time.process_time() - done
            self.blocks.setdefault(type(work).__name__, []).append((len(block), done - began, taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    part = parts.add_parser("measure")
    part.add_argument("data", metavar="IMAGES", type=Path)
    part.add_argument("--normal", type=Path, required=True)
    part.add_argument("--images", type=positive, default=64, help="at most so many, evenly spread")
    part.add_argument("--precision", default="float32")
    part.add_argument("--backbone", default="auto")
    part.add_argument("--times", type=Path, required=True, help="file to write")
    part = parts.add_parser("simulate")
    part.add_argument("--times", type=Path, required=True)
    part.add_argument("--images", type=positive, default=1_000_000)
    part.add_argument("--workers", type=positive, nargs="+", default=[2**k for k in range(11)])
    part.add_argument("--learning", type=float, default=0.0, help="hours on the calling machine at the end")
    part.add_argument("--extra", type=float, default=0.0, help="ms an image of the calling process, for Ray")
    part.add_argument("--seeds", type=positive, default=3, help="simulated clusters, of which means are printed")
    options = parser.parse_args()
    print(machine(), flush=True)
    if options.part == "measure":
        measure(options)
    else:
        simulate(options)


def measure(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    settings = {"model": {"backbone": options.backbone}, "precision": options.precision, "device": "cpu"}
    config = make_config(settings, {"n_classes": 2, "detect": {"name": "patchcore"}})
    inputs = gather(options.data, bare=True)
    dataset = type(inputs)(tuple(evenly(inputs.samples, options.images)), inputs.root)
    engine = Timed()
    with tempfile.TemporaryDirectory(prefix="cluster-") as run, RunFolder(Path(run) / "run").writing() as folder:
        found = discover(
            Stages(folder, config, Silent(), engine), dataset, normal=gather_normal(options.normal).samples
        )
    n_regions = len(found.result.regions)
    content = {"images": len(dataset), "regions": n_regions, "backbone": options.backbone, "blocks": engine.blocks}
    options.times.write_text(json.dumps({**content, "precision": options.precision}))
    print(f"{len(dataset)} images, {n_regions} regions, {options.backbone}, {options.precision}")
    print_table(
        ["work", "blocks", "ms an image: worker", "calling process"], [row(*pair) for pair in engine.blocks.items()]
    )


def row(name: str, blocks: Sequence[Sequence[float]]) -> list[str]:
    count, work, taken = (sum(column) for column in zip(*blocks, strict=True))
    return [name, str(len(blocks)), f"{1000 * work / count:.2f}", f"{1000 * taken / count:.2f}"]


def simulate(options: argparse.Namespace) -> None:
    times, cluster = json.loads(options.times.read_text()), Cluster()
    print(f"drawn from {options.times.name}: {times['images']} images, {times['regions']} regions, {times['backbone']}")
    print(f"{options.images:,} images, means of {options.seeds} seeds, {cluster}")
    print(f"learning {options.learning:g} h; calling process {options.extra:g} ms an image more, for Ray")
    rows, before, worth = [], 0.0, options.workers[0]
    for workers in options.workers:
        runs = [simulated(times["blocks"], workers, options, cluster, seed) for seed in range(options.seeds)]
        seconds, busy, driver, again = (float(np.mean(column)) for column in zip(*runs, strict=True))
        hours = seconds / HOUR + options.learning
        worth = workers if before and before / hours >= WORTH else worth
        rows.append([
            str(workers), f"{hours:.2f}", f"{options.images / seconds:.1f}", f"{busy / (seconds * workers):.0%}",
            f"{driver / seconds:.0%}", f"{again:.0f}", f"{before / hours:.2f}" if before else "–",
        ])  # fmt: skip
        before = hours
    heads = ["hours", "images a second", "workers busy", "calling process busy", "blocks again", "times the row above"]
    print_table(["workers", *heads], rows)
    print(f"worth it, each row at least {WORTH} times the one above: up to {worth} workers")


def simulated(
    blocks: dict[str, Any], workers: int, options: argparse.Namespace, cluster: Cluster, seed: int
) -> tuple[float, float, float, int]:
    """Seconds of the clock, of all workers at work and of the calling process; and blocks that were done again."""
    rng = np.random.default_rng(seed)
    seconds, busy, driver, again = 0.0, 0.0, 0.0, 0
    speeds = np.where(rng.random(workers) < cluster.slow_share, cluster.slow, 1.0)
    for stage in STAGES:
        work, taken = draw(blocks[stage], options.images, rng, cluster)
        taken = taken + options.extra / 1000 * options.images / len(taken) / len(STAGES)
        spent = stage_seconds(work, taken, speeds, rng, cluster, first=not seconds)
        seconds, busy, driver, again = seconds + spent[0], busy + spent[1], driver + spent[2], again + spent[3]
    return seconds, busy, driver, again


def draw(
    blocks: Sequence[Sequence[float]], images: int, rng: np.random.Generator, cluster: Cluster
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of the worker and of the calling process for each block of a job of so many images."""
    size = max(count for count, *_ in blocks)
    whole = np.array([block for block in blocks if block[0] == size], float)
    chosen = whole[rng.integers(len(whole), size=-(-images // int(size)))]
    slow = np.where(rng.random(len(chosen)) < cluster.straggling_share, cluster.straggling, 1.0)
    return chosen[:, 1] * slow, chosen[:, 2]


def stage_seconds(
    work: np.ndarray, taken: np.ndarray, speeds: np.ndarray, rng: np.random.Generator, cluster: Cluster, *, first: bool
) -> tuple[float, float, float, int]:
    """Seconds of a stage, of all workers at work, of the calling process at work; and blocks that were done again.

    A worker has AHEAD blocks at once: the next one is given when the calling process has taken an earlier one.
    """
    blocks = iter(zip(work.tolist(), taken.tolist(), strict=True))
    dies = rng.exponential(HOUR / cluster.lost, len(speeds)) if cluster.lost else np.full(len(speeds), np.inf)
    waiting: list[tuple[float, int, float]] = []  # when a worker is done, which it is, and what its result takes here
    begun: list[deque[float]] = [deque([0.0] * (AHEAD - 1)) for _ in speeds]  # when earlier results of it were taken
    free, busy, again = 0.0, 0.0, 0

    def begin(worker: int, now: float) -> None:
        nonlocal busy, again
        if (block := next(blocks, None)) is None:
            return
        seconds = block[0] * speeds[worker]
        while dies[worker] < now + seconds:
            busy += max(0.0, dies[worker] - now)
            now, again = max(now, dies[worker]) + cluster.start, again + 1
            dies[worker] = now + rng.exponential(HOUR / cluster.lost)
        busy += seconds
        heapq.heappush(waiting, (now + seconds, worker, block[1]))

    for worker in range(len(speeds)):
        begin(worker, cluster.start if first else 0.0)
    while waiting:
        now, worker, take = heapq.heappop(waiting)
        free = max(free, now) + take
        begun[worker].append(free)
        begin(worker, max(now, begun[worker].popleft()))
    return free, busy, float(taken.sum()), again


if __name__ == "__main__":
    main()
