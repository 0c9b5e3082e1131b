"""A person who corrects what is suggested next: F1 against the number of actions.

    python benchmarks/actions.py RUN … [--actions 20] [--at-once 5] [--seeds 3] [--plot FILE]

Each RUN is a finished run whose images lay in class folders; its regions and features are used, so no image is read. The
simulated person knows the folder's name of every image. One action is one region that is looked at and given its true class.
After every few of them classes are learned again with these labels (`--known`, `auto`), and the next are suggested. Images
that were looked at count in no score.

Beside it: the same learning with regions in a random order, and logistic regression on the same features with the labels of
the suggested regions and of the random ones (the line between normal and defect is the run's own in all of them).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from common import machine, positive, print_table
from sklearn.linear_model import LogisticRegression

from anomalyncd.config import make_config
from anomalyncd.data import NORMAL_NAMES
from anomalyncd.data.dataset import Sample
from anomalyncd.discovery.learning import learn_classes
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.results import assign
from anomalyncd.guide.regions import next_regions
from anomalyncd.known.given import Example, Told
from anomalyncd.progress import Silent
from anomalyncd.regions.find import strengths
from known import Case, matched

WAYS = ("suggested", "random", "logistic regression, suggested", "logistic regression, random")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--actions", type=positive, default=20)
    parser.add_argument("--at-once", type=positive, default=5)
    parser.add_argument("--seeds", type=positive, default=3, help="random orders")
    parser.add_argument("--plot", type=Path, help="PNG or SVG of the curves")
    options = parser.parse_args()
    print(machine(), flush=True)
    curves: dict[str, list[np.ndarray]] = {way: [] for way in WAYS}
    for path in options.runs:
        found = {"suggested": [person(Case(path), options.actions, options.at_once, None)]}
        found["random"] = [person(Case(path), options.actions, options.at_once, seed) for seed in range(options.seeds)]
        for way, several in found.items():
            ours, theirs = (np.mean([curve[side] for curve in several], axis=0) for side in (0, 1))
            curves[way].append(ours)
            curves[f"logistic regression, {way}"].append(theirs)
            print(f"{path.name}, {way}: {text(ours)}; logistic regression {text(theirs)}", flush=True)
    steps = range(0, options.actions + 1, options.at_once)
    rows = []
    for way in WAYS:
        mean = np.mean(curves[way], axis=0)
        rows.append([way, *(f"{value:.3f}" for value in mean), f"{(mean[-1] - mean[0]) / (1 - mean[0]):.0%}"])
    print_table(["mean F1 after", *map(str, steps), "gap to 1 closed"], rows)
    if options.plot:
        plot(options.plot, curves, steps)


def plot(path: Path, curves: dict[str, list[np.ndarray]], steps: range) -> None:
    """Each way's mean over the runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for (way, several), line in zip(curves.items(), ("o-", "s-", "o:", "s:"), strict=True):
        axes.plot(steps, np.mean(several, axis=0), line, label=way)
    axes.set(xlabel="regions looked at", ylabel="mean F1 of the other images", xticks=list(steps))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def text(curve: np.ndarray) -> str:
    return " ".join(f"{value:.3f}" for value in curve)


def person(case: Case, n_actions: int, at_once: int, seed: int | None) -> tuple[list[float], list[float]]:
    """F1 after 0, `at_once`, … actions of our learning, and of logistic regression; seed : of a random order."""
    store, before = case.run.store, case.run.model
    images = np.array([region.index for region in store.regions])
    order = np.argsort(-strengths(store.regions), kind="stable")
    strongest = np.sort(order[np.unique(images[order], return_index=True)[1]])
    rng, told, ours, theirs = np.random.default_rng(seed), list[Example](), list[float](), list[float]()
    labels = np.full(len(store.regions), "", dtype=object)
    while True:
        config = make_config(before.config.model_dump(mode="json"), {"n_classes": "auto"})
        model = DiscoveryModel(config, binarizer=before.binarizer, false_alarms=before.false_alarms)
        marked = Told(tuple(told)).mark(store.regions, masked=model.binarizer is None, has_normal=True)
        parts, _ = learn_classes(model, store, None, None, Silent(), marked)
        assert model.classifier is not None
        features = model.classifier.space.transform(parts)
        probabilities = model.region_probabilities(parts, store.regions, store.images)
        seen = {example.sample.id for example in told}
        ours.append(f1(case, model, probabilities, seen))
        kinds = sorted({str(label) for label in labels if label and str(label).lower() not in NORMAL_NAMES})
        if len(kinds) > 1:
            own = np.isin(labels, kinds)
            fitted = LogisticRegression(C=10, max_iter=300).fit(features[own], labels[own].astype(str))
            other = DiscoveryModel(config, binarizer=before.binarizer, false_alarms=before.false_alarms)
            other.set_count(len(kinds) + 1)
            chances = np.concatenate([np.zeros((len(features), 1)), fitted.predict_proba(features)], axis=1)
            alarm = model.false_alarm_probability(parts, store.regions, store.images) > config.detect.false_alarms
            chances[alarm] = np.eye(len(kinds) + 1)[0]
            theirs.append(f1(case, other, chances, seen))
        else:
            theirs.append(ours[0])
        if len(told) >= n_actions:
            return ours, theirs
        decided = labels[strongest] != ""
        if seed is None:
            arrays = (values[strongest] for values in (features, probabilities))
            chosen = strongest[next_regions(*arrays, decided, images[strongest], at_once)].tolist()
        else:
            chosen = rng.permutation(strongest[~decided])[:at_once].tolist()
        for place in chosen:
            region = store.regions[place]
            labels[place] = case.truth[region.image]
            told.append(Example(Sample(region.image, np.empty(0)), labels[place], region=region.region))
        if not chosen:
            return ours, theirs


def f1(case: Case, model: DiscoveryModel, probabilities: np.ndarray, seen: set[str]) -> float:
    found = assign(case.run.store.images, case.run.store.regions, probabilities, model)
    rows = [(name, label) for name, label in zip(found.images["image"], found.labels, strict=True) if name not in seen]
    return float(matched(np.array([case.truth[name] for name, _ in rows]), np.array([k for _, k in rows])).mean())


if __name__ == "__main__":
    main()
