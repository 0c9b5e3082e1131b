"""Defects that a run has missed and a person has drawn: they become regions of it, with crops and features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..config import Config
from ..data.dataset import Sample
from ..errors import DataError
from ..labels import UNKNOWN
from ..progress import Silent
from ..regions.drawn import Drawn, painted
from ..regions.extract import Extractor
from ..regions.find import DRAWN
from ..run.finished import FinishedRun

if TYPE_CHECKING:  # which imports this
    from ..discovery.relearn import RunState

EVERYWHERE = 2.0  # of the longer side: nothing on an image is as far apart


def as_one(config: Config) -> Config:
    """Settings with which all that a mask shows is one region, and nothing is ignored: a person has said so."""
    crop = config.crop.model_copy(update={"merge": "boxes", "merge_distance": EVERYWHERE})
    return config.model_copy(update={"crop": crop, "ignore": ()})


def check_drawing(run: FinishedRun) -> None:
    """Refuse runs to which no region can be added, in words."""
    classifier = run.model.classifier
    if classifier is None:
        raise DataError("this run has no defect classes that a drawn defect could be of.")
    if classifier.last_block:
        raise DataError("this run has trained the network itself (--preset paper), so no region can be added to it.")


def with_drawn(
    state: RunState, run: FinishedRun, drawn: Sequence[Drawn], progress: Silent
) -> tuple[RunState, dict[str, bytes]]:
    """A run with drawn regions, the last ones of their images and of no class yet; and the files with them, for a commit.

    A drawing stands in for mask and map: features are those of what was drawn, its score is 1.
    """
    there = set(state.row) if drawn else set()
    drawn = [one for one in drawn if (one.image, one.region) not in there]
    if not drawn:
        return state, {}
    check_drawing(run)
    extractor = Extractor(as_one(state.model.config), None, state.model.extractor(progress.say).encoder)
    index = {record.id: place for place, record in enumerate(state.store.images)}
    prepared, masks = [], []
    with progress.task("Drawn defects", len(drawn)) as advance:
        for one in drawn:
            image = run.image(one.image) if one.image in index else None
            if image is None:
                raise DataError(f"{one.image}: a defect was drawn on this image, but it cannot be read any more.")
            mask = painted(one.strokes, image.shape[:2])
            found = extractor.prepare((index[one.image], Sample(one.image, image, mask=mask)))
            (region,) = found.regions
            found.regions = [replace(region, region=one.region, digest=DRAWN + region.digest)]
            prepared.append(found)
            masks.append(mask)
            advance()
        files = state.store.insert(extractor.encode(prepared), masks)
    place = {key: row for row, key in enumerate(state.row)}
    old = [place[one.image, one.region] for one in drawn]
    rows = np.setdiff1d(np.arange(len(place)), old)
    labels, fixed = np.full(len(place), UNKNOWN, np.int64), np.zeros(len(place), bool)
    labels[rows], fixed[rows] = state.labels, state.fixed
    manifest = state.manifest.copy()
    manifest["n_regions"] = [record.n_regions for record in state.store.images]
    return replace(state, features=state.store.parts, labels=labels, fixed=fixed, manifest=manifest), files
