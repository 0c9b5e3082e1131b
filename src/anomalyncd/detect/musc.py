"""MuSc (Li et al., ICLR 2024): no normal images needed; a patch is abnormal when few other images have one like it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import DataError
from ..grid import TokenGrid, place_of, top_mean
from .base import AnomalyMap, Detection, Picture, check_least, check_windows
from .tokens import TokenDetector, neighbourhood

LEAST_IMAGES = 5
MOST_PRODUCTS = 2**24  # cosines between patches that are held at once, 64 MB


class MuSc(TokenDetector):
    """Zero-shot detector: the first set of images that it sees is compared with itself, and a part of it kept as references.

    Parameters
    ----------
    windows : neighbourhoods r that patches are averaged over; scores are averaged over them and over the blocks. MuSc's own
        are (1, 3, 5); patches of 14 px have seen each other, and a second window finds regions a little better, images a
        little worse, at twice the time (docs/detectors.md)
    max_references : at most this many images, evenly spread, are compared with
    max_images : at most this many images are held in memory and compared with each other; the references are taken from
        them, and images that come later are compared with these
    max_patches : of all these images together, and twice as many as the references may have: large images, and tiles, have
        many, so that fewer of them are held. A million takes 2.3 GB with three blocks of 384 numbers
    neighbours : numbers of images, itself counted, that an image's score is averaged over, see `rescored`
    settings : see `TokenDetector`
    """

    name = "musc"
    needs_normal = False
    from_tokens = True

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
        self.windows, self.neighbours = tuple(windows), tuple(neighbours)
        self.reach = max(windows) // 2
        self.max_references, self.max_images, self.max_patches = max_references, max_images, max_patches

    @property
    def compared(self) -> int:
        """See `Detector`: later images are compared with some of these."""
        return self.max_images if self.memory is None else 0

    def fit(self, normal_images: Iterable[Picture]) -> MuSc:
        """Nothing to learn."""
        return self

    def remember(self, tensors: dict[str, Tensor]) -> References:
        return References(tensors, self.windows)

    def detect(self, images: Iterable[Picture]) -> Iterator[Detection]:
        """Maps of mutual scores, and the means of their highest 1 %, averaged over images that look alike.

        The images of the first call are compared with each other, later ones with its references.
        """
        return self.detect_tokens(self.look(images))

    def detect_tokens(self, seen: Iterable[Sequence[TokenGrid]]) -> Iterator[Detection]:
        """`detect`, from what `look` gives."""
        grids = (grid for some in seen for grid in some)
        if self.memory is None:
            yield from self._first(self._held(grids))
        known = self.memory
        assert isinstance(known, References)
        while batch := list(islice(grids, self.batch_size)):  # references are made ready once for a batch
            blocks = [grid.blocks for grid in batch]
            places = [place_of(tokens, known.references) for tokens in blocks]
            maps = list(map(self.to_map, self._scores(blocks, known.references, places), batch))
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
        place_in = {index: place for place, index in enumerate(chosen)}
        places = [place_in.get(index) for index in range(len(grids))]
        maps = list(map(self.to_map, self._scores([grid.blocks for grid in grids], references, places), grids))
        summaries = torch.stack([grids[index].summary for index in chosen])
        scores = torch.tensor([top_mean(maps[index]) for index in chosen])
        stored = {f"reference_{place:05d}": blocks for place, blocks in enumerate(references)}
        self.restore({**stored, "summaries": summaries, "scores": scores})
        yield from self._with_scores(maps, grids, places)

    def _with_scores(
        self, maps: list[AnomalyMap], grids: list[TokenGrid], places: list[int | None]
    ) -> Iterator[Detection]:
        known = self.memory
        assert isinstance(known, References)
        for values, grid, place in zip(maps, grids, places, strict=True):
            score = rescored(
                top_mean(values), grid.summary, known.scores, known.summaries, own=place, sizes=self.neighbours
            )
            yield Detection(values, score)

    def _scores(self, images: list[Tensor], references: Sequence[Tensor], own: list[int | None]) -> list[Tensor]:
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


class References(nn.Module):
    """The images that later ones are compared with.

    Parameters
    ----------
    tensors : `reference_00000` …, (L, h, w, C) float16 each; `summaries`, their class tokens (R, C); `scores`, the
        `top_mean` of their maps (R,)
    windows : see `MuSc`; of `forward` only
    """

    summaries: Tensor
    scores: Tensor

    def __init__(self, tensors: dict[str, Tensor], windows: Sequence[int] = (1,)) -> None:
        super().__init__()
        self.windows = windows
        for name, values in tensors.items():
            self.register_buffer(name, values)

    @property
    def references(self) -> list[Tensor]:
        """(L, h, w, C) float16 each."""
        return [values for name, values in sorted(self.named_buffers()) if name.startswith("reference_")]

    def forward(self, tokens: Tensor, reference: Tensor) -> Tensor:
        """Cosine of each patch with the nearest one of a reference, as a graph has it, for each block and window.

        (L, h, w, C) and (L, h', w', C) → (L · windows, h, w)
        """
        cosines = [
            (_unit(image, window) @ _unit(known, window).T).amax(dim=1)
            for image, known in zip(tokens, reference, strict=True)
            for window in self.windows
        ]
        grids: Tensor = torch.stack(cosines).unflatten(1, tokens.shape[1:3])
        return grids


class Lowest(nn.Module):
    """Cosines (L · windows, h, w, R) with R references → patch scores (h, w), as a graph has it."""

    def forward(self, cosines: Tensor) -> Tensor:
        return lowest_mean(cosines).mean(dim=0)


def _unit(tokens: Tensor, window: int) -> Tensor:
    """(h, w, C) of any float type → (h·w, C) float32 unit vectors."""
    return F.normalize(neighbourhood(tokens.float(), window), dim=-1).flatten(0, 1)


def lowest_mean(cosines: Tensor) -> Tensor:
    """Mean of the lowest 30 % of the distances of unit vectors with these cosines: (…, R) → (…)."""
    distances = (2 - 2 * cosines).clamp(min=0).sqrt()
    kept = max(1, 3 * cosines.shape[-1] // 10)
    return distances.topk(kept, dim=-1, largest=False).values.mean(dim=-1)


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
        partners = image_of if image_of.get(place) == index else {}  # not with new images, nor with one given twice
        wanted = [j for j in range(len(references)) if j != place and (j > place or j not in partners)]
        for j in wanted:  # one by one: a product with all of them at once leaves the processor's caches
            rows = max(1, MOST_PRODUCTS // len(references[j]))  # all of them, but for images of very many patches
            for start in range(0, len(patches), rows):
                product = patches[start : start + rows] @ references[j].T  # (P_i, P_j)
                cosines[index][start : start + rows, j] = product.amax(dim=1)
                if j in partners:
                    column, there = cosines[partners[j]][:, place], product.amax(dim=0)
                    column.copy_(there if not start else torch.maximum(column, there))
    others = [[j for j in range(len(references)) if j != itself] for itself in own]
    return [lowest_mean(cosine[:, columns]) for cosine, columns in zip(cosines, others, strict=True)]


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
