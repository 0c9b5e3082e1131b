"""Classes from ground-truth masks: our default against clusters of frozen features on the same crops, and the time it takes.

    python benchmarks/discover.py DATA/hazelnut DATA/mtd [--base DATA/steel_base] [--seeds 3] [--paper-epochs 2]

Each DATA folder has MVTec AD's layout. Folder names are only used for scoring, and for the number of classes asked for.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from common import machine

from anomalyncd.config import make_config
from anomalyncd.data import load_dataset
from anomalyncd.discovery.results import assign
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.learn.bank import Crops, Views
from anomalyncd.learn.cluster import kmeans, ward
from anomalyncd.learn.features import FeatureSpace, RegionEncoder
from anomalyncd.learn.network import RegionNet
from anomalyncd.learn.trainer import train
from anomalyncd.metrics import evaluate
from anomalyncd.progress import Terminal
from anomalyncd.regions.network import make_vit
from anomalyncd.run.folder import RunFolder
from anomalyncd.run.store import RegionStore

PAPER = {"mtd": "0.829/0.863/0.841"}  # the paper's Table 14, ground-truth masks, ViT-B/8, AeBAD-S as base set


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--base", type=Path, help="labelled base set; none by default")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--paper-epochs", type=int, default=2, help="epochs of the paper's way that are timed, 0 = none"
    )
    parser.add_argument(
        "--work", type=Path, help="keep the runs here (they are resumed); a temporary folder by default"
    )
    options = parser.parse_args()

    print(machine())
    print(f"seeds 0–{options.seeds - 1}, base set: {options.base or 'none'}")
    print("NMI/ARI/F1 at image level, normal counted, mean ± standard deviation over seeds; ground-truth masks.\n")
    with tempfile.TemporaryDirectory() as temporary:
        for data in options.data:
            work = (options.work or Path(temporary)) / data.name
            one_data_set(data, options, work)


def one_data_set(data: Path, options: argparse.Namespace, work: Path) -> None:
    dataset = load_dataset(data / "test", masks=data / "ground_truth")
    n_classes = len(set(dataset.labels))
    print(
        f"## {data.name}: {len(dataset)} images, {dataset.n_without_mask} without mask file, {n_classes} classes asked for"
    )
    progress = Terminal()
    scores: dict[str, list[tuple[float, float, float]]] = {}
    seconds: list[dict[str, float]] = []
    for seed in range(options.seeds):
        model = AnomalyNCD(n_classes, random_state=seed, progress=progress)
        model.fit(data / "test", masks=data / "ground_truth", base=options.base, run=work)
        seconds.append(model.seconds_)
        truth = model.images_["true_label"]
        scores.setdefault("default, trained", []).append(score(truth, model.labels_))
        store = RegionStore(RunFolder(work)).read()
        for name, features in frozen_features(store, model).items():
            for method, labels in (
                ("k-means", kmeans(features, n_classes - 1, seed)),
                ("Ward", ward(features, n_classes - 1)),
            ):
                one_hot = np.eye(n_classes)[labels + 1]
                result = assign(store.images, store.regions, one_hot, model.model_)
                scores.setdefault(f"frozen {name}, {method}", []).append(score(truth, result.labels))
    print(f"| {'method':42s} | NMI           | ARI           | F1            |\n|---|---|---|---|")
    for name, values in sorted(scores.items(), key=lambda item: item[0]):
        cells = (f"{m:.3f} ± {s:.3f}" for m, s in zip(np.mean(values, axis=0), np.std(values, axis=0), strict=True))
        print(f"| {name:42s} | {' | '.join(cells)} |")
    print(f"| {'paper (its Table 14, its own base set)':42s} | {PAPER.get(data.name, 'not printed there')} |||")
    first = seconds[0]
    ours = first.get("regions", 0) + first.get("base set", 0) + first["learning"]
    print(f"\nlearning with all tokens, seed 0: {ours:.1f} s ({', '.join(f'{k} {v:.1f}' for k, v in first.items())})")
    if options.paper_epochs and first.get("regions", 0) > 1:
        theirs = paper_seconds(store, n_classes, options.paper_epochs)
        print(f"the paper's way (fresh views, full last block): {theirs:.1f} s for its 50 epochs, scaled from ", end="")
        print(f"{options.paper_epochs}, {len(store.regions)} crops, no base set; ratio {ours / theirs:.3f}")
    elif options.paper_epochs:
        print("not compared with the paper's way: the regions were there from an earlier run")
    print()


_class_tokens: dict[Path, np.ndarray] = {}


def frozen_features(store: RegionStore, model: AnomalyNCD) -> dict[str, np.ndarray]:
    """The default features, and the mask-guided class token of one view, which the paper's network starts from."""
    config = model.model_.config
    space = FeatureSpace(config.features.weights()).fit(store.parts, center=config.features.center)
    if store.run.path not in _class_tokens:
        only_token = make_config(preset="paper").features
        encoder = RegionEncoder(model.model_.vit(), only_token, input_size=config.model.input_size)
        pairs = [store.crop(i) for i in range(len(store.regions))]
        crops, masks = (np.stack(pictures) for pictures in zip(*pairs, strict=True))
        _class_tokens[store.run.path] = encoder.encode_crops(crops, masks)["class_token"][:, 0, 0].astype(np.float32)
    return {"default features": space.transform(store.parts), "class token": _class_tokens[store.run.path]}


def paper_seconds(store: RegionStore, n_classes: int, epochs: int) -> float:
    """Time of 50 epochs of the paper's training, done the plain way: the trunk and the whole last block for each view."""
    config = make_config({"n_classes": n_classes, "learn": {"epochs": epochs}}, preset="paper")
    vit = make_vit(config)
    last = vit.vit.blocks[-1]
    vit.class_token = lambda tokens, keep: vit.vit.norm(  # type: ignore[method-assign]
        last(tokens, attn_mask=vit.attention_mask(keep, vit.n_blocks - 1))
    )[:, 0]
    net = RegionNet(vit.width, n_classes, config.learn.n_heads, vit=vit)
    count = len(store.regions)
    views = Views(vit.mean.device, fresh=(vit, Crops(store.crop, count, vit.fit_size(config.model.input_size))))
    started = time.perf_counter()
    train(net, views, np.full(count, -1), np.ones(count, np.float32), config.learn, seed=0, normal=0)
    return (time.perf_counter() - started) / epochs * 50


def score(truth: object, labels: object) -> tuple[float, float, float]:
    found = evaluate(truth, labels)  # type: ignore[arg-type]
    return found.nmi, found.ari, found.f1


if __name__ == "__main__":
    main()
