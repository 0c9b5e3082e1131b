"""PNI (Bae et al., ICCV 2023): distance to the nearest normal patch that may be here, by its position and its neighbours.

The network that refines the paper's maps with synthetic defects is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DataError
from ..grid import TokenGrid
from ..model.cascade import places
from ..model.coreset import greedy_coreset
from ..model.places import AT_ONCE, PLACES, NormalPlaces, features, nearest_words, neighbour_net, principal_axes
from .base import Picture, check_least, check_windows
from .learned import EVERYWHERE
from .memory import MemoryDetector
from .training import seeded, train

WIDTH = 64  # numbers that a patch has for the network that looks at neighbours
BATCH = 4  # images of a training step, about as many patches as the paper's 2,048
RATE = 1e-3


class PNI(MemoryDetector):
    """One-class detector: PatchCore's distance, but only to elements of the bank that are likely at this place.

    Parameters
    ----------
    bank_size : C_emb, patches kept by the greedy coreset
    kinds : C_dist, the first so many of them, which neighbours are asked for
    window : side of the neighbourhood that is looked at, in patches
    near : how many positions to each side count as the same one, of 24 in an image
    epochs : passes over the normal images that the network of the neighbourhood learns
    max_patches : of normal images that are held in memory; beyond, a random sample of the images is learned from
    settings : see `TokenDetector`

    Examples
    --------
    >>> import numpy as np
    >>> normal = [np.full((64, 64, 3), 100, np.uint8)] * 2
    >>> odd = normal[0].copy(); odd[:32, :32] = 255
    >>> detector = PNI(backbone="tiny", size=64, map_size=64, epochs=1).fit(normal)
    >>> found = next(detector.maps([odd]))
    >>> bool(found[:16, :16].mean() > found[48:, 48:].mean())
    True
    """

    name = "pni"
    reach = EVERYWHERE

    def __init__(
        self,
        *,
        bank_size: int = 10_000,
        kinds: int = 2048,
        window: int = 9,
        near: int = 4,
        epochs: int = 5,
        max_patches: int = 200_000,
        **settings: object,
    ) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        check_windows("window", [window])
        check_least(1, bank_size=bank_size, kinds=kinds, epochs=epochs, max_patches=max_patches)
        check_least(3, window=window)  # one patch has no neighbours
        check_least(0, near=near)
        self.bank_size, self.kinds, self.window, self.near = bank_size, kinds, window, near
        self.epochs, self.max_patches = epochs, max_patches

    def remember(self, tensors: dict[str, Tensor]) -> NormalPlaces:
        return NormalPlaces(tensors, self.window, self.near)

    def fit(self, normal_images: Iterable[Picture]) -> PNI:
        """Coreset, position histogram, and the network that tells from its neighbours what a patch may be."""
        images, owners = self._held(normal_images)
        shapes = [(image.shape[0], image.shape[1]) for image in images]
        rows = torch.cat([image.flatten(0, 1) for image in images])
        seen = torch.tensor(owners).repeat_interleave(torch.tensor([h * w for h, w in shapes]))
        chosen = greedy_coreset(rows, self.bank_size, seed=self.seed).to(rows.device)
        bank, owner = rows[chosen], seen[chosen.cpu()].to(rows.device)
        words, kinds = zip(*(nearest_words(some, bank, owner, self.kinds) for some in rows.split(AT_ONCE)), strict=True)
        mean, axes = principal_axes(rows, WIDTH)
        with seeded(self.seed):
            net = neighbour_net(axes.shape[1], min(self.kinds, len(bank)), self.window)
        learned = {"bank": bank, "owner": owner, "mean": mean, "axes": axes, "seen": seen.int()}
        learned |= {
            "words": torch.cat(words).int(),
            "place": torch.cat([places(*s, PLACES).flatten() for s in shapes]).short(),
        }
        memory = self.remember({**learned, **{f"net.{name}": value for name, value in net.state_dict().items()}})
        self._train(memory.to(self.device), shapes, rows, torch.cat(kinds))
        self.memory = memory
        return self

    def scores(self, memory: NormalPlaces, grid: TokenGrid, without: int | None = None) -> Tensor:
        """−log p, the mean of both ways; the network has seen the image `without` among the others."""
        return memory.scores(grid.blocks, without)

    def _held(self, normal_images: Iterable[Picture]) -> tuple[list[Tensor], list[int]]:
        """Features (h, w, D) float16 of the images, and the place of each among all."""
        chance = torch.Generator().manual_seed(self.seed)
        held: list[tuple[float, int, Tensor]] = []  # each draws a key, and the smallest stay
        n_patches = 0
        for index, grid in enumerate(self.reader(normal_images)):
            held.append((float(torch.rand(1, generator=chance)), index, features(grid.blocks).half()))
            n_patches += grid.shape[0] * grid.shape[1]
            if n_patches > self.max_patches and len(held) > 1:
                dropped = held.pop(max(range(len(held)), key=lambda k: held[k][0]))[2]
                n_patches -= dropped.shape[0] * dropped.shape[1]
        if not held:
            raise DataError("PNI needs normal images to learn from, and there is none that can be read.")
        return [image for *_, image in held], [index for _, index, _ in held]

    def _train(self, memory: NormalPlaces, shapes: list[tuple[int, int]], rows: Tensor, kinds: Tensor) -> None:
        """Cross-entropy of the nearest distribution element of each patch, (T,), given what is around it."""
        small = torch.cat([memory.small(some) for some in rows.split(AT_ONCE)])
        sizes = [h * w for h, w in shapes]
        inputs = [x.view(*shape, -1).permute(2, 0, 1) for x, shape in zip(small.split(sizes), shapes, strict=True)]
        goals = [y.view(shape) for y, shape in zip(kinds.split(sizes), shapes, strict=True)]

        def losses(_: int) -> Iterator[Tensor]:
            order = sorted(
                torch.randperm(len(shapes)).tolist(), key=shapes.__getitem__
            )  # images of one shape in a batch
            alike = [list(group) for _, group in groupby(order, key=shapes.__getitem__)]
            batches = [group[k : k + BATCH] for group in alike for k in range(0, len(group), BATCH)]
            for number in torch.randperm(len(batches)).tolist():
                logits = memory.net(torch.stack([inputs[index] for index in batches[number]]))
                yield F.cross_entropy(logits, torch.stack([goals[index] for index in batches[number]]))

        train(
            memory.net, torch.optim.Adam(memory.net.parameters()), losses, rounds=self.epochs, seed=self.seed,
            rate=lambda epoch: RATE * 0.1 ** (3 * epoch // self.epochs), name="Neighbourhoods",
            progress=self.progress, workspace=self.workspace,
        )  # fmt: skip
