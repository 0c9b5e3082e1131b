"""GATCluster (Niu et al., ECCV 2020): a classifier that teaches itself, and a Gaussian window that must see the same class.

The feature map is reduced to 32 channels; its mean is classified, p. From the map a place (x, y) and a width δ are
predicted, and the map, weighted by exp(−d² / (2·0.05·δ)) and summed, is classified too, p_a. A round begins with predictions
q of the plain images, at most 1,000 of them, and makes targets of these: q balanced over the clusters (t); pairs in one
cluster of k-means on q sharpened (r; only each image with itself where a cluster holds less than a tenth of its share); and
q sharpened (a). Then random views learn them, 8 times in batches of 32:

5·(−⟨p, t⟩) + 3·(Σ p̄ log p̄, of both branches) + 1·BCE(cosine of p_i and p_j, r_ij) + 5·BCE(p_a, a).

What differs: the map is the frozen trunk's, patch tokens before the last block, each with mean 0 and variance 1, where the
paper trains a small convolutional network; the heads from the reduction on are trained.
"""

from __future__ import annotations

import warnings
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from ...labels import UNKNOWN
from ...learn.bank import Indices
from ...learn.trainer import sample_batches
from .base import Features, Inputs, Labels, Tokens
from .views import CHUNK, ViewRival, WholeViews

CHANNELS, WINDOW = 32, 0.05
ROUND, REPEATS, RESTARTS = 1000, 8, 20
LEAST_SHARE = 0.1  # of its share N / K that a cluster must hold before its pairs are believed
LEAST = 1e-5


