"""What to look at next in a finished run: regions, classes that may be one, and classes that may be two."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..labels import NORMAL, default_name
from ..regions.find import strengths
from ..run.finished import FinishedRun
from .regions import next_regions

Key = tuple[str, int]  # image, region
MOST_REGIONS = 3000  # the least certain ones, among which is chosen: its room grows with their square
MOST_CLASSES = 3  # merges and splits that are suggested


@dataclass(frozen=True)
class Suggestions:
    """What a person should look at, the most rewarding first.

    regions : rows of regions.csv, the strongest of an image each, undecided ones only
    merges : two classes each that may be one, with their names and the share of the spread that would be lost
    splits : a class each that may be two, with its name, the share that would be gained, and the two `parts`
    """

    regions: list[int]
    merges: list[dict[str, Any]]
    splits: list[dict[str, Any]]


def suggest(run: FinishedRun, n: int = 5, decided: Collection[Key] = ()) -> Suggestions:
    """Choose by the features that are there, in about a second; nothing is changed.

    n : regions; decided : more regions that a person has placed than the run knows of
    """
    model, regions = run.model, run.store.regions
    if model.classifier is None or not regions:
        return Suggestions([], [], [])
    placed = {*run.corrections, *decided}
    fixed = np.array([(region.image, region.region) in placed for region in regions], bool)
    images = np.array([region.index for region in regions], np.int64)
    probabilities = model.region_probabilities(run.features, regions, run.store.images)
    largest = np.sort(probabilities, axis=1)
    gap = largest[:, -1] - (largest[:, -2] if largest.shape[1] > 1 else 0.0)
    strongest = np.argsort(-strengths(regions), kind="stable")  # weaker ones of an image may be false alarms
    first = strongest[np.unique(images[strongest], return_index=True)[1]]
    fixed = np.isin(images, images[fixed])
    among = np.sort(first[np.argsort(np.where(fixed, -1.0, gap)[first], kind="stable")[:MOST_REGIONS]])
    vectors = model.classifier.space.transform({name: values[among] for name, values in run.features.items()})
    chosen = next_regions(vectors, probabilities[among], fixed[among], images[among], n)

    def named(label: int) -> str:
        return run.names.get(label, default_name(label))

    alone = [merge for merge in run.tree["merges"] if all(len(group) == 1 for group in merge["classes"])]
    merges = [
        {"classes": [group[0] for group in merge["classes"]], "share": merge["share"]}
        | {"names": [named(group[0]) for group in merge["classes"]]}
        for merge in sorted(alone, key=lambda merge: float(merge["share"]))[:MOST_CLASSES]
    ]
    splits = [{**split, "name": named(split["class"])} for split in run.tree["splits"] if split["class"] > NORMAL]
    return Suggestions([int(among[place]) for place in chosen], merges, splits[:MOST_CLASSES])
