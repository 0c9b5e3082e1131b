"""One image of the line: a product surface, its defects, the lighting and the camera."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from ..errors import SettingsError
from .defects import DEFECTS, Spot, check_kinds
from .maps import imperfect_map
from .textures import TEXTURES, Array, Shape

_VISIBLE = 8 / 255  # a smaller change drowns in texture and sensor noise
_MIN_SIDE = 64
_TRIES = 300


@dataclass(frozen=True)
class DemoImage:
    """An inspection image and all that is true of it.

    name : `<label>/<nnn>` on a line
    image : (H, W, 3) uint8 RGB
    mask : (H, W) bool, the pixels that the defects changed visibly; all False on a good image
    map : (H // 2, W // 2) float32 in 0..1, an imperfect anomaly map
    kinds : the defects in the image
    label : "good", the kind, or "combined"
    """

    name: str
    image: npt.NDArray[np.uint8]
    mask: npt.NDArray[np.bool_]
    map: Array
    kinds: tuple[str, ...]
    label: str


def make_image(
    kinds: Sequence[str],
    *,
    texture: str = "brushed_metal",
    rng: np.random.Generator,
    size: tuple[int, int] = (320, 320),
    name: str = "",
) -> DemoImage:
    """Photograph one product with the given defects, well apart from each other.

    An equal `rng` with other `kinds` gives the same piece under the same light: with `kinds=()`, the image
    without its defects.

    Parameters
    ----------
    kinds : names out of `DEFECTS`; none for a good product
    texture : a name out of `TEXTURES`
    size : (H, W) in pixels, each at least 64
    name : stored with the image; the label where empty

    Examples
    --------
    >>> item = make_image(["hole"], texture="wood_grain", rng=np.random.default_rng(0), size=(96, 128))
    >>> item.label, item.image.shape, item.map.shape, bool(item.mask.any())
    ('hole', (96, 128, 3), (48, 64), True)
    """
    check_kinds(kinds)
    if texture not in TEXTURES:
        raise SettingsError(f"texture must be one of {', '.join(TEXTURES)}, but got {texture!r}")
    if min(size) < _MIN_SIDE:
        raise SettingsError(f"size must be at least {_MIN_SIDE} px in both directions, but got {size[0]}x{size[1]}")
    piece_rng, light_rng, defect_rng, noise_rng, map_rng = (
        np.random.default_rng(seed) for seed in rng.integers(2**63, size=5)
    )
    surface = _piece(texture, piece_rng, size)
    angle = light_rng.uniform(0, 2 * np.pi)
    light = (float(np.cos(angle)), float(np.sin(angle)))
    exposure = _exposure(light_rng, size, light)
    damaged, mask = _damage(surface, kinds, defect_rng, exposure, light)
    clean, shot = _photograph(surface, exposure), _photograph(damaged, exposure)
    noise = noise_rng.normal(0, light_rng.uniform(0.004, 0.011), shot.shape).astype(np.float32)
    change = np.abs(shot - clean).max(2)
    label = "good" if not kinds else kinds[0] if len(kinds) == 1 else "combined"
    image = np.round(np.clip(shot + noise * np.sqrt(0.3 + shot), 0, 1) * 255).astype(np.uint8)
    return DemoImage(name or label, image, mask, imperfect_map(mask, change, map_rng), tuple(kinds), label)


def _piece(texture: str, rng: np.random.Generator, size: Shape) -> Array:
    """Another piece of the same product (H, W, 3), fed a little askew."""
    height, width = size
    margin = int(0.06 * max(size)) + 2
    canvas = TEXTURES[texture](rng, (height + 2 * margin, width + 2 * margin), _scale(size))
    middle = (canvas.shape[1] / 2, canvas.shape[0] / 2)
    matrix = np.asarray(cv2.getRotationMatrix2D(middle, rng.uniform(-2.5, 2.5), 1.0), np.float64)
    matrix[:, 2] += rng.uniform(-0.25, 0.25, 2) * margin - margin
    return cv2.warpAffine(canvas, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)


def _scale(size: Shape) -> float:
    return min(size) / 320


def _exposure(rng: np.random.Generator, size: Shape, light: tuple[float, float]) -> Array:
    """What the lamp and the lens do to each pixel and channel: (H, W, 3), about 1."""
    y, x = np.meshgrid(np.linspace(-1, 1, size[0]), np.linspace(-1, 1, size[1]), indexing="ij")
    gradient = 1 + rng.uniform(0.02, 0.14) * (x * light[0] + y * light[1])
    vignette = 1 - rng.uniform(0.03, 0.18) * (x**2 + y**2) / 2
    warmth = rng.normal(0, 0.018)
    colour = np.array([1 + warmth, 1, 1 - warmth])
    light_and_lens = rng.uniform(0.84, 1.14) * gradient * vignette
    return np.asarray(light_and_lens[..., None] * colour, np.float32)


def _photograph(reflectance: Array, exposure: Array) -> Array:
    """(H, W, 3) float32 in 0..1: the surface under its light through a lens, which is never quite sharp."""
    return np.clip(cv2.GaussianBlur(reflectance * exposure, (0, 0), 0.6), 0, 1)


def _damage(
    surface: Array,
    kinds: Sequence[str],
    rng: np.random.Generator,
    exposure: Array,
    light: tuple[float, float],
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Add each defect where it is visible and far from the others; damaged (H, W, 3) and mask (H, W)."""
    height, width = size = surface.shape[:2]
    mask = np.zeros(size, bool)
    gap = max(int(0.08 * min(size)), 3)
    for kind in kinds:
        limit = 3.0
        for _ in range(_TRIES):
            x, y = rng.uniform(0.16, 0.84) * width, rng.uniform(0.16, 0.84) * height
            spot = Spot(x, y, float(np.exp(rng.uniform(0, np.log(limit)))), _scale(size), light)
            damaged = DEFECTS[kind](surface, rng, spot)
            new = _visible_change(_photograph(surface, exposure), _photograph(damaged, exposure))
            near = cv2.dilate(new.astype(np.uint8), np.ones((2 * gap + 1, 2 * gap + 1), np.uint8)) > 0
            if new.sum() >= max(60 * spot.scale**2, 8) and not (near & mask).any():
                break
            limit = max(0.97 * limit, 1.2)  # a crowded image has room for small defects only
        else:
            raise SettingsError(f"size {height}x{width} leaves no room for {len(kinds)} separate defects: {kinds}")
        surface, mask = damaged, mask | new
    return surface, mask


def _visible_change(clean: Array, damaged: Array) -> npt.NDArray[np.bool_]:
    """Where the camera sees a difference (H, W), as a person would paint it: no pinholes, no lone pixels."""
    change = np.abs(damaged - clean).max(2)
    seen = cv2.morphologyEx((change >= _VISIBLE).astype(np.uint8), cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8))
    _, parts, stats, _ = cv2.connectedComponentsWithStats(seen, connectivity=8)
    large = stats[:, cv2.CC_STAT_AREA] >= 5
    large[0] = False
    return np.asarray(large[parts])
