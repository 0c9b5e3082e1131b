"""An anomaly map and a mask laid over their image."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from .canvas import Mask, Picture

OUTLINE = (0, 229, 255)  # cyan: in no colour of the heat, and rare in products
OUTLINE_EDGE = (0, 0, 0)
STRONGEST = 0.85  # opacity of the highest values, so that the defect still shows
# Without the near-black start of inferno: the more abnormal, the brighter, and nothing gets darker by being normal.
_LEVELS = np.linspace(70, 255, 256).astype(np.uint8)[:, None]
_COLOURS = cv2.applyColorMap(_LEVELS, cv2.COLORMAP_INFERNO)[:, 0, ::-1].astype(np.uint8)  # (256, 3) RGB


def overlay(
    image: Picture, anomaly_map: NDArray[np.floating] | None, mask: Mask | None, *, low: float = 0, high: float = 0
) -> Picture:
    """Paint an anomaly map over its image and draw a line around its mask.

    Parameters
    ----------
    image : (H, W, 3) uint8 RGB; it is not changed
    anomaly_map : (h, w) floats of any size, or None. The higher the value, the brighter and the more opaque; what is
        at `low` or below, NaN or infinite is not painted
    mask : (h', w') bool of any size, or None. The line runs just outside, so that the defect stays visible
    low, high : range of values that the colours span: the same for a set of images makes them comparable; without a
        range no map is painted

    Returns
    -------
    (H, W, 3) uint8 RGB

    Examples
    --------
    >>> image, hot = np.full((8, 8, 3), 90, np.uint8), np.zeros((4, 4))
    >>> hot[:2] = 1.0
    >>> painted = overlay(image, hot, None, low=0, high=1)
    >>> bool((painted[0] != 90).all()), bool((painted[-1] == 90).all())
    (True, True)
    """
    painted = image.copy()
    if anomaly_map is not None:
        share = heat(anomaly_map, image.shape[:2], low=low, high=high)
        alpha = STRONGEST * share[..., None] ** 0.75  # faint values stay faint, but not unseen
        painted = np.rint(image * (1 - alpha) + colours(share) * alpha).astype(np.uint8)
    if mask is not None:
        _draw_outline(painted, resized_mask(mask, image.shape[:2]))
    return painted


def heat(anomaly_map: NDArray[np.floating], size: tuple[int, int], *, low: float, high: float) -> NDArray[np.float32]:
    """A map at another size (H, W), float32 from 0 at `low` to 1 at `high`; 0 where it is not finite.

    Examples
    --------
    >>> heat(np.array([[1.0, 3.0, np.nan]]), (1, 3), low=1, high=3)
    array([[0., 1., 0.]], dtype=float32)
    """
    values = np.asarray(anomaly_map, np.float64)
    holes = ~np.isfinite(values)
    scaled = np.zeros(values.shape, np.float32)
    if low < high:
        with np.errstate(over="ignore"):  # a range of nearly nothing: what lies above it is 1 all the same
            scaled[~holes] = np.clip((values[~holes] - low) / (high - low), 0, 1)
    height, width = size
    method = cv2.INTER_AREA if height * width < values.size else cv2.INTER_LINEAR
    share = cv2.resize(scaled, (width, height), interpolation=method).astype(np.float32, copy=False)
    if holes.any():  # nothing of their neighbours runs into them
        share[cv2.resize(holes.astype(np.uint8), (width, height), interpolation=cv2.INTER_NEAREST) > 0] = 0
    return share


def colours(share: NDArray[np.floating]) -> Picture:
    """Values 0 … 1 (H, W) in the colours of a map (H, W, 3) uint8 RGB."""
    painted: Picture = _COLOURS[np.rint(share * 255).astype(np.uint8)]
    return painted


def resized_mask(mask: Mask, size: tuple[int, int]) -> Mask:
    """A mask at another size: exact when enlarged, and no defect vanishes when shrunk, however thin.

    Examples
    --------
    >>> resized_mask(np.eye(6, dtype=bool), (2, 3)).astype(int)
    array([[1, 1, 0],
           [0, 1, 1]])
    """
    height, width = size
    larger = (max(width, mask.shape[1]), max(height, mask.shape[0]))
    enlarged = cv2.resize(mask.astype(np.float32), larger, interpolation=cv2.INTER_NEAREST)
    covered: Mask = cv2.resize(enlarged, (width, height), interpolation=cv2.INTER_AREA) > 0
    return covered


def _draw_outline(picture: Picture, mask: Mask) -> None:
    """A bright line around the mask with a dark one around that: one of them shows on any ground."""
    thickness = max(1, round(max(mask.shape) / 400))
    square = np.ones((2 * thickness + 1, 2 * thickness + 1), np.uint8)
    inside = mask.astype(np.uint8)
    near = cv2.dilate(inside, square)
    far = cv2.dilate(near, square)
    # Outside the picture nothing can be drawn: where the mask meets its border the line runs on the mask itself.
    core = cv2.erode(inside, square, borderType=cv2.BORDER_CONSTANT, borderValue=0)
    frame = np.ones_like(mask)
    frame[thickness:-thickness, thickness:-thickness] = False
    picture[(far > near)] = OUTLINE_EDGE
    picture[(near > inside) | ((inside > core) & frame)] = OUTLINE
