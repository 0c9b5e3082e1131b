"""A run against true labels, after the fact."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..data.dataset import NORMAL_NAMES
from ..errors import DataError, RunError
from ..metrics import Evaluation, evaluate
from .tables import read_csv


def evaluate_run(
    run: Path, labels: Path | None = None, normal_names: Sequence[str] | None = None
) -> tuple[Evaluation, int]:
    """Scores of a run folder and the number of files that it had to skip.

    Parameters
    ----------
    labels : CSV with the columns `image` and `label`; without it the folder names that the run noted
    normal_names : what the normal class is called in those labels
    """
    if not (run / "images.csv").is_file():
        raise RunError(
            f"{run}: expected a finished run with images.csv, none found. Make one with `anomalyncd discover`."
        )
    images, manifest = read_csv(run / "images.csv"), read_csv(run / "manifest.csv")
    if labels is not None:
        table = read_csv(labels)
        if not {"image", "label"} <= set(table.columns):
            raise DataError(
                f"{labels}: expected the columns image and label, but got {', '.join(map(str, table.columns))}."
            )
        if twice := table["image"][table["image"].duplicated()].tolist():
            raise DataError(f"{labels}: expected one row an image, but {twice[0]} is there more than once.")
        truth = images["image"].map(dict(zip(table["image"], table["label"].astype(str), strict=True)))
        known = truth.notna()
        if not known.any():
            raise DataError(f"{labels}: none of its images is in the run; ids look like {images['image'].iloc[0]!r}.")
    elif "true_label" in images:
        truth = images["true_label"]
        known = truth.notna()
    else:
        raise DataError(
            f"{run}: its images lay in no class folders, so there is nothing to compare with. Give --labels TABLE."
        )
    names = tuple(normal_names) if normal_names else tuple(sorted(NORMAL_NAMES))
    found = evaluate(truth[known].tolist(), images["label"][known].tolist(), normal_names=names)
    return found, int((manifest["status"] == "skipped").sum())
