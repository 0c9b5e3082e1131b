"""A run against true labels, after the fact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ..data.dataset import NORMAL_NAMES
from ..errors import DataError
from ..metrics import Evaluation, evaluate
from .tables import read_results


def evaluate_run(
    run: Path, labels: Path | None = None, normal_names: Sequence[str] | None = None
) -> tuple[Evaluation, int]:
    """Scores of a run folder and the number of files that it had to skip.

    Parameters
    ----------
    labels : CSV with the columns `image` and `label`; without it the folder names that the run noted
    normal_names : what the normal class is called in those labels
    """
    images, manifest = read_results(run)
    if labels is not None:
        truth = images["image"].map(read_labels(labels))
        if truth.isna().all():
            raise DataError(f"{labels}: none of its images is in the run; ids look like {images['image'].iloc[0]!r}.")
    elif "true_label" in images:
        truth = images["true_label"]
    else:
        raise DataError(
            f"{run}: its images lay in no class folders, so there is nothing to compare with. Give --labels TABLE."
        )
    known = truth.notna()
    names = tuple(normal_names) if normal_names else tuple(sorted(NORMAL_NAMES))
    found = evaluate(truth[known].tolist(), images["label"][known].tolist(), normal_names=names)
    return found, int((manifest["status"] == "skipped").sum())


def read_labels(path: Path) -> dict[str, str]:
    """Image id → label, from a CSV with the columns `image` and `label`; an empty label is none."""
    try:
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: expected a CSV table in UTF-8 ({error}).") from error
    table.columns = table.columns.str.strip().str.lower()
    if not {"image", "label"} <= set(table.columns):
        raise DataError(f"{path}: expected the columns image and label, but got {', '.join(table.columns)}.")
    if twice := table["image"][table["image"].duplicated()].tolist():
        raise DataError(f"{path}: expected one row an image, but {twice[0]} is there more than once.")
    labelled = table[table["label"].str.strip() != ""]
    return dict(zip(labelled["image"], labelled["label"].str.strip(), strict=True))
