"""Image + mask → regions: tight boxes, crop squares, areas and scores; and the crops themselves.

A mask (and a score map) may be smaller or larger than its image and of another aspect: they cover the
same field of view. Regions are found at mask resolution and only their boxes are scaled to image pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from ..config import CropConfig
from ..errors import DataError
from .boxes import MANY_BOXES, Boxes, merge_boxes, merge_squares

DRAWN = "drawn "  # begins the digest of a region that a person drew
Labels = npt.NDArray[np.int32]
Size = TypeVar("Size", int, npt.NDArray[np.int64])
Pixel = TypeVar("Pixel", bound=np.generic)


@dataclass(frozen=True, kw_only=True)
class Region:
    """One anomalous region of an image: `find_regions` says where it is, the extractor adds the image and the digest.

    index, image : place of the image in the list, and its id
    region : number of the region in its image
    box : (x, y, width, height), the tight box in image pixels
    square : (x, y, side), the crop in image pixels; hangs over the image only where the image is smaller
    area : of the mask in image pixels; with `crop.merge: squares` of all of the mask in the square
    score : maximum of the score map inside the square, 1 where there is no score map
    digest : of the crop's pixels, whatever its file is called; it says as well whether a person drew the region
    labels : of the mask's components that make up the region, ascending; not kept once the crop is cut
    """

    index: int = 0
    image: str = ""
    region: int = 0
    box: tuple[int, int, int, int]
    square: tuple[int, int, int]
    area: float
    score: float
    digest: str = ""
    labels: tuple[int, ...] = ()

    @property
    def is_drawn(self) -> bool:
        """Whether a person drew it after classes were learned."""
        return self.digest.startswith(DRAWN)


def find_regions(
    mask: npt.NDArray[np.bool_],
    image_size: tuple[int, int],
    crop: CropConfig = CropConfig(),
    *,
    scores: npt.NDArray[np.float32] | None = None,
) -> tuple[list[Region], Labels]:
    """Group the components of a mask into regions.

    Parameters
    ----------
    mask : (h, w) bool
    image_size : (H, W) of the image
    crop : what becomes one region, and how crop squares are laid
    scores : (h2, w2) float in 0 … 1, for the regions' scores

    Returns
    -------
    The regions, largest area first and equal ones from top to bottom, left to right; and the components, (h, w) int32
    with 0 for the background, to which `Region.labels` refer.

    Examples
    --------
    >>> mask = np.zeros((50, 50), dtype=bool)
    >>> mask[20:25, 30:40] = True
    >>> (region,), components = find_regions(mask, (100, 100), CropConfig())
    >>> region.box, region.square, region.area, region.score, region.labels
    ((60, 40, 20, 10), (59, 34, 22), 200.0, 1.0, (1,))
    """
    mask = np.asarray(mask)
    if mask.ndim != 2 or mask.size == 0:
        raise DataError(f"mask: expected a non-empty 2-D array (H, W), but got shape {mask.shape}.")
    foreground = (mask != 0).astype(np.uint8)
    n_labels, components, statistics, _ = cv2.connectedComponentsWithStats(foreground, connectivity=8)
    if n_labels == 1:
        return [], components
    rows, columns = mask.shape
    x, y, width, height, n_pixels = statistics[1:].astype(np.int64).T
    (x0, x1), (y0, y1) = rescale(x, x + width, columns, image_size[1]), rescale(y, y + height, rows, image_size[0])
    boxes = np.stack([x0, y0, x1, y1], axis=1)
    if crop.merge == "squares":
        order, starts, squares = _near_squares(boxes, n_pixels, image_size, crop)
        n_pixels = np.array([np.count_nonzero(_under(square, foreground, image_size)) for square in squares])
    else:
        group = merge_boxes(boxes, crop.merge_distance * max(image_size))
        order = np.argsort(group, kind="stable")
        starts = np.flatnonzero(np.diff(group[order], prepend=-1))
        n_pixels = np.add.reduceat(n_pixels[order], starts)
    upper_left = np.minimum.reduceat(boxes[order, :2], starts)
    lower_right = np.maximum.reduceat(boxes[order, 2:], starts)
    labels = np.split(order + 1, starts[1:])
    pixel_area = (image_size[0] / rows) * (image_size[1] / columns)
    regions: list[Region] = []
    for i in np.lexsort((upper_left[:, 0], upper_left[:, 1], -n_pixels)):
        box = (*upper_left[i].tolist(), *(lower_right[i] - upper_left[i]).tolist())
        square = squares[i] if crop.merge == "squares" else crop_square(box, image_size, crop)
        score = 1.0 if scores is None else float(_under(square, scores, image_size).max())
        area, own = int(n_pixels[i]) * pixel_area, tuple(labels[i].tolist())
        regions.append(Region(region=len(regions), box=box, square=square, area=area, score=score, labels=own))
    return regions, components


def _near_squares(
    boxes: Boxes, n_pixels: npt.NDArray[np.int64], image_size: tuple[int, int], crop: CropConfig
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], list[tuple[int, int, int]]]:
    """The components of each region one after the other, where each region starts, and the squares of the regions.

    Of very many components only the largest make regions; the others still are part of the masks that they lie in.
    """
    used = np.sort(np.argsort(-n_pixels, kind="stable")[:MANY_BOXES])
    around = [crop_square((x0, y0, x1 - x0, y1 - y0), image_size, crop) for x0, y0, x1, y1 in boxes[used].tolist()]
    groups = merge_squares(np.array(around), int(crop.merge_distance * max(image_size)))
    order = used[np.concatenate([members for members, _ in groups])]
    starts = np.cumsum([0, *(len(members) for members, _ in groups[:-1])])
    return order, starts, [_move_inside(*square, image_size) for _, square in groups]


def whole_region(
    image_size: tuple[int, int], scores: npt.NDArray[np.float32] | None = None
) -> tuple[list[Region], Labels]:
    """The whole image as one region, as `find_regions` returns it for a full mask; components are (1, 1).

    Examples
    --------
    >>> regions, components = whole_region((60, 100))
    >>> regions[0].box, regions[0].square, components.tolist()
    ((0, 0, 100, 60), (0, -20, 100), [[1]])
    """
    return find_regions(np.ones((1, 1), dtype=bool), image_size, CropConfig(whole_image=True), scores=scores)


def cut(
    image: npt.NDArray[np.uint8], components: Labels, region: Region, size: int = 256, *, alone: bool = True
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Cut a region out of its image, resized, with its mask in the same frame.

    Where the square hangs over the image, the image's edge is repeated and the mask is False.

    Parameters
    ----------
    image : (H, W, 3) uint8
    components : (h, w) int32 from `find_regions`
    size : side of the crop in pixels
    alone : the mask is of this region alone, not of all that lies in its square

    Returns
    -------
    (size, size, 3) uint8 crop, and (size, size) bool mask with at least one pixel.

    Examples
    --------
    >>> mask = np.zeros((10, 10), dtype=bool)
    >>> mask[4:6, 4:6] = True
    >>> regions, components = find_regions(mask, (100, 100), CropConfig())
    >>> crop, crop_mask = cut(np.zeros((100, 100, 3), np.uint8), components, regions[0], size=64)
    >>> crop.shape, crop_mask.shape, bool(crop_mask[32, 32])
    ((64, 64, 3), (64, 64), True)
    """
    height, width = image.shape[:2]
    left, top, side = region.square
    # The visible part of the square, in the image and in the crop.
    x0, x1 = max(left, 0), min(left + side, width)
    y0, y1 = max(top, 0), min(top + side, height)
    u0, u1 = _place(x0 - left, x1 - left, side, size)
    v0, v1 = _place(y0 - top, y1 - top, side, size)

    # Pad after resizing: a long, narrow image never becomes a square of its longer side.
    interpolation = cv2.INTER_AREA if size < side else cv2.INTER_LINEAR
    visible = cv2.resize(image[y0:y1, x0:x1], (u1 - u0, v1 - v0), interpolation=interpolation)
    crop = cv2.copyMakeBorder(visible, v0, size - v1, u0, size - u1, cv2.BORDER_REPLICATE)

    rows, columns = components.shape
    y_edges = np.linspace(y0, y1, v1 - v0 + 1) * (rows / height)
    x_edges = np.linspace(x0, x1, u1 - u0 + 1) * (columns / width)
    window = (
        slice(int(y_edges[0]), min(int(np.ceil(y_edges[-1])), rows)),
        slice(int(x_edges[0]), min(int(np.ceil(x_edges[-1])), columns)),
    )
    own = np.isin(components[window], region.labels) if alone else components[window] > 0
    coverage = _mean_between(own, y_edges - window[0].start)
    coverage = _mean_between(coverage.T, x_edges - window[1].start).T
    crop_mask = np.zeros((size, size), dtype=bool)
    # Half covered pixels, or fewer where the region is too thin to cover half a pixel anywhere.
    crop_mask[v0:v1, u0:u1] = coverage >= min(0.5, coverage.max() / 2)
    return np.asarray(crop, dtype=np.uint8), crop_mask


