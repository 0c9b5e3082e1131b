"""How many images a second: `predict` and its engines beside the loop that one would write from the paper.

    python benchmarks/throughput.py [--images 1000] [--loop-images 200] [--detector] [--engines local …] [--work DIR]
    python benchmarks/throughput.py --memory [--few 200] [--many 2000]

The images are those of the demo line (`anomalyncd demo`), another seed than the run was made of. The loop takes one image
after the other: it reads it, sweeps the thresholds one by one, cuts the regions out, and sends every region in every view
through the whole network, crop and whole image, as the method is written. It gives the same classes, which is checked.
Its rate is measured on the first `--loop-images` of the images; the modules are timed in it (the paper's Table 13).

`--memory` compares the largest memory of two processes that class few and many images; there the tiny random backbone is
used, because the number of images is what matters, not the network.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import torch
from common import machine, peak_mb, positive, print_table

from anomalyncd.assign.false_alarms import NEAR
from anomalyncd.binarize.mebin import choose_run, thresholds
from anomalyncd.binarize.prepare import prepare_map
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.data.gather import gather
from anomalyncd.data.images import read_image
from anomalyncd.demo import make_line
from anomalyncd.discovery.classify import Prediction, joined
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.grid import kept_patches, patch_means, top_mean
from anomalyncd.learn.features import focused, map_weights, unit, weighted_mean
from anomalyncd.learn.views import dihedral
from anomalyncd.progress import Terminal
from anomalyncd.regions.extract import CUT_RATE, Extracted, shrink, shrink_map, solid
from anomalyncd.regions.find import cut, cut_map, find_regions
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run.detector import read_detector

ENGINES = ("local", "local-bf16", "onnx", "openvino", "openvino-bf16", "openvino-int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=positive, default=1000)
    parser.add_argument("--loop-images", type=positive, default=200)
    parser.add_argument("--detector", action="store_true", help="maps by PatchCore instead of the demo's own")
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--backbone", help="as for discover")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="keep images and run here; a temporary folder by default")
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--few", type=positive, default=200)
    parser.add_argument("--many", type=positive, default=2000)
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        if options.child:
            predict_only(work, options.child)
        elif options.memory:
            memory(work, options.few, options.many)
        else:
            throughput(options, work)


def throughput(options: argparse.Namespace, work: Path) -> None:
    print(machine(), flush=True)
    run = fitted(work, options.detector, options.backbone, options.seed)
    inputs = new_images(work, options.images, options.seed + 1, options.detector)
    model = AnomalyNCD.load(run)
    print(
        f"demo line, seed {options.seed}; {len(inputs)} new images of 320 × 320, seed {options.seed + 1}; maps "
        f"{'by PatchCore' if options.detector else 'of the demo'}; backbone {model.model_.config.model.backbone}\n"
    )
    loop_items = inputs.samples[:: max(1, len(inputs) // options.loop_images)][: options.loop_images]
    clock = Clock()
    plain = straightforward(model, run, loop_items, clock)
    rate = len(loop_items) / clock.total
    print_table(
        ["module of the loop", "ms an image"],
        [[name, f"{1000 * value / len(loop_items):.1f}"] for name, value in clock.seconds.items()],
    )
    print()
    rows = [["loop, one image after the other", f"{len(loop_items)}", f"{rate:.2f}", "1.00", "–", "–"]]
    reference: Prediction | None = None
    for engine in options.engines:
        try:
            predict = make_engine(engine, run, inputs)
        except Exception as error:  # an engine that is not installed is a row that says so
            rows.append([engine, "–", "–", "–", "–", str(error).splitlines()[0][:60]])
            continue
        predict(Dataset(inputs.samples[:2]))
        started = time.perf_counter()
        found = predict(inputs)
        seconds = time.perf_counter() - started
        reference = reference or found
        equal = float((found.labels == reference.labels).mean())
        largest = float(np.abs(found.probabilities - reference.probabilities).max())
        speed = len(inputs) / seconds
        rows.append([engine, f"{len(inputs)}", f"{speed:.2f}", f"{speed / rate:.2f}", f"{equal:.2%}", f"{largest:.1e}"])
        if engine == options.engines[0]:
            of_loop = dict(zip(found.images["image"], found.labels, strict=True))
            same = np.mean([of_loop[name] == label for name, label in plain.items()])
            print(f"classes of the loop that are those of {engine}: {same:.2%}\n", flush=True)
    first = f"labels as {options.engines[0]}"
    print_table(["engine", "images", "images/s", "times the loop", first, "largest difference of p"], rows)


def make_engine(name: str, run: Path, inputs: Dataset) -> Callable[[Dataset], Prediction]:
    """What classes images, ready to run."""
    kind, _, precision = name.partition("-")
    if kind == "local":
        model = AnomalyNCD.load(run)
        if precision:
            model.model_.config = model.model_.config.model_copy(update={"precision": "bfloat16"})
        predictor = model.predictor(bare=inputs.is_bare)
        return lambda some: predictor(some)
    from anomalyncd.export.networks import export_networks
    from anomalyncd.runtime import Runtime

    folder = run.parent / f"export-{name}"
    if not folder.exists() or folder.stat().st_mtime < (run / "model.safetensors").stat().st_mtime:
        export_networks(run, kind, folder, int8=precision == "int8")
    runtime = Runtime(folder, precision="bfloat16" if precision == "bf16" else "float32")
    return lambda some: joined(list(runtime.stream(some)))


def fitted(work: Path, detector: bool, backbone: str | None, seed: int) -> Path:
    """A run on the demo line."""
    line, run = work / "line", work / ("run-patchcore" if detector else "run")
    make_line(line, seed=seed)
    model = AnomalyNCD(7, random_state=seed, backbone=backbone, progress=Terminal())
    if detector:
        inputs = gather(line / "images", exclude=("combined",), bare=True)
        make_line(work / "normal", n_per_class=1, n_normal=40, n_combined=0, kinds=["hole"], seed=seed + 100)
        model.fit(inputs, detector="patchcore", normal=work / "normal" / "images" / "good", run=run)
    else:
        model.fit(gather(line / "images", maps=line / "maps", exclude=("combined",)), run=run)
    return run


def new_images(work: Path, count: int, seed: int, detected: bool) -> Dataset:
    """Images of the same line, in the demo's own proportions: 16 of each of six kinds, 24 without a defect."""
    each = -(-count // 120)
    line = make_line(work / f"new-{each}", n_per_class=16 * each, n_normal=24 * each, n_combined=0, seed=seed)
    inputs = gather(line / "images", maps=None if detected else line / "maps", bare=detected)
    places = np.linspace(0, len(inputs) - 1, count).astype(int)
    return Dataset([inputs.samples[place] for place in places])


class Clock:
    """Seconds of each module."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - started


@torch.inference_mode()
def straightforward(model: AnomalyNCD, run: Path, items: list[Sample], clock: Clock) -> dict[str, int]:
    """The method as it is written, one thing after the other: id → label."""
    fitted, config = model.model_, model.model_.config
    vit, features, size = fitted.vit(), model.model_.config.features, model.model_.config.model.input_size
    detector = read_detector(run, config) if config.detect.name else None
    blocks, image_size = fitted.extractor().encoder.blocks, config.model.image_size
    grid = (size // vit.patch_size[0], size // vit.patch_size[1])
    labels: dict[str, int] = {}

    def tokens(picture: np.ndarray) -> np.ndarray:
        tensor = torch.from_numpy(np.ascontiguousarray(picture[None])).permute(0, 3, 1, 2)
        every = vit.block_tokens(tensor, range(vit.n_blocks))  # the whole network, as forward_intermediates runs it
        return np.stack([every[block][:, vit.n_prefix :].numpy() for block in blocks], axis=1)

    def weights(mask: np.ndarray, scores: np.ndarray) -> np.ndarray:
        keep = kept_patches(mask[None], grid, threshold=vit.mask_threshold, keep_thin=vit.keep_thin)
        keep |= ~keep.any(axis=1, keepdims=True)
        return focused(keep, patch_means(scores[None], grid), features.focus)

    for warm in (True, False):
        for item in items[:1] if warm else items:
            with clock("warm" if warm else "reading"):
                image = read_image(item.image)
            with clock("warm" if warm else "anomaly map"):
                values = next(iter(detector.maps([image]))) if detector else item.map
                values = prepare_map(values, config.binarize.min_map_size)
            with clock("warm" if warm else "binarisation"):
                mask, scores = sweep(fitted, values)
            with clock("warm" if warm else "crops"):
                found, components = find_regions(mask, image.shape[:2], scores=scores)
                cuts = [cut(image, components, region, config.crop.size) for region in found]
            with clock("warm" if warm else "network"):
                parts: dict[str, list[np.ndarray]] = {name: [] for name in ("patches", "image")}
                for region, (crop, crop_mask) in zip(found, cuts, strict=True):
                    near = cut_map(values, image.shape[:2], region.square, config.crop.size)
                    whole, far = shrink(image, image_size), shrink_map(values, image_size)
                    views = defaultdict(list)
                    for view in range(features.views):
                        turned = [dihedral(p[None], view)[0] for p in (crop, crop_mask, near, whole, far)]
                        views["patches"].append(weighted_mean(tokens(turned[0]), weights(turned[1], turned[2])))
                        sides = (image_size // vit.patch_size[0], image_size // vit.patch_size[1])
                        share = map_weights(patch_means(turned[4][None], sides))
                        views["image"].append(weighted_mean(tokens(turned[3]), share))
                    for name, vectors in views.items():
                        parts[name].append(np.stack([unit(v[0]) for v in vectors]))
            with clock("warm" if warm else "classes"):
                records = [replace(region, image=item.id, region=number) for number, region in enumerate(found)]
                out = Extracted(
                    [ImageRecord(0, item.id, *image.shape[:2], n_regions=len(found), score=top_mean(values))], records
                )
                out.parts = {name: np.stack(rows).astype(np.float16) for name, rows in parts.items() if rows}
                labels[item.id] = int(model_labels(model, out)[0])
        clock.seconds.pop("warm", None)
    return labels


def model_labels(model: AnomalyNCD, found: Extracted) -> np.ndarray:
    from anomalyncd.discovery.classify import Predictor

    return Predictor(model.model_, None).classify(found).labels  # type: ignore[arg-type]


def sweep(fitted, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Main Element Binarization as it is defined: each threshold's mask eroded and its components counted."""
    binarizer, config = fitted.binarizer, fitted.config.binarize
    scores = np.clip((values - binarizer.low_) / (binarizer.high_ - binarizer.low_), 0, 1).astype(np.float32)
    square = np.ones((config.erosion, config.erosion), np.uint8)
    masks = [cv2.erode((scores * 255 >= t).astype(np.uint8), square) for t in thresholds(config.n_thresholds)]
    counts = np.array([cv2.connectedComponents(mask, connectivity=8)[0] - 1 for mask in masks])
    run = choose_run(counts, config.min_interval, config.rule)
    if run is not None:
        return masks[run.last] > 0, scores
    normal, score = fitted.false_alarms and fitted.false_alarms.scores, top_mean(values)
    if normal is not None and float(normal.probability(score)) < NEAR:
        cut_out = values >= min(normal.level(CUT_RATE), score)
        return kept if (kept := solid(cut_out, config.erosion)).any() else cut_out, scores
    return np.zeros(values.shape, bool), scores


def memory(work: Path, few: int, many: int) -> None:
    """Largest memory with few and with many images, a process each."""
    print(machine(), "\ntiny random backbone", flush=True)
    fitted(work, False, "tiny", 0)
    rows = []
    for count in (few, many):
        new_images(work, count, 1, False)
        command = [sys.executable, __file__, "--child", str(count), "--work", str(work)]
        rows.append([str(count), subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()])
    print_table(["images", "largest memory, MB"], rows)
    print(f"growth: {float(rows[1][1]) - float(rows[0][1]):.0f} MB")


def predict_only(work: Path, count: int) -> None:
    inputs = new_images(work, count, 1, False)
    model = AnomalyNCD.load(work / "run")
    for _ in model.predictor(bare=inputs.is_bare).stream(inputs):
        pass
    print(f"{peak_mb():.0f}")


if __name__ == "__main__":
    main()
