"""The paper's Table 3 on maps of our own: fixed thresholds and Otsu against MEBin, by boxes and by discovered classes.

    python benchmarks/binarize.py DATA/hazelnut DATA/mtd [--detectors patchcore musc] [--work RUNS] [--boxes-only]
        [--views 1] [--precision bfloat16]

Each DATA folder has MVTec AD's layout. Folder names and masks are only used for scoring, and for the number of classes
asked for. Maps are made once for each detector, or taken from benchmarks/detect.py where both have the same --work.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from common import cell, machine, positive, print_table, seeds_up_to
from timed_maps import TimedMaps, maps_of

from anomalyncd.bench.binarizers import draw_binarizers
from anomalyncd.binarize.prepare import binarize_map, binarizer_for, fit_binarizer, prepare_map
from anomalyncd.config import BinarizeConfig
from anomalyncd.data.maps import read_mask
from anomalyncd.errors import AnomalyNCDError
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.metrics import BoxRates, box_rates, evaluate
from anomalyncd.progress import Silent, Terminal

IOU = 0.1  # the paper's: what overlaps more is found
COLUMNS = ("binariser", "box FPR", "box FNR", "boxes", "NMI", "ARI", "F1")
PAPER = {  # its Table 3: FPR, FNR, NMI, ARI, F1
    "fixed 0.1": (0.572, 0.617, 0.554, 0.482, 0.650),
    "fixed 0.3": (0.678, 0.742, 0.499, 0.404, 0.587),
    "fixed 0.5": (0.484, 0.165, 0.567, 0.458, 0.640),
    "fixed 0.7": (0.269, 0.247, 0.495, 0.395, 0.623),
    "fixed 0.9": (0.544, 0.593, 0.077, 0.013, 0.337),
    "Otsu": (0.676, 0.525, 0.382, 0.268, 0.499),
    "MEBin": (0.153, 0.035, 0.613, 0.526, 0.712),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--detectors", nargs="+", default=["patchcore", "musc"])
    parser.add_argument("--thresholds", nargs="+", type=float, default=[0.1, 0.3, 0.5, 0.7, 0.9], help="of 0 … 1")
    parser.add_argument("--seeds", type=positive, default=1, help="of the discovery; the maps are those of seed 0")
    parser.add_argument("--backbone", default="auto")
    parser.add_argument("--views", type=positive, help="of each region; fewer take less time, in every row alike")
    parser.add_argument("--precision", default="auto", help="of the discovery's network, as for discover")
    parser.add_argument("--limit", type=positive, help="at most this many test images, evenly spread")
    parser.add_argument("--limit-normal", type=positive, help="at most this many normal images, evenly spread")
    parser.add_argument("--boxes-only", action="store_true", help="discover no classes, which takes most of the time")
    parser.add_argument(
        "--work", type=Path, help="keep maps, runs and pictures here (they are resumed); temporary by default"
    )
    options = parser.parse_args()
    methods = {
        **{f"fixed {t:g}": BinarizeConfig(method="fixed", fixed_threshold=t) for t in options.thresholds},
        "Otsu": BinarizeConfig(method="otsu"),
        "MEBin": BinarizeConfig(method="mebin"),
    }
    print(machine())
    print(f"maps of seed 0, discovery of {seeds_up_to(options.seeds)}, ", end="")
    print(f"backbone {options.backbone}, no base set, default settings but for the binariser", end="")
    print(f", views {options.views or 'as by default'}, precision {options.precision}.")
    print(
        f"Box FPR: predicted boxes with no true one at an IoU above {IOU}; box FNR: true boxes with no predicted one; ",
        end="",
    )
    print(
        "of all boxes of the set. Fixed thresholds are on the range of all maps. NMI, ARI, F1: of images, normal counted."
    )
    print("Rows of the paper: its Table 3, means over the 15 products of MVTec AD with its own base set; ", end="")
    print("the maps are MuSc's, as the same figures in its Table 1 tell.\n", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        for data in options.data:
            for detector in options.detectors:
                one_set_of_maps(data, detector, methods, options, options.work or Path(temporary))


def one_set_of_maps(
    data: Path, detector: str, methods: dict[str, BinarizeConfig], options: argparse.Namespace, work: Path
) -> None:
    progress = Terminal()
    progress.say(f"{data.name}, {detector}")
    limits = {"limit": options.limit, "limit_normal": options.limit_normal}
    try:
        made = maps_of(data, detector, work, backbone=options.backbone, **limits)
    except AnomalyNCDError as error:
        print(f"## {data.name}, {detector}: not measured. {error}\n")
        return
    classes = sorted(set(made.inputs.truth.values()))
    rows, notes = [], []
    run = made.folder
    for name, method in methods.items():
        progress.say(f"{data.name}, {detector}, {name}")
        boxes = rates(made, method)
        run = made.folder / "discovered" / name.replace(" ", "-")
        scores: list[tuple[float, ...]] = []
        if not options.boxes_only:
            try:
                scores = [
                    discover(made, method, len(classes), seed, options, run, progress) for seed in range(options.seeds)
                ]
            except AnomalyNCDError as error:
                notes.append(f"{name}: no classes. {error}")
        cells = [cell([score[place] for score in scores]) for place in range(3)]
        rows.append([name, cell([boxes.fpr]), cell([boxes.fnr]), str(boxes.n_predicted), *cells])
    for name, (fpr, fnr, *scores_) in PAPER.items():
        rows.append([f"paper: {name}", f"{fpr:.3f}", f"{fnr:.3f}", "–", *(f"{score:.3f}" for score in scores_)])
    weights = ", random weights: no comparison" if made.random_weights else ""
    print(f"## {data.name}, {detector}{weights}: {len(made.items)} images, {boxes.n_true} true boxes, ", end="")
    print(f"{len(classes)} classes asked for ({', '.join(classes)})\n")
    print_table(COLUMNS, rows)
    if options.work and not options.boxes_only:
        notes.append(f"picture: {picture(made, run)}")
    print("\n" + "".join(f"- {note}\n" for note in notes), flush=True)


def rates(made: TimedMaps, method: BinarizeConfig) -> BoxRates:
    """Boxes of the binarised maps against boxes of the true masks."""
    binarizer = fit_binarizer(binarizer_for(method, has_normal=True), made.items, method.min_map_size)
    masks = {sample.id: sample.mask for sample in made.truth}
    true = (None if (mask := masks[item.id]) is None else read_mask(mask) for item in made.items)
    found = (binarize_map(binarizer, prepare_map(item.map, method.min_map_size))[0].mask for item in made.items)  # type: ignore[arg-type]
    return box_rates(found, true, iou=IOU)


def discover(
    made: TimedMaps,
    method: BinarizeConfig,
    n_classes: int,
    seed: int,
    options: argparse.Namespace,
    run: Path,
    progress: Silent,
) -> tuple[float, float, float]:
    """NMI, ARI and F1 of the classes that are found with this binariser."""
    settings = {"binarize": method.model_dump(), "precision": options.precision}
    if options.views:
        settings["features"] = {"views": options.views}
    model = AnomalyNCD(n_classes, random_state=seed, backbone=options.backbone, progress=progress, **settings)
    model.fit(made.inputs, run=run)
    found = evaluate(model.images_["true_label"].tolist(), model.labels_.tolist())
    return found.nmi, found.ari, found.f1


def picture(made: TimedMaps, run: Path) -> Path | None:
    """Binarisers side by side on a few images, with true masks."""
    masks = {sample.id: sample.mask for sample in made.truth}
    return draw_binarizers(run, [replace(item, mask=masks[item.id]) for item in made.items])


if __name__ == "__main__":
    main()
