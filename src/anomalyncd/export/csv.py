"""images.csv and regions.csv with columns that do not change from run to run."""

from __future__ import annotations

import pandas as pd

from ..run.finished import FinishedRun
from ..run.tables import REGION_COLUMNS

IMAGE_COLUMNS = (
    "image", "file", "width", "height", "label", "class_name", "probability", "classes", "n_regions", "unknown",
    "true_label",
)  # fmt: skip


def image_table(run: FinishedRun) -> pd.DataFrame:
    """One row an image: `IMAGE_COLUMNS`, empty where the run has nothing to say, then p_… of each class."""
    table, manifest = run.images, run.manifest.drop_duplicates("image").set_index("image")
    for column in ("file", "width", "height"):
        if column in manifest:
            table = table.assign(**{column: table["image"].map(manifest[column])})
    return table.reindex(columns=[*IMAGE_COLUMNS, *(name for name in table if str(name).startswith("p_"))])


def region_table(run: FinishedRun) -> pd.DataFrame:
    """One row a region, false alarms included: `REGION_COLUMNS`, and the region's crop in the run folder."""
    return run.regions.reindex(columns=[*REGION_COLUMNS, "crop"])
