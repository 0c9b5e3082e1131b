"""Parts of PNI: which normal patches may be at a place, by its position in the image and by what is around it."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .cascade import distances, places

AT_ONCE = 1024  # patches compared with the bank in one matrix product
PLACES = 24  # positions are told apart in so many rows and columns of an image, whatever its size
HIDDEN, LAYERS, DROPOUT = 512, 3, 0.1  # of the network that looks at neighbours
TEMPERATURE = 2.0
SHARE = 0.5  # an element is allowed where it is at least half as likely as if all were alike
GAMMA = 0.99


class NormalPlaces(nn.Module):
    """What is normal where.

    Parameters
    ----------
    tensors : `bank` (M, D) float16, the elements, and `owner` (M,), the normal image of each; of all T patches that were
        looked at: `words` (T, 2), see `nearest_words`, `place` (T,), see `places`, `seen` (T,), the image of each;
        `mean` (D,) and `axes` (D, W), see `principal_axes`; `net.…`, weights of the network of the neighbourhood
    window, near : see `PNI`
    """

    bank: Tensor
    owner: Tensor
    words: Tensor
    place: Tensor
    seen: Tensor
    mean: Tensor
    axes: Tensor
    rows: Tensor
    kind: Tensor
    possible: Tensor

    def __init__(self, tensors: dict[str, Tensor], window: int, near: int) -> None:
        super().__init__()
        self.near = near
        for name, values in tensors.items():
            if not name.startswith("net."):
                self.register_buffer(name, values)
        weights = {name.removeprefix("net."): values for name, values in tensors.items() if name.startswith("net.")}
        n_kinds = len(weights[max(weights, key=lambda name: (int(name.split(".")[0]), name == "bias"))])
        self.net = neighbour_net(self.axes.shape[1], n_kinds, window)
        self.net.load_state_dict(weights)
        self.net.eval()
        rows = self.bank.float()
        self.register_buffer("rows", rows, persistent=False)
        kind = torch.cat([distances(some, rows[:n_kinds]).argmin(dim=1) for some in rows.split(AT_ONCE)])
        self.register_buffer("kind", kind, persistent=False)
        self.register_buffer("possible", self.by_position(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """−log p of each patch, the mean of both ways, as a graph has it: (L, h, w, C) → (h, w)."""
        values = features(tokens)
        patches, place = values.flatten(0, 1), places(values.shape[0], values.shape[1], PLACES).flatten()
        possible = self.possible[place.to(tokens.device)]
        grid: Tensor = both_ways(distances(patches, self.rows), self.by_neighbours(values)[:, self.kind], possible)
        return grid.view(values.shape[:2])

    @torch.inference_mode()
    def scores(self, tokens: Tensor, without: int | None = None) -> Tensor:
        """As `forward`, some patches at a time, and without the elements of one image: → (h·w,)."""
        values = features(tokens)
        rows, kind, possible = self.rows, self.kind, self.possible
        if without is not None:
            kept = self.owner != without
            rows, kind, possible = rows[kept], kind[kept], self.by_position(without)[:, kept]
        place = places(values.shape[0], values.shape[1], PLACES).flatten().to(tokens.device)
        each = zip(
            *(all_.split(AT_ONCE) for all_ in (values.flatten(0, 1), self.by_neighbours(values), place)), strict=True
        )
        return torch.cat([both_ways(distances(some, rows), likely[:, kind], possible[at]) for some, likely, at in each])

    def small(self, rows: Tensor) -> Tensor:
        """(P, D) → (P, W)."""
        return (rows.float() - self.mean) @ self.axes

    def by_neighbours(self, values: Tensor) -> Tensor:
        """Distribution elements that the neighbours of each patch allow: (h, w, D) → (h·w, K) bool."""
        logits = self.net(self.small(values).permute(2, 0, 1)[None])[0].flatten(1).T  # (h·w, K)
        allowed: Tensor = (logits / TEMPERATURE).softmax(dim=1) > SHARE / len(self.bank)
        return allowed

    def by_position(self, without: int | None = None) -> Tensor:
        """Elements that each position allows, (PLACES², M) bool, by the patches of all images but one."""
        size = len(self.bank)
        kept = slice(None) if without is None else self.seen != without
        word, other = self.words[kept].long().T
        if without is not None:  # its elements are gone, so the next best stands for them
            word = torch.where(self.owner[word] == without, other, word)
        counts = torch.bincount(self.place[kept].long() * size + word, minlength=PLACES**2 * size)
        grid = counts.view(PLACES, PLACES, size).permute(2, 0, 1).float()[None]
        around = F.avg_pool2d(grid, 2 * self.near + 1, stride=1, padding=self.near)[0].flatten(1).T  # (PLACES², M)
        allowed: Tensor = around > SHARE / size * around.sum(dim=1, keepdim=True)
        return allowed


class NeighbourConv(nn.Conv2d):
    """A linear layer on what is around each patch: a convolution that does not see the middle of its window."""

    seen: Tensor

    def __init__(self, width: int, out: int, window: int) -> None:
        super().__init__(width, out, window, padding=window // 2)
        seen = torch.ones(window, window)
        seen[window // 2, window // 2] = 0
        self.register_buffer("seen", seen, persistent=False)

    def forward(self, grids: Tensor) -> Tensor:
        return F.conv2d(grids, self.weight * self.seen, self.bias, padding=self.padding)


def neighbour_net(width: int, kinds: int, window: int) -> nn.Sequential:
    """(B, width, h, w) → logits of what stands in the middle of each window (B, kinds, h, w)."""
    layers: list[nn.Module] = []
    for layer in range(LAYERS):
        first = NeighbourConv(width, HIDDEN, window)
        layers += [nn.Conv2d(HIDDEN, HIDDEN, 1) if layer else first]
        layers += [nn.BatchNorm2d(HIDDEN), nn.ReLU(), nn.Dropout(DROPOUT)]
    return nn.Sequential(*layers, nn.Conv2d(HIDDEN, kinds, 1))


def both_ways(far: Tensor, likely: Tensor, possible: Tensor) -> Tensor:
    """Mean of what neighbours and position say; see `surprise`."""
    return (surprise(far, likely) + surprise(far, possible)) / 2


def surprise(far: Tensor, allowed: Tensor) -> Tensor:
    """−log of the largest γ·exp(−γ·d) over the allowed elements, of which the farthest is always one: (P, M), (P, M) → (P,).

    Examples
    --------
    >>> found = surprise(torch.tensor([[1.0, 2, 3], [1, 2, 3]]), torch.tensor([[False, True, False], [False] * 3]))
    >>> ((found + torch.tensor(GAMMA).log()) / GAMMA).tolist()
    [2.0, 3.0]
    """
    nearest = far.masked_fill(~allowed, float("inf")).amin(dim=1)
    return GAMMA * torch.minimum(nearest, far.amax(dim=1)) - math.log(GAMMA)


def features(blocks: Tensor) -> Tensor:
    """PatchCore's: each block's tokens scaled to length 1, then joined: (L, h, w, C) → (h, w, L·C)."""
    joined: Tensor = torch.cat(list(F.normalize(blocks, dim=-1)), dim=-1) / len(blocks) ** 0.5
    return joined


def nearest_words(rows: Tensor, bank: Tensor, owner: Tensor, kinds: int) -> tuple[Tensor, Tensor]:
    """Which elements patches are nearest to.

    Returns
    -------
    (P, 2) : the nearest, and the nearest that is of another image than that one is
    (P,) : the nearest of the first `kinds`
    """
    far = distances(rows.float(), bank.float())
    first = far.argmin(dim=1)
    other = far.masked_fill(owner[first][:, None] == owner, float("inf")).argmin(dim=1)
    return torch.stack([first, other], dim=1), far[:, :kinds].argmin(dim=1)


def principal_axes(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Mean (D,) of rows, and the axes (D, width) along which they differ most, or all D where these are fewer."""
    parts = rows.split(AT_ONCE)
    mean = torch.stack([some.double().sum(0) for some in parts]).sum(0) / len(rows)
    spread = torch.stack([(some.double() - mean).T @ (some.double() - mean) for some in parts]).sum(0)
    axes = torch.linalg.eigh(spread).eigenvectors.flip(1)[:, :width]
    return mean.float(), axes.float().contiguous()
