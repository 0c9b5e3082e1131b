"""Detectors whose memory is a network that was trained on normal images: what they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import DataError
from ..grid import starts, top_mean
from .base import Detection, Picture, check_least
from .tokens import TokenDetector
from .training import train

KEPT_BACK = 10  # of so many normal images one is not learned from: it tells how normal ones look that were not seen
LEAST_KEPT_BACK = 5  # images, where there are four times as many
EVERYWHERE = 1_000_000  # rows of patches: the whole image has a say in each score
ROUND = 10  # steps after which the state of a training is kept


class LearnedDetector(TokenDetector):
    """A detector that trains a network on the tokens of normal images; the network says how abnormal each patch is.

    Parameters
    ----------
    steps : of training, the same for every product
    max_images : at most this many normal images, or tiles of them, drawn at random, are learned from
    settings : see `TokenDetector`
    """

    needs_normal = True
    reach = EVERYWHERE

    def __init__(self, *, steps: int, max_images: int = 200, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        check_least(1, steps=steps, max_images=max_images)
        self.steps, self.max_images = steps, max_images
        self._seen: set[int] | None = None  # places of the images that were learned from; None where they are not known

    @property
    def is_ready(self) -> bool:
        return self.memory is not None

    def fit(self, normal_images: Iterable[Picture]) -> LearnedDetector:
        """Train on normal images."""
        units, places = self._draw(normal_images)
        if not units:
            raise DataError(f"{self.name} needs normal images to learn from, and there is none that can be read.")
        order = np.random.default_rng([self.seed, 1]).permutation(sorted(set(places)))
        count = max(len(order) // KEPT_BACK, LEAST_KEPT_BACK) if len(order) >= 4 * LEAST_KEPT_BACK else 0
        kept_back = set(order[:count].tolist())
        learned, unseen = (
            [unit for unit, place in zip(units, places, strict=True) if (place in kept_back) is wanted]
            for wanted in (False, True)
        )
        self.memory = self.trained(learned, unseen or learned).eval().to(self.device)
        self._seen = set(places) - kept_back
        return self

    @abstractmethod
    def trained(self, pictures: Sequence[Picture], unseen: Sequence[Picture]) -> nn.Module:
        """A network, tokens (L, h, w, C) → patch scores (h, w), of normal pictures with sides of whole patches.

        unseen : other normal pictures, not to be learned from; the same ones where there are few
        """

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps of the network's patch scores, and the means of their highest 1 %."""
        network = self.memory
        if network is None:
            raise DataError(f"{self.name} was not fitted: give it normal images first.")
        for grid in self.reader(images):
            with torch.inference_mode():
                values = self.to_map(network(grid.blocks), grid)
            yield Detection(values, top_mean(values))

    def held_out(self, normal_images: Iterable[Picture], places: Sequence[int]) -> Iterator[Detection | None] | None:
        """See `Detector`: of images that were not learned from, and None of the others."""
        seen = self._seen
        if seen is None or seen.issuperset(places):
            return None
        images = zip(normal_images, places, strict=True)
        return (None if place in seen else next(self.detect([image])) for image, place in images)

    def read(self, pictures: Sequence[Picture], name: str) -> list[Tensor]:
        """Tokens (L, h, w, C) float16 of each picture, which are shown as work called `name`."""
        found: list[Tensor] = []
        with self.progress.task(name, len(pictures)) as advance:
            for _, alike in groupby(pictures, key=lambda picture: picture.shape):
                while some := list(islice(alike, self.batch_size)):
                    found += self._tokens(np.stack(some))[0].half().cpu().unbind()
                    advance(len(some))
        return found

    def learn(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        grids: Sequence[Tensor],
        loss: Callable[[list[int]], Tensor],
        *,
        batch: int,
        rate: Callable[[float], float],
    ) -> None:
        """Train with batches of grids of one shape.

        loss : places of the batch among the grids → what to minimise
        rate : share of the steps that are done → learning rate
        """
        shapes = [tuple(grid.shape) for grid in grids]
        rounds = -(-self.steps // ROUND)

        def losses(number: int) -> Iterator[Tensor]:
            for _ in range(min(ROUND, self.steps - number * ROUND)):
                yield loss(draw_alike(shapes, batch))

        train(
            network, optimiser, losses, rounds=rounds, seed=self.seed, rate=lambda number: rate(number / rounds),
            name="Training", progress=self.progress, workspace=self.workspace,
        )  # fmt: skip

    def stacked(self, grids: Sequence[Tensor], places: Sequence[int]) -> Tensor:
        """(B, L, h, w, C) float32, where the network is."""
        return torch.stack([grids[place] for place in places]).to(self.device).float()

    def _draw(self, images: Iterable[Picture]) -> tuple[list[Picture], list[int]]:
        """A uniform random sample of the images as the network sees them, large ones as tiles; and the place of each."""
        rng = np.random.default_rng(self.seed)
        units: list[Picture] = []
        places: list[int] = []
        count = 0
        for place, image in enumerate(images):
            for unit in self._tiles(self.reader.scaled(image)):
                count += 1
                if len(units) < self.max_images:
                    units.append(unit)
                    places.append(place)
                elif (
                    slot := int(rng.integers(count))
                ) < self.max_images:  # each of the first `count` stays alike often
                    units[slot], places[slot] = unit, place
        return units, places

    def _tiles(self, picture: Picture) -> Iterator[Picture]:
        ph, pw = self.vit.patch_size
        side = max(1, self.size // ph)
        height, width = picture.shape[0] // ph, picture.shape[1] // pw
        if self.tile is None or max(height, width) <= side:
            yield picture
            return
        for top in starts(height, min(side, height)):
            for left in starts(width, min(side, width)):
                yield picture[top * ph : (top + side) * ph, left * pw : (left + side) * pw]


def draw_alike(shapes: Sequence[tuple[int, ...]], count: int) -> list[int]:
    """Places of `count` things of one shape, drawn by torch's chance; again and again the same where there are too few.

    Examples
    --------
    >>> sorted(draw_alike([(2, 2)] * 3, 3)), draw_alike([(1, 2)], 2)
    ([0, 1, 2], [0, 0])
    """
    first = shapes[int(torch.randint(len(shapes), ()))]
    alike = [place for place, shape in enumerate(shapes) if shape == first]
    order: list[int] = []
    while len(order) < count:
        order += [alike[index] for index in torch.randperm(len(alike)).tolist()]
    return order[:count]
