"""The network that looks at regions, as the settings have it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ..config import Config
from ..learn.features import RegionEncoder, TokenNetwork
from ..model.seen import Seen

if TYPE_CHECKING:  # an exported run has a network of its own, and no torch
    from ..model.backbone import MaskGuidedViT

Say = Callable[[str], None]  # called with one line before slow steps, such as a download


def make_vit(config: Config, say: Say | None = None) -> MaskGuidedViT:
    """The configured backbone on its device."""
    from ..model.backbone import MaskGuidedViT, load_vit
    from ..model.device import choose_device

    settings = config.model
    vit = MaskGuidedViT(
        load_vit(settings.backbone, file=settings.weights, progress=say), guidance=settings.guidance,
        guided_blocks=settings.guided_blocks, keep_thin=settings.keep_thin, precision=config.precision,
    )  # fmt: skip
    return vit.to(choose_device(config.device)).eval()


def make_encoder(
    network: TokenNetwork, config: Config, *, scenes: bool = False, seen: Seen | None = None
) -> RegionEncoder:
    """Features as configured; scenes : of whole images too; seen : where a detector may have left what it saw in them."""
    encoder = RegionEncoder(
        network, config.features, input_size=config.model.input_size, image_size=config.model.image_size,
        batch_size=config.batch_size, train_last_block=config.learn.train_last_block, scenes=scenes,
    )  # fmt: skip
    encoder.seen = seen
    return encoder


def share(
    detector: Any,
    seen: Seen,
    config: Config,
    *,
    blocks: Sequence[int] | None = None,
    known: Collection[int] | None = None,
) -> None:
    """Let a detector leave what it sees in whole images, where its network is the one that describes regions.

    blocks : that describe, where the caller knows them
    known : it looks at images now that it will be asked about again: all that it needs is kept of those at these places
    """
    shares = getattr(detector, "shares", None)
    if shares is None or not shares(config):
        return
    detector.seen = seen
    if known is None and blocks is None:
        blocks = config.features.used_blocks(detector.vit.n_blocks - config.learn.train_last_block)
    seen.keep(blocks, known)
