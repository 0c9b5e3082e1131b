"""The picture that a run ends with: a row of crops for each class."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pandas as pd

from ..run.tables import read_csv
from .sheet import SheetRow, class_sheet

PER_CLASS = 10


def draw_classes(run: Path, name: str = "classes.png") -> Path | None:
    """Draw the surest regions of each class of a run, one of an image as long as there are enough; None without regions."""
    images, regions = read_csv(run / "images.csv"), read_csv(run / "regions.csv")
    if regions.empty:
        return None
    rows = []
    for label, members in regions.groupby("label", sort=True):
        sure = members.sort_values(["probability", "image", "region"], ascending=[False, True, True], kind="stable")
        order = pd.concat([sure[~sure["image"].duplicated()], sure[sure["image"].duplicated()]])
        crops = [read_crop(run / crop) for crop in order["crop"].head(PER_CLASS)]
        n_images = int((images["label"] == label).sum())
        subtitle = f"{n_images} image{'s' * (n_images != 1)}, {len(members)} region{'s' * (len(members) != 1)}"
        if "true_label" in images:
            subtitle += _truth(images.loc[images["label"] == label, "true_label"])
        title = str(members["class_name"].iloc[0]) + (" (false alarms)" if label == 0 else "")
        rows.append(SheetRow(title, subtitle, crops))
    class_sheet(rows, run / name, per_class=PER_CLASS, title=f"Classes found in {len(images)} images")
    return run / name


def read_crop(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_] | None]:
    """A stored crop (S, S, 3) RGB and its mask; a grey field where the file is gone."""
    crop = cv2.imread(str(path), cv2.IMREAD_COLOR)
    mask = cv2.imread(str(path.with_name(path.stem + "_mask.png")), cv2.IMREAD_GRAYSCALE)
    if crop is None:
        return np.full((64, 64, 3), 200, np.uint8), None
    return np.ascontiguousarray(crop[..., ::-1]), None if mask is None else mask > 127


def _truth(labels: pd.Series) -> str:
    """Where folders tell: the commonest true class and its share."""
    counts = labels.value_counts()
    return f"\n{counts.index[0]}: {100 * counts.iloc[0] / counts.sum():.0f} %" if len(counts) else ""
