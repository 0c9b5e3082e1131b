"""Networks that learn from normal images what a frozen trunk sees in them: of RD++ and of EfficientAD."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Standard(nn.Module):
    """Each channel of each block with mean 0 and deviation 1 on normal images: (…, L, h, w, C) → the same shape."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, n_blocks: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(n_blocks, 1, 1, width))
        self.register_buffer("deviation", torch.ones(n_blocks, 1, 1, width))

    def fit(self, grids: Iterable[Tensor]) -> None:
        """To tokens (L, h, w, C) of images."""
        sums, squares, count = torch.zeros(()), torch.zeros(()), 0
        for grid in grids:
            values = grid.double().cpu()
            sums, squares = sums + values.sum((1, 2)), squares + (values**2).sum((1, 2))
            count += values.shape[1] * values.shape[2]
        mean = sums / count
        self.mean[:, 0, 0] = mean.float()
        self.deviation[:, 0, 0] = (squares / count - mean**2).clamp(min=1e-12).sqrt().float()

    def forward(self, tokens: Tensor) -> Tensor:
        return (tokens - self.mean) / self.deviation


class ReverseDistillation(nn.Module):
    """RD++: tokens of the levels → projection → bottleneck of half the grid → decoder → tokens again.

    Parameters
    ----------
    n_levels, width : L and C of tokens (L, h, w, C)
    """

    def __init__(self, n_levels: int, width: int) -> None:
        super().__init__()
        self.standard = Standard(n_levels, width)
        self.projectors = nn.ModuleList(projector(width) for _ in range(n_levels))
        self.bottleneck = nn.Sequential(
            nn.Conv2d(n_levels * width, width, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            Residual(width),
        )  # fmt: skip
        self.decoder = nn.ModuleList(nn.Sequential(Residual(width), Residual(width)) for _ in range(n_levels))
        self.heads = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(n_levels))

    def forward(self, tokens: Tensor) -> Tensor:
        """Σ over levels of 1 − cosine of each token and what comes out: (L, h, w, C) → (h, w)."""
        wanted = self.prepare(tokens[None])
        given = self.decode(self.project(wanted))
        return (1 - F.cosine_similarity(wanted, given, dim=2)).sum(dim=1)[0]

    def prepare(self, tokens: Tensor) -> Tensor:
        """(B, L, h, w, C) → (B, L, C, h, w), standardised."""
        standard: Tensor = self.standard(tokens)
        return standard.movedim(-1, 2)

    def project(self, levels: Tensor) -> Tensor:
        """(B, L, C, h, w) → the same shape."""
        pairs = zip(self.projectors, levels.unbind(1), strict=True)
        return torch.stack([layers(level) for layers, level in pairs], dim=1)

    def decode(self, projected: Tensor) -> Tensor:
        """(B, L, C, h, w) → the same shape, through the bottleneck; the deepest level comes out first."""
        x = to_size(self.bottleneck(projected.flatten(1, 2)), projected.shape[-2:])
        levels = []
        for blocks, head in zip(reversed(self.decoder), reversed(self.heads), strict=True):
            x = blocks(x)
            levels.append(head(x))
        return torch.stack(levels[::-1], dim=1)


class Residual(nn.Module):
    """A bottleneck block of WideResNet: (B, C, h, w) → the same shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.layers = nn.Sequential(
            nn.Conv2d(width, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
            nn.Conv2d(half, half, 3, padding=1, bias=False), nn.BatchNorm2d(half), nn.ReLU(),
            nn.Conv2d(half, width, 1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.layers(x))


class InstanceNorm(nn.Module):
    """Each channel of each image with mean 0 and deviation 1; torch's own refuses a grid of one patch."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean((2, 3), keepdim=True)
        return centred / ((centred**2).mean((2, 3), keepdim=True) + 1e-5).sqrt()


