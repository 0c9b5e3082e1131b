"""The part that learns: the last block (if wanted), the projector and the heads, on top of what is frozen."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..model.backbone import MaskGuidedViT
from ..model.heads import PrototypeHeads, make_projector


@dataclass(frozen=True)
class ViewBatch:
    """One view of each of B regions, as the frozen part left it.

    vectors : (B, D) frozen features, or None
    tokens : (B, N, C) tokens that enter the last block, and keep : (B, P) bool; both None when it is not trained
    """

    vectors: Tensor | None
    tokens: Tensor | None = None
    keep: Tensor | None = None


class RegionNet(nn.Module):
    """Features of a region → class cosines of every head, and a projection for the contrastive losses.

    Parameters
    ----------
    width : dimension of the joined features
    n_outputs : base classes followed by novel classes
    n_heads : independent classifiers, of which the best is used
    vit : given only when its last block is trained; the block becomes part of this network, and the final norm, which
        stays as it is
    class_weight : weight of the trained class token beside the frozen vectors
    contrastive : whether to have a projector; of no use where nothing below the heads is trained
    """

    def __init__(
        self,
        width: int,
        n_outputs: int,
        n_heads: int,
        *,
        vit: MaskGuidedViT | None = None,
        class_weight: float = 1.0,
        contrastive: bool = True,
    ) -> None:
        super().__init__()
        self.heads = PrototypeHeads(width, n_outputs, n_heads)
        self.projector = make_projector(width if vit is None else vit.width) if contrastive else None
        self.class_weight = class_weight
        self._vit = [vit] if vit is not None else []  # in a list, so that the frozen trunk is no part of this module
        if vit is not None:
            self.last = last_part(vit).requires_grad_(False)
            self.last["block"].requires_grad_(True)

    def features(self, batch: ViewBatch) -> Tensor:
        """(B, D) unit vectors."""
        return self._token_and_features(batch)[1]

    def forward(self, batch: ViewBatch) -> tuple[Tensor, Tensor]:
        """Cosines (M, B, C), and projections (B, 256) or, without a projector, the features themselves (B, D).

        The projector sees the trained class token at its own length: scaled to length 1 it would be small beside the
        projector's weights, and the contrastive losses would stand still.
        """
        token, features = self._token_and_features(batch)
        if self.projector is None:
            return self.heads(features), features
        return self.heads(features), self.projector(features if token is None else token)

    def _token_and_features(self, batch: ViewBatch) -> tuple[Tensor | None, Tensor]:
        """The class token (B, C) after the trained last block, or None where it stays frozen; and all features (B, D)."""
        token, parts = None, [] if batch.vectors is None else [batch.vectors]
        if self._vit:
            assert batch.tokens is not None and batch.keep is not None
            token = self._vit[0].class_token(batch.tokens.float(), batch.keep)
            parts = [self.class_weight * F.normalize(token, dim=-1), *parts]
        return token, F.normalize(torch.cat(parts, dim=-1), dim=-1)


def last_part(vit: MaskGuidedViT) -> nn.ModuleDict:
    """The end of the backbone that a run keeps: its last block and final norm, the very same modules."""
    return nn.ModuleDict({"block": vit.vit.blocks[-1], "norm": vit.vit.norm})
