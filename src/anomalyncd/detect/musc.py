"""MuSc (Li et al., ICLR 2024): no normal images needed; a patch is abnormal when few other images have one like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DataError
from .base import AnomalyMap, Picture
from .tokens import TokenDetector, TokenGrid, check_least, check_windows, neighbourhood, to_map

LEAST_IMAGES = 5
KEPT_SHARE = 0.3  # of an image's distances to the others, the lowest are averaged


class MuSc(TokenDetector):
    """Zero-shot detector: the first set of images that it sees is compared with itself and kept as references.

    Parameters
    ----------
    windows : neighbourhoods r that patches are averaged over; scores are averaged over them and over the blocks
    max_references : at most this many images, evenly spread over the set, are compared with
    settings : see `TokenDetector`
    """

    name = "musc"
    needs_normal = False

    def __init__(self, *, windows: Sequence[int] = (1, 3, 5), max_references: int = 200, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        check_windows("windows", windows)
        check_least(2, max_references=max_references)  # a reference needs another one to be compared with
        self.settings |= {"windows": tuple(windows), "max_references": max_references}
        self.windows, self.max_references = tuple(windows), max_references
        self.references: list[Tensor] = []

    def fit(self, normal_images: Iterable[Picture]) -> MuSc:
        """Nothing to learn."""
        return self

    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        """Mutual scores of the first set; scores by its references of any later one."""
        if self.references:
            new = self.read(images)
            while batch := list(islice(new, self.batch_size)):  # references are made ready once for a batch
                blocks = [grid.blocks for grid in batch]
                scores = self._scores(blocks, self.references, own=[self._place(tokens) for tokens in blocks])
                yield from map(self._map, batch, scores)
            return
        grids = [TokenGrid(grid.blocks.half(), grid.size) for grid in self.read(images)]
        if len(grids) < LEAST_IMAGES:
            raise DataError(
                f"MuSc compares images with each other and needs at least {LEAST_IMAGES}, but got {len(grids)}. Give more "
                "images, or normal ones with --normal for PatchCore."
            )
        count = min(len(grids), self.max_references)
        chosen = [round(k * (len(grids) - 1) / (count - 1)) for k in range(count)]
        references = [grids[index].blocks for index in chosen]
        position = {index: place for place, index in enumerate(chosen)}
        scores = self._scores([g.blocks for g in grids], references, [position.get(i) for i in range(len(grids))])
        self.references = references
        yield from map(self._map, grids, scores)

    def tensors(self) -> dict[str, Tensor]:
        return {f"reference.{index:05d}": blocks for index, blocks in enumerate(self.references)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.references = [tensors[name].to(self.device) for name in sorted(tensors) if name.startswith("reference.")]

    def _place(self, blocks: Tensor) -> int | None:
        """Place of an image among the references, so that it is not compared with itself when it comes again."""
        for place, known in enumerate(self.references):
            if known.shape == blocks.shape and _alike(known[:, 0, 0], blocks[:, 0, 0]) and _alike(known, blocks):
                return place
        return None

    def _map(self, grid: TokenGrid, scores: Tensor) -> AnomalyMap:
        return to_map(scores.view(grid.shape), grid.size, self.map_size, self.sigma)

    def _scores(self, images: list[Tensor], references: list[Tensor], own: list[int | None]) -> list[Tensor]:
        """Mean over blocks and windows of the mutual scores; one block and window at a time, so that memory holds one."""
        totals = [torch.zeros(blocks.shape[1] * blocks.shape[2], device=self.device) for blocks in images]
        n_blocks = images[0].shape[0]
        for block in range(n_blocks):
            for window in self.windows:
                known = [_unit(blocks[block], window) for blocks in references]
                features = [_unit(blocks[block], window) for blocks in images]
                for total, score in zip(totals, mutual_scores(features, known, own), strict=True):
                    total += score
        return [total / (n_blocks * len(self.windows)) for total in totals]


def _alike(stored: Tensor, fresh: Tensor) -> bool:
    """Equal but for float16 rounding and the batch that the image was in."""
    return torch.allclose(stored.float(), fresh, rtol=2e-3, atol=2e-3)


def _unit(tokens: Tensor, window: int) -> Tensor:
    """(h, w, C) of any float type → (h·w, C) float32 unit vectors."""
    return F.normalize(neighbourhood(tokens.float(), window), dim=-1).flatten(0, 1)


def mutual_scores(images: Sequence[Tensor], references: Sequence[Tensor], own: Sequence[int | None]) -> list[Tensor]:
    """Score every patch by the reference images.

    a_m(i, j) is the distance of patch m of image i to its nearest patch of reference j; the score of the patch is the mean
    of the lowest 30 % of a_m(i, j) over all j but the image itself. Where both images are references, one matrix product
    serves both directions: its row maxima give a(i, j), its column maxima a(j, i).

    Parameters
    ----------
    images : (P_i, C) unit vectors each; references : (P_j, C) each
    own : place of each image among the references, or None

    Returns
    -------
    (P_i,) scores each
    """
    cosines = [torch.empty(len(patches), len(references), device=patches.device) for patches in images]
    image_of = {place: index for index, place in enumerate(own) if place is not None}
    for index, patches in enumerate(images):
        found = own[index]
        place = -1 if found is None else found
        partners = image_of if image_of.get(place) == index else {}  # new images, and one given twice, have none
        wanted = [j for j in range(len(references)) if j != place and (j > place or j not in partners)]
        if not wanted:
            continue
        product = patches @ torch.cat([references[j] for j in wanted]).T  # (P_i, sum of P_j)
        start = 0
        for j in wanted:
            stop = start + len(references[j])
            cosines[index][:, j] = product[:, start:stop].amax(dim=1)
            if j in partners:
                cosines[partners[j]][:, place] = product[:, start:stop].amax(dim=0)
            start = stop
    scores = []
    for itself, cosine in zip(own, cosines, strict=True):
        others = [j for j in range(len(references)) if j != itself]
        distances = (2 - 2 * cosine[:, others]).clamp(min=0).sqrt()
        kept = max(1, int(len(others) * KEPT_SHARE))
        scores.append(distances.topk(kept, dim=1, largest=False).values.mean(dim=1))
    return scores
