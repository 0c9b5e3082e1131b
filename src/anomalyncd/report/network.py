"""What the network sees: where its class token looks (the paper's attention pictures), and which regions are alike to it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from ..errors import AnomalyNCDError, RunError
from ..labels import NORMAL
from ..learn.views import centre
from ..model import weights
from ..model.attention import Guidance
from ..model.backbone import MaskGuidedViT, image_tensor, mask_tensor, resolve_name
from .canvas import Picture, centred, fitted, overlay
from .cards import choose
from .source import ReportSource, Shot

MOST_PICTURES = 6  # of attention
PICTURE_SIDE = 192
MOST = 2_000  # regions; t-SNE of more takes minutes, and dots would cover each other
AT_LEAST = 20  # regions that a class keeps where only a part of them is drawn
SIDE, MARGIN = 640.0, 16.0  # of the map, in units of its own
TILE = 64  # px, thumbnails
PLAIN = 5  # t-SNE needs more regions than this


def make_attention(source: ReportSource) -> tuple[list[list[Shot]], str]:
    """Pictures of the clearest region of each of the first classes; nothing is downloaded for them.

    Returns
    -------
    Rows of a crop and its attention without and with guidance; where there are none, a sentence that says why
    """
    members = [source.regions[source.regions["label"] == label] for label in source.labels if label > NORMAL]
    rows = [row for own in members for row in choose(own, source.typical[own.index], 1, 0)[0]][:MOST_PICTURES]
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
        painted = overlay(fitted(grey, PICTURE_SIDE), found, inside[0], high=high)
        share = f"{found.ravel()[keep].sum() / max(found.sum(), 1e-12):.0%} inside"
        alt = f"Attention {name} guidance in region {region['region']} of {region['image']}: {share} the mask"
        shots.append(Shot(source.album.add(painted), alt, lines=(share,)))
    return shots


def make_class_map(source: ReportSource) -> dict[str, Any] | None:
    """The map of a run's regions; None where their features are not known or there is none.

    `points` (x, y, class, title) in the order of their classes, their thumbnails in that order in one picture, `sprite`, of
    so many `columns` and `rows` with sides of `tile` pixels; and the `looks` of the classes.
    """
    if source.vectors is None or not len(source.vectors):
        return None
    labels = source.regions["label"].to_numpy()
    kept = subsample(labels, MOST)
    place = dict(zip(kept.tolist(), project(source.vectors[kept]).tolist(), strict=True))
    order = {label: rank for rank, label in enumerate(source.labels)}
    tiles, points = [], []
    for row in sorted(place, key=lambda row: (order[int(labels[row])], *place[row])):
        region, look = source.regions.iloc[row], source.look(int(labels[row]))
        title = f"{look.name}, {region['probability']:.2f}: {region['image']}, region {region['region']}"
        points.append((round(place[row][0], 1), round(place[row][1], 1), look, title))
        crop, _ = source.run.crop(row)
        grey = np.full((TILE, TILE, 3), 128, np.uint8)
        tiles.append(grey if crop is None else centred(fitted(crop, TILE), TILE))
    sheet, columns = sprite(tiles)
    looks = [source.look(label) for label in source.labels if label in labels[kept]]
    shown = {"points": points, "looks": looks, "sprite": source.album.add(sheet, quality=70)}
    return {**shown, "columns": columns, "rows": len(sheet) // TILE, "tile": TILE}


def sprite(tiles: Sequence[Picture]) -> tuple[Picture, int]:
    """Tiles of one size in one picture, row by row, and how many there are in a row.

    Examples
    --------
    >>> sheet, columns = sprite([np.full((4, 4, 3), k, np.uint8) for k in range(5)])
    >>> sheet.shape, columns, int(sheet[4, 0, 0])
    ((8, 12, 3), 3, 3)
    """
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = [np.hstack(tiles[first : first + columns]) for first in range(0, len(tiles), columns)]
    missing = rows[0].shape[1] - rows[-1].shape[1]
    rows[-1] = np.pad(rows[-1], ((0, 0), (0, missing), (0, 0)))
    return np.vstack(rows), columns


def project(vectors: NDArray[np.float32]) -> NDArray[np.float64]:
    """Features (R, D) on the plane, t-SNE from their principal axes, scaled to the map: (R, 2), x and y in 0 … SIDE.

    Always the same for the same input: one thread, a fixed seed.

    Examples
    --------
    >>> project(np.eye(3, dtype=np.float32)).shape, project(np.zeros((1, 4), np.float32)).tolist()
    ((3, 2), [[320.0, 320.0]])
    """
    count = len(vectors)
    with threadpool_limits(limits=1):
        axes = _principal(vectors.astype(np.float64))
        spread = axes[:, 0].std()
        place = axes[:, :2]
        if count > PLAIN and spread > 1e-9:
            from sklearn.manifold import TSNE

            start = (place / spread * 1e-4).astype(np.float32)
            tsne = TSNE(perplexity=min(30.0, (count - 1) / 3), init=start, random_state=0, n_jobs=1)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of regions that are all alike
                place = np.nan_to_num(tsne.fit_transform(axes.astype(np.float32)).astype(np.float64))
    low, high = place.min(axis=0), place.max(axis=0)
    span = float((high - low).max())
    scale = (SIDE - 2 * MARGIN) / span if span > 0 else 0.0
    return np.asarray((place - (low + high) / 2) * scale + SIDE / 2)


def subsample(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Places of at most `most` regions drawn at random, in order; small classes are kept whole as far as that goes.

    Examples
    --------
    >>> labels = np.array([1] * 500 + [2] * 3)
    >>> kept = subsample(labels, 50)
    >>> len(kept), int((labels[kept] == 2).sum())
    (50, 3)
    """
    if len(labels) <= most:
        return np.arange(len(labels))
    shuffled = np.random.default_rng(0).permutation(len(labels))
    drawn = pd.Series(labels[shuffled])
    late = drawn.groupby(drawn).cumcount().to_numpy() >= AT_LEAST
    return np.sort(shuffled[np.argsort(late, kind="stable")][:most])


def _principal(vectors: NDArray[np.float64], most: int = 50) -> NDArray[np.float64]:
    """(R, D) on its principal axes (R, 2 … most): as good for distances, and quicker."""
    centred_ = vectors - vectors.mean(axis=0)
    left, length, _ = np.linalg.svd(centred_, full_matrices=False)
    # The sign of an axis is arbitrary: pinned, so that two machines draw the same map.
    left = left * np.where(left[np.abs(left).argmax(axis=0), np.arange(left.shape[1])] < 0, -1, 1)
    out = (left * length)[:, :most]
    return np.pad(out, ((0, 0), (0, max(0, 2 - out.shape[1]))))
