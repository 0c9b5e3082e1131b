"""A run against the truth, after the fact: its classes against labels."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ..data.dataset import NORMAL_NAMES
from ..data.lists import check_text
from ..errors import DataError, MissingDataError
from ..metrics import Evaluation, evaluate
from .finished import FinishedRun
from .folder import KNOWN
from .tables import header, read_csv


def evaluate_run(
    run: str | Path | FinishedRun, labels: Path | None = None, normal_names: Sequence[str] | None = None
) -> tuple[Evaluation, int]:
    """Scores of a run and the number of files that it had to skip. Images that were told (known.csv) do not count.

    Parameters
    ----------
    run : a finished run, or its folder
    labels : CSV with the columns `image` and `label`; without it the folder names that the run noted
    normal_names : what the normal class is called in those labels
    """
    run = run if isinstance(run, FinishedRun) else FinishedRun(run)
    images = run.images
    if labels is not None:
        truth = images["image"].map(read_labels(labels))
        if truth.isna().all():
            raise DataError(f"{labels}: none of its images is in the run; ids look like {images['image'].iloc[0]!r}.")
    elif "true_label" in images:
        truth = images["true_label"]
    else:
        raise DataError(
            f"{run.path}: its images lay in no class folders, so there is nothing to compare with. Give --labels TABLE."
        )
    known = truth.notna() & ~images["image"].isin(told_images(run))
    if not known.any():
        raise DataError(
            f"{run.path}: every image with a true label was given as a known example, so none is left to score."
        )
    there = sorted(set(truth[known]))
    if unknown := sorted(set(normal_names or ()) - set(there)):
        raise DataError(f"--normal-label {unknown[0]}: no image has this label; there are {', '.join(there)}.")
    names = tuple(normal_names) if normal_names else tuple(sorted(NORMAL_NAMES))
    # A table that was edited by hand may have none; all other figures do without.
    sure = images["probability"][known] if "probability" in images else None
    probabilities = sure if sure is not None and sure.between(0, 1).all() else None
    found = evaluate(truth[known].tolist(), images["label"][known].tolist(), probabilities, normal_names=names)
    return found, len(run.skipped)


def told_images(run: FinishedRun) -> set[str]:
    """Ids of images whose class was told before classes were learned."""
    path = run.folder.place(KNOWN)
    return set(read_csv(path)["image"]) if path.exists() else set()


def read_labels(path: Path) -> dict[str, str]:
    """Image id → label, from a CSV with the columns `image` and `label`; an empty label is none."""
    expected = f"{path}: expected a CSV table with the columns image and label"
    if not os.path.isfile(path):
        if os.path.lexists(path):
            raise DataError(f"{expected}, but this is no file.")
        raise MissingDataError(f"{expected}, but there is no such file.")
    check_text(path)
    try:
        header(path)
        table = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise DataError(f"{expected}, in UTF-8, but it cannot be read as one ({error}).") from error
    table.columns = table.columns.str.strip().str.lower()
    if not {"image", "label"} <= set(table.columns):
        raise DataError(f"{path}: expected the columns image and label, but got {', '.join(table.columns)}.")
    if twice := table["image"][table["image"].duplicated()].tolist():
        raise DataError(f"{path}: expected one row an image, but {twice[0]} is there more than once.")
    labelled = table[table["label"].str.strip() != ""]
    return dict(zip(labelled["image"], labelled["label"].str.strip(), strict=True))
