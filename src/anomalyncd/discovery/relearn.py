"""A finished run with other classes: what a person corrected, or what new images brought. Nothing is extracted again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from ..assign.outliers import outlier_groups
from ..checksums import unseal
from ..errors import DataError, RunError
from ..labels import default_name
from ..learn.classifier import Parts
from ..learn.cluster import centres
from ..learn.refine import refine
from ..progress import Silent
from ..regions.records import ImageRecord, RegionRecord
from ..run.finished import read_corrections
from ..run.folder import (
    CLASS_NAMES,
    CORRECTIONS,
    GROUPS,
    IMAGES_TABLE,
    MANIFEST,
    MODEL_FILE,
    REGIONS_TABLE,
    RETRAINED,
    RunFolder,
    to_json,
)  # fmt: skip
from ..run.store import RegionStore
from ..run.tables import assign, read_csv, to_csv
from .model import DiscoveryModel

Key = tuple[str, int]  # image, region


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
) -> list[Move]:
    """Train the heads of a run again with the classes that a person gave, and write model and tables anew.

    Parameters
    ----------
    run : folder of a finished run
    labels : (image, region) → class, for regions whose class is to differ from regions.csv; 0 = false alarm, a number that
        is not there yet = a new class
    fixed : those that were placed one by one: they keep that class whatever the heads say
    names : label → name, for classes to be named

    Returns
    -------
    The regions whose class changed. A class that has lost all its regions is gone; all others keep their numbers.
    """
    progress = progress or Silent()
    with RunFolder(run).writing() as folder, progress.task("Learning", 1) as advance:
        before = read_state(folder)
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
        folder.commit(files)
        advance()
    changed = np.flatnonzero(after != before.labels)
    keys = list(row)
    return [Move(*keys[i], int(before.labels[i]), int(after[i])) for i in changed]


@dataclass
class RunState:
    """What a run folder holds, for changing it.

    row : (image, region) → place; labels : (R,) int as in regions.csv; fixed : (R,) bool, decided by a person
    parts : features of all regions as the trained network sees them
    truth, crops : columns of the tables that are only carried along
    """

    model: DiscoveryModel
    images: list[ImageRecord]
    regions: list[RegionRecord]
    parts: Parts
    labels: npt.NDArray[np.int64]
    fixed: npt.NDArray[np.bool_]
    truth: dict[str, str]
    crops: list[str]
    manifest: pd.DataFrame

    @property
    def row(self) -> dict[Key, int]:
        return {(region.image, region.region): place for place, region in enumerate(self.regions)}


def read_state(folder: RunFolder, device: str = "auto") -> RunState:
    """A finished run, whole; device : for the model, should it look at new images."""
    model = DiscoveryModel.read(folder.path, device=device)
    images, regions, files = (read_csv(folder.place(name)) for name in (IMAGES_TABLE, REGIONS_TABLE, MANIFEST))
    store = RegionStore(folder).read(len(files))
    found = [(region.image, region.region) for region in store.regions]
    if found != list(zip(regions["image"], regions["region"], strict=True)):
        raise RunError(
            f"{folder.path}: regions.csv does not fit what the run has stored in tokens/. Call the same `discover` again."
        )
    parts: Parts = store.parts
    if model.classifier is not None and model.classifier.last_block:
        parts, _ = unseal(folder.place(RETRAINED))
    fixed = np.zeros(len(regions), bool)
    place = {key: row for row, key in enumerate(found)}
    fixed[[place[key] for key in read_corrections(folder.path) if key in place]] = True
    truth = dict(zip(images["image"], images["true_label"], strict=True)) if "true_label" in images else {}
    return RunState(
        model, store.images, store.regions, parts, regions["label"].to_numpy(np.int64), fixed, truth,
        regions["crop"].tolist(), files,
    )  # fmt: skip


def learn_again(
    state: RunState, wanted: npt.NDArray[np.int64], fixed: npt.NDArray[np.bool_], names: Mapping[int, str]
) -> tuple[dict[str, bytes], npt.NDArray[np.int64]]:
    """Heads for the wanted classes (R,), and the files of the run that follow, with the classes (R,) that they hold.

    Regions of class −1 are of an unknown kind and stay so.
    """
    model = state.model
    if model.classifier is not None and state.regions:
        _learn_heads(state, wanted, fixed)
    model.names = {k: names.get(k, model.names.get(k, default_name(k))) for k in model.classes.tolist()}
    unknown = model.fit_unknown(state.parts, state.regions, wanted >= 0)
    probabilities = model.region_probabilities(state.parts, state.regions)
    hold(probabilities, np.flatnonzero(fixed), wanted[fixed], model.classes)
    probabilities[wanted < 0] = np.nan
    result = assign(state.images, state.regions, probabilities, model.classes, model.names, model.config.merge, unknown)
    if state.truth:
        result.images["true_label"] = [state.truth.get(name) for name in result.images["image"]]
    result.regions["crop"] = state.crops
    files = {
        MODEL_FILE: model.pack(),
        REGIONS_TABLE: to_csv(result.regions).encode(),
        CORRECTIONS: to_csv(result.regions.loc[fixed, ["image", "region", "label"]]).encode(),
        GROUPS: to_csv(groups_table(model, state.parts, result.regions)).encode(),
        CLASS_NAMES: to_json({str(k): name for k, name in model.names.items()}).encode(),
        MANIFEST: to_csv(state.manifest).encode(),
        IMAGES_TABLE: to_csv(result.images).encode(),
    }
    return files, result.regions["label"].to_numpy(np.int64)


def groups_table(model: DiscoveryModel, parts: Parts, regions: pd.DataFrame) -> pd.DataFrame:
    """Regions apart from all others, too few for a class or too odd for theirs: the table groups.csv."""
    found: list[list[int]] = []
    if model.classifier is not None and len(regions):
        found = outlier_groups(model.classifier.space.transform(parts))
    rows = [place for group in found for place in group]
    table = regions.iloc[rows][["image", "region", "label", "class_name"]].reset_index(drop=True)
    table.insert(0, "group", [number for number, group in enumerate(found, start=1) for _ in group])
    return table


def hold(
    probabilities: npt.NDArray[np.float64],
    places: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64],
    classes: npt.NDArray[np.int64],
) -> None:
    """Make certain, in (R, K), that the regions at `places` are of the classes that a person gave them."""
    for place, label in zip(places.tolist(), labels.tolist(), strict=True):
        probabilities[place] = classes == label


def _learn_heads(state: RunState, wanted: npt.NDArray[np.int64], fixed: npt.NDArray[np.bool_]) -> None:
    """A row of the head for each class that has regions, and for the normal one where it is learned."""
    model, classifier = state.model, state.model.classifier
    assert classifier is not None
    features = classifier.space.transform(state.parts)
    heads = dict(zip(model.learned_classes.tolist(), classifier.weight[classifier.n_base :], strict=True))
    # False alarms that a person found, one by one or as a class, make "normal" a class to be learned where it was none.
    model.learns_normal |= bool((wanted[fixed | (wanted != state.labels)] == 0).any())
    labels = set(wanted[wanted >= 0].tolist()) | ({0} if model.config.has_normal else set())
    model.classes = np.array(sorted(labels), np.int64)
    model.highest = max(model.highest, *labels)
    learned = model.learned_classes
    known = np.isin(wanted, learned)  # not those that are false alarms by their score alone, or of an unknown kind
    target = np.searchsorted(learned, wanted[known])
    start = centres(features[known], target, len(learned))
    for place, label in enumerate(learned.tolist()):
        now, before = wanted == label, state.labels == label
        # A head goes on from where it is, unless a merge or a split made another class of it.
        if label in heads and 2 * (now & before).sum() >= (now | before).sum():
            start[place] = heads[label]
    start /= np.maximum(np.linalg.norm(start, axis=1, keepdims=True), 1e-12)
    moved = refine(features[known], target, fixed[known], start, temperature=classifier.temperature)
    classifier.weight = np.concatenate([classifier.weight[: classifier.n_base], moved])
