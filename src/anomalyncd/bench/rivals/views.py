"""What rivals that learn share: random views of whole images, run once through the frozen trunk, and one training loop.

An image is squeezed into a square; a random view is a 224 px square out of 256 px with the flips, quarter turns and colours
of this package's own training, and what is clustered in the end comes from the centre square. The trunk is frozen, so its
tokens depend on the view alone: V random views of each image are drawn once, for all seeds and rivals, and kept (the papers
draw fresh ones in every epoch, and most of them train the whole network). What learns is said in each file: the last block,
or heads alone.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.format import open_memmap
from torch import Tensor, nn

from ...data.dataset import Sample
from ...data.images import read_image
from ...detect.base import check_least
from ...errors import SettingsError
from ...learn.bank import Crops, Indices, draw_two, fill_bank, run_trunk
from ...learn.network import ViewBatch
from ...learn.views import centre
from .base import BATCH, Cache, Features, Floats, Inputs, Labels, Rival, Tokens, image_key, square

MARGIN = 256 / 224  # side of the square that a view is taken from, in sides of the view
CHUNK = 64  # images whose features are computed at once
Network = TypeVar("Network", bound=nn.Module)
Batches = Callable[[np.random.Generator], Sequence[Indices]]  # those of one epoch
Loss = Callable[[Indices, np.random.Generator, int], Tensor]  # of one batch: its images, and the epoch


@dataclass(frozen=True)
class TokenBank:
    """Tokens that enter the last block: random (R, V, N, C) and centre (R, N, C) views, memory maps."""

    random: Tokens
    centre: Tokens


class ViewRival(Rival):
    """A rival that learns from random views of whole images; maps and masks are not used.

    Parameters
    ----------
    epochs, batch_size, learning_rate : as the paper has them, or as the file of the rival says
    bank_views : V, random views kept of each image; size : side in pixels of a view
    """

    looks_at = "images"

    def __init__(
        self,
        n_classes: int,
        *,
        epochs: int = 50,
        batch_size: int = 128,
        learning_rate: float = 0.1,
        bank_views: int = 8,
        size: int = 224,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, **settings)
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.bank_views, self.size = bank_views, size

    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        check_least(1, epochs=self.epochs, bank_views=self.bank_views, size=self.size)
        check_least(2, batch_size=self.batch_size)
        if not self.learning_rate > 0:
            raise SettingsError(f"learning_rate must be above 0, but got {self.learning_rate}.")
        self.history_: list[dict[str, float]] = []
        return self._learn(inputs)

    @abstractmethod
    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        """As `_discover`, with settings that were looked at."""

    @property
    def _device(self) -> torch.device:
        return self._vit.mean.device

    def _new(self, make: Callable[[], Network]) -> Network:
        """A network whose first weights depend on the seed alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            return make().to(self._device)

    def _train(
        self,
        net: nn.Module,
        optimiser: torch.optim.Optimizer,
        batches: Batches,
        loss: Loss,
        *,
        epochs: int | None = None,
        rate: Callable[[int], float] | None = None,
    ) -> None:
        """Minimise a loss, batch by batch; `history_` gets a row for each epoch.

        epochs : None for those of this rival; rate : epoch → learning rate, None for one that stays
        """
        epochs = self.epochs if epochs is None else epochs
        means: list[float] = []
        net.train()
        with self._timed("learning"), self.progress.task("Learning", epochs) as advance:
            for epoch in range(epochs):
                rng = np.random.default_rng([self.random_state, epoch])
                if rate is not None:
                    for group in optimiser.param_groups:
                        group["lr"] = rate(epoch)
                total, n_seen = 0.0, 0
                for indices in batches(rng):
                    value = loss(indices, rng, epoch)
                    optimiser.zero_grad(set_to_none=True)
                    value.backward()
                    optimiser.step()
                    total += float(value.detach()) * len(indices)
                    n_seen += len(indices)
                means.append(total / n_seen)
                self.history_.append({"epoch": epoch, "loss": round(means[-1], 6)})
                advance(1, f"loss {means[-1]:.4f}")
        net.eval()
        if not all(torch.isfinite(weight).all() for weight in net.state_dict().values()):
            raise SettingsError(f"{self.name}: training diverged. Lower learning_rate, which is {self.learning_rate}.")
        if len(means) > 1 and not means[-1] < means[0]:
            self.progress.warn(f"{self.name}: the loss did not fall. Try another learning_rate or more epochs.")

    def _bank(self, cache: Cache, samples: Sequence[Sample]) -> TokenBank:
        vit, n_views = self._vit, self.bank_views
        view = vit.fit_size(self.size)
        side = round(view * MARGIN)

        def picture(index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
            return square(read_image(samples[index].image), side), np.ones((side, side), np.bool_)

        def fill(path: Path) -> None:
            with self._frozen(), self.progress.task("Views", len(samples)) as advance:
                fill_bank(
                    path, vit, Crops(picture, len(samples), view), n_views=n_views, batch_size=BATCH, seed=0,
                    on_region=lambda _: advance(),
                )  # fmt: skip
            tokens = np.load(path / "tokens.npy", mmap_mode="r")
            out = open_memmap(path / "centre.npy", mode="w+", dtype=np.float16, shape=tokens[:, 0].shape)
            with self._frozen(), self.progress.task("Centre views", len(samples)) as advance:
                for start in range(0, len(samples), BATCH):
                    rows = range(start, min(start + BATCH, len(samples)))
                    views = [tuple(centre(part[None], view)[0] for part in picture(row)) for row in rows]
                    out[start : rows.stop] = run_trunk(vit, views)[0].half().cpu().numpy()
                    advance(len(rows))
            out.flush()

        with self._timed("views"):
            path = cache("views", [image_key(samples), self._network_key, view, n_views], fill)
        return TokenBank(*(np.load(path / f"{name}.npy", mmap_mode="r") for name in ("tokens", "centre")))

    def _class_tokens(self, cache: Cache, samples: Sequence[Sample]) -> Tensor:
        """Class tokens of the frozen backbone, unit vectors (R, 1 + V, C): of the centre view, then of the random ones."""
        bank = self._bank(cache, samples)

        def compute() -> Floats:
            views = [bank.centre, *(bank.random[:, view] for view in range(self.bank_views))]
            return np.stack([class_features(self._vit.class_token, tokens, self._device) for tokens in views], axis=1)

        key = [image_key(samples), self._network_key, self._vit.fit_size(self.size), self.bank_views]
        with self._timed("views"):
            return torch.from_numpy(cache.array("class-tokens", key, compute)).to(self._device)


class WholeViews:
    """Two of the V views of each image, of several banks one after the other, and without a mask.

    Parameters
    ----------
    banks : (R_k, V, N, C) float16 each, usually memory maps
    """

    def __init__(self, banks: Sequence[Tokens], device: torch.device) -> None:
        self.banks, self.device = banks, device
        self.starts = np.cumsum([0, *(len(bank) for bank in banks)])

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        """Two different views of the images `indices` (B,)."""
        one, two = (self._batch(indices, view) for view in draw_two(len(indices), self.banks[0].shape[1], rng))
        return one, two

    def _batch(self, indices: Indices, view: Indices) -> ViewBatch:
        tokens = np.empty((len(indices), *self.banks[0].shape[2:]), np.float16)
        for bank, start in zip(self.banks, self.starts, strict=False):
            here = (indices >= start) & (indices < start + len(bank))
            tokens[here] = bank[indices[here] - start, view[here]]
        return whole_batch(tokens, self.device)


def whole_batch(tokens: Tokens, device: torch.device) -> ViewBatch:
    """(B, N, C) tokens, every patch of which counts: without guidance `keep` is not looked at."""
    keep = torch.ones(len(tokens), 0, dtype=torch.bool, device=device)
    return ViewBatch(None, torch.from_numpy(tokens).to(device), keep)


@torch.inference_mode()
def class_features(class_token: Callable[[Tensor, Tensor], Tensor], tokens: Tokens, device: torch.device) -> Features:
    """Class tokens after the last block, unit vectors: (R, N, C) → (R, C)."""
    found = []
    for start in range(0, len(tokens), CHUNK):
        batch = whole_batch(np.array(tokens[start : start + CHUNK]), device)
        assert batch.tokens is not None and batch.keep is not None
        found.append(nn.functional.normalize(class_token(batch.tokens.float(), batch.keep), dim=-1).cpu().numpy())
    return np.concatenate(found)


def two_views(vectors: Tensor, indices: Indices, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Two different random views, (B, C) each, of (R, 1 + V, C) as `_class_tokens` returns them."""
    one, two = (vectors[indices, 1 + view] for view in draw_two(len(indices), vectors.shape[1] - 1, rng))
    return one, two


def cosine_rate(epoch: int, epochs: int, first: float, last: float, warm_up: int = 0) -> float:
    """Learning rate that grows evenly for `warm_up` epochs and then falls from `first` along a cosine, towards `last`.

    Examples
    --------
    >>> [round(cosine_rate(epoch, 6, first=1.0, last=0.0, warm_up=2), 2) for epoch in range(6)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    if epoch < warm_up:
        return first * (epoch + 1) / warm_up
    share = (epoch - warm_up) / max(epochs - warm_up, 1)
    return last + (first - last) * (1 + math.cos(math.pi * share)) / 2
