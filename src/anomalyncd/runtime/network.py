"""The backbone as graphs: what `RegionEncoder` and the detectors ask of a network."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ..learn.features import Flags, Pictures, Values, kept_patches
from .engine import Graph
from .folder import NetworkInfo


class GraphNetwork:
    """A `TokenNetwork` whose tokens come from graphs.

    Parameters
    ----------
    patches : images → tokens; guided : images, keep → class_token, tokens; None where the features do not need it
    """

    def __init__(self, info: NetworkInfo, patches: Graph | None, guided: Graph | None) -> None:
        self.n_blocks, self.width, self.patch_size = info.n_blocks, info.width, info.patch_size
        self.mask_threshold, self.keep_thin, self.block = info.mask_threshold, info.keep_thin, info.block
        self._patches, self._guided = patches, guided

    def patches(self, images: Pictures, block: int) -> Values:
        """See `TokenNetwork`."""
        assert self._patches is not None and block == self.block
        (tokens,) = self._patches({"images": np.ascontiguousarray(images)})
        return tokens

    def guided(self, images: Pictures, masks: Flags, block: int) -> tuple[Values, Values]:
        """See `TokenNetwork`."""
        assert self._guided is not None and block == self.block
        grid = (masks.shape[1] // self.patch_size[0], masks.shape[2] // self.patch_size[1])
        keep = kept_patches(masks, grid, threshold=self.mask_threshold, keep_thin=self.keep_thin)
        class_token, tokens = self._guided({"images": np.ascontiguousarray(images), "keep": keep})
        return class_token, tokens


class GridNetwork:
    """Images of any size → tokens of the detector's blocks.

    Parameters
    ----------
    graph : images (B, H, W, 3), rows (h, h0), columns (w, w0) → tokens (B, L, h, w, C)
    grid : (h0, w0), patches that the network's positions were trained for; patch_size : height and width in pixels
    """

    def __init__(self, graph: Graph, grid: tuple[int, int], patch_size: tuple[int, int]) -> None:
        self.graph, self.grid, self.patch_size = graph, grid, patch_size

    def __call__(self, images: Pictures) -> tuple[Values, Values]:
        """(B, H, W, 3) uint8 → tokens (B, L, h, w, C), and no summaries (B, 0): only image scores need them."""
        sides = zip(images.shape[1:3], self.patch_size, self.grid, strict=True)
        rows, columns = (resampling(side // patch, known) for side, patch, known in sides)
        (tokens,) = self.graph({"images": np.ascontiguousarray(images), "rows": rows, "columns": columns})
        return tokens, np.empty((len(images), 0), np.float32)


@lru_cache(maxsize=64)
def resampling(n_new: int, n_old: int) -> Values:
    """Antialiased cubic interpolation of n_old values at n_new places, as a matrix (n_new, n_old).

    It is what timm does to the position embeddings of a network when an image has more or fewer patches than those that it
    was trained for.

    Examples
    --------
    >>> resampling(2, 2).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    scale = n_old / n_new
    stretch = max(scale, 1.0)
    centres = (np.arange(n_new) + 0.5)[:, None] * scale
    places = np.arange(n_old)[None]
    # The window is cut to whole places before the weights are taken.
    inside = (places >= np.floor(centres - 2 * stretch + 0.5)) & (places < np.floor(centres + 2 * stretch + 0.5))
    weights = np.where(inside, _cubic((places + 0.5 - centres) / stretch), 0.0)
    matrix: npt.NDArray[np.float32] = (weights / weights.sum(axis=1, keepdims=True)).astype(np.float32)
    return matrix


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Keys' kernel with a = −0.5."""
    x = np.abs(x)
    return np.where(x < 1, (1.5 * x - 2.5) * x * x + 1, np.where(x < 2, ((-0.5 * x + 2.5) * x - 4) * x + 2, 0.0))
