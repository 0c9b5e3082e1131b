"""A picture of how the number of classes was estimated."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from ..run.finished import FinishedRun
from .canvas import PICTURES


def draw_count(run: FinishedRun) -> Path | None:
    """Draw the evidence for each number of kinds, with the choice marked; None where the number was given."""
    found = run.count
    if not found or not found["candidates"]:
        return None
    candidates = found["candidates"]
    figure = Figure(figsize=(7, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.axvspan(found["low"] - 0.3, found["high"] + 0.3, color="#dbe7f5", label="hardly worse")
    above.plot(candidates, found["score"], "o-", color="#1f4e8c")
    if found["count"] in candidates:
        chosen = candidates.index(found["count"])
        above.plot(found["count"], found["score"][chosen], "o", ms=13, mfc="none", mec="#b3261e", mew=2, label="chosen")
    above.set_ylabel("score")
    above.set_title(f"{found['count']} kinds of region, {found['low']} to {found['high']} are hardly worse")
    above.legend(frameon=False)
    below.plot(candidates, found["silhouette"], "-", label="apart (silhouette)")
    below.plot(candidates, found["stability"], "-", label="the same in other samples")
    below.plot(candidates, found["blob_stability"], ":", label="… in a blob without classes")
    below.plot(candidates, found["agreement"], "--", label="crop and whole image agree")
    below.set_xlabel("number of kinds")
    below.set_ylim(0, 1)
    below.set_xticks(candidates)
    below.legend(frameon=False, fontsize=8, ncols=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    run.folder.write(f"{PICTURES}/count.png", buffer.getvalue())
    return run.path / PICTURES / "count.png"
