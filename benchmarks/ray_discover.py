"""`discover --engine ray` of many small images: memory of the calling process, and what a second worker is worth.

    python benchmarks/ray_discover.py [--images 20000] [--workers 1 2] [--normal 200] [--size 64]

Generated images of 64 px, 6 in 100 with a defect of three kinds; the tiny backbone (a random network), PatchCore on maps of
48 px. Each number of workers has a run of its own, in a process of its own. Printed are the memory of the calling process
while maps and regions are made, seconds of the clock, and seconds of the processors: of the workers, of the calling process,
and of what Ray starts besides. Others at work on the same cores stretch the clock and not the processors, so a machine with
nothing else to do is computed from these: N workers and the calling process on as many cores as workers.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from common import machine, positive, print_table

from anomalyncd import AnomalyNCD
from anomalyncd.progress import Silent
from anomalyncd.ray.pool import RayEngine

SIDE = 64
DEFECTIVE = 0.06
STAGES = ("Anomaly maps", "Range of the maps", "Regions")
MARKS = (0.25, 0.5, 1.0)  # shares of the images after which the memory is looked at
TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=positive, default=20_000)
    parser.add_argument("--normal", type=positive, default=200, help="images that the detector learns from")
    parser.add_argument("--workers", type=positive, nargs="+", default=[1, 2])
    parser.add_argument("--size", type=positive, default=64, help="of the images as the networks see them, in pixels")
    parser.add_argument("--work", type=Path, help="folder for images and runs; a temporary one by default")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measured(options.work, options.workers[0], options.size)))
        return
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory(prefix="ray-discover-") as temporary:
        work = options.work or Path(temporary)
        if not (work / "images").exists():
            write_images(work / "normal", options.normal, defective=0.0, seed=1)
            write_images(work / "images", options.images, defective=DEFECTIVE, seed=0)
        found = {}
        for workers in options.workers:
            command = [sys.executable, __file__, "--one", "--work", str(work), "--workers", str(workers)]
            command += ["--size", str(options.size)]
            ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[workers] = json.loads(ended.stdout.splitlines()[-1])
            report(workers, found[workers], options.images)
        if len(found) > 1:
            compare(found, options.images)


def write_images(folder: Path, count: int, *, defective: float, seed: int) -> None:
    """Grey noise; a defect is a bright square, a dark stripe or a disc."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        picture = rng.integers(90, 110, (SIDE, SIDE, 3), dtype=np.uint8)
        if rng.random() < defective:
            (y, x), kind = rng.integers(16, 40, 2).tolist(), int(rng.integers(3))
            if kind == 0:
                picture[y : y + 14, x : x + 14] = 250
            elif kind == 1:
                picture[y : y + 5, 4:-4] = 5
            else:
                cv2.circle(picture, (x, y), 8, (30, 60, 220), -1)
        path = folder / f"{number // 1000:03d}" / f"{number:06d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), picture, [cv2.IMWRITE_PNG_COMPRESSION, 1])


class Watched(Silent):
    """Notes seconds of the clock and of the processors for each stage, and the memory at some places in it."""

    def __init__(self) -> None:
        self.stages: dict[str, dict[str, float]] = {}
        self.memory: dict[str, dict[int, float]] = {}

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Any]:
        done, marks = 0, [round(share * total) for share in MARKS]
        before = clocks()

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal done
            done += steps
            while name in STAGES and marks and done >= marks[0]:
                self.memory.setdefault(name, {})[marks.pop(0)] = resident_mb()

        yield advance
        self.stages[name] = {key: value - before.get(key, 0.0) for key, value in clocks().items()}


def measured(work: Path, workers: int, size: int) -> dict[str, Any]:
    """Of one run."""
    watched = Watched()
    small = {"size": size, "map_size": 48, "batch_size": 16}
    model = AnomalyNCD(
        4, progress=watched, backbone="tiny", device="cpu", features={"views": 1},
        model={"input_size": size, "image_size": size}, crop={"size": size}, detect={"settings": small},
    )  # fmt: skip
    run = work / f"run-{workers}"
    with RayEngine(workers) as model.engine:
        model.fit(work / "images", normal=work / "normal", run=run)
    return {
        "stages": watched.stages, "memory": watched.memory, "seconds": model.seconds_, "peak": resident_mb(peak=True),
        "regions": len(model.regions_), "classes": model.images_["class_name"].value_counts().to_dict(),
    }  # fmt: skip


def clocks() -> dict[str, float]:
    """Seconds of the clock, of this process, of its workers, and of what else it has started."""
    found = {"wall": time.perf_counter(), "driver": time.process_time(), "workers": 0.0, "ray": 0.0}
    parents, times, names = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            names[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        times[int(folder.name)] = sum(map(int, fields[11:13])) / TICK
    for pid in times:
        above = pid
        while above > 1 and above != os.getpid():
            above = parents.get(above, 0)
        if above == os.getpid() != pid:
            found["workers" if names[pid].startswith(b"ray::Worker") else "ray"] += times[pid]
    return found


def resident_mb(*, peak: bool = False) -> float:
    """Memory of this process in MB, now or at most so far; files that are mapped into it left out."""
    lines = Path("/proc/self/status").read_text().splitlines()
    table = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("RssAnon", "VmHWM"))}
    return int(table["VmHWM" if peak else "RssAnon"]) / 1024


def report(workers: int, found: dict[str, Any], count: int) -> None:
    print(f"\nworkers: {workers}, {count} images, {found['regions']} regions; classes {found['classes']}")
    for name, marks in found["memory"].items():
        print(
            f"memory of the calling process, {name}: " + ", ".join(f"{k} images {v:.0f} MB" for k, v in marks.items())
        )
    seconds = ", ".join(f"{name} {spent:.0f} s" for name, spent in found["seconds"].items())
    print(f"at most {found['peak']:.0f} MB, with learning; stages: {seconds}")
    rows = []
    for name, spent in found["stages"].items():
        cells = [f"{spent['wall']:.1f}", *(f"{1000 * spent[key] / count:.2f}" for key in ("workers", "driver", "ray"))]
        rows.append([name, *cells])
    print_table(["stage", "s of the clock", "ms an image: workers", "calling process", "Ray's own"], rows)


def compare(found: dict[int, dict[str, Any]], count: int) -> None:
    """Images a second, by the clock here, and computed for idle cores."""
    rows, base = [], 0.0
    for workers, each in found.items():
        spent = {key: sum(each["stages"][name][key] for name in STAGES) for key in ("wall", "workers", "driver", "ray")}
        own, other = spent["workers"] / count, (spent["driver"] + spent["ray"]) / count
        # One worker alone has a core, and the calling process another one; more workers share theirs with it.
        rate = 1 / max(own, other) if workers == 1 else min(workers / (own + other), 1 / other)
        base = base or rate / workers
        cells = [
            f"{count / spent['wall']:.0f}",
            f"{1000 * own:.2f}",
            f"{1000 * other:.2f}",
            f"{rate:.0f}",
            f"{rate / base:.2f}",
        ]
        rows.append([str(workers), *cells])
    print(f"\n{', '.join(STAGES)}:")
    heads = [
        "images a second by the clock",
        "ms of a worker",
        "ms of all else",
        "computed, idle cores",
        "times one worker",
    ]
    print_table(["workers", *heads], rows)


if __name__ == "__main__":
    main()
