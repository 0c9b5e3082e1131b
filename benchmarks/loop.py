"""An unknown number of classes: what `auto` finds, and what it costs.

    python benchmarks/loop.py DATA/hazelnut DATA/mtd [--maps hazelnut=DIR] [--work DIR]

Each DATA folder has MVTec AD's layout. Folder names are only used for scoring.

For each data set, with ground-truth masks and with the maps that were given: the number of classes that `auto` finds, and
the F1 with it beside that with the true number. Kinds that were not there are in unknown.py.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from common import machine

from anomalyncd.data import load_dataset
from anomalyncd.data.dataset import Dataset, Sample
from anomalyncd.estimator import AnomalyNCD
from anomalyncd.metrics import evaluate
from anomalyncd.progress import Terminal
from anomalyncd.run.folder import COUNT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", type=Path)
    parser.add_argument("--maps", action="append", default=[], help="NAME=DIR of anomaly maps; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, help="keep the runs here; a temporary folder by default")
    options = parser.parse_args()
    maps = dict(text.split("=", 1) for text in options.maps)
    print(machine(), f"\nseed {options.seed}, default recipe", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        for data in options.data:
            auto(data, None, options.seed, work / f"{data.name}-masks")
            if data.name in maps:
                auto(data, Path(maps[data.name]), options.seed, work / f"{data.name}-maps")


def auto(data: Path, maps: Path | None, seed: int, run: Path) -> None:
    """`auto` beside the true number, on the same regions."""
    given = {"maps": maps} if maps else {"masks": data / "ground_truth"}
    samples = load_dataset(data / "test", exclude=("combined",), **given).samples
    inputs = Dataset([Sample(s.id, s.image, s.map, s.mask) for s in samples])
    truth = [str(s.label) for s in samples]
    progress = Terminal(bars=False)
    scores = {}
    for n_classes in (len(set(truth)), "auto"):
        started = time.perf_counter()
        model = AnomalyNCD(n_classes, random_state=seed, progress=progress).fit(inputs, run=run)
        found = evaluate(truth, model.labels_)
        scores[n_classes] = f"{found.nmi:.3f}/{found.ari:.3f}/{found.f1:.3f}"
        seconds = time.perf_counter() - started
    count = json.loads((run / COUNT).read_text())
    print(
        f"{data.name}, {'maps' if maps else 'masks'}: {len(set(truth)) - 1} kinds of defect, auto {count['count']} "
        f"({count['low']}–{count['high']}); NMI/ARI/F1 with the true number {scores[len(set(truth))]}, with auto "
        f"{scores['auto']}; {seconds:.0f} s for auto",
        flush=True,
    )


if __name__ == "__main__":
    main()
