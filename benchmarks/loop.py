"""The engineer's loop: an unknown number of classes, a kind of defect that was not there, and new images.

    python benchmarks/loop.py DATA/hazelnut DATA/mtd [--maps hazelnut=DIR] [--limit 40] [--work DIR] [--skip held-out]

Each DATA folder has MVTec AD's layout. Folder names are only used for scoring, and to choose what is held out.

For each data set, with ground-truth masks and with the maps that were given: the number of classes that `auto` finds, and
the F1 with it beside that with the true number. Then each class of defect in turn is held out: a run is made of half of
the other images, the rest is predicted (AUROC of the unknown score, held-out against known regions), and taken in by
`update` (share of the held-out kind in the new class that has most of it).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
from common import machine
from sklearn.metrics import roc_auc_score

from anomalyncd.data import NORMAL_NAMES, load_dataset
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.metrics import evaluate
from anomalyncd.progress import Terminal
from anomalyncd.run.folder import COUNT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--maps", action="append", default=[], help="NAME=DIR of anomaly maps; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0, help="images of each class in the held-out part, 0 = all")
    parser.add_argument("--work", type=Path, help="keep the runs here; a temporary folder by default")
    parser.add_argument("--skip", choices=("auto", "held-out"), help="a part to leave out")
    options = parser.parse_args()
    maps = dict(text.split("=", 1) for text in options.maps)
    print(machine(), f"\nseed {options.seed}, default recipe", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        for data in options.data:
            if options.skip != "auto":
                auto(data, None, options.seed, work / f"{data.name}-masks")
                if data.name in maps:
                    auto(data, Path(maps[data.name]), options.seed, work / f"{data.name}-maps")
            if options.skip != "held-out":
                held_out(data, options.limit, options.seed, work / f"{data.name}-held-out")


def auto(data: Path, maps: Path | None, seed: int, run: Path) -> None:
    """`auto` beside the true number, on the same regions."""
    given = {"maps": maps} if maps else {"masks": data / "ground_truth"}
    samples = load_dataset(data / "test", exclude=("combined",), **given).samples
    inputs = Dataset([Sample(s.id, s.image, s.map, s.mask) for s in samples])
    truth = [str(s.label) for s in samples]
    progress = Terminal(bars=False)
    scores = {}
    for n_classes in (len(set(truth)), "auto"):
        started = time.perf_counter()
        model = AnomalyNCD(n_classes, random_state=seed, progress=progress).fit(inputs, run=run)
        found = evaluate(truth, model.labels_)
        scores[n_classes] = f"{found.nmi:.3f}/{found.ari:.3f}/{found.f1:.3f}"
        seconds = time.perf_counter() - started
    count = json.loads((run / COUNT).read_text())
    print(
        f"{data.name}, {'maps' if maps else 'masks'}: {len(set(truth)) - 1} kinds of defect, auto {count['count']} "
        f"({count['low']}–{count['high']}); NMI/ARI/F1 with the true number {scores[len(set(truth))]}, with auto "
        f"{scores['auto']}; {seconds:.0f} s for auto",
        flush=True,
    )


def held_out(data: Path, limit: int, seed: int, work: Path) -> None:
    """Each class of defect in turn as one that was not there."""
    samples = list(load_dataset(data / "test", masks=data / "ground_truth", exclude=("combined",)).samples)
    rng = np.random.default_rng(seed)
    samples = [samples[i] for i in rng.permutation(len(samples))]
    labels = sorted({str(s.label) for s in samples})
    if limit:
        samples = [s for label in labels for s in [s for s in samples if s.label == label][:limit]]
    kinds = [label for label in labels if label.lower() not in NORMAL_NAMES]
    rows = []
    for kind in kinds:
        others = [s for s in samples if s.label != kind]
        fitted, later = others[::2], others[1::2] + [s for s in samples if s.label == kind]
        model = AnomalyNCD(len(labels) - 1, random_state=seed, progress=Terminal(bars=False))
        model.fit(as_inputs(fitted), run=work / kind)
        truth = {s.id: s.label for s in samples}
        regions = model.predict(as_inputs(later)).regions
        is_new = np.array([truth[name] == kind for name in regions["image"]])
        auroc = roc_auc_score(is_new, regions["unknown"])
        recall, false = (regions["label"][is_new] < 0).mean(), (regions["label"][~is_new] < 0).mean()
        change = model.update(as_inputs(later))
        after = model.regions_
        of_kind = after["image"].map(truth) == kind
        opened = {k: (after["label"] == k).to_numpy() for k in change.opened}
        main_class = max(opened, key=lambda k: int(of_kind[opened[k]].sum()), default=None)
        purity = of_kind[opened[main_class]].mean() if main_class is not None else 0.0
        share = of_kind[opened[main_class]].sum() / of_kind.sum() if main_class is not None else 0.0
        rows.append((auroc, recall, false, len(opened), purity, share))
        print(
            f"{data.name} without {kind}: AUROC {auroc:.3f}; called unknown {recall:.2f} of it and {false:.2f} of the "
            f"others; update opens {len(opened)}, purity {purity:.2f} with {share:.2f} of the kind",
            flush=True,
        )
    mean = np.mean(rows, axis=0)
    print(
        f"{data.name}, mean of {len(kinds)}: AUROC {mean[0]:.3f}, purity {mean[4]:.2f}, share {mean[5]:.2f}", flush=True
    )


def as_inputs(samples: list[Sample]) -> Dataset:
    return Dataset([Sample(s.id, s.image, mask=s.mask) for s in samples])


if __name__ == "__main__":
    main()
