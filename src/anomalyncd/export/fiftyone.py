"""FiftyOne's JSON formats FiftyOneImageDetectionDataset and FiftyOneImageClassificationDataset."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .source import Finding, Image, Results


def data_manifest(images: Iterable[Image]) -> dict[str, str]:
    """data.json: the key of an image → its file. FiftyOne cuts the ending off a key."""
    return {_key(image) + image.file.suffix: str(image.file) for image in images if image.file is not None}


def detections(results: Results, images: Iterable[Image]) -> dict[str, Any]:
    """labels.json: key of an image → its regions, boxes as shares of the image's size."""
    classes = list(dict.fromkeys(results.defects.values()))
    return {
        "classes": classes,
        "labels": {_key(image): [_detection(image, found, classes) for found in image.findings] for image in images},
    }


def classifications(results: Results, images: Iterable[Image]) -> dict[str, Any]:
    """image_labels.json: key of an image → its class."""
    classes = list(dict.fromkeys(results.classes.values()))
    labels = {
        _key(image): {
            "label": classes.index(image.class_name),
            "confidence": image.probability,
            "attributes": {"image": image.name},
        }
        for image in images
    }
    return {"classes": classes, "labels": labels}


def _key(image: Image) -> str:
    return f"{image.number:06d}"


def _detection(image: Image, found: Finding, classes: list[str]) -> dict[str, Any]:
    attributes = {"region": found.region, "area": found.area, "score": found.score}
    if not math.isnan(found.unknown):
        attributes["unknown"] = found.unknown
    return {
        "label": classes.index(found.class_name),
        "bounding_box": [
            found.x / image.width,
            found.y / image.height,
            found.width / image.width,
            found.height / image.height,
        ],
        "confidence": found.probability,
        "attributes": attributes,
    }
