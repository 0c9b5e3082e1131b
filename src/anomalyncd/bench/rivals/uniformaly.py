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

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...data.dataset import Sample
from ...detect.patchcore import PatchBank, greedy_coreset
from ...detect.settings import check_least
from ...errors import DataError, SettingsError
from ...grid import kept_patches
from ...learn.cluster import kmeans
from .anomaly_clustering import nearest_distances, unit
from .base import Features, Job, Probabilities, Rival, one_hot
from .patches import Tokens, grid_of, image_key, on_grid, patch_tokens

BLOCKS = range(2, 10)
POOL, CORESET = 50_000, 5_000  # normal patches that the coreset is chosen from, and its size
Keep = npt.NDArray[np.bool_]


class UniFormaly(Rival):
    """UniFormaly's clustering.

    Parameters
    ----------
    top_share : of an image's patches, those with the highest scores are taken
    size : side in pixels of the square that images are squeezed into

    Examples
    --------
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> model = UniFormaly(2, backbone="tiny", size=32).fit(images, masks=[None] * 4)
    >>> model.labels_.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    name: ClassVar[str] = "uniformaly"
    uses_normal: ClassVar[bool] = True

    def __init__(
        self,
        n_classes: int,
        *,
        top_share: float = 0.05,
        size: int = 224,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, **settings)
        self.top_share, self.size = top_share, size

    def _discover(self, job: Job) -> tuple[Features, Probabilities]:
        check_least(1, size=self.size)
        if not 0 < self.top_share <= 1:
            raise SettingsError(f"top_share must be above 0 and at most 1, but got {self.top_share}.")
        if job.given is None and not job.normal:
            raise DataError("uniformaly needs to know where images are abnormal: give maps, masks, or normal images.")
        tokens = self._timed("tokens", lambda: self._tokens(job, job.items))
        keep = self._timed("scores", lambda: self._keep(job, tokens))
        features = np.stack(
            [np.asarray(z, np.float32)[rows].mean(axis=0) for z, rows in zip(tokens, keep, strict=True)]
        )
        labels = self._timed("clusters", lambda: kmeans(features, self.n_classes, seed=self.random_state))
        return features, one_hot(labels, self.n_classes)

    def _tokens(self, job: Job, items: Sequence[Sample]) -> Tokens:
        count = self._vit.n_blocks
        return patch_tokens(
            items, self._vit, job.cache, self.progress, backbone=self._network_key, size=self.size,
            blocks=[block for block in BLOCKS if block < count] or [count - 1],
        )  # fmt: skip

    def _keep(self, job: Job, tokens: Tokens) -> Keep:
        """Patches (N, P) that describe each image."""
        if job.given is None:
            return top_patches(self._own_scores(job, tokens), self.top_share)
        grid = grid_of(self._vit, self.size)
        values = on_grid(job.items, grid)
        if job.given == "maps":
            return top_patches(values, self.top_share)
        keep = kept_patches(values.reshape(-1, *grid), grid)
        return np.where(keep.any(axis=1, keepdims=True), keep, True)

    def _own_scores(self, job: Job, tokens: Tokens) -> npt.NDArray[np.float32]:
        def compute() -> npt.NDArray[np.float32]:
            known = self._tokens(job, job.normal)
            rows = known.reshape(-1, known.shape[-1])
            rng = np.random.default_rng(0)
            pool = unit(rows[np.sort(rng.choice(len(rows), size=min(POOL, len(rows)), replace=False))])
            bank = PatchBank(pool[greedy_coreset(pool, CORESET)])
            with self.progress.task("Patch scores", len(tokens)) as advance:
                return nearest_distances(tokens, bank, on_image=advance)

        key = [image_key(job.items), image_key(job.normal), self._network_key, self.size]
        return job.cache.array("coreset-scores", key, compute)


def top_patches(scores: npt.NDArray[np.float32], share: float) -> Keep:
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
