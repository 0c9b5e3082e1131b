"""Defects: functions (surface, rng, spot) → damaged surface, random in shape, contrast and direction."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import cv2
import numpy as np

from ..errors import SettingsError
from .textures import Array, Shape, smoothstep, value_noise


@dataclass(frozen=True)
class Spot:
    """A place for a defect: centre in pixels, size 1..3, pixels per unit of size, direction to the light."""

    x: float
    y: float
    size: float
    scale: float
    light: tuple[float, float]


def _blend(surface: Array, colour: Array, alpha: Array) -> Array:
    return np.asarray(surface + (colour - surface) * alpha[..., None])


def _strokes(shape: Shape, lines: list[tuple[Array, Array]]) -> Array:
    """Antialiased coverage (H, W) in 0..1 of polylines: points (n, 2) as x, y and widths (n,) in pixels."""
    fine = 4
    canvas = np.zeros((shape[0] * fine, shape[1] * fine), np.uint8)
    for points, widths in lines:
        knots = np.round((points + 0.5) * fine).astype(int).tolist()
        for start, end, width in zip(knots, knots[1:], np.round(widths * fine).astype(int).tolist(), strict=False):
            cv2.line(canvas, start, end, 255, max(width, 1))
    small = cv2.resize(canvas, shape[::-1], interpolation=cv2.INTER_AREA)
    return small.astype(np.float32) / 255


def _shifted(field: Array, offset: tuple[float, float]) -> Array:
    """The field (H, W) moved by offset = (dx, dy) pixels; zeros come in."""
    matrix = np.array([[1, 0, offset[0]], [0, 1, offset[1]]], np.float64)
    return cv2.warpAffine(field, matrix, field.shape[::-1], flags=cv2.INTER_LINEAR)


def _direction(angle: float) -> Array:
    return np.array([np.cos(angle), np.sin(angle)], np.float32)


def scratch(surface: Array, rng: np.random.Generator, spot: Spot) -> Array:
    """One to three nearly parallel bright grooves with a dark flank, slightly bowed, tapering, uneven."""
    shape, scale = surface.shape[:2], spot.scale
    angle, length = rng.uniform(0, np.pi), 50 * spot.size * scale
    bow = rng.normal(0, 0.05) * length
    normal = _direction(angle + np.pi / 2)
    core: list[tuple[Array, Array]] = []
    for k in range(int(rng.choice([1, 2, 3], p=[0.6, 0.28, 0.12]))):
        part = 1.0 if k == 0 else rng.uniform(0.35, 0.9)
        t = np.linspace(-0.5, 0.5, 40, dtype=np.float32)
        path = _direction(angle + (k > 0) * rng.normal(0, 0.03)) * (t * part * length)[:, None]
        path += normal * (bow * (1 - 4 * t**2) + k * rng.uniform(2.5, 5) * scale)[:, None]
        path += (spot.x, spot.y)
        pressure = np.interp(t, np.linspace(-0.5, 0.5, 6), rng.uniform(0.6, 1.2, 6))
        taper = np.clip(1.15 - 2 * np.abs(t), 0.15, 1) ** 0.5
        widths = rng.uniform(1.2, 2.1) * scale * pressure * taper
        core.append((path.astype(np.float32), widths.astype(np.float32)))
    groove = _strokes(shape, core)
    depth = rng.uniform(0.55, 1.0) * (0.86 + 0.14 * np.clip(value_noise(rng, shape, (9 * scale, 9 * scale)), -1, 1))
    shadow = np.clip(_shifted(groove, (-1.5 * scale * spot.light[0], -1.5 * scale * spot.light[1])) - groove, 0, 1)
    shaded = surface * (1 - 0.45 * depth * shadow)[..., None]
    return _blend(shaded, np.clip(surface * 1.35 + 0.26, 0, 1), depth * groove)


def hole(surface: Array, rng: np.random.Generator, spot: Spot) -> Array:
    """A round pit: dark inside, one wall faintly lit, with a raised bright burr on the side of the light."""
    y, x = np.mgrid[: surface.shape[0], : surface.shape[1]].astype(np.float32)
    dx, dy = x - spot.x, y - spot.y
    theta, distance = np.arctan2(dy, dx), np.hypot(dx, dy)
    radius = 6.0 * spot.size * spot.scale
    outline = np.ones_like(theta)
    for harmonic in (2, 3, 4, 5, 7):
        outline += rng.normal(0, 0.11 / harmonic) * np.cos(harmonic * theta + rng.uniform(0, 2 * np.pi))
    rho = distance / (radius * outline)
    edge = 0.8 / radius
    inside = smoothstep(1 + edge, 1 - edge, rho)
    toward_light = (dx * spot.light[0] + dy * spot.light[1]) / (radius * outline)
    wall = smoothstep(0.35, 1.0, rho) * np.clip(-toward_light, 0, 1)
    floor = rng.uniform(0.10, 0.30) + 0.35 * wall + 0.04 * value_noise(rng, theta.shape, (3, 3))
    burr_width = rng.uniform(0.14, 0.30)
    burr = np.exp(-(((rho - 1 - burr_width / 2) / burr_width) ** 2)) * (1 - inside)
    lit = np.clip(0.45 + 0.75 * toward_light, -0.5, 1.2) * rng.uniform(0.28, 0.5)
    rim = surface * (1 + burr * lit)[..., None] + (0.25 * burr * np.clip(lit, 0, None))[..., None]
    return _blend(rim, surface * np.clip(floor, 0.05, 1)[..., None], inside)


_STAIN_TINTS = np.array([[0.66, 0.50, 0.30], [0.72, 0.44, 0.26], [0.50, 0.47, 0.43], [0.58, 0.56, 0.34]], np.float32)


def stain(surface: Array, rng: np.random.Generator, spot: Spot) -> Array:
    """A dried liquid: soft ragged outline, the surface shows through, darker towards its tide mark."""
    shape, scale = surface.shape[:2], spot.scale
    y, x = np.mgrid[: shape[0], : shape[1]].astype(np.float32)
    angle, stretch = rng.uniform(0, np.pi), rng.uniform(1.0, 1.8) ** 0.5
    dx, dy = x - spot.x, y - spot.y
    along, across = dx * np.cos(angle) + dy * np.sin(angle), dy * np.cos(angle) - dx * np.sin(angle)
    radius = 15 * spot.size * scale
    rho = np.hypot(along / stretch, across * stretch) / radius
    rho += 0.17 * value_noise(rng, shape, (radius * 0.8, radius * 0.8)) * smoothstep(0, 0.6, rho)
    rho += 0.045 * value_noise(rng, shape, (radius * 0.2, radius * 0.2)) * smoothstep(1.9, 1.4, rho)
    softness = rng.uniform(0.12, 0.35)
    body = smoothstep(1 + softness, 1 - softness, rho)
    tide = np.exp(-(((rho - 1 + softness) / (0.6 * softness)) ** 2)) * rng.uniform(0.0, 0.55)
    strength = rng.uniform(0.35, 0.75) * (1 + 0.12 * value_noise(rng, shape, (radius / 2, radius / 2)))
    tint = _STAIN_TINTS[rng.integers(len(_STAIN_TINTS))]
    return _blend(surface, surface * tint, np.clip(body * strength * (0.75 + tide), 0, 1))


def crack(surface: Array, rng: np.random.Generator, spot: Spot) -> Array:
    """A jagged dark fracture that branches and thins out, with one faintly lit lip."""
    scale, length = spot.scale, 44 * spot.size * spot.scale
    angle = rng.uniform(0, 2 * np.pi)
    width = rng.uniform(1.5, 2.6) * scale
    start = np.array([spot.x, spot.y], np.float32) - _direction(angle) * length / 2
    branches: list[tuple[Array, Array]] = []
    pending = [(start, angle, length, width, 0)]
    while pending:
        origin, heading, reach, thickness, order = pending.pop()
        n_steps = max(int(reach / (3.2 * scale)), 3)
        turns = heading + rng.normal(0, 0.5, n_steps) + 0.25 * np.cumsum(rng.normal(0, 0.25, n_steps))
        steps = np.stack([np.cos(turns), np.sin(turns)], 1) * rng.uniform(0.5, 1.5, (n_steps, 1)) * reach / n_steps
        points = (origin + np.vstack([np.zeros((1, 2)), np.cumsum(steps, 0)])).astype(np.float32)
        fade = np.linspace(1, 0.35, n_steps + 1) * rng.uniform(0.75, 1.25, n_steps + 1)
        branches.append((points, (thickness * fade).astype(np.float32)))
        n_children = rng.integers(1, 4) if order == 0 else rng.integers(0, 2) * (order < 2)
        for k in rng.integers(n_steps // 4, n_steps, n_children):
            fork = heading + rng.choice([-1, 1]) * rng.uniform(0.5, 1.1)
            pending.append((points[k], fork, reach * rng.uniform(0.25, 0.55), thickness * 0.7, order + 1))
    gap = _strokes(surface.shape[:2], branches)
    lip = np.clip(_shifted(gap, (-1.2 * scale * spot.light[0], -1.2 * scale * spot.light[1])) - gap, 0, 1)
    lit = surface * (1 + rng.uniform(0.05, 0.25) * lip)[..., None]
    return _blend(lit, surface * rng.uniform(0.1, 0.3), rng.uniform(0.7, 1.0) * gap)


_FIBRE_COLOURS = np.array([[0.10, 0.17, 0.42], [0.52, 0.09, 0.10], [0.08, 0.30, 0.20], [0.10, 0.09, 0.09]], np.float32)


def fibre(surface: Array, rng: np.random.Generator, spot: Spot) -> Array:
    """A coloured thread lying loosely on the surface: curled, of even width, rounded, with a soft shadow."""
    shape, scale = surface.shape[:2], spot.scale
    length, n = 64 * spot.size * scale, 90
    # Curvature changes slowly and keeps its sign for a while: arcs and loops rather than wiggles.
    bends = np.interp(np.arange(n), np.linspace(0, n, 7), rng.normal(0, 1, 7) + rng.choice([-0.9, 0.9]))
    heading = rng.uniform(0, 2 * np.pi) + np.cumsum(bends) * 0.075
    points = np.cumsum(np.stack([np.cos(heading), np.sin(heading)], 1) * length / n, 0)
    points = (points - points.mean(0) + (spot.x, spot.y)).astype(np.float32)
    width = rng.uniform(1.7, 3.2) * scale
    thread = _strokes(shape, [(points, np.full(n, width, np.float32))])
    lit_side = points + np.array(spot.light, np.float32) * width * 0.2
    shine = _strokes(shape, [(lit_side, np.full(n, width * 0.3, np.float32))])
    drop = rng.uniform(1.0, 2.2) * scale
    shadow = _shifted(thread, (-drop * spot.light[0], -drop * spot.light[1]))
    shadow = cv2.GaussianBlur(shadow, (0, 0), 0.8 * scale)
    colour = _FIBRE_COLOURS[rng.integers(len(_FIBRE_COLOURS))] * rng.uniform(0.8, 1.4)
    shaded = surface * (1 - 0.38 * shadow)[..., None]
    painted = _blend(shaded, np.broadcast_to(colour, surface.shape), rng.uniform(0.85, 1.0) * thread)
    return _blend(painted, np.broadcast_to(colour * 0.6 + 0.35, surface.shape), 0.6 * shine)


_INKS = np.array([[0.95, 0.94, 0.90], [0.96, 0.86, 0.42], [0.80, 0.93, 0.97]], np.float32)
_STAMP_LETTERS = "ABEHKNPRSXZ23568"


def stamp(surface: Array, rng: np.random.Generator, spot: Spot) -> Array:
    """A misplaced ink stamp: one to three bright letters, rotated, unevenly inked."""
    shape, scale = surface.shape[:2], spot.scale
    text = "".join(rng.choice(list(_STAMP_LETTERS), rng.integers(1, 4)))
    # The area, not the height, follows the size: a long text is printed smaller.
    height = 24 * spot.size * scale / len(text) ** 0.5
    font, thickness = cv2.FONT_HERSHEY_SIMPLEX, int(rng.integers(11, 17))
    (text_width, text_height), _ = cv2.getTextSize(text, font, 3.0, thickness)
    margin = 2 * thickness
    plate = np.zeros((text_height + 2 * margin, text_width + 2 * margin), np.uint8)
    cv2.putText(plate, text, (margin, margin + text_height), font, 3.0, 255, thickness, cv2.LINE_AA)
    zoom = height / text_height
    # Shrinking by a warp aliases, so the letters are first blurred to the pixel size that they will have.
    soft = cv2.GaussianBlur(plate, (0, 0), max(0.4 / zoom, 0.5)).astype(np.float32) / 255
    middle = (plate.shape[1] / 2, plate.shape[0] / 2)
    matrix = np.asarray(cv2.getRotationMatrix2D(middle, rng.uniform(-180, 180), zoom), np.float64)
    matrix[:, 2] += np.subtract((spot.x, spot.y), middle)
    ink = cv2.warpAffine(soft, matrix, shape[::-1], flags=cv2.INTER_LINEAR)
    coverage = 0.86 + 0.10 * value_noise(rng, shape, (1.5 * scale, 1.5 * scale))
    coverage -= 0.5 * smoothstep(1.0, 2.2, value_noise(rng, shape, (7 * scale, 7 * scale)))
    alpha = rng.uniform(0.55, 0.95) * ink * np.clip(coverage, 0.25, 1)
    return _blend(surface, np.broadcast_to(_INKS[rng.integers(len(_INKS))], surface.shape), alpha)


DEFECTS: dict[str, Callable[[Array, np.random.Generator, Spot], Array]] = {
    "scratch": scratch,
    "hole": hole,
    "stain": stain,
    "crack": crack,
    "fibre": fibre,
    "print": stamp,
}
DEFECT_KINDS: tuple[str, ...] = tuple(DEFECTS)


def check_kinds(kinds: Collection[str]) -> None:
    """Raise `SettingsError` unless all are names of defects."""
    if unknown := sorted(set(kinds) - set(DEFECTS)):
        raise SettingsError(f"kinds must be of {', '.join(DEFECTS)}, but got {', '.join(unknown)}")
