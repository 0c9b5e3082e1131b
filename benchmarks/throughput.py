"""How many images a second: `predict` and its engines beside the loop that one would write from the paper.

    python benchmarks/throughput.py [--images 1000] [--loop-images 200] [--detector] [--engines local …] [--work DIR]
    python benchmarks/throughput.py --run RUN --folder IMAGES [--images 24] [--loop-images 12] [--anomalib]
    python benchmarks/throughput.py --memory [--few 200] [--many 2000]

The images are those of the demo line (`anomalyncd demo`), another seed than the run was made of. The loop takes one image
after the other: it reads it, sweeps the thresholds one by one, cuts the regions out, and sends every region in every view
through the whole network, crop and whole image, as the method is written. It gives the same classes, which is checked.
Its rate is measured on the first `--loop-images` of the images; the modules are timed in it (the paper's Table 13).

Seconds are those of the processor, of all threads together, so that others at work on the machine change them little.
Before the images, a product of matrices says what the processor can do at most, in float32 and bfloat16, and which share of
that the network reaches. Where the run's own detector makes the maps, the stages of `predict` are timed in a pass of their
own, and `--anomalib` adds PatchCore of anomalib: one pass of the network an image too, of WideResNet-50-2 at 256 pixels,
which costs as much as the embedded backbone at 336, with random weights and 10,000 random rows as its bank.

`--run` takes a run that is there, made with a detector, and `--folder` new images of its product, evenly spread.

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
from common import evenly, machine, peak_mb, positive, print_table

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
from anomalyncd.model.backbone import MaskGuidedViT
from anomalyncd.progress import Terminal
from anomalyncd.regions.extract import CUT_RATE, Extracted, shrink, shrink_map, solid
from anomalyncd.regions.find import Region, cut, cut_map, find_regions
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
    parser.add_argument("--run", type=Path, help="a finished run, instead of one on the demo line")
    parser.add_argument("--folder", type=Path, help="with --run: images to class")
    parser.add_argument("--anomalib", action="store_true", help="anomalib's PatchCore beside it")
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
    if options.run:
        run, every = options.run, gather(options.folder, bare=True)
        inputs = Dataset(evenly(every.samples, options.images))
        what = f"{run.name}; {len(inputs)} images of {options.folder.parent.name}/{options.folder.name}"
    else:
        run = fitted(work, options.detector, options.backbone, options.seed)
        inputs = new_images(work, options.images, options.seed + 1, options.detector)
        what = f"demo line, seed {options.seed}; {len(inputs)} new images of 320 × 320, seed {options.seed + 1}"
    model = AnomalyNCD.load(run)
    maps = f"by {model.model_.config.detect.name}" if inputs.is_bare else "of the demo"
    print(f"{what}; maps {maps}; backbone {model.model_.config.model.backbone}\n", flush=True)
    shares(model)
    if inputs.is_bare:
        stages(model, inputs)
    if options.anomalib:
        beside_anomalib(inputs.samples)
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
        started = time.process_time()
        found = predict(inputs)
        seconds = time.process_time() - started
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
    print_table(["engine", "images", "images/s of one core", "times the loop", first, "largest difference of p"], rows)


def gflops(work: float, do: Callable[[], object]) -> float:
    """Billions of operations a second of the processor, the best of three."""
    do()
    took = []
    for _ in range(3):
        started = time.process_time()
        do()
        took.append(time.process_time() - started)
    return work / min(took) / 1e9


def shares(model: AnomalyNCD) -> None:
    """What the processor can do at most, and the share of it that the network reaches with a batch of eight."""
    vit, config = model.model_.vit(), model.model_.config
    width, depth, patch = vit.width, vit.n_blocks, vit.patch_size[0]
    hidden = vit.vit.blocks[0].mlp.fc1.out_features
    rows = []
    for kind in (torch.float32, torch.bfloat16):
        square = torch.ones(2048, 2048, dtype=kind)
        peak = gflops(2 * 2048**3, lambda square=square: square @ square)
        for side in (config.model.image_size, config.model.input_size):
            n = (side // patch) ** 2 + vit.n_prefix
            linear = 2 * n * width * (4 * width + 2 * hidden)
            work = depth * (linear + 4 * n * n * width) + 2 * n * width * 3 * patch**2
            pictures = np.random.default_rng(0).integers(0, 256, (8, side, side, 3), dtype=np.uint8)
            vit.precision = str(kind).removeprefix("torch.")
            reached = gflops(8 * work, lambda pictures=pictures: vit.patches(pictures, [depth - 1]))
            ms = f"{work / reached / 1e6:.0f}"
            rows.append([vit.precision, f"{side}", f"{peak:.0f}", f"{reached:.0f}", f"{reached / peak:.0%}", ms])
    vit.precision = config.precision
    columns = ["precision", "pixels", "product of matrices, GFLOP/s", "network, GFLOP/s", "share", "ms an image"]
    print_table(columns, rows)
    print(flush=True)


def stages(model: AnomalyNCD, inputs: Dataset) -> None:
    """Milliseconds of each stage of `predict`, one after the other."""
    predictor, clock = model.predictor(bare=True), Clock()
    predictor(Dataset(inputs.samples[:1]))  # whatever is made on first use is not counted
    detector, extractor = predictor.detector, predictor.extractor
    bank = getattr(detector, "memory", None)
    timed(detector, "_tokens", clock, "network: whole image")
    if hasattr(bank, "nearest"):
        timed(bank, "nearest", clock, "search in the bank")
    timed(extractor, "prepare", clock, "binarisation and crops")
    timed(extractor, "encode", clock, "network: crops, and the description")
    timed(predictor, "classify", clock, "classes")
    started = time.process_time()
    predictor(Dataset(inputs.samples))
    rest = time.process_time() - started - clock.total
    rows = [[name, f"{1000 * value / len(inputs):.1f}"] for name, value in clock.seconds.items()]
    print_table(
        ["stage of predict", "ms an image"], [*rows, ["reading, maps and all else", f"{1000 * rest / len(inputs):.1f}"]]
    )
    print(flush=True)


def timed(owner: object, name: str, clock: Clock, stage: str) -> None:
    """Let a method of an object be timed, by the seconds of its own thread."""
    method = getattr(owner, name)

    def timing(*given: object, **named: object) -> object:
        started = time.thread_time()
        found = method(*given, **named)
        clock.seconds[stage] += time.thread_time() - started
        return found

    setattr(owner, name, timing)


def beside_anomalib(samples: list[Sample]) -> None:
    """anomalib's PatchCore on the same images, one pass each."""
    from anomalib.models.image.patchcore.torch_model import PatchcoreModel

    model = PatchcoreModel(layers=["layer2", "layer3"], backbone="wide_resnet50_2", pre_trained=False).eval()
    width = 512 + 1024  # channels of the two layers
    model.memory_bank = torch.rand(10_000, width, generator=torch.Generator().manual_seed(0))
    began = None
    for item in [samples[0], *samples]:
        image = cv2.resize(read_image(item.image), (256, 256), interpolation=cv2.INTER_AREA)
        with torch.inference_mode():
            model(torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255)
        began = began or time.process_time()
    ms = 1000 * (time.process_time() - began) / len(samples)
    print(f"PatchCore of anomalib, maps and scores alone: {ms:.0f} ms an image\n", flush=True)


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
        started = time.process_time()
        yield
        self.seconds[name] += time.process_time() - started


