"""Divide a class by re-clustering its regions on their stored features."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import RunError
from ..learn.cluster import kmeans
from ..run.finished import FinishedRun
from .uncorrected import Key


def split_regions(path: Path, keys: Sequence[Key], n_parts: int) -> npt.NDArray[np.int64]:
    """(R,) int, 0 … n_parts − 1, the largest part first; a part is empty where regions are too much alike."""
    run = FinishedRun(path, device="cpu")  # one that is let go afterwards: features are large
    classifier = run.model.classifier
    if classifier is None:
        raise RunError(f"{path}: nothing was learned in this run, so a class cannot be split.")
    if missing := [image for image, region in keys if (image, region) not in run.rows]:
        raise RunError(f"{path}: the features of {missing[0]} are missing or damaged.")
    rows = [run.rows[key] for key in keys]
    features = classifier.space.transform({name: part[rows] for name, part in run.features.items()})
    if len(np.unique(features, axis=0)) < n_parts:
        return np.zeros(len(keys), np.int64)
    return kmeans(np.asarray(features, np.float32), n_parts, run.model.config.random_state)
