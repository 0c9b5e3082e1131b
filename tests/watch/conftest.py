"""A folder that images arrive in, and a model that sees at a glance what they show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pandas as pd
import pytest

from anomalyncd.data.dataset import Sample
from anomalyncd.discovery.classify import Prediction
from anomalyncd.regions.extract import Extracted
from anomalyncd.regions.records import ImageRecord
from anomalyncd.run.folder import CLASS_NAMES, MODEL_FILE
from anomalyncd.run.tables import REGION_COLUMNS
from anomalyncd.watch.classing import CurrentModel, Reader
from anomalyncd.watch.table import open_table
from anomalyncd.watch.watcher import Pace, Watcher


class Glance:
    """In the place of a Predictor: dark images are normal, and bright ones have a defect over their left half."""

    def __init__(self, name: str = "bright") -> None:
        self.name = name
        self.seen: list[str] = []

    def extract(self, items: Sequence[Sample]) -> Iterator[Extracted]:
        if any(np.asarray(item.image).max() == 13 for item in items):
            raise RuntimeError("chokes on 13")
        self.seen += [item.id for item in items]
        records = [ImageRecord(k, item.id, *np.shape(item.image)[:2]) for k, item in enumerate(items)]
        for record, item in zip(records, items, strict=True):
            record.score = float(np.mean(item.image))
        yield Extracted(records)

    def classify(self, found: Extracted) -> Prediction:
        labels = np.array([int(record.score > 128) for record in found.images])
        images = pd.DataFrame({"image": [record.id for record in found.images], "label": labels})
        images["class_name"] = [self.name if label else "normal" for label in labels]
        for name in ("probability", "unknown", "foreign", "false_alarm"):
            images[name] = 0.5
        images["classes"], images["n_regions"], images["p_1"] = labels.astype(str), labels, 0.5
        rows = [
            [r.id, 0, 0, 0, r.width // 2, r.height, 0, 0, 9, r.width * r.height / 2, 1.0, 1, self.name]
            for r, label in zip(found.images, labels, strict=True)
            if label
        ]  # fmt: skip
        regions = pd.DataFrame(rows, columns=list(REGION_COLUMNS[:13]))
        for name in REGION_COLUMNS[13:]:
            regions[name] = 0.5
        return Prediction(labels, np.zeros((len(labels), 2)), regions, images, {})


def png(value: int, size: tuple[int, int] = (6, 8)) -> bytes:
    return cv2.imencode(".png", np.full((*size, 3), value, np.uint8))[1].tobytes()


class Line:
    """Everything of a watched line; `go` takes what is there, as a new process does."""

    def __init__(self, place: Path) -> None:
        self.run, self.folder = place / "run", place / "arriving"
        for folder in (self.run, self.folder):
            folder.mkdir()
        self.table, self.glance, self.now = place / "table.csv", Glance(), 1000.0
        self.train("first")

    def train(self, text: str) -> None:
        (self.run / MODEL_FILE).write_text(text)
        (self.run / CLASS_NAMES).write_text("{}")

    def put(self, name: str, content: bytes | int) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(content) if isinstance(content, int) else content)
        return path

    def watcher(self, *, quote: bool = False, **options: Any) -> Watcher:
        ledger, table = open_table(self.table, quote=quote)
        model = CurrentModel(self.run, lambda: self.glance)  # type: ignore[arg-type, return-value]
        pace = options.pop("pace", Pace(every=0.01, settle=0.0, patience=0.0))
        return Watcher(self.folder, model, Reader(self.folder), ledger, table, pace=pace, **options)

    def go(self, **options: Any) -> Watcher:
        watcher = self.watcher(**options)
        watcher.run(once=True)
        watcher.ledger.close()
        return watcher

    def rows(self) -> pd.DataFrame:
        return pd.read_csv(self.table, dtype={"classes": str})


@pytest.fixture
def line(tmp_path: Path) -> Line:
    return Line(tmp_path)


@pytest.fixture
def picture() -> Callable[[int], bytes]:
    return png
