"""Where the line between normal and defect is in a run, and what another one would change, before anything is changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import RunError
from ..report.normal import read_scores
from ..run.finished import FinishedRun
from .schema import LineAnswer, LineStep

SHARES = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15, 0.2)  # of normal images above it


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
    return LineAnswer(
        share=scores.rate, n_images=len(chance), n_defects=int((run.images["label"] != 0).sum()),
        edges=edges.tolist(), own=np.histogram(scores.own, edges)[0].tolist(),
        normal=np.histogram(scores.learned, edges)[0].tolist(),
        steps=[
            LineStep(share=share, line=float(known.scores.level(share)), n_defects=int((chance <= share).sum()))
            for share in shares
        ],
    )  # fmt: skip
