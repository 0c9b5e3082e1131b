"""Masks of a folder of anomaly maps, without any image."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pandas as pd

from ..binarize.prepare import binarize_map, binarizer_for, fit_binarizer, note_on_map, prepare_map
from ..config import Config
from ..data.dataset import Sample
from ..data.layouts import find_files
from ..data.maps import MAP_SUFFIXES
from ..errors import BadFileError, DataError, RunError, SettingsError
from ..paths import is_inside
from ..places.stored import File
from ..progress import Silent
from ..run.folder import RunFolder
from ..run.tables import to_csv


def binarize_folder(maps: File, out: Path, config: Config, progress: Silent) -> pd.DataFrame:
    """Write one mask a map, in the same tree, and `masks.csv`: map, threshold, n_regions, message."""
    if not maps.is_dir():
        raise DataError(f"{maps}: expected a folder of anomaly maps.")
    if is_inside(out, maps):
        raise SettingsError(f"{out}: the masks would lie among the maps. Choose a folder outside {maps}.")
    if out.exists() and not out.is_dir():
        raise RunError(f"{out}: expected a folder for the masks, but this is a file.")
    names = find_files(maps, MAP_SUFFIXES)
    if not names:
        raise DataError(f"{maps}: expected anomaly maps ({', '.join(sorted(MAP_SUFFIXES))}), none found.")
    for name in names:
        if (told := name.encode("utf-8", "backslashreplace").decode()) != name:
            raise DataError(f"{told}: the file's name is not valid UTF-8. Rename it")
    mask_names = [Path(name).with_suffix(".png").as_posix() for name in names]
    if len(set(mask_names)) < len(names):
        twice = next(name for name in mask_names if mask_names.count(name) > 1)
        raise DataError(f"{maps}: two maps would become the mask {twice}. Keep one of them.")
    items = [Sample(name, maps / name, map=maps / name) for name in names]
    binarizer = binarizer_for(config.binarize, has_normal=config.has_normal)
    size = config.binarize.min_map_size
    with progress.task("Range of the maps", len(items)) as advance:
        fit_binarizer(binarizer, items, size, advance)
    folder = RunFolder(out)
    rows = []
    try:
        with progress.task("Masks", len(items)) as advance:
            for item, mask_name in zip(items, mask_names, strict=True):
                advance()
                try:
                    values = prepare_map(maps / item.id, size)
                except BadFileError as error:
                    rows.append((item.id, np.nan, 0, str(error)))
                    progress.warn(f"skipped {error}")
                    continue
                result, _ = binarize_map(binarizer, values)
                _, data = cv2.imencode(".png", result.mask.astype(np.uint8) * 255)
                folder.write(mask_name, data.tobytes())
                rows.append((item.id, result.threshold, result.n_regions, note_on_map(values)))
        table = pd.DataFrame(rows, columns=["map", "threshold", "n_regions", "message"])
        folder.write_text("masks.csv", to_csv(table))
    except OSError as error:
        raise RunError(f"{out}: cannot write the masks ({error.strerror or error}).") from error
    return table
