"""The unknown score of a rounded network: it must be fitted with the network that will measure the distances.

A rounded network moves all regions a little away from where the exact one saw them. Classes bear that, but a limit that a
share of known regions barely keeps does not: measured against the old places, more of them would be unknown.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.dataset import Sample
from ..discovery.model import DiscoveryModel
from ..learn.features import TokenNetwork
from ..progress import Silent
from ..regions.records import RegionRecord
from ..report.stored import StoredPictures
from ..run.folder import REGIONS_TABLE
from ..run.store import SHARD
from ..run.tables import read_csv

MOST_IMAGES = 1000  # looked at again, evenly spread


def fit_unknown_again(run: Path, model: DiscoveryModel, network: TokenNetwork, progress: Silent) -> bool:
    """Fit `model.unknown` to the run's own regions as `network` describes them.

    Returns False, and leaves the score as it is, where less than half of their images are still there.
    """
    table, stored = read_csv(run / REGIONS_TABLE), StoredPictures(run)
    if model.unknown is None or not len(table):
        return True
    labels = dict(zip(zip(table["image"], table["region"], strict=True), table["label"], strict=True))
    names = list(dict.fromkeys(table["image"]))
    names = names[:: max(1, -(-len(names) // MOST_IMAGES))]
    extract = model.extractor(network=network)
    regions: list[RegionRecord] = []
    parts: dict[str, list[npt.NDArray[Any]]] = {}
    with progress.task("Unknown score", len(names)) as advance:
        for start in range(0, len(names), SHARD):
            some = names[start : start + SHARD]
            found = extract([item for name in some if (item := _item(name, stored, model)) is not None])
            regions += found.regions
            for name, values in found.parts.items():
                parts.setdefault(name, []).append(values)
            advance(len(some))
    keys = [(region.image, region.region) for region in regions]
    if len({name for name, _ in keys}) * 2 < len(names) or any(key not in labels for key in keys):
        return False
    known = np.array([labels[key] >= 0 for key in keys])
    place = {name: index for index, name in enumerate(names)}
    for region in regions:
        region.index = place[region.image]  # regions of one image don't count as each other's neighbours
    model.fit_unknown({name: np.concatenate(values) for name, values in parts.items()}, regions, known)
    return True


def _item(name: str, stored: StoredPictures, model: DiscoveryModel) -> Sample | None:
    """An image of the run with the map or mask that it had; None where a file is gone."""
    file = stored.file(name)
    if file is None or not file.is_file():
        return None
    if model.binarizer is None:
        return Sample(name, file, mask=stored.mask(name))
    values = stored.map(name)
    return None if values is None else Sample(name, file, map=values)
