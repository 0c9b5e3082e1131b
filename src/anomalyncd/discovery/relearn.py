"""A finished run with other classes: what a person corrected, or what new images brought. Nothing is extracted again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..errors import DataError
from ..labels import NOT_THIS_PRODUCT, default_name
from ..large import at
from ..learn.classifier import FeatureParts
from ..learn.cluster import centres
from ..learn.refine import refine
from ..learn.rows import vectors
from ..progress import Silent
from ..regions.drawn import Drawn
from ..regions.find import Region
from ..run.finished import FinishedRun
from ..run.folder import CORRECTIONS, MODEL_FILE, RunFolder
from ..run.store import RegionStore
from ..run.tables import to_csv
from ..steps.drawn import with_drawn
from .model import DiscoveryModel
from .results import Key, classify_stored


@dataclass(frozen=True)
class Move:
    """A region whose class is another now."""

    image: str
    region: int
    before: int
    after: int


def relearn(
    run: Path,
    labels: Mapping[Key, int],
    fixed: Collection[Key],
    names: Mapping[int, str],
    progress: Silent | None = None,
    *,
    also: Mapping[str, bytes] | None = None,
    drawn: Sequence[Drawn] = (),
) -> list[Move]:
    """Train the heads of a run again with the classes that a person gave, and write model and tables anew.

    Parameters
    ----------
    run : folder of a finished run
    labels : (image, region) → class, for regions whose class is to differ from regions.csv; 0 = false alarm, a number that
        is not there yet = a new class
    fixed : those that were placed one by one: they keep that class whatever the heads say
    names : label → name, for classes to be named
    also : name → content of files of the run that are there if, and only if, the change was made
    drawn : defects that the run has missed, which become regions of it; `labels` says of which class

    Returns
    -------
    The regions whose class changed. A class that has lost all its regions is gone; all others keep their numbers.
    """
    progress = progress or Silent()
    with RunFolder(run).writing() as folder, progress.task("Learning", 1) as advance:
        before, more = with_drawn(RunState.of(finished := FinishedRun(run)), finished, drawn, progress)
        row = before.row
        if unknown := [key for key in (*labels, *fixed) if key not in row]:
            raise DataError(f"{run}: there is no region {unknown[0][1]} of image {unknown[0][0]!r}.")
        if low := [label for label in labels.values() if label < 0]:
            raise DataError(f"{run}: expected a class of 0 or more for each region, but got {low[0]}.")
        wanted = before.labels.copy()
        for key, label in labels.items():
            wanted[row[key]] = label
        held = before.fixed.copy()
        held[[row[key] for key in fixed]] = True
        files, after = learn_again(before, wanted, held, names)
        folder.commit({**more, **files, **(also or {})})
        advance()
    changed = np.flatnonzero(after != before.labels)
    keys = list(row)
    return [Move(*keys[i], int(before.labels[i]), int(after[i])) for i in changed]


@dataclass
class RunState:
    """What a run holds, for changing it.

    store : its images and regions; features : as the trained network sees the regions
    labels : (R,) int as in regions.csv; fixed : (R,) bool, decided by a person
    outside : (N,) bool, images that do not show the product
    truth : id → class by folder, and manifest : manifest.csv, which are only carried along
    """

    model: DiscoveryModel
    store: RegionStore
    features: FeatureParts
    labels: npt.NDArray[np.int64]
    fixed: npt.NDArray[np.bool_]
    outside: npt.NDArray[np.bool_]
    truth: dict[str, str]
    manifest: pd.DataFrame

    @classmethod
    def of(cls, run: FinishedRun) -> RunState:
        """A finished run, whole."""
        fixed = np.zeros(len(run.regions), bool)
        fixed[[run.rows[key] for key in run.corrections if key in run.rows]] = True
        labels = run.regions["label"].to_numpy(np.int64)
        foreign = set(run.images["image"][(run.images["label"] < 0) & (run.images["class_name"] == NOT_THIS_PRODUCT)])
        outside = np.array([record.id in foreign for record in run.store.images], bool)
        return cls(run.model, run.store, run.features, labels, fixed, outside, run.truth, run.manifest)

    @property
    def regions(self) -> list[Region]:
        """Of all images, in the order of regions.csv."""
        return self.store.regions

    @property
    def row(self) -> dict[Key, int]:
        """(image, region) → place."""
        return {(region.image, region.region): place for place, region in enumerate(self.regions)}


def learn_again(
    state: RunState, wanted: npt.NDArray[np.int64], fixed: npt.NDArray[np.bool_], names: Mapping[int, str]
) -> tuple[dict[str, bytes], npt.NDArray[np.int64]]:
    """Heads for the wanted classes (R,), and the files of the run that follow, with the classes (R,) that they hold.

    Regions of class −1 are of an unknown kind and stay so; an image of which a region has a class does show the product.
    """
    model, outside = state.model, state.outside.copy()
    outside[[region.index for region, label in zip(state.regions, wanted, strict=True) if label >= 0]] = False
    if model.classifier is not None and state.regions:
        _learn_heads(state, wanted, fixed)
    model.names = {k: names.get(k, model.names.get(k, default_name(k))) for k in model.classes.tolist()}
    held = {key: int(wanted[place]) for key, place in state.row.items() if fixed[place]}
    result, files = classify_stored(
        model, state.store, state.features, state.manifest, truth=state.truth, fixed=held, unknown=wanted < 0,
        outside=outside,
    )  # fmt: skip
    decided = to_csv(result.regions.loc[fixed, ["image", "region", "label"]]).encode()
    return {MODEL_FILE: model.pack(), CORRECTIONS: decided, **files}, result.regions["label"].to_numpy(np.int64)


def _learn_heads(state: RunState, wanted: npt.NDArray[np.int64], fixed: npt.NDArray[np.bool_]) -> None:
    """A row of the head for each class that has regions, and for the normal one where it is learned."""
    model, classifier = state.model, state.model.classifier
    assert classifier is not None
    features = vectors(classifier.space, state.features)
    heads = dict(zip(model.learned_classes.tolist(), classifier.weight[classifier.n_base :], strict=True))
    # False alarms that a person found, one by one or as a class, make "normal" a class to be learned where it was none.
    model.learns_normal |= bool((wanted[fixed | (wanted != state.labels)] == 0).any())
    labels = set(wanted[wanted >= 0].tolist()) | ({0} if model.config.has_normal else set())
    model.classes = np.array(sorted(labels), np.int64)
    model.highest = max(model.highest, *labels)
    learned = model.learned_classes
    known = np.isin(wanted, learned)  # not those that are false alarms by their score alone, or of an unknown kind
    target = np.searchsorted(learned, wanted[known])
    own = at(features, known)
    start = centres(own, target, len(learned))
    for place, label in enumerate(learned.tolist()):
        now, before = wanted == label, state.labels == label
        # A head goes on from where it is, unless a merge or a split made another class of it.
        if label in heads and 2 * (now & before).sum() >= (now | before).sum():
            start[place] = heads[label]
    start /= np.maximum(np.linalg.norm(start, axis=1, keepdims=True), 1e-12)
    moved = refine(own, target, fixed[known], start, temperature=classifier.temperature, seed=model.config.random_state)
    classifier.weight = np.concatenate([classifier.weight[: classifier.n_base], moved])
