"""The picture that a run ends with: a row of crops for each class."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd

from ..run.folder import CLASS_SHEET, IMAGES_TABLE, REGIONS_TABLE, RunFolder
from ..run.store import read_crop
from ..run.tables import read_csv
from .sheet import SheetRow, class_sheet

PER_CLASS = 10


def draw_classes(run: Path) -> Path | None:
    """Draw the surest regions of each class of a run, one of an image as long as there are enough.

    Returns the picture, or None where the run has no region.
    """
    images, regions = read_csv(run / IMAGES_TABLE), read_csv(run / REGIONS_TABLE)
    if regions.empty:
        return None
    rows = []
    for label, members in regions.groupby("label", sort=True):
        sure = members.sort_values(["probability", "image", "region"], ascending=[False, True, True], kind="stable")
        order = pd.concat([sure[~sure["image"].duplicated()], sure[sure["image"].duplicated()]])
        crops = [_picture(run / crop) for crop in order["crop"].head(PER_CLASS)]
        n_images = int((images["label"] == label).sum())
        subtitle = f"{n_images} image{'s' * (n_images != 1)}, {len(members)} region{'s' * (len(members) != 1)}"
        if "true_label" in images:
            subtitle += _truth(images.loc[images["label"] == label, "true_label"])
        title = str(members["class_name"].iloc[0]) + (" (false alarms)" if label == 0 else "")
        rows.append(SheetRow(title, subtitle, crops))
    sheet = class_sheet(rows, per_class=PER_CLASS, title=f"Classes found in {len(images)} images")
    _, data = cv2.imencode(".png", sheet[..., ::-1])
    RunFolder(run).write(CLASS_SHEET, data.tobytes())
    return run / CLASS_SHEET


def _picture(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """A stored crop and its mask; a grey field where the file is gone."""
    crop, mask = read_crop(path)
    return (np.full((64, 64, 3), 200, np.uint8), None) if crop is None else (crop, mask)


def _truth(labels: pd.Series) -> str:
    """Where folders tell: the commonest true class and its share."""
    counts = labels.value_counts()
    return f"\n{counts.index[0]}: {100 * counts.iloc[0] / counts.sum():.0f} %" if len(counts) else ""
