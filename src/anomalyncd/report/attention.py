"""What the class token looks at in a region, with and without mask guidance (the paper's attention pictures)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import AnomalyNCDError, RunError
from ..labels import NORMAL
from ..learn.views import centre
from ..model import weights
from ..model.attention import Guidance
from ..model.backbone import MaskGuidedViT, image_tensor, mask_tensor, resolve_name
from .canvas import fitted, overlay
from .cards import choose
from .source import ReportSource, Shot

MOST = 6  # regions
SIDE = 192


def make_attention(source: ReportSource) -> tuple[list[list[Shot]], str]:
    """Pictures of the clearest region of each of the first classes; nothing is downloaded for them.

    Returns
    -------
    Rows of a crop and its attention without and with guidance; where there are none, a sentence that says why
    """
    members = [source.regions[source.regions["label"] == label] for label in source.labels if label > NORMAL]
    rows = [row for own in members for row in choose(own, source.typical[own.index], 1, 0)[0]][:MOST]
    if not rows:
        return [], "There is no region of a defect to look at."
    try:
        model = source.run.model
        settings = model.config.model
        name = resolve_name(settings.backbone)
        if settings.weights is None and name != "tiny" and not weights.available(name):
            raise RunError(f"the weights of {name} are not on this machine (anomalyncd weights fetch {name})")
        vit = model.vit()
        guided: Guidance = "class" if settings.guidance == "none" else settings.guidance
        found = [shots for row in rows if (shots := _row(source, row, vit, settings.input_size, guided))]
    except (AnomalyNCDError, OSError, RuntimeError) as error:
        return [], f"Left out, because the backbone of this run cannot be loaded: {error}"
    return found, "" if found else "Left out, because the crops of this run are gone."


@torch.inference_mode()
def class_attention(vit: MaskGuidedViT, images: Tensor, masks: Tensor, guidance: Guidance) -> NDArray[np.float32]:
    """Attention of the class token in the last block, averaged over its heads.

    Parameters
    ----------
    images : (B, 3, H, W) uint8 or float 0 … 1; masks : (B, H, W) bool
    guidance : in the place of the network's own, for all blocks that are guided

    Returns
    -------
    (B, h, w) float32, one value a patch; with what the prefix tokens get they sum to 1

    Examples
    --------
    >>> from anomalyncd.model.backbone import tiny_vit
    >>> mask = torch.zeros(1, 32, 32, dtype=torch.bool); mask[:, :16, :16] = True
    >>> found = class_attention(MaskGuidedViT(tiny_vit()), torch.zeros(1, 3, 32, 32), mask, "class")
    >>> (found > 0).tolist()
    [[[True, False], [False, False]]]
    """
    block = vit.vit.blocks[-1]
    attention = block.attn
    if not hasattr(attention, "qkv") or not hasattr(attention, "num_heads"):
        raise RunError(f"the attention of {type(attention).__name__} cannot be drawn")
    own, vit.guidance = vit.guidance, guidance
    try:
        tokens, keep, _ = vit.trunk(images, masks)
        hidden = vit.attention_mask(keep, vit.n_blocks - 1)
    finally:
        vit.guidance = own
    batch, count, width = tokens.shape
    heads = attention.num_heads
    qkv = attention.qkv(block.norm1(tokens)).reshape(batch, count, 3, heads, width // heads)
    query, key = (attention.q_norm(qkv[:, :1, 0].transpose(1, 2)), attention.k_norm(qkv[:, :, 1].transpose(1, 2)))
    scores = query @ key.transpose(-2, -1) * attention.scale  # (B, heads, 1, N)
    scores = scores if hidden is None else scores + hidden[:, :, :1]
    shares = scores.softmax(dim=-1)[:, :, 0, vit.n_prefix :].mean(dim=1)
    grid = (images.shape[-2] // vit.patch_size[0], images.shape[-1] // vit.patch_size[1])
    found: NDArray[np.float32] = shares.reshape(batch, *grid).float().cpu().numpy()
    return found


def _row(source: ReportSource, row: int, vit: MaskGuidedViT, size: int, guided: Guidance) -> list[Shot]:
    """The crop, attention without and with guidance, and the share of each that lies inside the mask."""
    crop, mask = source.run.crop(row)
    if crop is None or mask is None or min(crop.shape[:2]) < size:
        return []
    region = source.regions.iloc[row]
    picture, inside = centre(crop[None], size), centre(mask[None], size)
    device = next(vit.parameters()).device
    tensors = image_tensor(picture, device), mask_tensor(inside, device)
    shots = [replace(source.crop(row), lines=(source.look(int(region["label"])).name,))]
    keep = vit.pool(tensors[1])[0].cpu().numpy()
    # Colour means attention only, brightest at its own peak.
    grey = np.repeat(picture[0].mean(axis=2, keepdims=True) * 0.8, 3, axis=2).astype(np.uint8)
    modes: dict[str, Guidance] = {"without": "none", "with": guided}
    for name, mode in modes.items():
        found = class_attention(vit, *tensors, mode)[0]
        high = float(np.quantile(found, 0.999)) or 1.0
        painted = overlay(fitted(grey, SIDE), found, inside[0], high=high)
        share = f"{found.ravel()[keep].sum() / max(found.sum(), 1e-12):.0%} inside"
        alt = f"Attention {name} guidance in region {region['region']} of {region['image']}: {share} the mask"
        shots.append(Shot(source.album.add(painted), alt, lines=(share,)))
    return shots
