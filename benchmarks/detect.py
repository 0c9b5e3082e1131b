"""How well and how fast detectors find defects: AUROC of images and pixels, AUPRO, time and memory.

    python benchmarks/detect.py DATA/hazelnut DATA/mtd [--detectors patchcore musc anomalib:Patchcore] [--seeds 1]
    python benchmarks/detect.py DATA/hazelnut DATA/mtd --musc-forms

Each DATA folder has MVTec AD's layout. Labels and masks are only used for scoring. Each detector runs in a process of its
own, so that its largest memory is its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from common import cell, machine, peak_mb, positive, print_table, seeds_up_to
from timed_maps import Clock, load_test, maps_of

from anomalyncd.data.dataset import NORMAL_NAMES
from anomalyncd.data.images import read_image
from anomalyncd.data.maps import read_mask
from anomalyncd.detect import MuSc, build_detector, musc
from anomalyncd.errors import AnomalyNCDError
from anomalyncd.grid import TokenGrid
from anomalyncd.metrics import PixelScores, image_auroc
from anomalyncd.progress import Terminal
from anomalyncd.steps.truth import evaluate_maps

WITHOUT_CHANCE = {"musc"}  # the same for every seed, so it runs once
SCORES = ("image_auroc", "pixel_auroc", "aupro")
COLUMNS = (
    "detector", "image AUROC", "pixel AUROC", "AUPRO (30 % FPR)", "fitting, s", "maps, ms/image", "all, s", "peak, MB",
)  # fmt: skip
PAPER = {
    "mtd": (
        ("paper: PatchCore (AnomalyNCD, Table 2)", "–", "–", "0.729"),
        ("paper: UniFormaly (AnomalyNCD, Table 2)", "–", "–", "0.837"),
        ("paper: MuSc (page of AnomalyNCD's code)", "–", "–", "0.769"),
        ("paper: PatchCore (its own, another backbone)", "0.979", "–", "–"),
    )
}
SUBSETS = (50, 25, 10)
MUTUAL_SCORES = musc.mutual_scores


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--detectors", nargs="+", default=["patchcore", "musc", "anomalib:Patchcore"])
    parser.add_argument("--seeds", type=positive, default=1)
    parser.add_argument("--backbone", default="auto", help="of our own detectors")
    parser.add_argument("--limit", type=positive, help="at most this many test images, evenly spread; forms: 100")
    parser.add_argument("--limit-normal", type=positive, help="at most this many normal images, evenly spread")
    parser.add_argument(
        "--work", type=Path, help="keep maps and times here; what is there is not measured again. Temporary by default"
    )
    parser.add_argument("--musc-forms", action="store_true", help="instead: what MuSc's shared products and subsets do")
    parser.add_argument("--repeats", type=positive, default=3, help="timings of each form, of which the median counts")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.data[0], options.work, **json.loads(options.child))))
        return
    print(machine())
    if options.musc_forms:
        for data in options.data:
            musc_forms(data, options)
        return
    print(f"{seeds_up_to(options.seeds)}; backbone {options.backbone}.")
    print("Maps: reading images and writing maps included. Peak: of the whole process, from its start to ", end="")
    print(f"the last map; {peak_mb():.0f} MB of it are the libraries.\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for data in options.data:
            one_data_set(data, options, options.work or Path(temporary))


def one_data_set(data: Path, options: argparse.Namespace, work: Path) -> None:
    rows, notes = [], []
    counts = ""
    for detector in options.detectors:
        seeds = 1 if detector in WITHOUT_CHANCE else options.seeds
        found = [in_own_process(data, detector, seed, options, work) for seed in range(seeds)]
        if failed := next((result for result in found if "error" in result), None):
            notes.append(f"{detector}: not measured. {failed['error']}")
            continue
        counts = f"{found[0]['n_images']} test images, {found[0]['n_defective']} of them defective"
        title = detector
        if any(result["random_weights"] for result in found):
            title += " (random weights: no comparison)"
        if any(result["resumed"] for result in found):
            notes.append(f"{detector}: maps, times and memory are of an earlier call with the same --work.")
        rows.append([title, *(cell([result[name] for result in found]) for name in SCORES), *_costs(found)])
        notes.append(f"{detector}: {found[0]['settings']}")
    rows += [[*row, "–", "–", "–", "–"] for row in PAPER.get(data.name, ())]
    print(f"## {data.name}: {counts or 'nothing measured'}\n")
    if rows:
        print_table(COLUMNS, rows)
    if data.name not in PAPER:
        print("\nThe papers print no figure that this data set could be held against.")
    print("\n" + "\n".join(f"- {note}" for note in notes) + "\n", flush=True)


def _costs(found: list[dict[str, Any]]) -> list[str]:
    if any(result["map_seconds"] is None for result in found):
        return ["–"] * 4
    fit, maps = ([result[name] for result in found] for name in ("fit_seconds", "map_seconds"))
    return [
        cell(fit, ".1f"),
        cell([1000 * seconds / result["n_maps"] for seconds, result in zip(maps, found, strict=True)], ".0f"),
        cell([one + other for one, other in zip(fit, maps, strict=True)], ".1f"),
        cell([result["peak_mb"] for result in found], ".0f"),
    ]


def in_own_process(data: Path, detector: str, seed: int, options: argparse.Namespace, work: Path) -> dict[str, Any]:
    """What `measure` finds. A child starts with its parent's largest memory, so nothing heavy may happen here before."""
    settings = {
        "detector": detector, "seed": seed, "backbone": options.backbone, "limit": options.limit,
        "limit_normal": options.limit_normal,
    }  # fmt: skip
    Terminal().say(f"{data.name}, {detector}, seed {seed}")
    command = [sys.executable, __file__, str(data), "--work", str(work), "--child", json.dumps(settings)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        return {"error": f"Its process ended with {done.returncode} (see above; −9 is often a lack of memory)."}
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])  # libraries may print before it
    return result


