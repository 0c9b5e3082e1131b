"""What the images of the exported run show, and what became of their regions."""

from __future__ import annotations

from typing import Any

import numpy as np

# Height and width of each image, and boxes (top, left, bottom, right) of its defects at half that size.
SCENES: dict[str, tuple[tuple[int, int], list[tuple[int, int, int, int]]]] = {
    "Riß, grün/a 1.png": ((60, 96), [(2, 3, 8, 13), (20, 30, 26, 44)]),
    "Riß, grün/a+b #2%.png": ((60, 96), [(4, 10, 20, 14)]),
    "dot/000.png": ((96, 60), [(1, 1, 9, 9), (30, 20, 42, 28), (30, 2, 34, 8)]),
    "dot/001.png": ((50, 120), [(0, 0, 25, 60)]),
    "good/000.png": ((60, 96), []),
    "good/A 1.png": ((60, 96), []),
    "裂/甲.png": ((64, 64), [(10, 10, 20, 14)]),
}
NAMES = {0: "normal", 1: "a/b", 2: "CON", 5: ".."}
LABELS = {  # of the regions, largest first
    "Riß, grün/a 1.png": [1, 2],
    "Riß, grün/a+b #2%.png": [5],
    "dot/000.png": [2, 0, -1],
    "dot/001.png": [0],
    "裂/甲.png": [-1],
}
IMAGE_LABELS = [1, 5, 2, 0, 0, 0, -1]


def small_mask(name: str) -> np.ndarray[Any, Any]:
    (height, width), boxes = SCENES[name]
    mask = np.zeros((height // 2, width // 2), bool)
    for top, left, bottom, right in boxes:
        mask[top:bottom, left:right] = True
        mask[(top + bottom) // 2, (left + right) // 2] = False  # a hole
    return mask


def expected_masks(name: str) -> list[np.ndarray[Any, Any]]:
    """Each region at the image's size, largest first, found without the package."""
    masks = []
    for top, left, bottom, right in SCENES[name][1]:
        alone = np.zeros_like(small_mask(name))
        alone[top:bottom, left:right] = small_mask(name)[top:bottom, left:right]
        masks.append(np.kron(alone, np.ones((2, 2), bool)).astype(bool))
    return sorted(masks, key=lambda mask: -int(mask.sum()))
