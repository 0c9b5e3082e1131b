"""Masks of a folder of anomaly maps, without any image."""

from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pandas as pd

from ..config import Config
from ..data.layouts import find_files
from ..data.maps import MAP_SUFFIXES
from ..errors import BadFileError, DataError
from ..progress import Silent
from .extract import Item, binarizer_for, fit_binarizer, prepare_map
from .folder import RunFolder
from .tables import to_csv


def binarize_folder(maps: Path, out: Path, config: Config, progress: Silent) -> pd.DataFrame:
    """Write one mask a map, in the same tree, and `masks.csv`: map, threshold, n_regions, message."""
    if not maps.is_dir():
        raise DataError(f"{maps}: expected a folder of anomaly maps.")
    names = sorted(str(name) for name in find_files(maps, MAP_SUFFIXES))
    if not names:
        raise DataError(f"{maps}: expected anomaly maps ({', '.join(sorted(MAP_SUFFIXES))}), none found.")
    items = [Item(name, maps / name, map=maps / name) for name in names]
    binarizer = binarizer_for(config.binarize, has_normal=config.has_normal)
    size = config.binarize.min_map_size
    rows = []
    with RunFolder(out).writing() as folder:
        with progress.task("Range of the maps", len(items)) as advance:
            fit_binarizer(binarizer, items, size, advance)
        with progress.task("Masks", len(items)) as advance:
            for item in items:
                advance()
                try:
                    result = binarizer.binarize(prepare_map(maps / item.id, size))
                except BadFileError as error:
                    rows.append((item.id, np.nan, 0, str(error)))
                    progress.warn(f"skipped {error}")
                    continue
                _, data = cv2.imencode(".png", result.mask.astype(np.uint8) * 255)
                folder.write(os.fspath(Path(item.id).with_suffix(".png")), data.tobytes())
                rows.append((item.id, result.threshold, result.n_regions, ""))
        table = pd.DataFrame(rows, columns=["map", "threshold", "n_regions", "message"])
        folder.write_text("masks.csv", to_csv(table))
    return table
