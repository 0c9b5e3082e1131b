"""The built-in detectors for images that come after the run, on arrays; `anomalyncd.detect` learns what is used here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from ..errors import RunError
from ..grid import ALIKE, KEPT_SHARE, MOST_PRODUCTS, GridReader, Picture, TokenGrid, Values, grid_to_map
from ..learn.features import unit
from .network import GridNetwork

Tensors = dict[str, npt.NDArray[np.float16]]
QUERIES = 1024  # patches compared with the bank in one matrix product


class GridDetector:
    """Images → anomaly maps.

    Parameters
    ----------
    network : gives the tokens
    file : of the detector in a run folder, with its settings and what it has learned
    """

    def __init__(self, network: GridNetwork, file: Path) -> None:
        name, self.settings, tensors = _read(file)
        own = self.settings
        self.reader = GridReader(network, network.patch_size, own["size"], own["tile"], own["batch_size"])
        self.scores: Callable[[Sequence[TokenGrid]], list[Values]]
        if name == "patchcore":
            self.scores = BankScores(tensors["bank"].astype(np.float32), own["radius"])
        else:
            references = [tensors[key] for key in sorted(tensors) if key.startswith("reference.")]
            self.scores = MutualScores(references, own["windows"])

    def maps(self, images: Iterable[Picture]) -> Iterator[Values]:
        """One (h, w) float32 map for each (H, W, 3) uint8 image, in order, of the image's aspect."""
        own, grids = self.settings, self.reader(images)
        while batch := list(islice(grids, self.reader.batch_size)):
            for grid, scores in zip(batch, self.scores(batch), strict=True):
                yield grid_to_map(
                    scores.reshape(grid.shape),
                    grid.size,
                    map_size=own["map_size"],
                    tile=own["tile"],
                    sigma=own["sigma"],
                )


class BankScores:
    """PatchCore: distance of each patch to the nearest one of the bank (M, D), as `detect.patchcore.PatchBank` finds it."""

    def __init__(self, bank: Values, radius: int) -> None:
        self.bank, self.radius = bank, radius
        self.squared = (bank**2).sum(axis=1)

    def __call__(self, grids: Sequence[TokenGrid]) -> list[Values]:
        """(h·w,) each."""
        return [self._nearest(self._features(grid.blocks)) for grid in grids]

    def _features(self, blocks: Values) -> Values:
        tokens = [unit(neighbourhood(block, self.radius)) for block in blocks]
        joined: Values = np.concatenate(tokens, axis=-1).reshape(-1, self.bank.shape[1])
        return joined / np.float32(len(tokens) ** 0.5)

    def _nearest(self, queries: Values) -> Values:
        found = []
        for start in range(0, len(queries), QUERIES):
            chunk = queries[start : start + QUERIES]
            product = chunk @ self.bank.T
            product *= -2
            product += self.squared
            found.append(product.min(axis=1) + (chunk**2).sum(axis=1))
        distances: Values = np.sqrt(np.maximum(np.concatenate(found), 0))
        return distances


class MutualScores:
    """MuSc: mean of the lowest distances of each patch to the reference images, as `detect.musc.mutual_scores` has it.

    references : (L, h, w, C) float16 each; windows : neighbourhoods that patches are averaged over
    """

    def __init__(self, references: Sequence[npt.NDArray[np.float16]], windows: Sequence[int]) -> None:
        self.references, self.windows = references, windows

    def __call__(self, grids: Sequence[TokenGrid]) -> list[Values]:
        """(h·w,) each; references are made ready once for all grids, one at a time."""
        places = [self._place(grid.blocks) for grid in grids]
        totals = [np.zeros(grid.shape[0] * grid.shape[1], np.float32) for grid in grids]
        n_blocks = len(self.references[0])
        for block in range(n_blocks):
            for window in self.windows:
                features = [_patches(grid.blocks[block], window) for grid in grids]
                cosines = [np.empty((len(patches), len(self.references)), np.float32) for patches in features]
                for j, reference in enumerate(self.references):
                    known = _patches(reference[block].astype(np.float32), window).T
                    for patches, cosine in zip(features, cosines, strict=True):
                        rows = max(1, MOST_PRODUCTS // known.shape[1])
                        for start in range(0, len(patches), rows):
                            cosine[start : start + rows, j] = (patches[start : start + rows] @ known).max(axis=1)
                for total, cosine, place in zip(totals, cosines, places, strict=True):
                    total += _lowest(cosine if place is None else np.delete(cosine, place, axis=1))
        return [total / np.float32(n_blocks * len(self.windows)) for total in totals]

    def _place(self, blocks: Values) -> int | None:
        """Place of an image among the references, so that it is not compared with itself when it comes again."""
        for place, known in enumerate(self.references):
            if known.shape == blocks.shape and _alike(known[:, 0, 0], blocks[:, 0, 0]) and _alike(known, blocks):
                return place
        return None


def neighbourhood(tokens: Values, side: int) -> Values:
    """Mean over the side × side window around each patch, fewer at the border: (h, w, C) → the same shape; side odd."""
    if side == 1:
        return tokens
    height, width = tokens.shape[:2]
    around = ((side // 2, side // 2), (side // 2, side // 2), (0, 0))
    padded, there = np.pad(tokens, around), np.pad(np.ones((height, width, 1), np.float32), around)
    total, count = np.zeros_like(tokens), np.zeros((height, width, 1), np.float32)
    for y in range(side):
        for x in range(side):
            total += padded[y : y + height, x : x + width]
            count += there[y : y + height, x : x + width]
    return total / count


def _patches(tokens: Values, window: int) -> Values:
    """(h, w, C) → (h·w, C) unit vectors."""
    return unit(neighbourhood(tokens, window)).reshape(-1, tokens.shape[-1])


def _lowest(cosines: Values) -> Values:
    """Mean of the lowest distances: cosines (P, R) → (P,)."""
    distances = np.sqrt(np.maximum(2 - 2 * cosines, 0))
    kept = max(1, int(cosines.shape[1] * KEPT_SHARE))
    mean: Values = np.partition(distances, kept - 1, axis=1)[:, :kept].mean(axis=1)
    return mean


def _alike(stored: npt.NDArray[np.float16], fresh: Values) -> bool:
    known = stored.astype(np.float32)
    return bool(np.linalg.norm(known - fresh) <= ALIKE * np.linalg.norm(known))


def _read(file: Path) -> tuple[str, dict[str, Any], Tensors]:
    try:
        with safe_open(file, framework="numpy") as stored:
            meta = json.loads(stored.metadata()["anomalyncd"])
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            return meta["name"], meta["settings"], tensors
    except Exception as error:  # damage shows in many ways
        raise RunError(f"{file}: missing, damaged or not a detector of anomalyncd ({error}).") from error
