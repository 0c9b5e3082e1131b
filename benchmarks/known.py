"""Known kinds: what a few labels bring, to the kinds that they are about and to the others.

    python benchmarks/known.py RUN … [--examples 1 3 5] [--draws 3] [--wrong 0.1]

Each RUN is a finished run whose images lay in class folders; its regions and features are used, and its classes are learned
anew, so no image is read. Folder names are used to give the labels, and for scoring. Half of the kinds (rounded down, drawn
at random) get so many labelled images each, drawn at random among all images of the kind. Labelled images count in no score.

F1 of all images, and the share of images of known and of new kinds that are right, after Hungarian matching; with the true
number of kinds and with `auto`, beside the same without labels. With --wrong that share of the labels, one at least, names
another of the known kinds; then how many of these are suspected, and how many right ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import machine, positive, print_table
from scipy.optimize import linear_sum_assignment

from anomalyncd.config import make_config
from anomalyncd.data import NORMAL_NAMES
from anomalyncd.data.dataset import Sample
from anomalyncd.discovery.learning import learn_classes
from anomalyncd.discovery.model import DiscoveryModel
from anomalyncd.discovery.results import assign
from anomalyncd.known.given import Example, Told
from anomalyncd.progress import Silent
from anomalyncd.run.finished import FinishedRun


@dataclass(frozen=True)
class Score:
    """F1 of all images, and the share of images of known and new kinds that are right."""

    f1: float
    known: float
    new: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--examples", nargs="+", type=positive, default=[1, 3, 5])
    parser.add_argument("--draws", type=positive, default=3)
    parser.add_argument("--wrong", type=float, default=0.0)
    parser.add_argument("--counts", nargs="+", choices=("true", "auto"), default=["true", "auto"])
    options = parser.parse_args()
    print(machine(), f"\n{options.draws} draws, wrong labels {options.wrong:g}", flush=True)
    rows: dict[tuple[str, int], list[list[Score]]] = {}
    caught = np.zeros(4, int)
    for path in options.runs:
        case = Case(path)
        for count in options.counts:
            plain = case.learn(count, Told())[0]
            for n in options.examples:
                for draw in range(options.draws):
                    told, wrong = case.draw(n, draw, options.wrong)
                    names = {example.sample.id for example in told.examples}
                    labels, suspected = case.learn(count, told)
                    caught += [len(suspected & wrong), len(wrong), len(suspected - wrong), len(names - wrong)]
                    pair = [case.score(found, names, told.kinds) for found in (plain, labels)]
                    rows.setdefault((count, n), []).append(pair)
                pairs = rows[count, n][-options.draws :]
                before, after = (np.mean([pair[side].f1 for pair in pairs]) for side in (0, 1))
                print(f"{path.name}, {count}, {n} examples: F1 {before:.3f} → {after:.3f}", flush=True)
    table = []
    for (count, n), pairs in rows.items():
        cells = [
            [np.nanmean([getattr(pair[side], name) for pair in pairs]) for side in (0, 1)]
            for name in ("f1", "known", "new")
        ]
        table.append(
            [count, str(n), *(f"{before:.3f} → {after:.3f} ({after - before:+.3f})" for before, after in cells)]
        )
    print_table(["number of kinds", "examples", "F1", "known kinds", "new kinds"], table)
    print(f"labels that look wrong: {caught[0]} of {caught[1]} wrong ones, {caught[2]} of {caught[3]} right ones")


class Case:
    """A run, and what is true of it."""

    def __init__(self, path: Path) -> None:
        self.run = FinishedRun(path, device="cpu")
        folder = self.run.images["image"].str.split("/").str[0]
        true = self.run.images.get("true_label", folder)
        self.truth = dict(zip(self.run.images["image"], true.astype(str), strict=True))
        self.kinds = sorted({kind for kind in self.truth.values() if kind.lower() not in NORMAL_NAMES})

    def draw(self, n: int, seed: int, wrong: float) -> tuple[Told, set[str]]:
        """Labels, and the images that have a wrong one; the draws of fewer examples are among those of more."""
        rng = np.random.default_rng(seed)
        chosen = rng.permutation(self.kinds)[: len(self.kinds) // 2].tolist()
        images = {kind: [name for name, true in self.truth.items() if true == kind] for kind in chosen}
        drawn = {kind: rng.permutation(images[kind])[:n].tolist() for kind in chosen}
        labels = {name: kind for kind, names in drawn.items() for name in names}
        others = set()
        if wrong and len(chosen) > 1:
            others = set(rng.permutation(list(labels))[: max(1, round(wrong * len(labels)))].tolist())
            for name in others:
                labels[name] = chosen[(chosen.index(labels[name]) + 1) % len(chosen)]
        return Told(tuple(Example(Sample(name, np.empty(0)), kind) for name, kind in labels.items())), others

    def learn(self, count: str, told: Told) -> tuple[dict[str, int], set[str]]:
        """Image → class, and images whose label looks wrong."""
        before, store = self.run.model, self.run.store
        n_classes = len(self.kinds) + before.config.has_normal if count == "true" else "auto"
        config = make_config(before.config.model_dump(mode="json"), {"n_classes": n_classes})
        model = DiscoveryModel(config, binarizer=before.binarizer, false_alarms=before.false_alarms)
        marked = told.mark(store.regions, masked=model.binarizer is None, has_normal=config.has_normal)
        parts, _ = learn_classes(model, store, None, None, Silent(), marked)
        probabilities = model.region_probabilities(parts, store.regions, store.images)
        suspected = set()
        if marked is not None:
            for place in np.flatnonzero(marked.kinds >= 0):
                probabilities[place] = model.classes == marked.kinds[place] + 1
            suspected = {store.regions[place].image for place in marked.suspects}
        found = assign(store.images, store.regions, probabilities, model)
        return dict(zip(found.images["image"], found.labels.tolist(), strict=True)), suspected

    def score(self, labels: dict[str, int], told: set[str], known: Sequence[str]) -> Score:
        names = [name for name in labels if name not in told]
        true, found = np.array([self.truth[name] for name in names]), np.array([labels[name] for name in names])
        right = matched(true, found)
        is_known = np.isin(true, known)
        is_new = ~is_known & np.isin(true, self.kinds)
        return Score(float(right.mean()), float(right[is_known].mean()), float(right[is_new].mean()))


def matched(true: np.ndarray, found: np.ndarray) -> np.ndarray:
    """(N,) bool, whether each image is in the class that stands for its true one."""
    rows, row = np.unique(true, return_inverse=True)
    columns, column = np.unique(found, return_inverse=True)
    table = np.zeros((len(rows), len(columns)), int)
    np.add.at(table, (row, column), 1)
    pairs = set(zip(*linear_sum_assignment(table, maximize=True), strict=True))
    return np.array([(r, c) in pairs for r, c in zip(row, column, strict=True)])


if __name__ == "__main__":
    main()
