"""The picture of the front page: two regions of each class that the demo found, under the names of their folders.

anomalyncd demo --out demo-run
python tools/front_picture.py demo-run
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from anomalyncd.report.canvas import INK, font, shorten
from anomalyncd.report.source import ReportSource
from anomalyncd.run.finished import FinishedRun

PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "demo-kinds.jpg"
SIDE, GAP, EACH, HEADING = 150, 5, 2, 28


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("demo", type=Path, help="folder of `anomalyncd demo`")
    parser.add_argument("--out", type=Path, default=PICTURE)
    given = parser.parse_args()
    strip(FinishedRun(given.demo / "run")).save(given.out, quality=88)


def strip(run: FinishedRun) -> Image.Image:
    """The surest regions of each defect class side by side."""
    source = ReportSource(run)
    labels = [label for label in source.labels if label > 0]
    picture = Image.new("RGB", (len(labels) * (SIDE + 2 * GAP), HEADING + EACH * (SIDE + GAP)), "white")
    draw, letters = ImageDraw.Draw(picture), font(15, bold=True)
    for column, label in enumerate(labels):
        left = GAP + column * (SIDE + 2 * GAP)
        name = source.truth(label, "{}") or source.look(label).name
        draw.text((left, 5), shorten(name, letters, SIDE), INK, letters)
        rows = np.flatnonzero(run.regions["label"] == label)
        surest = rows[np.argsort(-run.regions["probability"].to_numpy()[rows], kind="stable")[:EACH]]
        for place, row in enumerate(surest.tolist()):
            crop, _ = run.crop(row)
            if crop is not None:
                picture.paste(Image.fromarray(crop).resize((SIDE, SIDE)), (left, HEADING + place * (SIDE + GAP)))
    return picture


if __name__ == "__main__":
    main()