def projector(width: int) -> nn.Sequential:
    """C → C/2 → C/4 → C/2 → C by 3×3 convolutions."""
    layers: list[nn.Module] = []
    for before, after in pairwise([width, width // 2, width // 4, width // 2, width]):
        layers += [nn.Conv2d(before, after, 3, padding=1), InstanceNorm(), nn.LeakyReLU()]
    return nn.Sequential(*layers)


class StudentTeacher(nn.Module):
    """EfficientAD: a student that sees pixels, and an autoencoder, both of which learn the teacher's tokens.

    Parameters
    ----------
    n_blocks, width : L and C of the teacher's tokens
    patch : height and width of a patch, whose pixels come beside its tokens

    Attributes
    ----------
    quantiles : (2, 2) of the student–teacher and student–autoencoder errors, which `forward` scales to 0 and 0.1
    """

    quantiles: Tensor

    def __init__(self, n_blocks: int, width: int, patch: Sequence[int]) -> None:
        super().__init__()
        self.patch, self.width = (patch[0], patch[1]), width
        self.standard = Standard(n_blocks, width)
        self.register_buffer("quantiles", torch.tensor([[0.0, 0.1], [0.0, 0.1]]))
        self.student = student(2 * n_blocks * width, self.patch)
        self.autoencoder = AutoEncoder(n_blocks * width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean of both errors, each scaled by its quantiles: tokens and pixels (L, h, w, C + 3·patch) → (h, w)."""
        low, high = self.quantiles[:, 0, None, None], self.quantiles[:, 1, None, None]
        return (0.1 * (self.errors(tokens[None])[0] - low) / (high - low)).mean(dim=0)

    def errors(self, tokens: Tensor) -> Tensor:
        """Mean squares of student − teacher and student − autoencoder: (B, L, h, w, C + 3·patch) → (B, 2, h, w)."""
        teacher, pictures = self.split(tokens)
        first, second = self.student(pictures).chunk(2, dim=1)
        own = self.autoencoder(pictures, teacher.shape[-2:])
        return torch.stack([((first - teacher) ** 2).mean(dim=1), ((second - own) ** 2).mean(dim=1)], dim=1)

    def split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's tokens, standardised (B, L·C, h, w), and the picture, 0 … 1 (B, 3, H, W)."""
        known, pixels = tokens[..., : self.width], tokens[:, 0, ..., self.width :]
        pixels = pixels.unflatten(-1, (*self.patch, 3)).permute(0, 5, 1, 3, 2, 4)  # (B, 3, h, patch, w, patch)
        return self.standard(known).movedim(-1, 2).flatten(1, 2), pixels.flatten(4, 5).flatten(2, 3)


def student(width: int, patch: tuple[int, int]) -> nn.Sequential:
    """A small patch description network, pictures (B, 3, H, W) → (B, width, h, w), that sees four patches around a patch."""
    rows, columns = (1 + (side % 2 == 0) for side in patch)  # 2: half a patch first
    half = (patch[0] // rows, patch[1] // columns)
    return nn.Sequential(
        nn.Conv2d(3, 128, half, stride=half), nn.ReLU(),
        nn.Conv2d(128, 256, 3, padding=1, stride=(rows, columns)), nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(), nn.Conv2d(256, 256, 3, padding=1), nn.ReLU(),
        nn.Conv2d(256, width, 1),
    )  # fmt: skip


class AutoEncoder(nn.Module):
    """A picture of any size → 64 numbers → tokens of any grid."""

    SIDE = 128

    def __init__(self, width: int) -> None:
        super().__init__()
        sides = pairwise([3, 32, 32, 64, 64])
        down = [layer for a, b in sides for layer in (nn.Conv2d(a, b, 4, stride=2, padding=1), nn.ReLU())]
        self.encoder = nn.Sequential(*down, nn.Conv2d(64, 64, self.SIDE // 16))
        self.decoder = nn.ModuleList(
            nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Dropout(0.2)) for _ in range(4)
        )
        self.head = nn.Conv2d(64, width, 3, padding=1)

    def forward(self, pictures: Tensor, grid: Sequence[int]) -> Tensor:
        """(B, 3, H, W), (h, w) → (B, C, h, w)."""
        x = self.encoder(to_size(F.avg_pool2d(pictures, 2), (self.SIDE, self.SIDE)))
        for layers, size in zip(self.decoder, ((4, 4), (8, 8), (16, 16), grid), strict=True):
            x = layers(to_size(x, size))
        tokens: Tensor = self.head(x)
        return tokens


def to_size(values: Tensor, size: Sequence[int]) -> Tensor:
    """Bilinear: (B, C, h, w) → (B, C, *size)."""
    return F.interpolate(values, size=list(size), mode="bilinear", align_corners=False)
