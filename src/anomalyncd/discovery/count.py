"""How many classes a run has, where nobody said it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..assign.count import CountEstimate, estimate_count, n_steps
from ..config import Config
from ..learn.classifier import Parts
from ..learn.features import CROP_PARTS, FeatureSpace
from ..progress import Silent


def count_classes(
    parts: Parts, used: npt.NDArray[np.int64], strong: npt.NDArray[np.int64], config: Config, progress: Silent
) -> CountEstimate:
    """Estimate the number of classes from the regions that may be defects, on frozen features.

    Parameters
    ----------
    parts : name → (R, V, C) features of all regions
    used : regions that are learned from, by which features are centred; strong : those that may be defects
    """
    weights = config.features.weights()
    space = FeatureSpace(weights).fit({name: parts[name][used] for name in weights}, center=config.features.center)
    own = {name: parts[name][strong] for name in weights}
    near = {name: weight for name, weight in weights.items() if name in CROP_PARTS}
    far = {name: weight for name, weight in weights.items() if name not in CROP_PARTS}
    kinds = [FeatureSpace(some, space.means).transform(own) for some in (near, far) if some]
    with progress.task("Number of classes", n_steps(len(kinds))) as advance:
        return estimate_count(
            space.transform(own), config.most_classes, kinds=kinds, seed=config.random_state, on_step=advance
        )
