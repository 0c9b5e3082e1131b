"""COCO object detection JSON, with masks as run lengths."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import __version__
from ..data.run_lengths import run_lengths
from .source import Finding, Image, Results

CROWD = 1  # COCO: 0 where the segmentation is a list of polygons, 1 where it is run lengths


def coco(results: Results, on_image: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """The content of a COCO file; `annotations` is an iterator that reads one image's masks at a time."""
    return {
        "info": {"description": f"Defects found by anomalyncd {__version__}", "version": __version__},
        "licenses": [],
        "categories": [
            {"id": label, "name": name, "supercategory": "defect"} for label, name in results.defects.items()
        ],
        "images": [
            {"id": image.number, "file_name": image.name, "width": image.width, "height": image.height}
            for image in results.images
        ],
        "annotations": _annotations(results, on_image),
    }


def _annotations(results: Results, on_image: Callable[[], None]) -> Iterator[dict[str, Any]]:
    number = 0
    for image in results.images:
        for finding, mask in results.masks(image):
            number += 1
            yield _annotation(number, image, finding, mask)
        on_image()


def _annotation(number: int, image: Image, finding: Finding, mask: NDArray[np.bool_]) -> dict[str, Any]:
    columns, rows = np.flatnonzero(mask.any(axis=0)), np.flatnonzero(mask.any(axis=1))
    x, y = int(columns[0]), int(rows[0])
    return {
        "id": number,
        "image_id": image.number,
        "category_id": finding.label,
        "segmentation": {"size": [image.height, image.width], "counts": run_lengths(mask)},
        "bbox": [x, y, int(columns[-1]) - x + 1, int(rows[-1]) - y + 1],
        "area": int(mask.sum()),
        "iscrowd": CROWD,
        "score": finding.probability,
    }