@torch.inference_mode()
def straightforward(model: AnomalyNCD, run: Path, items: list[Sample], clock: Clock) -> dict[str, int]:
    """The method as it is written, one thing after the other: id → label."""
    fitted, config = model.model_, model.model_.config
    vit, features, size = fitted.vit(), model.model_.config.features, model.model_.config.model.input_size
    detector = read_detector(run, config) if config.detect.name else None
    blocks, image_size = fitted.extractor().encoder.blocks, config.model.image_size
    grid = (size // vit.patch_size[0], size // vit.patch_size[1])
    sides = (image_size // vit.patch_size[0], image_size // vit.patch_size[1])
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
                    other = of_others(components, region, sides, image_size, vit)
                    views = defaultdict(list)
                    for view in range(features.views):
                        turned = [dihedral(p[None], view)[0] for p in (crop, crop_mask, near, whole, far)]
                        views["patches"].append(weighted_mean(tokens(turned[0]), weights(turned[1], turned[2])))
                        share = map_weights(
                            patch_means(turned[4][None], sides), ~dihedral(other[None], view).reshape(1, -1)
                        )
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


def of_others(
    components: np.ndarray, region: Region, sides: tuple[int, int], size: int, vit: MaskGuidedViT
) -> np.ndarray:
    """(h, w) bool: patches of the image's other regions, and those beside them, but none of its own."""
    own, others = (
        kept_patches(
            shrink_map(mask, size)[None], sides, threshold=vit.mask_threshold, keep_thin=vit.keep_thin
        ).reshape(sides)
        for mask in (np.isin(components, region.labels), (components > 0) & ~np.isin(components, region.labels))
    )  # fmt: skip
    around = cv2.dilate((others & ~own).astype(np.uint8), np.ones((3, 3), np.uint8)) > 0
    around &= ~own
    return around if not around.all() else np.zeros_like(around)


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
