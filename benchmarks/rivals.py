"""Whether every rival that sees whole images solves what it should: pictures whose whole texture differs by class.

    python benchmarks/rivals.py [--each 25] [--views 8] [--size 224] [--only iic scan] [--work DIR] [--precision bfloat16]

Four textures of the demo (metal, cloth, stone, wood), at random scales and brightness, the same number of each; two more
kinds of picture, stripes and checks, three classes of them, are the labelled base set. An F1 below 0.9 ends with an error.
Then a low figure on other data is the method's, and not that of this code.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from common import machine, positive, print_table

from anomalyncd.bench.rivals import RIVALS
from anomalyncd.bench.rivals.views import ViewRival
from anomalyncd.data.gather import gather, gather_base
from anomalyncd.demo.textures import TEXTURES
from anomalyncd.metrics import evaluate

SIDE, LEAST_F1, BASE_EACH = 256, 0.9, 8
WHOLE = [name for name, kind in RIVALS.items() if issubclass(kind, ViewRival)]
Image = npt.NDArray[np.uint8]


def textures(each: int) -> tuple[list[Image], list[str]]:
    """Pictures and their classes."""
    rng, images, truth = np.random.default_rng(0), [], []
    for name, make in TEXTURES.items():
        for _ in range(each):
            picture = make(rng, (SIDE, SIDE), float(rng.uniform(0.7, 1.4))) * rng.uniform(0.8, 1.2)
            images.append((np.clip(picture, 0, 1) * 255).astype(np.uint8))
            truth.append(name)
    return images, truth


def patterns(each: int) -> tuple[list[Image], list[None], list[str]]:
    """A labelled base set of other things: stripes along, stripes across, checks."""
    rng, y_x = np.random.default_rng(1), np.mgrid[:SIDE, :SIDE]
    images, labels = [], []
    for name in ("along", "across", "checks"):
        for _ in range(each):
            period = int(rng.integers(8, 40))
            y, x = (axis // period % 2 for axis in y_x)
            dark, light = rng.integers(0, 120, 3), rng.integers(130, 255, 3)
            share = {"along": y, "across": x, "checks": (y + x) % 2}[name][..., None]
            images.append((dark * share + light * (1 - share)).astype(np.uint8))
            labels.append(name)
    return images, [None] * len(images), labels


def main() -> int:
    """Run, print a table, and say whether all of them solved it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=positive, default=25, help="pictures of each class")
    parser.add_argument("--views", type=positive, default=8, help="random views kept of each picture")
    parser.add_argument("--size", type=positive, default=224, help="side of a view in pixels")
    parser.add_argument("--only", nargs="+", choices=WHOLE, default=WHOLE)
    parser.add_argument("--work", type=Path, help="keeps tokens and views, so that a second call is quick")
    parser.add_argument("--precision", default="auto", help="of the frozen trunk")
    parser.add_argument("--backbone", default="auto")
    arguments = parser.parse_args()
    print(machine())
    (images, truth), base = textures(arguments.each), gather_base(patterns(BASE_EACH))
    dataset, rows, low = gather(images), [], []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.only:
            began = time.process_time()
            model = RIVALS[name](
                len(TEXTURES), bank_views=arguments.views, size=arguments.size, precision=arguments.precision,
                backbone=arguments.backbone,
            ).fit(dataset, base=base, run=arguments.work or Path(folder))  # fmt: skip
            found = evaluate(truth, model.labels_.tolist())
            seconds = [f"{model.seconds_.get(stage, 0):.0f}" for stage in ("views", "learning")]
            spent = f"{time.process_time() - began:.0f}"
            rows.append([name, *(f"{value:.3f}" for value in (found.nmi, found.ari, found.f1)), *seconds, spent])
            print(" ".join(rows[-1]), file=sys.stderr, flush=True)
            low += [name] if found.f1 < LEAST_F1 else []
    print_table(["rival", "NMI", "ARI", "F1", "s for views", "s to learn", "s of processor"], rows)
    print(f"Below F1 {LEAST_F1}: {', '.join(low) or 'none'}.")
    return int(bool(low))


if __name__ == "__main__":
    sys.exit(main())
