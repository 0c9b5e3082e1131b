"""What comes in: data set layouts, image, map and mask readers. No torch here."""

from __future__ import annotations

from .dataset import NORMAL_NAMES, Dataset, Sample, load_base, load_dataset
from .images import IMAGE_SUFFIXES, read_image
from .maps import read_map, read_mask

__all__ = [
    "IMAGE_SUFFIXES",
    "NORMAL_NAMES",
    "Dataset",
    "Sample",
    "load_base",
    "load_dataset",
    "read_image",
    "read_map",
    "read_mask",
]
