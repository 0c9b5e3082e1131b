"""The backbone as graphs: what `RegionEncoder` asks of a network."""

from __future__ import annotations

from collections.abc import Mapping

from ..grid import Flags, Picture, Values, kept_patches
from .engine import Graph
from .folder import NetworkInfo


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
