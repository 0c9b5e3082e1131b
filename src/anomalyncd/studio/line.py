"""What another line between normal and defect, or parts of the picture that are ignored, would change in a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from ..errors import RunError
from ..labels import default_name
from ..report.normal import read_scores
from ..run.finished import FinishedRun
from .schema import ClassCount, IgnoredAnswer, LineAnswer, LineStep

SHARES = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2)  # of normal images above it


def ignored_answer(path: Path, shapes: Sequence[Sequence[tuple[float, float]]]) -> IgnoredAnswer:
    """Regions whose middle lies in a part that is to be ignored, before anything is."""
    run = FinishedRun(path, device="cpu")
    regions, sizes = run.regions, run.manifest.set_index("image")[["width", "height"]]
    inside = np.zeros(len(regions), bool)
    if len(regions):
        width, height = (sizes[side].loc[regions["image"]].to_numpy(np.float64) for side in ("width", "height"))
        x = ((regions["x"] + regions["width"] / 2) / width).to_numpy(np.float64)
        y = ((regions["y"] + regions["height"] / 2) / height).to_numpy(np.float64)
        outlines = [np.array(shape, np.float32) for shape in shapes]
        for row, point in enumerate(zip(x.tolist(), y.tolist(), strict=True)):
            inside[row] = any(cv2.pointPolygonTest(outline, point, False) >= 0 for outline in outlines)
    defects = regions[regions["label"] > 0]
    left = set(defects["image"][~inside[defects.index]])
    gone = regions[inside]
    counts, names = Counter(gone["label"].tolist()), run.names
    return IgnoredAnswer(
        n_regions=len(gone), n_images=len(set(defects["image"][inside[defects.index]]) - left),
        classes=[
            ClassCount(label=k, name=names.get(k, default_name(k)), n_images=n) for k, n in sorted(counts.items())
        ],
    )  # fmt: skip


def line_answer(path: Path) -> LineAnswer:
    """The histogram of scores, and for some shares the line and about how many images would be called defects.

    About, because looks have a say beside scores where a score is near the line.
    """
    run = FinishedRun(path, device="cpu")
    scores, known = read_scores(run), run.model.false_alarms
    if scores is None or scores.line is None or known is None or "false_alarm" not in run.images:
        raise RunError(f"{path}: there is no line between normal and defect in this run that could be moved.")
    chance = run.images["false_alarm"].to_numpy(np.float64)
    edges = scores.edges
    shares = sorted({*SHARES, scores.rate})
    counts = [int((chance <= share).sum()) for share in shares]
    n_defects = int((run.images["label"] != 0).sum())
    decided = n_defects - int((chance <= scores.rate).sum())  # by people, or by looks: they stay where they are
    return LineAnswer(
        share=scores.rate, n_images=len(chance), n_defects=n_defects,
        edges=edges.tolist(), own=np.histogram(scores.own, edges)[0].tolist(),
        normal=np.histogram(scores.learned, edges)[0].tolist(),
        steps=[
            LineStep(share=share, line=float(known.scores.level(share)), n_defects=max(0, count + decided))
            for share, count in zip(shares, counts, strict=True)
        ],
    )  # fmt: skip