def measure(data: Path, work: Path, *, detector: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Scores, times and memory of one detector; or the reason why there are none."""
    try:
        made = maps_of(data, detector, work, seed=seed, **settings)
        scores = evaluate_maps(made.items, made.scores, made.truth, made.config, Clock())
    except AnomalyNCDError as error:
        return {"error": str(error)}
    assert scores is not None
    return {
        **{name: getattr(scores, name) for name in (*SCORES, "n_images", "n_defective")},
        "n_maps": len(made.items), "fit_seconds": made.fit_seconds, "map_seconds": made.map_seconds,
        "peak_mb": made.peak_mb, "random_weights": made.random_weights, "resumed": made.resumed,
        "settings": str(getattr(build_detector(made.config), "settings", made.config.detect.settings)),
    }  # fmt: skip


def musc_forms(data: Path, options: argparse.Namespace) -> None:
    """Time of mutual scoring with shared products and without, and what fewer references lose; tokens computed once."""
    progress = Terminal()
    items, truth = load_test(data, options.limit or 100)
    detector = MuSc(backbone=options.backbone)
    grids = []
    with progress.task("Tokens", len(items)) as advance:
        for grid in detector.reader(read_image(item.image) for item in items):
            grids.append(TokenGrid(grid.blocks.half(), grid.summary, grid.size))
            advance()
    print(f"\n## {data.name}: {len(grids)} test images, evenly spread; MuSc, {detector.settings}\n")
    compare_directions(detector, grids, options.repeats, progress)
    masks = [np.zeros(grid.size, bool) for grid in grids]
    for index, sample in enumerate(truth):
        if sample.mask is not None:
            masks[index] = read_mask(sample.mask)
    defective = [str(sample.label).lower() not in NORMAL_NAMES for sample in truth]
    rows = []
    with progress.task("Subsets", 1 + len(SUBSETS)) as advance:
        for count in (len(grids), *(count for count in SUBSETS if count < len(grids))):
            part = MuSc(backbone=options.backbone, max_references=count)
            started = time.perf_counter()
            with mock.patch.object(MuSc, "reader", lambda _self, _images: iter(grids)):
                found = list(part.detect(()))
            seconds = time.perf_counter() - started
            maps = [detection.map for detection in found]
            pixels = PixelScores(min(m.min() for m in maps), max(m.max() for m in maps))
            for anomaly_map, mask in zip(maps, masks, strict=True):
                pixels.add(anomaly_map, mask)
            images = image_auroc([detection.score for detection in found], defective)
            scores = (images, pixels.pixel_auroc(), pixels.aupro())
            rows.append([f"{count}", *(cell([score]) for score in scores), f"{seconds:.1f}"])
            advance()
    print_table(["references", *COLUMNS[1:4], "scoring, s"], rows)
    print(flush=True)


def one_way(images: Sequence[torch.Tensor], references: Sequence[torch.Tensor], own: Sequence[int | None]) -> Any:
    """As `mutual_scores`, one image at a time, so that no product serves two."""
    return [MUTUAL_SCORES([image], references, [place])[0] for image, place in zip(images, own, strict=True)]


def compare_directions(detector: MuSc, grids: list[TokenGrid], repeats: int, progress: Terminal) -> None:
    """Each product for both directions, against a product for each; in turns, so that a busy machine slows both."""
    blocks = [grid.blocks for grid in grids]
    places: list[int | None] = list(range(len(blocks)))
    seconds: dict[bool, list[float]] = {True: [], False: []}
    scores: dict[bool, torch.Tensor] = {}
    with progress.task("Two forms", 2 * repeats) as advance:
        for turn in range(2 * repeats):
            two_way = turn % 2 == 0
            with mock.patch.object(musc, "mutual_scores", musc.mutual_scores if two_way else one_way):
                started = time.perf_counter()
                scores[two_way] = torch.cat(detector._scores(blocks, blocks, places))
                seconds[two_way].append(time.perf_counter() - started)
            advance()
    both, single = (statistics.median(seconds[two_way]) for two_way in (True, False))
    lists = [", ".join(f"{value:.2f}" for value in seconds[two_way]) for two_way in (True, False)]
    print(f"Mutual scoring, median of {repeats}: {both:.2f} s two-way (of {lists[0]}), ", end="")
    print(f"{single:.2f} s one direction at a time (of {lists[1]}), ratio {both / single:.3f}; ", end="")
    print(f"largest difference of a score {float((scores[True] - scores[False]).abs().max()):.2e}.\n", flush=True)


if __name__ == "__main__":
    main()
