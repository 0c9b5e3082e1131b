"""The network and the detector of an exported run: they are graphs, and what is around these is `anomalyncd.grid`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from ..errors import RunError
from ..grid import Flags, GridReader, Picture, Values, kept_patches, place_of, to_map
from .engine import Graph
from .folder import DETECTOR_FILE, GridInfo, NetworkInfo

MOST_PATCHES = 1024  # that are scored at once: what they are compared with may have ten thousand


class GraphNetwork:
    """A `TokenNetwork` whose tokens come from graphs.

    Parameters
    ----------
    graphs : `patches`, images → tokens, and `guided`, images, keep → class_token, tokens; those that the features need
    """

    def __init__(self, info: NetworkInfo, graphs: Mapping[str, Graph]) -> None:
        self.n_blocks, self.width, self.patch_size = info.n_blocks, info.width, info.patch_size
        self.mask_threshold, self.keep_thin, self.block = info.mask_threshold, info.keep_thin, info.block
        self._graphs = graphs

    def patches(self, images: Picture, block: int) -> Values:
        """See `TokenNetwork`."""
        assert block == self.block
        (tokens,) = self._graphs["patches"]({"images": images})
        return tokens

    def guided(self, images: Picture, masks: Flags, block: int) -> tuple[Values, Values]:
        """See `TokenNetwork`."""
        assert block == self.block
        grid = (masks.shape[1] // self.patch_size[0], masks.shape[2] // self.patch_size[1])
        keep = kept_patches(masks, grid, threshold=self.mask_threshold, keep_thin=self.keep_thin)
        class_token, tokens = self._graphs["guided"]({"images": images, "keep": keep})
        return class_token, tokens


class GraphDetector:
    """Images → anomaly maps, as the run's own detector makes them.

    Parameters
    ----------
    folder : of the export
    graphs : `detector`, images → tokens; with PatchCore `scores`, tokens → scores; with MuSc `compare`, tokens and those of
        a reference → cosines, and `lowest`, cosines with all references → scores
    """

    def __init__(self, folder: Path, info: GridInfo, graphs: Mapping[str, Graph]) -> None:
        self.info, self.graphs = info, graphs
        self.reader = GridReader(self._tokens, info.patch_size, info.size, info.tile, info.batch_size)
        self.references = [] if "scores" in graphs else _references(folder / DETECTOR_FILE)

    def maps(self, images: Iterable[Picture]) -> Iterator[Values]:
        """One (h, w) float32 map for each (H, W, 3) uint8 image, in order, of the image's aspect."""
        info = self.info
        for grid in self.reader(images):
            scores = self.scores(grid.blocks)
            yield to_map(scores, grid.size, map_size=info.map_size, tile=info.tile, sigma=info.sigma)

    def scores(self, blocks: Values) -> Values:
        """Tokens (L, h, w, C) of an image → patch scores (h, w)."""
        own = place_of(blocks, self.references)
        others = [reference for place, reference in enumerate(self.references) if place != own]

        def score(band: Values) -> Values:
            if "scores" in self.graphs:
                return self.graphs["scores"]({"tokens": band})[0]
            cosines = [self.graphs["compare"]({"tokens": band, "reference": other})[0] for other in others]
            return self.graphs["lowest"]({"cosines": np.stack(cosines, axis=-1)})[0]

        return in_bands(score, blocks, self.info.halo)

    def _tokens(self, images: Picture) -> tuple[Values, Values]:
        """(B, H, W, 3) uint8 → tokens (B, L, h, w, C), and no summaries (B, 0): only image scores need them."""
        sides = zip(images.shape[1:3], self.info.patch_size, self.info.grid, strict=True)
        rows, columns = (resampling(side // patch, known) for side, patch, known in sides)
        (tokens,) = self.graphs["detector"]({"images": images, "rows": rows, "columns": columns})
        return tokens, np.empty((len(images), 0), np.float32)


def in_bands(score: Callable[[Values], Values], blocks: Values, halo: int, most: int = MOST_PATCHES) -> Values:
    """Patch scores of a few rows of the grid after the other, so that memory does not grow with it.

    Parameters
    ----------
    score : tokens (L, h, w, C) → (h, w)
    halo : how many rows above and below a patch have a say in its score

    Examples
    --------
    >>> in_bands(lambda band: band[0, ..., 0] * 2, np.ones((1, 5, 3, 1), np.float32), 1, most=6).shape
    (5, 3)
    """
    _, height, width, _ = blocks.shape
    rows = max(1, most // width)
    bands = []
    for top in range(0, height, rows):
        above = min(top, halo)
        bands.append(score(blocks[:, top - above : top + rows + halo])[above : above + rows])
    return np.concatenate(bands)


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


def _references(file: Path) -> list[npt.NDArray[Any]]:
    """(L, h, w, C) float16 each."""
    try:
        with safe_open(file, framework="numpy") as stored:
            return [stored.get_tensor(name) for name in sorted(stored.keys()) if name.startswith("reference_")]
    except Exception as error:  # damage shows in many ways
        raise RunError(f"{file}: missing, damaged or not a detector of anomalyncd ({error}).") from error
