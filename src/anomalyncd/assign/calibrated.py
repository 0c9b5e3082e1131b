"""Which scores are those of normal images: by images of normal products, or by the run's own where there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..progress import Silent
from .false_alarms import NEAR, FalseAlarms, NormalScores, lowest_group, shifted


def calibrated(figures: Mapping[str, npt.NDArray[np.float64]], progress: Silent) -> FalseAlarms | None:
    """What scores mean, by the maps of normal images or else by the run's own scores; None where nothing tells.

    figures : `scores` and `peaks` of the run's maps, `normal_scores` and `normal_peaks` of those of normal images
    """
    if len(figures["normal_scores"]):
        scores, peaks = NormalScores.fit(figures["normal_scores"]), NormalScores.fit(figures["normal_peaks"])
        if scores is not None and peaks is not None:
            moved = shifted(scores, figures["scores"])
            higher = (moved.mean - scores.mean) / scores.spread
            if higher:
                progress.note(f"normal images of this run score {higher:.1f} spreads higher than those of --normal")
                peaks = replace(peaks, mean=peaks.mean + higher * peaks.spread)
            return FalseAlarms(moved, peaks, moved=bool(higher))
        progress.warn(
            f"{len(figures['normal_scores'])} normal images are too few to tell how normal ones score: the scores of all "
            "images decide."
        )
    if (scores := lowest_group(figures["scores"])) is None:
        progress.warn(
            "the scores show no two groups of images, normal and defective, so looks decide: a kind of region that scores "
            "like images without one is taken for normal, and every other one for a defect. Images of normal products "
            "(--normal, or --normal-maps) would tell."
        )
        return None
    low = scores.probability(figures["scores"]) > NEAR
    peaks = NormalScores.fit(figures["peaks"][low])
    return FalseAlarms(scores, scores if peaks is None else peaks, source="mixture")  # few: the image's score decides
