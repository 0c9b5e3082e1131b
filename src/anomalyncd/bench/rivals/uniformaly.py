"""UniFormaly's clustering (Lee et al., 2023): k-means of the mean of each image's most abnormal patches.

As its public code has it: tokens averaged over blocks 2 … 9 (those that the backbone has), the 5 % of patches with the
highest scores, their plain mean, k-means. Scores come from the given maps, so that all methods of a table look at the same
evidence; without maps they are its own, the cosine distance to the nearest of a coreset of normal patches. With masks the
patches under the mask are taken, and all of them where it is empty.

What differs from the paper: no back-patch masking (it removes the background by the class token's attention; a given map or
mask has already said where to look, but scores of its own may fall on the background here), a coreset of 5,000 of at most
50,000 normal patches instead of a tenth of all, and 20 restarts of k-means instead of 10.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...errors import DataError, SettingsError
from ...grid import kept_patches
from ...learn.cluster import kmeans
from ...model.coreset import greedy_coreset
from .base import Features, Floats, Inputs, Labels, PatchRival, Tokens, image_key, on_grid, unit

BLOCKS = range(2, 10)
POOL, CORESET = 50_000, 5_000  # normal patches that the coreset is chosen from, and its size
Keep = npt.NDArray[np.bool_]


class UniFormaly(PatchRival):
    """UniFormaly's clustering.

    Parameters
    ----------
    top_share : of an image's patches, those with the highest scores are taken
    size : see `PatchRival`

    Examples
    --------
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> model = UniFormaly(2, backbone="tiny", size=32).fit(gather(images, masks=[None] * 4))
    >>> model.labels_.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    name: ClassVar[str] = "uniformaly"
    uses_normal: ClassVar[bool] = True

    def __init__(self, n_classes: int, *, top_share: float = 0.05, **settings: Any) -> None:
        super().__init__(n_classes, **settings)
        self.top_share = top_share

    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        if not 0 < self.top_share <= 1:
            raise SettingsError(f"top_share must be above 0 and at most 1, but got {self.top_share}.")
        if inputs.given is None and not inputs.normal:
            raise DataError("uniformaly needs to know where images are abnormal: give maps, masks, or normal images.")
        with self._timed("tokens"):
            tokens = self._tokens(inputs.cache, inputs.images)
        with self._timed("scores"):
            keep = self._keep(inputs, tokens)
        pairs = zip(tokens, keep, strict=True)
        features = np.stack([np.asarray(z, np.float32)[rows].mean(axis=0) for z, rows in pairs])
        with self._timed("clusters"):
            labels = kmeans(features, self.n_classes, seed=self.random_state)
        return features, labels

    def _blocks(self) -> list[int]:
        count = self._vit.n_blocks
        return [block for block in BLOCKS if block < count] or [count - 1]

    def _keep(self, inputs: Inputs, tokens: Tokens) -> Keep:
        """Patches (N, P) that describe each image."""
        if inputs.given is None:
            return top_patches(self._own_scores(inputs, tokens), self.top_share)
        values = on_grid(inputs.images, self._grid)
        if inputs.given == "maps":
            return top_patches(values, self.top_share)
        keep = kept_patches(values.reshape(-1, *self._grid), self._grid)
        return np.where(keep.any(axis=1, keepdims=True), keep, True)

    def _own_scores(self, inputs: Inputs, tokens: Tokens) -> Floats:
        known = self._tokens(inputs.cache, inputs.normal)

        def compute() -> Floats:
            rows = known.reshape(-1, known.shape[-1])
            rng = np.random.default_rng(0)
            pool = unit(rows[np.sort(rng.choice(len(rows), size=min(POOL, len(rows)), replace=False))])
            return self._distances_to(pool[greedy_coreset(pool, CORESET)], tokens)

        key = [image_key(inputs.images), image_key(inputs.normal), self._network_key, self.size]
        return inputs.cache.array("coreset-scores", key, compute)


def top_patches(scores: Floats, share: float) -> Keep:
    """The given share of each row's patches, those with the highest scores, at least one: (N, P) → (N, P) bool.

    Examples
    --------
    >>> top_patches(np.float32([[1, 4, 3, 2]]), share=0.5).tolist()
    [[False, True, True, False]]
    """
    count = max(1, round(share * scores.shape[1]))
    chosen = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    keep = np.zeros(scores.shape, np.bool_)
    np.put_along_axis(keep, chosen, True, axis=1)
    return keep
