"""What learns on top of region features: classification heads and the projector of the contrastive losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Length of a weight vector of torch's linear layers before training, in the mean. Only directions count, but the shorter a
# vector, the more a step turns it: at length 1 prototypes would learn three times slower than in the paper's code.
FIRST_LENGTH = 3**-0.5


class PrototypeHeads(nn.Module):
    """Several linear classifiers of unit-norm weights without bias on unit-norm features: logits are cosines.

    Parameters
    ----------
    width : feature dimension D
    n_outputs : classes of each head, C
    n_heads : M

    Examples
    --------
    >>> heads = PrototypeHeads(8, n_outputs=3, n_heads=2)
    >>> heads(torch.randn(5, 8)).shape
    torch.Size([2, 5, 3])
    """

    def __init__(self, width: int, n_outputs: int, n_heads: int = 1) -> None:
        super().__init__()
        self.directions = nn.Parameter(FIRST_LENGTH * F.normalize(torch.randn(n_heads, n_outputs, width), dim=-1))

    @property
    def weight(self) -> Tensor:
        """(M, C, D) unit vectors."""
        return F.normalize(self.directions, dim=-1)

    def forward(self, features: Tensor) -> Tensor:
        """features (B, D) → cosines (M, B, C) in −1 … 1."""
        return torch.einsum("bd,mcd->mbc", F.normalize(features, dim=-1), self.weight)

    @torch.no_grad()
    def start_from(self, head: int, centres: Tensor) -> None:
        """Point the outputs of one head at cluster centres (C, D)."""
        self.directions[head] = F.normalize(centres, dim=-1)


def make_projector(width: int, hidden: int = 2048, out: int = 256) -> nn.Sequential:
    """Three-layer MLP of the contrastive losses: (B, width) → (B, out), to be normalised by the loss.

    It begins small and without bias, as in DINO, so that a bias does not outweigh what tells two inputs apart.
    """
    layers = nn.Sequential(
        nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, out)
    )
    for layer in layers:
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
    return layers