def cut_map(
    scores: npt.NDArray[np.float32], image_size: tuple[int, int], square: tuple[int, int, int], size: int
) -> npt.NDArray[np.float32]:
    """The part of a map (h, w) that lies under a crop square of its image, as (size, size); its edge is repeated outside.

    Examples
    --------
    >>> scores = np.float32([[0, 1], [0, 1]])
    >>> cut_map(scores, (20, 20), (10, 0, 10), 2).tolist()
    [[0.75, 1.0], [0.75, 1.0]]
    """
    (rows, columns), (height, width) = scores.shape, image_size
    left, top, side = square
    x_step, y_step = side / size * columns / width, side / size * rows / height
    # Centres of pixels on centres of pixels.
    x_start, y_start = left * columns / width + x_step / 2 - 0.5, top * rows / height + y_step / 2 - 0.5
    to_map = np.array([[x_step, 0, x_start], [0, y_step, y_start]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    part = cv2.warpAffine(scores, to_map, (size, size), flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return part.astype(np.float32, copy=False)


def crop_square(box: tuple[int, int, int, int], image_size: tuple[int, int], crop: CropConfig) -> tuple[int, int, int]:
    """The crop square (x, y, side) around a box (x, y, width, height), all in image pixels.

    Half its side is max(½·(1 + padding)·longer box side, min_size·longer image side); the side never
    exceeds the longer image side. The square is centred on the box and moved into the image.

    Examples
    --------
    >>> crop_square((0, 50, 30, 40), (100, 200), CropConfig())
    (0, 48, 44)
    """
    x, y, box_width, box_height = box
    height, width = image_size
    longer = max(height, width)
    side = longer
    if not crop.whole_image:
        wanted = max((1 + crop.padding) * max(box_width, box_height), 2 * crop.min_size * longer)
        if crop.merge == "squares":  # as the paper's code rounds, but never smaller than the box
            side = max(2 * int(wanted / 2), box_width, box_height)
        else:  # rounding keeps 1.1 · 10 from becoming 12
            side = max(int(np.ceil(round(wanted, 6))), 1)
    return _move_inside((2 * x + box_width - side) // 2, (2 * y + box_height - side) // 2, side, image_size)


def _move_inside(x: int, y: int, side: int, image_size: tuple[int, int]) -> tuple[int, int, int]:
    """A square in the image, at most as large as its longer side; centred where the image is smaller than the square."""
    height, width = image_size
    side = min(side, max(image_size))

    def place(start: int, extent: int) -> int:
        return (extent - side) // 2 if side >= extent else min(max(start, 0), extent - side)

    return place(x, width), place(y, height), side


def rescale(start: Size, stop: Size, length: int, new_length: int) -> tuple[Size, Size]:
    """Pixels start … stop of `length` → the pixels that cover them where the same field of view has `new_length`."""
    return start * new_length // length, -(-stop * new_length // length)


def _under(square: tuple[int, int, int], values: npt.NDArray[Pixel], image_size: tuple[int, int]) -> npt.NDArray[Pixel]:
    """The part of a map or mask (h, w) that a square of its image covers."""
    (rows, columns), (height, width), (left, top, side) = values.shape, image_size, square
    x0, x1 = rescale(max(left, 0), min(left + side, width), width, columns)
    y0, y1 = rescale(max(top, 0), min(top + side, height), height, rows)
    return values[y0:y1, x0:x1]


def _place(start: int, stop: int, side: int, size: int) -> tuple[int, int]:
    """Pixels start … stop of a square of `side` → whole pixels of the crop of `size`, at least one."""
    first = min(round(start * size / side), size - 1)
    return first, max(round(stop * size / side), first + 1)


def _mean_between(
    array: npt.NDArray[np.bool_] | npt.NDArray[np.float64], edges: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """(h, w) → (n, w): mean of the rows between consecutive (n + 1,) edges, which may cut through rows."""
    n_rows, n_columns = array.shape
    integral = np.zeros((n_rows + 1, n_columns))
    np.cumsum(array, axis=0, out=integral[1:])
    edges = np.clip(edges, 0, n_rows)
    row = np.minimum(edges.astype(np.int64), n_rows - 1)
    fraction = (edges - row)[:, None]
    at_edges = integral[row] * (1 - fraction) + integral[row + 1] * fraction
    mean: npt.NDArray[np.float64] = np.diff(at_edges, axis=0) / (edges[1] - edges[0])
    return mean


def first_regions(regions: Sequence[Region]) -> dict[int, int]:
    """Index of each image that has a region → place of its first one."""
    first: dict[int, int] = {}
    for place, region in enumerate(regions):
        first.setdefault(region.index, place)
    return first


class Strong(Protocol):
    """What has a strength."""

    @property
    def area(self) -> float: ...

    @property
    def score(self) -> float: ...


def strengths(regions: Sequence[Strong]) -> npt.NDArray[np.float64]:
    """(R,) by which the main region of an image is told: √area times score."""
    return np.array([np.sqrt(region.area) * region.score for region in regions])


def by_content(regions: Sequence[Region]) -> npt.NDArray[np.int64]:
    """Positions of the regions in an order that no file name has a say in: names of folders must not change a result."""
    return np.array(sorted(range(len(regions)), key=lambda index: regions[index].digest), dtype=np.int64)
