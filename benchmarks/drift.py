"""Drift: how often a stable line is reported, and whether a light that grows is reported before false alarms double.

python benchmarks/drift.py stable --lines 300      made-up streams, four at a time
python benchmarks/drift.py brighter                images of the demo line through PatchCore and DINOv2-S, 84 pixels
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import cv2
import numpy as np
import pandas as pd

from anomalyncd import AnomalyNCD
from anomalyncd.data.dataset import Sample
from anomalyncd.demo import iter_line
from anomalyncd.watch.classing import light
from anomalyncd.watch.drift import BLOCK, RATE, REFERENCE, STREAMS, WINDOW, DriftMonitor

SIDE = 84  # pixels of an image, and of everything that the network sees
LIGHT = 205.0  # mean grey value: a line that is lit brightly, whose highlights are cut off when it gets brighter
SENSITIVITY = 0.05  # a line that is drawn loosely: false alarms are frequent enough to count
STABLE, GROWING, MOST = 1200, 2000, 4000  # images before the light grows; until it has by GROWTH; at most
GROWTH = 0.1
TOGETHER = 20  # images that the network sees at once
SEEN = 200  # images whose share of false alarms is looked at


def stable(lines: int) -> list[str]:
    """How often windows of a line that does not change are reported."""
    problems = []
    for words, n_streams, alike in (
        ("four streams", 4, 0.0), ("one stream", 1, 0.0), ("four streams, each image like the one before by 0.8", 4, 0.8)
    ):  # fmt: skip
        rng = np.random.default_rng(0)
        windows = reported = 0
        for _ in range(lines):
            monitor = DriftMonitor()
            values = like_before(rng, alike)[:, :n_streams].tolist()
            for start in range(0, len(values), BLOCK * WINDOW):
                found = [
                    shift
                    for row in values[start : start + BLOCK * WINDOW]
                    for shift in monitor.add(dict(zip(STREAMS, row, strict=False)))
                ]
                windows += start >= BLOCK * REFERENCE
                reported += bool(found)
        rate = reported / windows
        share = f"{reported} of {windows} windows reported, {100 * rate:.2f} %"
        print(f"  stable lines, {words}: {share}; promised {100 * RATE:.0f} %")
        if not RATE / 2 <= rate <= 2 * RATE:
            problems.append(f"{words}: a rate of {rate:.4f} is not within a factor of two of {RATE}")
    return problems


def like_before(rng: np.random.Generator, alike: float, n: int = 5000) -> np.ndarray:
    """(n, 4) of streams that do not change, each image like the one before by a factor."""
    values = np.stack([rng.gamma(4, 0.1, n), rng.normal(120, 4, n), rng.normal(30, 2, n), rng.beta(2, 8, n)], 1)
    for k in range(1, n if alike else 0):
        values[k] += alike * (values[k - 1] - values[k])
    return values


def normal_images(seed: int, first: int = 0) -> Iterator[np.ndarray]:
    """Fresh images of good products, from number `first` on, a multiple of TOGETHER; the light varies by 2 %."""
    for block in range(first // TOGETHER, 10**6):
        rng = np.random.default_rng([seed, block])
        made = iter_line(
            n_per_class=1, n_normal=TOGETHER, n_combined=0, size=SIDE, kinds=["hole"], seed=int(rng.integers(2**31))
        )
        for one in islice(made, TOGETHER):
            yield one.image / one.image.mean() * LIGHT * rng.normal(1, 0.02)


def as_image(values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)


def fitted(place: Path) -> AnomalyNCD:
    """A run of 60 good images and two kinds of defect, with PatchCore and the default network."""
    for k, image in enumerate(islice(normal_images(1), 60)):
        _write(place / "images" / "good" / f"{k:03d}.png", image)
    kinds = iter_line(n_per_class=6, n_normal=1, n_combined=0, size=SIDE, kinds=["hole", "scratch"], seed=2)
    for k, made in enumerate(made for made in kinds if made.label != "good"):
        _write(place / "images" / made.label / f"{k:03d}.png", made.image / made.image.mean() * LIGHT)
    model = AnomalyNCD(
        3, model={"input_size": SIDE, "image_size": SIDE}, crop={"size": SIDE},
        detect={"false_alarms": SENSITIVITY, "settings": {"size": SIDE, "map_size": SIDE, "bank_size": 1500}},
    )  # fmt: skip
    return model.fit(place / "images", detector="patchcore", normal=place / "images" / "good", run=place / "run")


def _write(path: Path, values: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), as_image(values)[..., ::-1])


def measured(place: Path, count: int) -> pd.DataFrame:
    """What `watch` writes down of the first images of the line; those of an earlier call with this folder are kept."""
    kept = place / "stream.csv"
    rows = pd.read_csv(kept).to_dict("records") if kept.exists() else []
    predictor = (AnomalyNCD.load(place / "run") if kept.exists() else fitted(place)).run_.predictor()
    stream = normal_images(3, len(rows))
    while len(rows) < count:
        grown = [1 + GROWTH * max(0, len(rows) + k - STABLE) / GROWING for k in range(TOGETHER)]
        images = [as_image(values * factor) for factor, values in zip(grown, stream, strict=False)]
        for found in predictor.extract([Sample(str(k), image) for k, image in enumerate(images)]):
            for record, row in zip(found.images, predictor.classify(found).images.to_dict("records"), strict=True):
                brightness, contrast = light(images[int(record.id)])
                figures = {"brightness": brightness, "contrast": contrast, "foreign": row["foreign"]}
                rows.append({"label": row["label"], "score": record.score, **figures})
        if not len(rows) % SEEN:
            pd.DataFrame(rows).to_csv(kept, index=False)
    return pd.DataFrame(rows)


def brighter(place: Path) -> list[str]:
    """Images of good products, of a light that grows by 10 % over 2,000 of them, and on until false alarms have doubled."""
    count = STABLE + GROWING
    while True:
        table = measured(place, count)
        alarms = table["label"].ne(0)
        before, shares = alarms[:STABLE].mean(), alarms.rolling(SEEN).mean()
        above = shares.index[(shares >= 2 * before) & (shares.index >= STABLE + SEEN)]
        if len(above) or count == STABLE + MOST:
            break
        count += SEEN
    doubled = int(above[0]) + 1 - STABLE if len(above) else None
    monitor, early = DriftMonitor(), 0
    told: dict[str, int] = {}  # stream → after how many images of growing light it was reported
    for number, row in enumerate(table.to_dict("records"), start=1):
        for shift in monitor.add(row | ({"score": None} if row["label"] else {})):
            early += number <= STABLE
            if number > STABLE:
                told.setdefault(shift.stream, number - STABLE)
    course = alarms[STABLE:].groupby(alarms.index[STABLE:] // SEEN).mean()
    words = ", ".join(f"{number} images ({stream})" for stream, number in told.items())
    print(
        f"  stable: {before:.1%} false alarms of {STABLE} images, {SENSITIVITY:.0%} promised; {early} reports of drift"
    )
    print(
        f"  light + {GROWTH:.0%} over {GROWING} images, false alarms by {SEEN}: {' '.join(f'{x:.1%}' for x in course)}"
    )
    print(f"  drift reported after {words or 'none'}; false alarms doubled (of {SEEN} images) after {doubled}")
    first = min(told.values(), default=MOST)
    return (
        [] if first <= GROWING and first < (doubled or MOST) else [f"reported after {first}, doubled after {doubled}"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("stable", "brighter"))
    parser.add_argument("--lines", type=int, default=300)
    parser.add_argument("--work", type=Path, help="brighter: folder to keep the run and the figures of images in")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        problems = stable(given.lines) if given.what == "stable" else brighter(given.work or Path(place))
    for problem in problems:
        print(f"FAILED: {problem}")
    print("failed" if problems else "all as promised")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
