"""A picture of how the number of classes was estimated."""

from __future__ import annotations

import io
import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from ..run.folder import COUNT, RunFolder
from .stored import PICTURES


def draw_count(run: Path) -> Path | None:
    """Draw the evidence for each number of kinds, with the choice marked; None where the number was given."""
    path = run / COUNT
    if not path.exists():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    candidates = found["candidates"]
    if not candidates:
        return None
    figure = Figure(figsize=(7, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    above.axvspan(found["low"] - 0.3, found["high"] + 0.3, color="#dbe7f5", label="hardly worse")
    above.plot(candidates, found["score"], "o-", color="#1f4e8c")
    if found["count"] in candidates:
        chosen = candidates.index(found["count"])
        above.plot(found["count"], found["score"][chosen], "o", ms=13, mfc="none", mec="#b3261e", mew=2, label="chosen")
    above.set_ylabel("score")
    above.set_title(f"{found['count']} kinds of region, {found['low']} to {found['high']} are hardly worse")
    above.legend(frameon=False)
    for name, words, style in (
        ("silhouette", "apart (silhouette)", "-"), ("stability", "the same in other samples", "-"),
        ("blob_stability", "… in a blob without classes", ":"), ("agreement", "crop and whole image agree", "--"),
    ):  # fmt: skip
        below.plot(candidates, found[name], style, label=words)
    below.set_xlabel("number of kinds")
    below.set_ylim(0, 1)
    below.set_xticks(candidates)
    below.legend(frameon=False, fontsize=8, ncols=2)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    RunFolder(run).write(f"{PICTURES}/count.png", buffer.getvalue())
    return run / PICTURES / "count.png"
