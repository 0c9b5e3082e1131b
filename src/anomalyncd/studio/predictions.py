"""The table of a prediction, for the page."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pandas as pd

from ..errors import MissingRunError, RunError
from ..run.tables import read_csv
from .jobs import Job
from .schema import ClassCount, PredictedImage, PredictionAnswer

TABLE = "images.csv"


def prediction_answer(job: Job, offset: int, limit: int, label: int | None) -> PredictionAnswer:
    """Some rows, of one class if `label` says so, and the counts of all."""
    table = read_prediction(job)
    names = dict(zip(table["label"].tolist(), table["class_name"].fillna("").tolist(), strict=True))
    counts = Counter(table["label"].tolist())
    order = sorted(counts, key=lambda k: (k <= 0, abs(k)))
    chosen = table if label is None else table[table["label"] == label]
    rows = chosen.iloc[offset : offset + limit]
    return PredictionAnswer(
        total=len(chosen),
        classes=[ClassCount(label=k, name=str(names[k]), n_images=counts[k]) for k in order],
        images=[
            PredictedImage(
                id=int(row), image=str(cells["image"]), label=int(cells["label"]), class_name=str(cells["class_name"]),
                probability=float(cells["probability"]) if math.isfinite(cells["probability"]) else None,
            )
            for row, cells in zip(rows.index, rows.to_dict("records"), strict=True)
        ],
    )  # fmt: skip


def read_prediction(job: Job) -> pd.DataFrame:
    """The table that a job has written."""
    if job.order.get("kind") != "predict" or not (job.folder / TABLE).is_file():
        raise MissingRunError(f"Job {job.number} has no table of predictions, or not yet.")
    table = read_csv(job.folder / TABLE)
    if missing := {"image", "label", "class_name", "probability"} - set(table):
        raise RunError(
            f"{job.folder / TABLE}: expected the columns of a prediction, but {sorted(missing)[0]} is missing."
        )
    return table


def image_file(job: Job, row: int) -> Path | None:
    """Where an image of a prediction lies; None where that is not inside the folder that was chosen."""
    table, folder = read_prediction(job), Path(str(job.order.get("images", "")))
    if not 0 <= row < len(table) or not folder.is_dir():
        return None
    path = (folder / str(table["image"].iloc[row])).resolve()
    return path if path.is_relative_to(folder.resolve()) and path.is_file() else None
