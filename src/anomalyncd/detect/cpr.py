"""CPR, Cascade Patch Retrieval (Li et al., TIP 2024): like normal images first, then like patches at the same place."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import cv2
import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from ..errors import DataError
from ..grid import TokenGrid
from ..learn.synthetic import with_defect
from ..model.cascade import (
    Gallery,
    LocalBranch,
    block_histograms,
    contrastive_hinge,
    describe,
    divergences,
    foreground,
    nearest_cosines,
    one_hot_words,
    resized,
)
from .base import Picture, check_least, check_windows
from .learned import EVERYWHERE
from .memory import MemoryDetector
from .training import seeded, train

WORDS = 12
SAMPLE = 20_000  # tokens that words are learned from
RATE, DECAY = 1e-3, 1e-2
BATCH, ROUND = 4, 20  # views of a training step; steps after which the state is kept
NORMAL, DEFECT = 0.02, 0.3  # a patch that is covered by less is normal, by more a defect, between neither


class CPR(MemoryDetector):
    """One-class detector: an image is compared with the normal images that are likest it, patch by patch in small windows.

    Parameters
    ----------
    retrieved : normal images that an image is compared with
    window : side, in patches, of the window around a patch's own place that the like one is looked for in
    steps : of training of the local metric; 0 compares the tokens as they are
    views : normal images with made-up defects that the metric learns from
    max_patches : of normal images that are kept; beyond, a random sample of the images is retrieved from
    settings : see `TokenDetector`

    Examples
    --------
    >>> normal = [np.full((64, 64, 3), 100, np.uint8)] * 2
    >>> odd = normal[0].copy(); odd[:32, :32] = 255
    >>> detector = CPR(backbone="tiny", size=64, map_size=64, steps=0).fit(normal)
    >>> found = next(detector.maps([odd]))
    >>> bool(found[:16, :16].mean() > found[48:, 48:].mean())
    True
    """

    name = "cpr"
    highest = 0.005  # 512 pixels of 320²
    reach = EVERYWHERE

    def __init__(
        self,
        *,
        retrieved: int = 10,
        window: int = 3,
        steps: int = 1000,
        views: int = 100,
        max_patches: int = 250_000,
        **settings: object,
    ) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        check_windows("window", [window])
        check_least(1, retrieved=retrieved, views=views, max_patches=max_patches)
        check_least(0, steps=steps)
        self.retrieved, self.window, self.steps = retrieved, window, steps
        self.views, self.max_patches = views, max_patches

    def remember(self, tensors: dict[str, Tensor]) -> Gallery:
        return Gallery(tensors, self.retrieved, self.window)

    def fit(self, normal_images: Iterable[Picture]) -> CPR:
        """Words and histograms of the normal images, where the product is, and the local metric."""
        pictures, grids, owner = self._held(normal_images)
        low = grids[:, 0].float()  # (N, h, w, C)
        centres = self._centres(low, WORDS)
        histograms = block_histograms(one_hot_words(low, centres))
        groups = one_hot_words(low, self._centres(low, 2)).argmax(dim=-1).cpu()
        found = foreground(list(low), list(groups))
        # Without one, all of an image is the product: p = sigmoid(50) = 1.
        weight, bias = found or (low.new_zeros(low.shape[-1]), low.new_tensor(50.0))
        branch = self._train(pictures, grids, histograms) if self.steps else None
        with torch.no_grad():
            patches = [describe(branch, grid[None].float())[0].half() for grid in grids]
        learned = {"centres": centres, "histograms": histograms, "weight": weight, "bias": bias, "owner": owner}
        learned |= {} if branch is None else {f"branch.{name}": value for name, value in branch.state_dict().items()}
        self.restore({**learned, "patches": torch.stack(patches)})
        return self

    def scores(self, memory: Gallery, grid: TokenGrid, without: int | None = None) -> Tensor:
        """Least distances to the images retrieved; the metric has learned from the image `without` among these."""
        return memory.scores(grid.blocks, without)

    def _held(self, normal_images: Iterable[Picture]) -> tuple[list[Picture], Tensor, Tensor]:
        """A random sample of the images: themselves, their tokens (N, L, h, w, C) float16 on one grid, their places (N,)."""
        chance = torch.Generator().manual_seed(self.seed)
        held: list[tuple[float, int, Picture, Tensor]] = []  # each draws a key, and the smallest stay
        pictures: list[Picture] = []

        def watched() -> Iterator[Picture]:
            for image in normal_images:
                pictures.append(image if self.tile else self.reader.scaled(image))
                yield pictures[-1]

        for index, grid in enumerate(self.reader(watched())):
            shape = held[0][3].shape[1:3] if held else grid.shape  # that of the first image is all images'
            tokens = resized(grid.blocks[None], (shape[0], shape[1]))[0].half()
            held.append((float(torch.rand(1, generator=chance)), index, pictures.pop(0), tokens))
            if len(held) > max(1, self.max_patches // (shape[0] * shape[1])):
                held.pop(max(range(len(held)), key=lambda k: held[k][0]))
        if not held:
            raise DataError("CPR needs normal images to learn from, and there is none that can be read.")
        _, places, kept, grids = zip(*held, strict=True)
        return list(kept), torch.stack(grids), torch.tensor(places)

    def _centres(self, tokens: Tensor, count: int) -> Tensor:
        """k-means of tokens (…, C) → (at most count, C)."""
        rows = tokens.flatten(0, -2).cpu()
        chosen = torch.randperm(len(rows), generator=torch.Generator().manual_seed(self.seed))[:SAMPLE]
        found = KMeans(min(count, len(rows)), n_init=1, random_state=self.seed).fit(rows[chosen].numpy())
        return torch.from_numpy(found.cluster_centers_).to(tokens)

    def _synthetic(self, pictures: list[Picture], shape: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Normal images with made-up defects: tokens (V, L, h, w, C) float16, and the share of each patch (V, h, w)."""
        rng = np.random.default_rng(self.seed)
        made = [with_defect(pictures[k % len(pictures)], rng) for k in range(self.views)]
        tokens, covered = [], []
        with self.progress.task("Made-up defects", self.views) as advance:
            for grid, (_, mask) in zip(self.reader(image for image, _ in made), made, strict=True):
                tokens.append(resized(grid.blocks[None], shape)[0].half())
                share = cv2.resize(mask.astype(np.float32), shape[::-1], interpolation=cv2.INTER_AREA)
                covered.append(torch.from_numpy(share))
                advance()
        return torch.stack(tokens), torch.stack(covered).to(tokens[0].device)

    def _train(self, pictures: list[Picture], grids: Tensor, histograms: Tensor) -> LocalBranch:
        """The metric: patches are alike where both images are normal, and unlike at other places and in made-up defects."""
        shape = (grids.shape[2], grids.shape[3])
        views, covered = self._synthetic(pictures, shape)
        near = [self._neighbours(histograms, index) for index in range(len(grids))]
        with seeded(self.seed):
            branch = LocalBranch(grids.shape[1], grids.shape[-1]).to(self.device)

        def losses(number: int) -> Iterator[Tensor]:
            for _ in range(min(ROUND, self.steps - number * ROUND)):
                drawn = torch.randint(len(views), (BATCH,)).tolist()
                others = [near[view % len(grids)] for view in drawn]
                partners = [known[int(torch.randint(len(known), ()))] for known in others]
                found = branch(torch.cat([views[drawn], grids[partners]]).float())  # (2B, L, h, w, E)
                yield pair_loss(found[:BATCH], found[BATCH:], covered[drawn], self.window)

        train(
            branch, torch.optim.AdamW(branch.parameters(), weight_decay=DECAY), losses, rounds=-(-self.steps // ROUND),
            seed=self.seed, rate=lambda _: RATE, name="Local metric", progress=self.progress, workspace=self.workspace,
        )  # fmt: skip
        return branch

    def _neighbours(self, histograms: Tensor, index: int) -> list[int]:
        """The normal images likest a normal one; itself where there is no other."""
        far = divergences(histograms[index], histograms)
        far[index] = float("inf")
        found: list[int] = far.topk(max(1, min(self.retrieved, len(far) - 1)), largest=False).indices.tolist()
        return found


def pair_loss(views: Tensor, partners: Tensor, covered: Tensor, window: int) -> Tensor:
    """The hinge over pairs of patches of a view and of a normal image.

    Pairs at the same place, give or take the window, are alike where the view is normal and unlike where it has a defect;
    pairs at other places, farther off than the window, are unlike.

    Parameters
    ----------
    views, partners : (B, L, h, w, E) unit vectors; covered : (B, h, w) share of each patch that is a made-up defect
    """
    here = nearest_cosines(views, partners, window)  # (B, L, h, w)
    height, width = covered.shape[1:]
    bounds = [(min(window, side // 2), max(side - window, side // 2)) for side in (height, width)]
    down, right = (int(torch.randint(low, high + 1, ())) for low, high in bounds)
    there = (views * partners.roll((down, right), dims=(2, 3))).sum(dim=-1)
    alike = (covered < NORMAL)[:, None].expand_as(here)
    told = alike | (covered > DEFECT)[:, None]
    return contrastive_hinge(here[told], alike[told].float()) + contrastive_hinge(there, torch.zeros_like(there))
