"""Measurements that end in pictures beside their figures: attention, votes of regions, binarised maps, values of maps.

Pictures show images of the data sets, whose licences differ: they stay in the folder of the bench.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..assign.images import merge_regions
from ..config import MergeConfig
from ..data.dataset import NORMAL_NAMES
from ..data.images import read_image
from ..data.maps import read_map, read_mask
from ..errors import DataError
from ..learn.views import centre
from ..model.attention import class_token_block
from ..model.backbone import MaskGuidedViT, image_tensor, mask_tensor
from ..report.canvas import resized_mask
from ..report.network import class_attention
from .binarizers import draw_binarizers
from .datasets import load_product
from .experiment import IMAGES_ONLY, MASKS, OURS
from .measure import Laboratory, Result, Trial
from .pictures import AttentionRow, Case, ValuesOf, Vote, draw_attention, draw_values, draw_votes
from .style import to_png

SHOWN = 6  # classes in a picture of attention
CASES = 4  # images in a picture of votes
LEARNED_FROM = 120  # regions at most that the last block is trained on, with labels
EPOCHS, RATE, BATCH = 20, 1e-4, 16  # of that training
Floats = npt.NDArray[np.float64]


class Studio(Laboratory):
    """The measurements that end in pictures; those of others than AnomalyNCD have none."""

    def combined(self, trial: Trial) -> Result:
        """Share of images of excluded classes, which were not learned from, whose regions fall into several classes."""
        if trial.row.method != OURS:
            return Result({})
        everything = load_product(trial.data.name, trial.data.root, limit=trial.data.limit)
        samples = [sample for sample in everything.dataset if sample.label in trial.data.exclude]
        if not samples:
            return Result({"several": None})
        model = self._fit(trial)
        held_out = replace(everything, dataset=replace(everything.dataset, samples=samples))
        new = self._inputs(replace(trial, data=held_out), fitted=self._place("maps", trial))
        # Which class each region is likest to is asked here, not whether it is like any.
        model.model_.unknown = model.model_.product = None
        several, called = 0, _called(model, trial)
        cases: list[Case] = []
        for found in model.predictor(bare=False).extract(new.samples):
            known, _, _ = model.model_.recognize(found.parts, found.regions, found.images)
            labels = model.classes_[known.argmax(axis=1)] if len(known) else np.empty(0, np.int64)
            for image in found.images:
                rows = [row for row, region in enumerate(found.regions) if region.index == image.index]
                kinds = {int(labels[row]) for row in rows if labels[row] > 0}
                several += len(kinds) > 1
                if len(kinds) > 1 or not cases:
                    regions = [found.regions[row] for row in rows]
                    cases.append(_case(image, regions, known[rows], read_image(new[image.index].image), ("area",)))
        cases.sort(key=lambda case: -len({vote.probabilities.argmax() for vote in case.votes}))
        picture = draw_votes(cases[:CASES], called)
        return Result({"several": several / len(samples)}, pictures={"votes": to_png(picture)})

    def merging(self, trial: Trial) -> Result:
        """Share of images with several regions whose class is another one by their average than by their areas."""
        if trial.row.method != OURS:
            return Result({})
        model = self._fit(trial)
        run = model.run_
        regions, images = run.store.regions, run.store.images
        known = np.nan_to_num(run.model.region_probabilities(run.features, regions, images))
        cases = []
        for image in images:
            rows = [row for row, region in enumerate(regions) if region.index == image.index]
            if len(rows) > 1 and (picture := run.image(image.id)) is not None:
                cases.append(_case(image, [regions[row] for row in rows], known[rows], picture, ("area", "average")))
        if not cases:
            return Result({"merged_otherwise": None})
        differs = [len({int(p.argmax()) for p in case.merged.values()}) > 1 for case in cases]
        apart = sorted(range(len(cases)), key=lambda place: (-differs[place], -_gap(cases[place])))[:CASES]
        sheet = draw_votes([cases[place] for place in apart], _called(model, trial))
        return Result({"merged_otherwise": float(np.mean(differs))}, pictures={"votes": to_png(sheet)})

    def sheet(self, trial: Trial) -> Result:
        """Where MEBin cuts, on the scale of all maps; and a sheet of images beside other binarisers."""
        if trial.row.method != OURS or trial.source in (MASKS, IMAGES_ONLY):
            return Result({})
        run = self._fit(trial).run_
        masks = {sample.id: sample.mask for sample in trial.data.dataset}
        samples = [replace(sample, mask=masks[sample.id]) for sample in self._inputs(trial)]
        path = draw_binarizers(run.path, samples)
        if path is None or run.range is None:
            return Result({})
        low, high = run.range
        cuts = run.manifest.loc[run.manifest["n_regions"] > 0, "threshold"].astype(float).dropna()
        shares = (cuts - low) / ((high - low) or 1.0)
        ends = {"lowest_cut": float(shares.min()), "highest_cut": float(shares.max())} if len(shares) else {}
        return Result({**ends}, pictures={"sheet": path.read_bytes()})

    def values(self, trial: Trial) -> Result:
        """Mean map values of normal and defective pixels, as shares of the range of all maps, in single images."""
        if trial.source in (MASKS, IMAGES_ONLY):
            return Result({})
        samples = self.maps(trial)[0].samples
        maps = {sample.id: read_map(sample.map) for sample in samples if sample.map is not None}
        low, high = min(np.nanmin(m) for m in maps.values()), max(np.nanmax(m) for m in maps.values())
        seen: list[ValuesOf] = []
        normal = []
        masks = {sample.id: sample.mask for sample in trial.data.dataset}
        for name, values in maps.items():
            share = (values - low) / ((high - low) or 1.0)
            mask = masks.get(name)
            inside = np.zeros(share.shape, bool) if mask is None else resized_mask(read_mask(mask), share.shape)
            normal.append(float(np.nanmean(share[~inside])) if not inside.all() else np.nan)
            if inside.any():
                seen.append(ValuesOf(name, share[inside], share[~inside]))
        if not seen:
            raise DataError(f"{trial.data.root}: no ground_truth/, so values of defects cannot be told from others.")
        ends = [min(seen, key=lambda each: each.mean), max(seen, key=lambda each: each.mean)]
        means = {
            "normal_value": float(np.nanmean(normal)),
            "faintest_value": ends[0].mean,
            "strongest_value": ends[1].mean,
        }
        return Result({**means}, pictures={"values": to_png(draw_values(ends, trial.source))})

    def attention(self, trial: Trial) -> Result:
        """Share of the class token's attention that lies inside the mask, of one region of each kind of defect."""
        if trial.row.method != OURS:
            return Result({})
        run = self._fit(trial).run_
        size, labels = run.config.model.input_size, trial.data.labels
        first = [row for (image, region), row in run.rows.items() if region == 0 and _is_defect(labels[image])]
        count = min(len(first), LEARNED_FROM)
        taken = [first[len(first) * place // count] for place in range(count)]
        kept, pictures, inner = [], [], []
        for row in taken:
            crop, mask = run.crop(row)
            if crop is not None and mask is not None and min(crop.shape[:2]) >= size:
                kept.append(row)
                pictures.append(crop)
                inner.append(mask)
        if not kept:
            return Result({})
        truth = [labels[run.regions["image"].iloc[row]] for row in kept]
        crops, masks = centre(np.stack(pictures), size), centre(np.stack(inner), size)
        vit = run.model.vit()
        trained = Supervised(vit, crops, truth)
        shots = []
        for kind in list(dict.fromkeys(sorted(truth)))[:SHOWN]:
            place = truth.index(kind)
            image = run.regions["image"].iloc[kept[place]]
            whole, region = run.image(image), run.region_masks(image)[0]
            if whole is None:
                continue
            square = cv2.resize(whole, (size, size), interpolation=cv2.INTER_AREA).astype(np.uint8, copy=False)
            small = resized_mask(region, (size, size))
            shots.append(
                AttentionRow(
                    kind, crops[place], square,
                    {
                        "not guided": _look(vit, crops[place], masks[place], "none"),
                        "guided": _look(vit, crops[place], masks[place], "class"),
                        "whole image": _look(vit, square, small, "none"),
                        "whole image, guided": _look(vit, square, small, "class"),
                        "trained with labels": trained.look(place, masks[place]),
                    },
                )
            )  # fmt: skip
        names = {"inside_plain": "not guided", "inside_guided": "guided", "inside_whole": "whole image"}
        names["inside_supervised"] = "trained with labels"
        inside = {metric: float(np.mean([shot.views[name][1] for shot in shots])) for metric, name in names.items()}
        return Result({**inside}, pictures={"attention": to_png(draw_attention(shots))})


class Supervised:
    """The last block trained with true labels, leaving one region out: what a network would look at that people have taught.

    Labels are used, as in the paper's appendix; this is a comparison and no part of the method.
    """

    def __init__(self, vit: MaskGuidedViT, crops: npt.NDArray[np.uint8], truth: Sequence[str]) -> None:
        self.vit, self.crops = vit, crops
        kinds = sorted(set(truth))
        self.labels = torch.tensor([kinds.index(name) for name in truth])
        own, vit.guidance = vit.guidance, "none"
        everywhere = np.ones(crops.shape[:3], bool)
        try:
            with torch.inference_mode():
                batches = [slice(start, start + BATCH) for start in range(0, len(crops), BATCH)]
                tokens = [vit.trunk(*self._tensors(crops[some], everywhere[some]))[0].float().cpu() for some in batches]
        finally:
            vit.guidance = own
        self.tokens = torch.cat(tokens).clone()

    def look(self, place: int, mask: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.float32], float]:
        """Attention on a region by a block that has not learned from it, and its share inside the mask."""
        blocks, last = self.vit.vit.blocks, self.vit.n_blocks - 1
        own = blocks[last]
        try:
            blocks[last] = self._trained([row for row in range(len(self.labels)) if row != place] or [place])
            return _look(self.vit, self.crops[place], mask, "none")
        finally:
            blocks[last] = own

    def _trained(self, rows: list[int]) -> nn.Module:
        device = next(self.vit.parameters()).device
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            block: nn.Module = copy.deepcopy(self.vit.vit.blocks[-1]).requires_grad_(True)
            head = nn.Linear(self.vit.width, int(self.labels.max()) + 1).to(device)
            optimiser = torch.optim.AdamW([*block.parameters(), *head.parameters()], lr=RATE)
            for _ in range(EPOCHS):
                for some in torch.tensor(rows)[torch.randperm(len(rows))].split(BATCH):
                    token = self.vit.vit.norm(class_token_block(block, self.tokens[some].to(device), None))
                    loss = nn.functional.cross_entropy(head(token), self.labels[some].to(device))
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
        return block.requires_grad_(False)

    def _tensors(self, crops: npt.NDArray[np.uint8], masks: npt.NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        device = next(self.vit.parameters()).device
        return image_tensor(crops, device), mask_tensor(masks, device)


def _look(
    vit: MaskGuidedViT, picture: npt.NDArray[np.uint8], mask: npt.NDArray[np.bool_], guidance: Any
) -> tuple[npt.NDArray[np.float32], float]:
    """Attention (h, w) of the class token on one picture, and its share inside the mask."""
    device = next(vit.parameters()).device
    images, masks = image_tensor(picture[None], device), mask_tensor(mask[None], device)
    found = class_attention(vit, images, masks, guidance)[0]
    keep = vit.pool(masks)[0].cpu().numpy().reshape(found.shape)
    return found, float(found[keep].sum() / max(found.sum(), 1e-12))


def _is_defect(label: str) -> bool:
    return label.lower() not in NORMAL_NAMES


def _called(model: Any, trial: Trial) -> list[str]:
    """Names for the classes that were found: the true one that most of its images have, for who reads the picture."""
    truth = model.images_["image"].map(trial.data.labels)
    names = []
    for label in model.classes_.tolist():
        own = truth[model.images_["label"] == label]
        names.append(f"{label}: {own.mode().iloc[0]}" if len(own) else f"{label}")
    return names


def _case(
    image: Any, regions: Sequence[Any], known: Floats, picture: npt.NDArray[np.uint8], ways: Sequence[Any]
) -> Case:
    """What each region says, and the image by each way of merging."""
    index, sizes = np.zeros(len(regions), np.int64), [[image.height, image.width]]
    areas, scores = [region.area for region in regions], [region.score for region in regions]
    merged = {
        how: merge_regions(known, index, sizes, MergeConfig(how=how), areas=areas, scores=scores)[0] for how in ways
    }
    votes = [Vote(tuple(region.box), row) for region, row in zip(regions, known, strict=True)]
    return Case(image.id, picture, votes, merged)


def _gap(case: Case) -> float:
    """How far the ways of merging are apart."""
    first, *others = case.merged.values()
    return max((float(np.abs(first - other).sum()) for other in others), default=0.0)
