"""Divide a class by re-clustering its regions on their cached features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from ..discovery.model import DiscoveryModel
from ..errors import RunError
from ..learn.classifier import Parts
from ..learn.cluster import kmeans
from ..run.folder import MANIFEST, RETRAINED, RunFolder
from ..run.store import RegionStore
from ..run.tables import read_csv
from .uncorrected import Key


def split_regions(run: Path, keys: Sequence[Key], n_parts: int) -> npt.NDArray[np.int64]:
    """(R,) int, 0 … n_parts − 1, the largest part first; a part is empty where regions are too much alike."""
    model = DiscoveryModel.read(run, device="cpu")
    if model.classifier is None:
        raise RunError(f"{run}: nothing was learned in this run, so a class cannot be split.")
    store = RegionStore(RunFolder(run)).read(len(read_csv(run / MANIFEST)))
    place = {(region.image, region.region): row for row, region in enumerate(store.regions)}
    missing = [key for key in keys if key not in place]
    if missing:
        raise RunError(f"{run / store.tokens}: the features of {missing[0][0]} are missing or damaged.")
    rows = [place[key] for key in keys]
    parts: Parts = store.parts
    if model.classifier.last_block:
        try:
            parts = safetensors.numpy.load_file(run / RETRAINED)
        except (OSError, SafetensorError) as error:
            raise RunError(f"{run / RETRAINED}: the features of the trained network are missing or damaged.") from error
    features = model.classifier.space.transform({name: part[rows] for name, part in parts.items()})
    if len(np.unique(features, axis=0)) < n_parts:
        return np.zeros(len(keys), np.int64)
    return kmeans(np.asarray(features, np.float32), n_parts, model.config.random_state)