class GATCluster(ViewRival):
    """GATCluster; parameters as in `ViewRival`, an epoch being one round.

    Examples
    --------
    >>> from anomalyncd.data.gather import gather
    >>> images = [np.full((32, 32, 3), value, np.uint8) for value in (10, 12, 200, 202)]
    >>> GATCluster(2, backbone="tiny", size=32, epochs=1, bank_views=2).fit(gather(images)).features_.shape
    (4, 32)
    """

    name: ClassVar[str] = "gatcluster"

    def __init__(
        self,
        n_classes: int,
        *,
        epochs: int = 50,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        **settings: Any,
    ) -> None:
        super().__init__(n_classes, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, **settings)

    def _learn(self, inputs: Inputs) -> tuple[Features, Labels]:
        bank = self._bank(inputs.cache, inputs.images)
        views = WholeViews([bank.random], self._device)
        side = self._vit.fit_size(self.size)
        grid = (side // self._vit.patch_size[0], side // self._vit.patch_size[1])
        net = self._new(lambda: Attentive(self._vit.width, grid, self.n_classes))
        place = np.empty(len(bank.centre), np.int64)  # of an image in the round
        balanced = sharp = same = torch.empty(0)

        def begin(rng: np.random.Generator) -> list[Indices]:
            """New targets, and the batches of a round."""
            nonlocal balanced, sharp, same
            rows = np.sort(rng.permutation(len(place))[:ROUND])
            place[rows] = np.arange(len(rows))
            found = self._plain(net, bank.centre[rows])[1]
            balanced, sharp = balance(found), sharpen(found)
            same = same_cluster(sharp, self.n_classes, int(rng.integers(2**31)))
            batches = [sample_batches(np.full(len(rows), UNKNOWN), self.batch_size, rng) for _ in range(REPEATS)]
            net.train()
            return [rows[batch] for some in batches for batch in some]

        def loss(indices: Indices, rng: np.random.Generator, epoch: int) -> Tensor:
            rows = place[indices]
            tokens = views.pair(indices, rng)[0].tokens
            assert tokens is not None
            _, p, attended = net(self._map(tokens))
            total: Tensor = (
                5 * -(p * balanced[rows]).sum(dim=1).mean()
                + 3 * (negative_entropy(p) + negative_entropy(attended))
                + pair_loss(p, same[rows][:, rows])
                + 5 * F.binary_cross_entropy(attended, sharp[rows])
            )
            return total

        self._train(net, torch.optim.Adam(net.parameters(), lr=self.learning_rate), begin, loss)
        features, found = self._plain(net, bank.centre)
        return features.cpu().numpy(), found.argmax(dim=1).cpu().numpy()

    def _map(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, C) → patch tokens (B, P, C), each with mean 0 and variance 1."""
        patches = tokens[:, self._vit.n_prefix :].float()
        return F.layer_norm(patches, patches.shape[-1:])

    @torch.no_grad()
    def _plain(self, net: nn.Module, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Mean features (R, 32) and predictions (R, K) of plain views."""
        net.eval()
        chunks = (torch.from_numpy(np.array(tokens[start : start + CHUNK])) for start in range(0, len(tokens), CHUNK))
        found = [net(self._map(chunk.to(self._device)))[:2] for chunk in chunks]
        features, probabilities = (torch.cat(parts) for parts in zip(*found, strict=True))
        return features, probabilities


class Attentive(nn.Module):
    """Both branches; grid : patches (h, w) of the map."""

    def __init__(self, width: int, grid: tuple[int, int], n_classes: int) -> None:
        super().__init__()
        self.reduce = nn.Sequential(*_layer(width, CHANNELS), nn.ReLU())
        self.mix = _layer(CHANNELS, CHANNELS)
        self.look = nn.Sequential(*_layer(CHANNELS, n_classes), nn.ReLU(), nn.Flatten())
        self.window = nn.Sequential(nn.Linear(n_classes * grid[0] * grid[1], 3), nn.Sigmoid())
        self.whole, self.attended = (_classifier(n_classes) for _ in range(2))
        lines = [torch.linspace(0, 1, n) for n in grid]
        self.places: Tensor
        self.register_buffer("places", torch.cartesian_prod(*lines))  # (P, 2)

    def forward(self, patches: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(B, P, C) → mean features (B, 32), p and p_a (B, K)."""
        reduced = self.reduce(patches.mT)  # (B, 32, P)
        mixed = self.mix(reduced)
        weights = gaussian(self.places, self.window(self.look(reduced)))
        mean = mixed.mean(dim=2)
        return mean, self.whole(mean), self.attended((mixed * weights[:, None]).sum(dim=2))


def _layer(width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv1d(width, out, 1), nn.BatchNorm1d(out))


def _classifier(n_classes: int) -> nn.Sequential:
    hidden = [nn.Linear(CHANNELS, n_classes), nn.BatchNorm1d(n_classes), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(n_classes, n_classes), nn.Softmax(dim=1))


def gaussian(places: Tensor, window: Tensor) -> Tensor:
    """exp(−d² / (2·0.05·δ)): places (P, 2) and windows (B, 3), which are x, y and δ → (B, P).

    Examples
    --------
    >>> gaussian(torch.tensor([[0.0, 0.0], [1.0, 1.0]]), torch.tensor([[0.0, 0.0, 1.0]])).round(decimals=4).tolist()
    [[1.0, 0.0]]
    """
    squared = (places[None] - window[:, None, :2]).square().sum(dim=2)
    return (-squared / (2 * WINDOW * window[:, 2:] + LEAST)).exp()


def balance(q: Tensor) -> Tensor:
    """Divide by what each cluster gets of all images, then to a sum of 1 for each image: (N, K) → (N, K)."""
    shares = q / (q.sum(dim=0) + LEAST)
    return shares / (shares.sum(dim=1, keepdim=True) + LEAST)


def sharpen(q: Tensor) -> Tensor:
    """q² divided by what each cluster gets, then to a sum of 1 for each image: (N, K) → (N, K)."""
    shares = q.square() / (q.sum(dim=0) + LEAST)
    return shares / (shares.sum(dim=1, keepdim=True) + LEAST)


def same_cluster(sharp: Tensor, n_clusters: int, seed: int) -> Tensor:
    """1 where k-means puts two images together (N, N); the unit matrix where a cluster is too small to be believed."""
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():  # see `learn.cluster.kmeans`
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than clusters
        labels = KMeans(n_clusters, n_init=RESTARTS, random_state=seed).fit_predict(sharp.cpu().double().numpy())
    if np.bincount(labels, minlength=n_clusters).min() < LEAST_SHARE * len(labels) / n_clusters:
        labels = np.arange(len(labels))
    return torch.from_numpy((labels[:, None] == labels).astype(np.float32)).to(sharp.device)


def negative_entropy(p: Tensor) -> Tensor:
    """Σ p̄ log p̄ of the mean prediction of (B, K)."""
    mean = p.mean(dim=0).clamp(min=LEAST)
    return (mean * mean.log()).sum()


def pair_loss(p: Tensor, same: Tensor) -> Tensor:
    """Binary cross-entropy of cosines of predictions (B, K) with (B, B) whether they are of one cluster, each pair once."""
    unit = F.normalize(p, dim=1)
    below = torch.ones_like(same, dtype=torch.bool).tril()
    return F.binary_cross_entropy((unit @ unit.T).clamp(0, 1)[below], same[below])
