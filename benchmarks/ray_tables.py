"""The same tables from one process and from workers of Ray, of a whole data set, also where processes are killed.

    OMP_NUM_THREADS=1 python benchmarks/ray_tables.py DATA/hazelnut [--detectors patchcore musc] [--workers 2]
        [--worker-kills 2] [--driver-kills 2] [--precision bfloat16] [--seed 0] [--work DIR]

DATA has MVTec AD's layout. For each detector `discover` is called with `--engine local`, with `--engine ray`, and with
`--engine ray` while workers and then the calling process are killed (SIGKILL) at random moments, the command being called
again after the latter. Prints what each took, and compares all tables, names and figures of the run, byte by byte. Ends with
1 if any differ. Linux only: processes are looked up in /proc.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from common import EXCLUDED, machine, positive, print_table

from anomalyncd.data import NORMAL_NAMES

NEEDS_NO_NORMAL = ("musc",)
SAME = (
    "images.csv", "regions.csv", "manifest.csv", "groups.csv", "tree.json", "count.json", "normal.json", "range.json",
    "model.safetensors",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--detectors", nargs="+", default=["patchcore", "musc"])
    parser.add_argument("--workers", type=positive, default=2)
    parser.add_argument("--worker-kills", type=int, default=2)
    parser.add_argument("--driver-kills", type=int, default=2)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="keep the runs here; a temporary folder by default")
    options = parser.parse_args()
    print(machine(), f"\n{options}", flush=True)
    rng, rows, n_wrong = np.random.default_rng(options.seed), [], 0
    with tempfile.TemporaryDirectory(prefix="ray-tables-") as temporary:
        work = options.work or Path(temporary)
        for detector in options.detectors:
            command = discover(options, detector)
            plain, by_ray, disturbed = (work / f"{detector}-{name}" for name in ("local", "ray", "disturbed"))
            engine = ["--engine", "ray", "--workers", str(options.workers)]
            seconds = run([*command, "--out", str(plain)])
            rows.append([detector, "one process", "", f"{seconds:.0f}", ""])
            seconds = run([*command, "--out", str(by_ray), *engine])
            wrong = differences(plain, by_ray)
            rows.append([detector, f"{options.workers} workers", "", f"{seconds:.0f}", said(wrong)])
            kills, again = killed([*command, "--out", str(disturbed), *engine], seconds, options, rng)
            wrong_again = differences(plain, disturbed)
            rows.append([detector, "the same, killed", kills, f"{again:.0f}", said(wrong_again)])
            n_wrong += len(wrong) + len(wrong_again)
    print_table(["detector", "engine", "killed", "s of the clock", "tables and model"], rows)
    return int(n_wrong > 0)


def discover(options: argparse.Namespace, detector: str) -> list[str]:
    """The command, without its run."""
    data = options.data
    kinds = {folder.name for folder in (data / "test").iterdir()} - set(EXCLUDED)
    n_classes = len([kind for kind in kinds if kind.lower() not in NORMAL_NAMES]) + 1
    command = [sys.executable, "-m", "anomalyncd", "discover", str(data / "test"), "--detector", detector]
    if detector not in NEEDS_NO_NORMAL:
        command += ["--normal", str(data / "train" / "good")]
    for name in EXCLUDED:
        command += ["--exclude", name]
    return [*command, "--classes", str(n_classes), "--precision", options.precision, "--quiet"]


def run(command: list[str]) -> float:
    """Seconds of the clock; an error of the command ends this program with what it said."""
    started = time.perf_counter()
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ended.returncode:
        sys.exit(f"{' '.join(command)}: exit code {ended.returncode}\n{ended.stdout[-3000:]}")
    return time.perf_counter() - started


def killed(
    command: list[str], seconds: float, options: argparse.Namespace, rng: np.random.Generator
) -> tuple[str, float]:
    """Whom it lost and when; seconds of all calls together."""
    started, lost = time.perf_counter(), []
    for _ in range(options.driver_kills):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(seconds * float(rng.uniform(0.2, 0.6)))
        if process.poll() is None:
            process.kill()  # Ray's own processes are left to notice it by themselves
            lost.append(f"calling process at {time.perf_counter() - started:.0f} s")
        process.wait()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for _ in range(options.worker_kills):
        while process.poll() is None and not workers_of(process.pid):
            time.sleep(0.2)
        time.sleep(seconds * float(rng.uniform(0.05, 0.15)))
        workers = workers_of(process.pid)
        if process.poll() is None and workers:
            os.kill(int(rng.choice(workers)), signal.SIGKILL)
            lost.append(f"worker at {time.perf_counter() - started:.0f} s")
    said, _ = process.communicate()
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{said[-3000:]}")
    return ", ".join(lost) or "nobody in time", time.perf_counter() - started


def workers_of(driver: int) -> list[int]:
    """Ray's workers below a process."""
    parents, workers = {}, []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if (folder / "cmdline").read_bytes().startswith(b"ray::Worker"):
                workers.append(int(folder.name))
        except OSError:
            continue

    def is_below(pid: int) -> bool:
        while pid > 1 and pid != driver:
            pid = parents.get(pid, 0)
        return pid == driver

    return [pid for pid in workers if is_below(pid)]


def differences(run_folder: Path, other: Path) -> list[str]:
    """Names of files that one of them has, or that are not the same."""
    names = [name for name in SAME if (run_folder / name).exists() or (other / name).exists()]
    return [name for name in names if content(run_folder / name) != content(other / name)]


def content(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None


def said(wrong: list[str]) -> str:
    return f"other: {', '.join(wrong)}" if wrong else "the same bytes"


if __name__ == "__main__":
    sys.exit(main())
