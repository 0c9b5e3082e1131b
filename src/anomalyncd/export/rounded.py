"""The unknown score of a rounded network: it must be fitted with the network that will measure the distances.

A rounded network moves all regions a little away from where the exact one saw them. Classes bear that, but a limit that a
share of known regions barely keeps does not: measured against the old places, more of them would be unknown.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.dataset import Sample
from ..learn.features import TokenNetwork
from ..progress import Silent
from ..regions.find import Region
from ..run.finished import FinishedRun

MOST_IMAGES = 1000  # looked at again, evenly spread
AT_ONCE = 16  # images


def fit_unknown_again(run: FinishedRun, network: TokenNetwork, progress: Silent) -> bool:
    """Fit `run.model.unknown` to the run's own regions as `network` describes them.

    Returns False, and leaves the score as it is, where less than half of their images are still there.
    """
    model, labels = run.model, run.regions["label"].tolist()
    if model.unknown is None or not labels:
        return True
    names = list(dict.fromkeys(run.regions["image"]))
    names = names[:: max(1, -(-len(names) // MOST_IMAGES))]
    extract = model.extractor(network=network)
    regions: list[Region] = []
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    with progress.task("Unknown score", len(names)) as advance:
        for start in range(0, len(names), AT_ONCE):
            some = names[start : start + AT_ONCE]
            found = extract([sample for name in some if (sample := _sample(run, name)) is not None])
            regions += found.regions
            for name, values in found.parts.items():
                parts.setdefault(name, []).append(values)
            advance(len(some))
    keys = [(region.image, region.region) for region in regions]
    if len({name for name, _ in keys}) * 2 < len(names) or any(key not in run.rows for key in keys):
        return False
    place = {name: index for index, name in enumerate(names)}
    # Regions of one image don't count as each other's neighbours.
    regions = [replace(region, index=place[region.image]) for region in regions]
    known = np.array([labels[run.rows[key]] >= 0 for key in keys])
    model.fit_unknown({name: np.concatenate(values) for name, values in parts.items()}, regions, known)
    return True


def _sample(run: FinishedRun, name: str) -> Sample | None:
    """An image of the run with the map or mask that it had; None where a file is gone."""
    file = run.file(name)
    if file is None or not file.is_file():
        return None
    if run.model.binarizer is None:
        return Sample(name, file, mask=run.mask(name))
    values = run.map(name)
    return None if values is None else Sample(name, file, map=values)
