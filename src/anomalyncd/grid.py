"""Images, masks and maps ↔ grids of patches: what is done around a network. No torch here.

Arrays of tokens are NumPy's or torch's, whatever the network gives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

Picture = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float32]
Flags = npt.NDArray[np.bool_]

# Tokens of the same image differ by no more, as a share of their length: 1.4 % at most was seen with bfloat16, while other
# images of the same product are 60 % off.
ALIKE = 0.05


@dataclass(frozen=True)
class TokenGrid:
    """Tokens of one image.

    blocks : (L, h, w, C) float32, patch tokens after each wanted block
    summary : (C,) float32, class token after the last of them
    size : (H, W) of the image in pixels
    """

    blocks: Any
    summary: Any
    size: tuple[int, int]

    @property
    def shape(self) -> tuple[int, int]:
        """Patches (h, w)."""
        return self.blocks.shape[1], self.blocks.shape[2]


@dataclass(frozen=True)
class GridReader:
    """Images → tokens, large ones as overlapping tiles.

    Parameters
    ----------
    tokens : the network: (B, H, W, 3) uint8 → patch tokens (B, L, h, w, C) and one (C,) summary each, (B, C)
    patch : height and width of a patch
    size : the longer image side is scaled to this many pixels, rounded to whole patches
    tile : side in image pixels of the tiles, each of which is scaled to `size`; None for whole images
    batch_size : images or tiles in one pass
    asarray : a NumPy array as one of the kind that `tokens` gives
    """

    tokens: Callable[[Picture], tuple[Any, Any]]
    patch: tuple[int, int]
    size: int
    tile: int | None
    batch_size: int
    asarray: Callable[[Values], Any] = np.asarray

    def __call__(self, images: Iterable[Picture]) -> Iterator[TokenGrid]:
        """Tokens of (H, W, 3) uint8 images, in order; neighbours of the same shape go through the network together."""
        scaled = ((self.scaled(image), (image.shape[0], image.shape[1])) for image in images)
        for _, alike in groupby(scaled, key=lambda pair: pair[0].shape):
            while batch := list(islice(alike, self.batch_size)):
                yield from self._run([image for image, _ in batch], [size for _, size in batch])

    def scaled(self, image: Picture) -> Picture:
        """The image with sides of whole patches."""
        scale = self.size / (self.tile or max(image.shape[:2]))
        sides = zip(image.shape[:2], self.patch, strict=True)
        height, width = (max(1, round(side * scale / patch)) * patch for side, patch in sides)
        method = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
        return cv2.resize(image, (width, height), interpolation=method).astype(np.uint8, copy=False)

    def _run(self, images: list[Picture], sizes: list[tuple[int, int]]) -> Iterator[TokenGrid]:
        """Tokens of images of one shape; those of more than one tile go one at a time."""
        grid = (images[0].shape[0] // self.patch[0], images[0].shape[1] // self.patch[1])
        side = max(1, self.size // self.patch[0])
        if self.tile is None or max(grid) <= side:
            for blocks, summary, size in zip(*self.tokens(np.stack(images)), sizes, strict=True):
                yield TokenGrid(blocks, summary, size)
            return
        for image, size in zip(images, sizes, strict=True):
            yield TokenGrid(*self._tiled(image, grid, side), size)

    def _tiled(self, image: Picture, grid: tuple[int, int], side: int) -> tuple[Any, Any]:
        """Tokens of one large image from overlapping tiles of side × side patches."""
        # Where tiles overlap their tokens are averaged, with weights that fade to a tile's edge: so there are no seams, and
        # the edge of a tile, which sees half of its surroundings only, counts least.
        height, width = (min(side, patches) for patches in grid)
        corners = [(top, left) for top in starts(grid[0], height) for left in starts(grid[1], width)]
        weight = self.asarray(np.outer(fading(height), fading(width))[..., None])
        weights = self.asarray(np.zeros((*grid, 1), np.float32))
        total: Any = None
        summaries: Any = 0
        ph, pw = self.patch
        for start in range(0, len(corners), self.batch_size):
            some = corners[start : start + self.batch_size]
            tiles = [image[top * ph : (top + height) * ph, left * pw : (left + width) * pw] for top, left in some]
            blocks, summary = self.tokens(np.stack(tiles))
            summaries = summaries + summary.sum(0)
            if total is None:
                total = self.asarray(np.zeros((blocks.shape[1], *grid, blocks.shape[-1]), np.float32))
            for (top, left), tokens in zip(some, blocks, strict=True):
                total[:, top : top + height, left : left + width] += tokens * weight
                weights[top : top + height, left : left + width] += weight
        return total / weights, summaries / len(corners)


def place_of(blocks: Any, references: Sequence[Any]) -> int | None:
    """Place of an image among references, so that MuSc does not compare it with itself when it comes again.

    Its tokens are equal but for rounding, by another precision for instance, and by the batch that it was in.

    Parameters
    ----------
    blocks : (L, h, w, C) float32; references : (L, h', w', C) of any float type each
    """
    corner, limit = (slice(None), 0, 0), ALIKE**2
    for place, known in enumerate(references):
        if known.shape == blocks.shape and all(
            ((blocks[some] - known[some]) ** 2).sum() <= limit * (blocks[some] ** 2).sum() for some in (corner, ...)
        ):
            return place
    return None


def to_map(
    scores: Values, image_size: tuple[int, int], *, map_size: int, tile: int | None = None, sigma: float = 0
) -> Values:
    """Patch scores (h, w) → a smooth map with the image's aspect; `map_size` pixels are its longer side, or a tile's."""
    longer = max(image_size)
    scale = round(map_size * longer / (tile or longer)) / longer
    size = (max(1, round(image_size[1] * scale)), max(1, round(image_size[0] * scale)))
    out = cv2.resize(scores, size, interpolation=cv2.INTER_LINEAR)
    if sigma > 0:
        out = cv2.GaussianBlur(out, (0, 0), sigma, borderType=cv2.BORDER_REFLECT)
    return out.astype(np.float32, copy=False)


def top_mean(values: npt.NDArray[Any], share: float = 0.01) -> float:
    """Mean of the highest values of a map, which says how abnormal its image is; the maximum is at the mercy of one patch.

    Parameters
    ----------
    values : floats of any shape; those that are NaN have no say, and the result is NaN where all are
    share : how many of them count, as a part of 1; at least one does

    Examples
    --------
    >>> top_mean(np.float32([[1, 2], [3, np.nan]])), top_mean(np.arange(300.0)), top_mean(np.float32([0, np.inf]))
    (3.0, 298.0, inf)
    """
    numbers = values[~np.isnan(values)]
    if not numbers.size:
        return float("nan")
    count = max(1, round(share * numbers.size))
    highest = np.partition(numbers, -count)[-count:]
    return float("inf") if highest.max() == np.inf else float(highest.mean(dtype=np.float64))


def patch_means(pictures: Values | Flags, grid: tuple[int, int]) -> Values:
    """Mean over each patch: (B, H, W), whose sides the grid (h, w) divides → (B, h·w) float32.

    Examples
    --------
    >>> patch_means(np.float32([[[0, 1, 2, 2], [0, 1, 2, 4]]]), (1, 2)).tolist()
    [[0.5, 2.5]]
    """
    count, height, width = pictures.shape
    patches = pictures.reshape(count, grid[0], height // grid[0], grid[1], width // grid[1])
    means: Values = patches.mean(axis=(2, 4), dtype=np.float32).reshape(count, -1)
    return means


def kept_patches(
    masks: Values | Flags, grid: tuple[int, int], *, threshold: float = 0.5, keep_thin: bool = True
) -> Flags:
    """Patches that count as inside the mask.

    A patch is kept where its covered share is at least `threshold`. With `keep_thin` it is enough to reach half of the
    mask's best-covered patch, so that a hair-thin defect, which fills no patch to one half, does not vanish.

    Parameters
    ----------
    masks : (B, H, W) bool or float 0 … 1
    grid : patches in (height, width), which divide H and W

    Returns
    -------
    (B, P) bool, P = height · width of the grid

    Examples
    --------
    >>> kept_patches(np.float32([[[1, 0, 0, 0], [1, 0, 0, 0]]]), (1, 2), threshold=0.6).tolist()
    [[True, False]]
    """
    share = patch_means(masks, grid)
    limit = np.full_like(share[:, :1], threshold)
    if keep_thin:
        limit = np.minimum(limit, share.max(axis=1, keepdims=True) / 2)
    kept: Flags = (share >= limit) & (share > 0)
    return kept


def starts(length: int, side: int) -> list[int]:
    """Where tiles of `side` begin so that they cover `length` evenly and overlap by at least a quarter.

    Examples
    --------
    >>> starts(24, 24), starts(60, 24)
    ([0], [0, 18, 36])
    """
    count = 1 + -(-(length - side) // max(1, side - -(-side // 4)))
    return [round(k * (length - side) / (count - 1)) for k in range(count)] if count > 1 else [0]


def fading(side: int) -> Values:
    """(side,) weights, 1 at the edges and more towards the middle.

    Examples
    --------
    >>> fading(5).tolist()
    [1.0, 2.0, 3.0, 2.0, 1.0]
    """
    steps = np.arange(1, side + 1, dtype=np.float32)
    return np.minimum(steps, steps[::-1])
