"""Parts of Cascade Patch Retrieval (CPR): like images first, then like patches of these, in a metric that it learns."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BLOCKS = 5  # rows and columns of blocks that an image's histograms are of
SMOOTHING = 0.1  # patches that each word has in each block, seen or not
COUNTED = 4 / 5  # of the blocks, the likest ones: a defect must not decide which images are alike
ALIKE, UNLIKE, POWER = 0.8, -0.2, 3  # cosines that pairs are pushed beyond, and what is left is raised to
HIDDEN, OUT = 128, 128  # channels of the local branch
DISCRIMINANT = 1e-3  # share of the mean variance that steadies the discriminant
CENTRE = 0.5  # share of each side that the middle of an image is
OBJECT = 0.9  # of the border's patches are background where the product is an object


def places(height: int, width: int, n: int) -> Tensor:
    """Which of n × n cells of an image each patch of a grid lies in: (height, width) int64, row · n + column.

    Examples
    --------
    >>> places(2, 3, 2).tolist()
    [[0, 1, 1], [2, 3, 3]]
    """
    rows, columns = ((torch.arange(side) * 2 + 1) * n // (2 * side) for side in (height, width))
    return rows[:, None] * n + columns


def distances(rows: Tensor, others: Tensor) -> Tensor:
    """Euclidean, by products, which every engine has: (P, D), (M, D) → (P, M)."""
    squared = torch.addmm((others**2).sum(1), rows, others.T, alpha=-2) + (rows**2).sum(1, keepdim=True)
    return squared.clamp(min=0).sqrt()


def block_histograms(words: Tensor) -> Tensor:
    """Shares of the words in each block of an image, and of images of the same size: (…, h, w, W) one-hot → (…, 25, W)."""
    block = places(words.shape[-3], words.shape[-2], BLOCKS).flatten().to(words.device)
    inside = (block[:, None] == torch.arange(BLOCKS**2, device=words.device)).to(words.dtype)  # (h·w, 25)
    counts = inside.T @ words.flatten(-3, -2) + SMOOTHING
    return counts / counts.sum(dim=-1, keepdim=True)


def divergences(histograms: Tensor, known: Tensor) -> Tensor:
    """How unlike images are: Kullback–Leibler divergence of each block, the lowest 4/5 of them summed.

    (25, W) of an image, (N, 25, W) of others → (N,)
    """
    each = (histograms * (histograms.log() - known.log())).sum(dim=-1)  # (N, 25)
    return each.topk(int(COUNTED * each.shape[-1]), dim=-1, largest=False).values.sum(dim=-1)


def one_hot_words(tokens: Tensor, centres: Tensor) -> Tensor:
    """Nearest word of each token: (…, C) and (W, C) → (…, W) float32."""
    nearest = distances(tokens.flatten(0, -2), centres).argmin(dim=-1)
    words = (nearest[:, None] == torch.arange(len(centres), device=tokens.device)).float()
    return words.view(*tokens.shape[:-1], len(centres))


class Inception(nn.Module):
    """Four views of a patch side by side: itself, its surroundings of 3 × 3 and of 5 × 5, and the highest around it."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        quarter, half, eighth = out // 4, out // 2, out // 8
        self.paths = nn.ModuleList(
            [
                _unit(width, quarter, 1),
                nn.Sequential(_unit(width, 3 * out // 8, 1), _unit(3 * out // 8, half, 3)),
                nn.Sequential(_unit(width, out // 16, 1), _unit(out // 16, eighth, 5)),
                nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), _unit(width, eighth, 1)),
            ]
        )

    def forward(self, grids: Tensor) -> Tensor:
        return torch.cat([path(grids) for path in self.paths], dim=1)


def _unit(width: int, out: int, side: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(width, out, side, padding=side // 2), nn.BatchNorm2d(out), nn.ReLU())


class LocalBranch(nn.Module):
    """Tokens of each scale → unit vectors whose cosines say whether patches are alike: (B, L, h, w, C) → (B, L, h, w, E)."""

    def __init__(self, n_scales: int, width: int) -> None:
        super().__init__()
        self.scales = nn.ModuleList(
            nn.Sequential(_unit(width, HIDDEN, 1), Inception(HIDDEN, HIDDEN), nn.Conv2d(HIDDEN, OUT, 1))
            for _ in range(n_scales)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        found = [scale(tokens[:, k].permute(0, 3, 1, 2)) for k, scale in enumerate(self.scales)]
        return F.normalize(torch.stack(found, dim=1).movedim(2, -1), dim=-1)


def contrastive_hinge(cosines: Tensor, alike: Tensor) -> Tensor:
    """Mean of max(0, 0.8 − cos)³ over pairs that are alike, plus that of max(0, cos + 0.2)³ over the others.

    cosines : (…) of pairs; alike : (…) float, 1 or 0, or how much a pair counts as either

    Examples
    --------
    >>> round(float(contrastive_hinge(torch.tensor([0.9, 0.3, 0.8]), torch.tensor([1.0, 1.0, 0.0]))), 4)
    1.0625
    """
    near, far = F.relu(ALIKE - cosines) ** POWER, F.relu(cosines - UNLIKE) ** POWER
    unlike = 1 - alike
    return (near * alike).sum() / alike.sum().clamp(min=1e-6) + (far * unlike).sum() / unlike.sum().clamp(min=1e-6)


def nearest_cosines(image: Tensor, others: Tensor, side: int) -> Tensor:
    """Highest cosine of each patch with those of another image at most side // 2 positions away.

    image : (…, h, w, E) unit vectors; others : of the same shape, or one that it fits → (…, h, w)
    """
    reach, (height, width) = side // 2, image.shape[-3:-1]
    padded = F.pad(others, (0, 0, reach, reach, reach, reach))  # zeros, whose cosine is 0, are taken away below
    inside = F.pad(torch.ones(height, width, device=image.device), (reach, reach, reach, reach))
    best = (image * others).sum(dim=-1)
    for down in range(side):
        for right in range(side):
            window = (slice(down, down + height), slice(right, right + width))
            cosine = (image * padded[..., window[0], window[1], :]).sum(dim=-1)
            best = torch.maximum(best, torch.where(inside[window] > 0, cosine, best))
    return best


def discriminant(rows: Tensor, is_front: Tensor) -> tuple[Tensor, Tensor]:
    """Fisher's linear discriminant as a probability: p(front) = sigmoid(x·w + b), both kinds taken for equally likely.

    w = Σ⁻¹ (μ₁ − μ₀), b = −(μ₁ + μ₀)·w / 2, Σ the covariance within the kinds.

    Parameters
    ----------
    rows : (P, C); is_front : (P,) bool

    Returns
    -------
    w (C,), b ()
    """
    front, back = rows[is_front].double(), rows[~is_front].double()
    means = front.mean(0), back.mean(0)
    centred = torch.cat([front - means[0], back - means[1]])
    spread = centred.T @ centred / len(centred)
    spread += DISCRIMINANT * spread.diagonal().mean() * torch.eye(len(spread), dtype=spread.dtype, device=spread.device)
    weight = torch.linalg.solve(spread, means[0] - means[1])
    return weight.float(), (-(means[0] + means[1]) @ weight / 2).float()


def foreground(grids: list[Tensor], groups: list[Tensor]) -> tuple[Tensor, Tensor] | None:
    """What tells a product from its background, where it is an object; None where it fills the image.

    Of two groups of patches, the one that the border of the images is of is the background, if nearly all of the border
    is and most of the middle is not. The discriminant is of such patches of the border against the others of the middle.

    Parameters
    ----------
    grids : (h, w, C) tokens of each normal image; groups : (h, w) 0 or 1, which of two groups each is in
    """
    border, middle = zip(*(_border_and_middle(*group.shape) for group in groups), strict=True)
    outer = torch.cat([group[mask] for group, mask in zip(groups, border, strict=True)])
    inner = torch.cat([group[mask] for group, mask in zip(groups, middle, strict=True)])
    back = int(outer.float().mean() > 0.5)
    if (outer == back).float().mean() < OBJECT or (inner == back).float().mean() > 0.5:
        return None
    front = [grid[mask & (group != back)] for grid, group, mask in zip(grids, groups, middle, strict=True)]
    behind = [grid[mask & (group == back)] for grid, group, mask in zip(grids, groups, border, strict=True)]
    rows = torch.cat([*front, *behind])
    return discriminant(rows, torch.arange(len(rows), device=rows.device) < sum(map(len, front)))


def _border_and_middle(height: int, width: int) -> tuple[Tensor, Tensor]:
    """Outermost patches of a grid, and those of its middle: (h, w) bool each."""
    border = torch.ones(height, width, dtype=torch.bool)
    border[1:-1, 1:-1] = False
    middle = torch.zeros(height, width, dtype=torch.bool)
    top, left = (int(side * (1 - CENTRE) / 2) for side in (height, width))
    middle[top : height - top, left : width - left] = True
    return border, middle


class Gallery(nn.Module):
    """Normal images to retrieve from.

    Parameters
    ----------
    tensors : `centres` (W, C), the words; `histograms` (N, 25, W); `patches` (N, L, h, w, E) float16, unit vectors; `owner`
        (N,), which image each is; `weight` (C,) and `bias` (), see `discriminant`; `branch.…`, weights of the metric,
        none where tokens are compared as they are
    retrieved : how many normal images an image is compared with
    window : side of the window that a patch is looked for in, see `nearest_cosines`
    """

    centres: Tensor
    owner: Tensor
    histograms: Tensor
    patches: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, tensors: dict[str, Tensor], retrieved: int, window: int) -> None:
        super().__init__()
        self.retrieved, self.window = retrieved, window
        learned = {name.removeprefix("branch."): value for name, value in tensors.items() if name.startswith("branch.")}
        for name, value in tensors.items():
            if not name.startswith("branch."):
                self.register_buffer(name, value)
        self.branch: LocalBranch | None = None
        if learned:
            self.branch = LocalBranch(self.patches.shape[1], self.centres.shape[1])
            self.branch.load_state_dict(learned)
            self.branch.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        """Patch scores as a graph has them: (L, h, w, C) → (h, w)."""
        return self.scores(tokens)

    @torch.no_grad()
    def scores(self, tokens: Tensor, without: int | None = None) -> Tensor:
        """Least distances to the images retrieved, summed over scales, where the product is; without : image left out."""
        near = self.patches[self.retrieve(tokens[0], without)].float()  # (k, L, h', w', E)
        near = resized(near, (tokens.shape[1], tokens.shape[2]))
        alike = nearest_cosines(describe(self.branch, tokens[None]), near, self.window)  # (k, L, h, w)
        return (1 - alike.amax(dim=0)).sum(dim=0) * self.product(tokens[0])

    def retrieve(self, tokens: Tensor, without: int | None = None) -> Tensor:
        """Places of the likest normal images: (h, w, C) → (k,)."""
        far = divergences(block_histograms(one_hot_words(tokens, self.centres)), self.histograms)
        count = min(self.retrieved, len(far))
        if without is not None:
            far = far.masked_fill(self.owner == without, float("inf"))
            count = min(count, int((self.owner != without).sum()))
        return far.topk(count, largest=False).indices

    def product(self, tokens: Tensor) -> Tensor:
        """Probability that a patch, or one beside it, is of the product and not of the background: (h, w, C) → (h, w)."""
        front = (tokens @ self.weight + self.bias).sigmoid()
        widened: Tensor = F.max_pool2d(front[None, None], 3, stride=1, padding=1)[0, 0]
        return widened


def describe(branch: LocalBranch | None, tokens: Tensor) -> Tensor:
    """Unit vectors of patches, by the learned metric or as they are: (B, L, h, w, C) → (B, L, h, w, E)."""
    found: Tensor = F.normalize(tokens, dim=-1) if branch is None else branch(tokens)
    return found


def resized(grids: Tensor, shape: tuple[int, int]) -> Tensor:
    """Tokens (N, L, h', w', C) at the positions of another grid (h, w)."""
    flat = grids.flatten(0, 1).permute(0, 3, 1, 2)
    found: Tensor = F.interpolate(flat, size=shape, mode="bilinear").permute(0, 2, 3, 1).unflatten(0, grids.shape[:2])
    return found
