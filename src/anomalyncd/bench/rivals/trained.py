"""GCD, and SimGCD that grew out of it: rivals that train the last block on whole images.

Generalized Category Discovery (Vaze et al., CVPR 2022): contrastive training, then semi-supervised k-means.

L = (1 − λ) L_u + λ L_s, λ = 0.35: the self-supervised contrastive loss of all images and the supervised one of the
labelled base set, on a projection of the class token; the last block and the projector are trained. Then k-means over base
and other images together, the base images held in the clusters of their classes.

The base classes are other products' defects, so no image to be discovered belongs to one: each ends in the nearest of the K
new clusters. Without a base set what is left is L_u and plain k-means. The projection has 256 numbers, where its public code
has 65 536.

SimGCD (Wen et al., ICCV 2023): a cosine classifier of whole images that learns from its own sharpened predictions.

L = (1 − λ)(L_u + L_distil + ε L_entropy) + λ (L_s + L_cls), λ = 0.35, ε = 2: both contrastive losses, self-distillation
between two views (student temperature 0.1, teacher 0.07 → 0.04 over 30 epochs), the mean prediction's entropy maximised, and
cross-entropy of the labelled base set. One head of unit-norm prototypes; the class is its largest output.

What differs: as everywhere in this package, pseudo labels never name a base class, since these belong to other products, and
distillation and entropy are over unlabelled images only; base classes are left out of the prediction. Without a base set
what is left is L_u + L_distil + ε L_entropy. The learning rate is 0.01, not 0.1: at the paper's, made for DINO's ViT-B/16,
the features of the embedded backbone fall into one point, and the loss ends higher than it began.

On a CPU: the trunk is frozen in both papers, so the tokens before its last block depend on the view alone: V random views of
each image are drawn once, for all seeds and both rivals, and kept (the papers draw fresh ones in every epoch). An image is
squeezed into a square, a random view is a 224 px square out of 256 px with the flips, quarter turns and colours of this
package's own training, and the features that are clustered come from the centre square.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.format import open_memmap
from torch import Tensor

from ...assign.images import novel_probabilities
from ...config import make_config
from ...data.dataset import Sample
from ...data.images import read_image
from ...errors import SettingsError
from ...labels import UNKNOWN
from ...learn.bank import Crops, Indices, Views, draw_two, fill_bank, run_trunk
from ...learn.cluster import semi_supervised_kmeans, squared_distances
from ...learn.losses import Temperatures, teacher_temperature
from ...learn.network import RegionNet, ViewBatch
from ...learn.trainer import train
from ...learn.views import centre
from .base import BATCH, Cache, Features, Inputs, Labels, Rival, image_key, square

MARGIN = 256 / 224  # side of the square that a view is taken from, in sides of the view
CHUNK = 64  # images whose features are computed at once
RESTARTS = 100


@dataclass(frozen=True)
class Learned:
    """A trained network, and unit vectors (N, C) of the images and (M, C) of the base set, whose labels (M,) are 0 …"""

    net: RegionNet
    features: Features
    base_features: Features
    base_labels: Indices

    @property
    def n_base(self) -> int:
        """How many base classes there are."""
        return len(np.unique(self.base_labels))


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
        self.size = size
        self.learn = {  # as `LearnConfig` calls it
            "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "bank_views": bank_views,
            "supervised_weight": supervised_weight, "n_heads": 1, "contrastive_weight": 1.0, "correction_threshold": -1.0,
        }  # fmt: skip

    def _learn(
        self,
        inputs: Inputs,
        kind: type[RegionNet],
        entropy_weight: float,
        teacher: Callable[[int], float] = teacher_temperature,
    ) -> Learned:
        """Train a network of this kind; entropy_weight : of the mean prediction, teacher : epoch → temperature."""
        config = make_config({"learn": {**self.learn, "entropy_weight": entropy_weight}}).learn
        sets = [inputs.images] if inputs.base is None else [inputs.images, inputs.base.samples]
        known = np.empty(0, np.int64) if inputs.base is None else inputs.base.numbered_labels
        labels = np.concatenate([np.full(len(inputs.images), UNKNOWN), known])
        n_base = len(np.unique(known))
        vit, device = self._vit, next(self._vit.parameters()).device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            net = kind(vit.width, n_base + self.n_classes, 1, vit=vit).to(device)
        with self._timed("views"):
            banks = [self._bank(inputs.cache, samples, config.bank_views) for samples in sets]
        with self._timed("learning"), self.progress.task("Learning", config.epochs) as advance:
            views = WholeViews([np.load(bank / "tokens.npy", mmap_mode="r") for bank in banks], device)
            self.history_, _ = train(
                net, views, labels, np.ones(len(labels), np.float32), config, seed=self.random_state, n_base=n_base,
                on_epoch=lambda row: advance(1, f"loss {row['loss']:.4f}"), teacher=teacher,
            )  # fmt: skip
        if self.history_ and not self.history_[-1]["loss"] < self.history_[0]["loss"]:
            self.progress.warn(f"{self.name}: the loss did not fall. Try another learning_rate or more epochs.")
        found = [class_features(net, np.load(bank / "centre.npy", mmap_mode="r"), device) for bank in banks]
        if not all(np.isfinite(features).all() for features in found):
            rate = config.learning_rate
            raise SettingsError(f"{self.name}: training diverged. Lower learning_rate, which is {rate}.")
        return Learned(net, found[0], found[-1] if len(known) else found[0][:0], known)

    def _bank(self, cache: Cache, samples: Sequence[Sample], n_views: int) -> Path:
        """Folder with tokens.npy (R, V, N, C) of the random views, and centre.npy (R, N, C), float16."""
        vit = self._vit
        view = vit.fit_size(self.size)
        side = round(view * MARGIN)

        def picture(index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
            return square(read_image(samples[index].image), side), np.ones((side, side), np.bool_)

        def fill(path: Path) -> None:
            with self.progress.task("Views", len(samples)) as advance:
                fill_bank(
                    path, vit, Crops(picture, len(samples), view), n_views=n_views, batch_size=BATCH, seed=0,
                    on_region=lambda _: advance(),
                )  # fmt: skip
            tokens = np.load(path / "tokens.npy", mmap_mode="r")
            out = open_memmap(path / "centre.npy", mode="w+", dtype=np.float16, shape=tokens[:, 0].shape)
            with self.progress.task("Centre views", len(samples)) as advance:
                for start in range(0, len(samples), BATCH):
                    rows = range(start, min(start + BATCH, len(samples)))
                    views = [tuple(centre(part[None], view)[0] for part in picture(row)) for row in rows]
                    out[start : rows.stop] = run_trunk(vit, views)[0].half().cpu().numpy()
                    advance(len(rows))
            out.flush()

        return cache("views", [image_key(samples), self._network_key, view, n_views], fill)


class WholeViews(Views):
    """Two of the V views of each image, of several banks one after the other, and without a mask.

    Parameters
    ----------
    banks : (R_k, V, N, C) float16 each, usually memory maps
    """

    def __init__(self, banks: Sequence[npt.NDArray[np.float16]], device: torch.device) -> None:
        super().__init__(device)
        self.banks = banks
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
    keep = torch.ones(len(tokens), 0, dtype=torch.bool, device=device)
    return ViewBatch(None, torch.from_numpy(tokens).to(device), keep)


@torch.inference_mode()
def class_features(net: RegionNet, tokens: npt.NDArray[np.float16], device: torch.device) -> Features:
    """Class tokens of the trained last block, unit vectors: (R, N, C) → (R, C)."""
    chunks = [np.array(tokens[start : start + CHUNK]) for start in range(0, len(tokens), CHUNK)]
    return np.concatenate([net.features(whole_batch(chunk, device)).cpu().numpy() for chunk in chunks])


class GCD(TrainedRival):
    """GCD; parameters as in `TrainedRival`.

    Examples
    --------
    >>> import numpy as np
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> model = GCD(2, backbone="tiny", size=32, epochs=1, bank_views=2, learning_rate=0.001).fit(gather(images))
    >>> model.labels_.tolist() in ([0, 0, 1, 1], [1, 1, 0, 0])
    True
    """

    name: ClassVar[str] = "gcd"

    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        found = self._learn(inputs, ContrastiveNet, entropy_weight=0.0)
        with self._timed("clusters"):
            points, seed = (found.features, found.base_features, found.base_labels), self.random_state
            centres = semi_supervised_kmeans(*points, self.n_classes, seed, restarts=RESTARTS)
            labels = squared_distances(found.features, centres[found.n_base :]).argmin(axis=1)
        return found.features, labels


class ContrastiveNet(RegionNet):
    """GCD has no classifier: constant logits have no gradient, which leaves the contrastive terms of the objective."""

    def forward(self, batch: ViewBatch) -> tuple[Tensor, Tensor]:
        _, projections = super().forward(batch)
        return torch.zeros(1, len(projections), self.heads.directions.shape[1], device=projections.device), projections


class SimGCD(TrainedRival):
    """SimGCD.

    Parameters
    ----------
    entropy_weight : ε; settings : see `TrainedRival`

    Examples
    --------
    >>> import numpy as np
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> SimGCD(2, backbone="tiny", size=32, epochs=1, bank_views=2).fit(gather(images)).features_.shape
    (4, 48)
    """

    name: ClassVar[str] = "simgcd"

    def __init__(
        self, n_classes: int, *, entropy_weight: float = 2.0, learning_rate: float = 0.01, **settings: Any
    ) -> None:
        super().__init__(n_classes, learning_rate=learning_rate, **settings)
        self.entropy_weight = entropy_weight

    def _discover(self, inputs: Inputs) -> tuple[Features, Labels]:
        teacher = partial(teacher_temperature, epochs=30, step=1)
        found = self._learn(inputs, RegionNet, self.entropy_weight, teacher)
        with torch.inference_mode():
            cosines = found.features @ found.net.heads.weight[0].cpu().numpy().T
        return found.features, novel_probabilities(cosines, found.n_base, Temperatures.student).argmax(axis=1)
