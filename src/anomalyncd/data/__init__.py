"""What comes in: data set layouts, image, map and mask readers. No torch here."""

from __future__ import annotations

from anomalyncd.data.dataset import NORMAL_NAMES, Dataset, Sample, load_base, load_dataset
from anomalyncd.data.images import IMAGE_SUFFIXES, read_image
from anomalyncd.data.maps import read_map, read_mask

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
