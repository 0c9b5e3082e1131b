"""MuSc (Li et al., ICLR 2024): no normal images needed; a patch is abnormal when few other images have one like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import DataError
from ..grid import ALIKE, KEPT_SHARE, MOST_PRODUCTS, TokenGrid
from .base import AnomalyMap, Detection, Picture
from .tokens import TokenDetector, check_least, check_windows, neighbourhood

LEAST_IMAGES = 5


class MuSc(TokenDetector):
    """Zero-shot detector: the first set of images that it sees is compared with itself, and a part of it kept as references.

    Parameters
    ----------
    windows : neighbourhoods r that patches are averaged over; scores are averaged over them and over the blocks. MuSc's own
        are (1, 3, 5); patches of 14 px that have seen each other need no wider ones, which cost time and sharpness
    max_references : at most this many images, evenly spread, are compared with
    max_images : at most this many images are held in memory and compared with each other; the references are taken from
        them, and images that come later are compared with these
    max_patches : of all these images together, and twice as many as the references may have: large images, and tiles, have
        many, so that fewer of them are held. A million takes 1.5 GB with two blocks of 384 numbers
    neighbours : numbers of images, itself counted, that an image's score is averaged over, see `rescored`
    settings : see `TokenDetector`
    """

    name = "musc"
    needs_normal = False

    def __init__(
        self,
        *,
        windows: Sequence[int] = (1,),
        max_references: int = 400,
        max_images: int = 1000,
        max_patches: int = 1_000_000,
        neighbours: Sequence[int] = (1, 2, 3),
        **settings: object,
    ) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        check_windows("windows", windows)
        check_least(2, max_references=max_references)  # a reference needs another one to be compared with
        check_least(LEAST_IMAGES, max_images=max_images)
        check_least(1, neighbours=min(neighbours, default=0), max_patches=max_patches)
        self.settings |= {
            "windows": tuple(windows), "max_references": max_references, "max_images": max_images,
            "max_patches": max_patches, "neighbours": tuple(neighbours),
        }  # fmt: skip
        self.windows, self.max_references, self.max_images = tuple(windows), max_references, max_images
        self.max_patches = max_patches
        self.neighbours = tuple(neighbours)
        self.references: list[Tensor] = []
        self.summaries = torch.empty(0)
        self.maxima = torch.empty(0)

    def fit(self, normal_images: Iterable[Picture]) -> MuSc:
        """Nothing to learn."""
        return self

    def maps(self, images: Iterable[Picture]) -> Iterator[AnomalyMap]:
        """Mutual scores of the first set; scores by its references of any later one."""
        return (found.map for found in self.detect(images))

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps, and their largest values averaged over images that look alike."""
        grids = self.read(images)
        if not self.references:
            yield from self._first(self._held(grids))
        while batch := list(islice(grids, self.batch_size)):  # references are made ready once for a batch
            blocks = [grid.blocks for grid in batch]
            places = [self._place(tokens) for tokens in blocks]
            maps = list(map(self.to_map, self._scores(blocks, self.references, places), batch))
            yield from self._with_scores(maps, batch, places)

    def _held(self, grids: Iterator[TokenGrid]) -> Iterator[TokenGrid]:
        """As many as memory is to hold."""
        n_patches = 0
        for count, grid in enumerate(islice(grids, self.max_images), start=1):
            yield grid
            n_patches += grid.shape[0] * grid.shape[1]
            if n_patches >= self.max_patches and count >= LEAST_IMAGES:
                return

    def _first(self, read: Iterable[TokenGrid]) -> Iterator[Detection]:
        """Compare images with each other, and keep references."""
        grids = [TokenGrid(grid.blocks.half(), grid.summary, grid.size) for grid in read]
        if len(grids) < LEAST_IMAGES:
            raise DataError(
                f"MuSc compares images with each other and needs at least {LEAST_IMAGES}, but got {len(grids)}. Give more "
                "images, or normal ones with --normal for PatchCore."
            )
        each = sum(grid.shape[0] * grid.shape[1] for grid in grids) / len(grids)
        count = min(len(grids), self.max_references, max(2, int(self.max_patches / 2 / each)))
        chosen = [round(k * (len(grids) - 1) / (count - 1)) for k in range(count)]
        references = [grids[index].blocks for index in chosen]
        place_of = {index: place for place, index in enumerate(chosen)}
        places = [place_of.get(index) for index in range(len(grids))]
        maps = list(map(self.to_map, self._scores([grid.blocks for grid in grids], references, places), grids))
        self.references = references
        self.summaries = torch.stack([grids[index].summary for index in chosen])
        self.maxima = torch.tensor([float(maps[index].max()) for index in chosen], device=self.device)
        yield from self._with_scores(maps, grids, places)

    def _with_scores(
        self, maps: list[AnomalyMap], grids: list[TokenGrid], places: list[int | None]
    ) -> Iterator[Detection]:
        for values, grid, place in zip(maps, grids, places, strict=True):
            score = rescored(
                float(values.max()), grid.summary, self.maxima, self.summaries, own=place, sizes=self.neighbours
            )
            yield Detection(values, score)

    def tensors(self) -> dict[str, Tensor]:
        stored = {f"reference.{index:05d}": blocks for index, blocks in enumerate(self.references)}
        return {**stored, "summaries": self.summaries, "maxima": self.maxima} if stored else {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.references = [tensors[name].to(self.device) for name in sorted(tensors) if name.startswith("reference.")]
        if self.references:
            self.summaries, self.maxima = (tensors[name].to(self.device) for name in ("summaries", "maxima"))

    def _place(self, blocks: Tensor) -> int | None:
        """Place of an image among the references, so that it is not compared with itself when it comes again."""
        for place, known in enumerate(self.references):
            if known.shape == blocks.shape and _alike(known[:, 0, 0], blocks[:, 0, 0]) and _alike(known, blocks):
                return place
        return None

    def _scores(self, images: list[Tensor], references: list[Tensor], own: list[int | None]) -> list[Tensor]:
        """Mean over blocks and windows of the mutual scores; one block and window at a time, so that memory holds one."""
        totals = [torch.zeros(blocks.shape[1] * blocks.shape[2], device=self.device) for blocks in images]
        n_blocks = images[0].shape[0]
        for block in range(n_blocks):
            for window in self.windows:
                features = [_unit(blocks[block], window) for blocks in images]
                ready = {id(blocks): unit for blocks, unit in zip(images, features, strict=True)}
                known = [ready[id(r)] if id(r) in ready else _unit(r[block], window) for r in references]
                for total, score in zip(totals, mutual_scores(features, known, own), strict=True):
                    total += score
        return [total / (n_blocks * len(self.windows)) for total in totals]


def _alike(stored: Tensor, fresh: Tensor) -> bool:
    """Equal but for rounding, by another precision for instance, and the batch that the image was in."""
    known = stored.float()
    return bool((known - fresh).norm() <= ALIKE * known.norm())


def _unit(tokens: Tensor, window: int) -> Tensor:
    """(h, w, C) of any float type → (h·w, C) float32 unit vectors."""
    return F.normalize(neighbourhood(tokens.float(), window), dim=-1).flatten(0, 1)


def mutual_scores(
    images: Sequence[Tensor], references: Sequence[Tensor], own: Sequence[int | None], *, two_way: bool = True
) -> list[Tensor]:
    """Score every patch by the reference images.

    a_m(i, j) is the distance of patch m of image i to its nearest patch of reference j; the score of the patch is the mean
    of the lowest 30 % of a_m(i, j) over all j but the image itself. Where both images are references, one matrix product
    serves both directions: its row maxima give a(i, j), its column maxima a(j, i).

    Parameters
    ----------
    images : (P_i, C) unit vectors each; references : (P_j, C) each
    own : place of each image among the references, or None
    two_way : False computes each direction by itself: the same scores, for measuring what the shared product saves

    Returns
    -------
    (P_i,) scores each
    """
    cosines = [torch.empty(len(patches), len(references), device=patches.device) for patches in images]
    image_of = {place: index for index, place in enumerate(own) if place is not None}
    for index, patches in enumerate(images):
        found = own[index]
        place = -1 if found is None else found
        shared = two_way and image_of.get(place) == index  # not with new images, nor with one given twice
        partners = image_of if shared else {}
        wanted = [j for j in range(len(references)) if j != place and (j > place or j not in partners)]
        for j in wanted:  # one by one: a product with all of them at once leaves the processor's caches
            rows = max(1, MOST_PRODUCTS // len(references[j]))  # all of them, but for images of very many patches
            for start in range(0, len(patches), rows):
                product = patches[start : start + rows] @ references[j].T  # (P_i, P_j)
                cosines[index][start : start + rows, j] = product.amax(dim=1)
                if j in partners:
                    column, there = cosines[partners[j]][:, place], product.amax(dim=0)
                    column.copy_(there if not start else torch.maximum(column, there))
    scores = []
    for itself, cosine in zip(own, cosines, strict=True):
        others = [j for j in range(len(references)) if j != itself]
        distances = (2 - 2 * cosine[:, others]).clamp(min=0).sqrt()
        kept = max(1, int(len(others) * KEPT_SHARE))
        scores.append(distances.topk(kept, dim=1, largest=False).values.mean(dim=1))
    return scores


def rescored(
    score: float, summary: Tensor, scores: Tensor, summaries: Tensor, *, own: int | None, sizes: Sequence[int]
) -> float:
    """MuSc's re-scoring of an image among images that look alike.

    For each size k the scores of the image itself and of its k − 1 nearest others are averaged, weighted by the cosine of
    their class tokens; the result is the mean over all k. So a defect that some noise hides is lifted by its fellows, and
    noise on a normal image is lowered.

    Parameters
    ----------
    score, summary : of the image; summary is its (C,) class token
    scores, summaries : (R,) and (R, C) of the others
    own : place of the image among these, which is left out, or None

    Examples
    --------
    >>> alike = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> rescored(1.0, alike[0], torch.tensor([0.0, 9.0]), alike, own=None, sizes=[1, 2])  # (1 + (1 + 0) / 2) / 2
    0.75
    """
    cosines = F.normalize(summaries, dim=1) @ F.normalize(summary, dim=0)
    if own is not None:
        cosines[own] = 0.0
    weights, order = cosines.clamp(min=0).sort(descending=True)
    weights = torch.cat([weights.new_ones(1), weights])
    sums = (weights * torch.cat([scores.new_tensor([score]), scores[order]])).cumsum(0)
    means = sums / weights.cumsum(0)
    return float(means[[min(k, len(means)) - 1 for k in sizes]].mean())
