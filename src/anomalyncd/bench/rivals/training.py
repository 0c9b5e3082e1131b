"""Whole images for the rivals that train the last block: their views, computed once for all seeds and rivals.

The trunk is frozen in both papers, so the tokens before its last block depend on the view alone: V random views of each
image are drawn once and kept (the papers draw fresh ones in every epoch). An image is squeezed into a square, a random
view is a 224 px square out of 256 px with the flips, quarter turns and colours of this package's own training, and the
features that are clustered come from the centre square.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from ...config import LearnConfig, make_config
from ...data.dataset import Sample
from ...data.images import read_image
from ...errors import SettingsError
from ...learn.bank import Crops, Indices, draw_two, fill_bank, run_trunk
from ...learn.distributed import ALONE
from ...learn.losses import teacher_temperature
from ...learn.network import RegionNet, ViewBatch
from ...learn.trainer import Targets, train
from ...learn.views import centre
from .base import Features, Job, Rival
from .patches import BATCH, image_key, square

MARGIN = 256 / 224  # side of the square that a view is taken from, in sides of the view
Net = TypeVar("Net", bound=RegionNet)
CHUNK = 64  # images whose features are computed at once


class TrainedRival(Rival):
    """A rival that trains the last block on random views of whole images; maps and masks are not used.

    Parameters
    ----------
    epochs : the papers train 200; 50 is what two cores do in minutes
    batch_size, learning_rate : as in the papers
    supervised_weight : λ, share of the losses on the labelled base set; without a base set they vanish
    bank_views : V, random views kept of each image; size : side in pixels of a view
    """

    uses_base = True

    def __init__(
        self,
        n_classes: int,
        *,
        epochs: int = 50,
        batch_size: int = 128,
        learning_rate: float = 0.1,
        supervised_weight: float = 0.35,
        bank_views: int = 8,
        size: int = 224,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, **settings)
        self.epochs, self.batch_size, self.learning_rate = epochs, batch_size, learning_rate
        self.supervised_weight, self.bank_views, self.size = supervised_weight, bank_views, size

    def _learn(
        self,
        job: Job,
        net: RegionNet,
        n_base: int,
        entropy_weight: float,
        teacher: Callable[[int], float] = teacher_temperature,
    ) -> tuple[Features, Features]:
        """Train `net`; returns the features (unit vectors) of the images and of the base set."""
        config = self._config(entropy_weight)
        sets = [job.items] if job.base is None else [job.items, job.base.samples]
        banks = self._timed("views", lambda: [self._bank(job, items) for items in sets])
        labels = np.full(len(job.items), -1)
        if job.base is not None:
            labels = np.concatenate([labels, job.base.numbered_labels])
        device = next(net.parameters()).device

        def learn() -> None:
            views = WholeViews([np.load(bank / "tokens.npy", mmap_mode="r") for bank in banks], device)
            with self.progress.task("Learning", config.epochs) as advance:
                trained = train(
                    net, views, Targets(labels, np.ones(len(labels), np.float32), n_base), config,
                    seed=self.random_state, on_epoch=lambda row: advance(1, f"loss {row['loss']:.4f}"), teacher=teacher,
                )  # fmt: skip
            self.history_ = trained.history
            if self.history_ and not self.history_[-1]["loss"] < self.history_[0]["loss"]:
                self.progress.warn(f"{self.name}: the loss did not fall. Try another learning_rate or more epochs.")

        self._timed("learning", learn)
        found = [class_features(net, np.load(bank / "centre.npy", mmap_mode="r"), device) for bank in banks]
        if not all(np.isfinite(features).all() for features in found):
            raise SettingsError(f"{self.name}: training diverged. Lower learning_rate, which is {self.learning_rate}.")
        return found[0], found[1] if job.base is not None else np.empty((0, found[0].shape[1]), np.float32)

    def _network(self, kind: type[Net], n_outputs: int) -> Net:
        vit = self._vit
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            return kind(vit.width, n_outputs, 1, vit=vit).to(next(vit.parameters()).device)

    def _config(self, entropy_weight: float) -> LearnConfig:
        own = {
            "epochs": self.epochs, "batch_size": self.batch_size, "learning_rate": self.learning_rate,
            "supervised_weight": self.supervised_weight, "entropy_weight": entropy_weight, "n_heads": 1,
            "bank_views": self.bank_views, "contrastive_weight": 1.0, "correction_threshold": -1.0,
        }  # fmt: skip
        return make_config({"learn": own}).learn

    def _bank(self, job: Job, items: Sequence[Sample]) -> Path:
        """Folder with tokens.npy (R, V, N, C) of the random views, and centre.npy (R, N, C), float16."""
        vit = self._vit
        view = vit.fit_size(self.size)
        side = round(view * MARGIN)

        def picture(index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
            return square(read_image(items[index].image), side), np.ones((side, side), np.bool_)

        def fill(path: Path) -> None:
            with self.progress.task("Views", len(items)) as advance:
                fill_bank(
                    path, vit, Crops(picture, len(items), view), n_views=self.bank_views, batch_size=BATCH, seed=0,
                    on_region=lambda _: advance(),
                )  # fmt: skip
            shape = np.load(path / "tokens.npy", mmap_mode="r").shape
            out = np.lib.format.open_memmap(
                path / "centre.npy", mode="w+", dtype=np.float16, shape=(shape[0], *shape[2:])
            )
            with self.progress.task("Centre views", len(items)) as advance:
                for start in range(0, len(items), BATCH):
                    rows = range(start, min(start + BATCH, len(items)))
                    views = [tuple(centre(part[None], view)[0] for part in picture(row)) for row in rows]
                    out[start : rows.stop] = run_trunk(vit, views)[0].half().cpu().numpy()
                    advance(len(rows))
            out.flush()

        return job.cache("views", [image_key(items), self._network_key, view, self.bank_views], fill)


class WholeViews:
    """Two of the V views of each image; as `BankViews`, but of several banks one after the other, and without a mask.

    Parameters
    ----------
    banks : (R_k, V, N, C) float16 each, usually memory maps
    """

    team = ALONE

    def __init__(self, banks: Sequence[npt.NDArray[np.float16]], device: torch.device) -> None:
        self.banks, self.device = banks, device
        self.starts = np.cumsum([0, *(len(bank) for bank in banks)])

    def pair(self, indices: Indices, rng: np.random.Generator) -> tuple[ViewBatch, ViewBatch]:
        one, two = (self._batch(indices, view) for view in draw_two(len(indices), self.banks[0].shape[1], rng))
        return one, two

    def _batch(self, indices: Indices, view: Indices) -> ViewBatch:
        tokens = np.empty((len(indices), *self.banks[0].shape[2:]), np.float16)
        for bank, start in zip(self.banks, self.starts, strict=False):
            here = (indices >= start) & (indices < start + len(bank))
            tokens[here] = bank[indices[here] - start, view[here]]
        return whole_batch(tokens, self.device)


def whole_batch(tokens: npt.NDArray[np.float16], device: torch.device) -> ViewBatch:
    """(B, N, C) tokens, every patch of which counts: without guidance `keep` is not looked at."""
    return ViewBatch(
        None, torch.from_numpy(tokens).to(device), torch.ones(len(tokens), 0, dtype=torch.bool, device=device)
    )


@torch.inference_mode()
def class_features(net: RegionNet, tokens: npt.NDArray[np.float16], device: torch.device) -> Features:
    """Class tokens of the trained last block, unit vectors: (R, N, C) → (R, C)."""
    chunks = [np.array(tokens[start : start + CHUNK]) for start in range(0, len(tokens), CHUNK)]
    return np.concatenate([net.features(whole_batch(chunk, device)).cpu().numpy() for chunk in chunks])
