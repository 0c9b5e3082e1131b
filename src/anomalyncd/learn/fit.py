"""How classes are learned: features, a start from their clusters, training."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from ..config import Config, LearnConfig
from ..large import blocks
from ..model.backbone import MaskGuidedViT
from .bank import CropReader, Crops, Views, fill_bank
from .classifier import Classifier, FeatureParts
from .cluster import centres, check_enough, kmeans, stable_temperature, ward_kmeans
from .distributed import ALONE, ProcessGroup
from .features import FeatureSpace
from .losses import Temperatures
from .network import RegionNet, last_part
from .rows import fit_space, vectors
from .trainer import train

BANK = "bank.partial"  # a run sweeps such names away, so a killed one leaves nothing behind


@dataclass(frozen=True)
class RegionSet:
    """Regions to learn from.

    parts : part name → (R, V, L, C) features of the frozen network
    scores : (R,) float32 crop scores
    crops : reads one crop and its mask; only used when the last block is trained
    labels : (R,) int base class of each region, or None for regions to be discovered
    """

    parts: FeatureParts
    scores: npt.NDArray[np.float32]
    crops: CropReader
    labels: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.scores)


def install(classifier: Classifier, vit: MaskGuidedViT) -> None:
    """Put the trained last block, if there is one, into a backbone."""
    if classifier.last_block:
        state = {name: torch.from_numpy(value) for name, value in classifier.last_block.items()}
        last_part(vit).load_state_dict(state)


def fit_classifier(
    novel: RegionSet,
    base: RegionSet | None,
    n_classes: int,
    config: Config,
    vit: MaskGuidedViT,
    *,
    workspace: Path,
    normal: int | None = None,
    on_view: Callable[[int], None] = lambda index: None,
    on_epoch: Callable[[dict[str, float]], None] = lambda row: None,
    group: ProcessGroup = ALONE,
) -> Classifier:
    """Discover `n_classes` classes among the novel regions.

    Parameters
    ----------
    vit : the backbone that the parts come from; its last block is trained in place, if it is to be trained
    workspace : folder for a view bank, which is removed again
    normal : which of the novel classes is the normal one (for pseudo-label correction), None for none
    on_view, on_epoch : called after each region of the bank that this process computes, and each epoch
    group : processes that all call this with the same arguments to share the work
    """
    check_enough(len(novel), n_classes)
    learn = config.learn
    device = next(vit.parameters()).device
    sets = [novel] if base is None else [novel, base]
    n_base = 0 if base is None or base.labels is None else int(base.labels.max()) + 1
    labels = np.concatenate([np.full(len(s), -1) if s.labels is None else s.labels for s in sets])
    scores = np.concatenate([s.scores for s in sets])

    weights = config.features.weights()
    # A trained class token comes from tokens in every step; only the other parts stay as they are.
    frozen = [name for name in weights if not (name == "class_token" and learn.train_last_block)]
    space = fit_space(weights, {name: novel.parts[name] for name in frozen}, center=config.features.center)
    joined = _joined(space, sets, frozen) if frozen and learn.epochs else None  # of no use where nothing is trained
    width = sum(math.prod(novel.parts[name].shape[2:]) for name in frozen)
    width += vit.width if learn.train_last_block else 0

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.random_state)
        net = RegionNet(
            width, n_base + n_classes, learn.n_heads,
            vit=vit if learn.train_last_block else None, class_weight=config.features.class_token,
            contrastive=learn.contrastive_weight > 0,
        ).to(device)  # fmt: skip
    if learn.start == "clusters" and group.leads:  # the others are given the leader's network
        n_started = learn.n_heads if learn.epochs else 1  # untrained, the first head is the best
        _start_from_clusters(net, space, novel, base, config.random_state, normal, n_started)

    def read(index: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
        return novel.crops(index) if index < len(novel) else sets[1].crops(index - len(novel))

    crops = Crops(read, len(labels), config.model.input_size)
    views = Views(device, joined, fresh=(vit, crops) if learn.train_last_block else None, group=group)
    if is_banked(learn, device):
        bank = fill_bank(
            workspace / BANK, vit, crops, n_views=learn.bank_views, batch_size=config.batch_size,
            seed=config.random_state, on_region=on_view, group=group,
        )  # fmt: skip
        views = Views(device, joined, bank=bank, group=group)
    history, best_head = train(
        net, views, labels, scores, learn, seed=config.random_state, n_base=n_base,
        normal=None if normal is None else n_base + normal, on_epoch=on_epoch,
    )  # fmt: skip
    if group.leads:
        shutil.rmtree(workspace / BANK, ignore_errors=True)
    weight = net.heads.weight[best_head].detach().cpu().numpy()
    temperature = Temperatures.student
    if (
        not learn.epochs
    ):  # nothing was trained with the student's temperature, so probabilities are free to mean something
        temperature = stable_temperature(vectors(space, novel.parts), weight[n_base:], config.random_state)
    last_block = {}
    if learn.train_last_block:
        last_block = {name: value.cpu().numpy().copy() for name, value in net.last.state_dict().items()}
        net.last.requires_grad_(False)
    return Classifier(space, weight, n_base, temperature, last_block, history)


def is_banked(learn: LearnConfig, device: torch.device) -> bool:
    """Whether views are computed once and kept, rather than anew in each epoch."""
    return learn.train_last_block and (learn.views == "bank" or (learn.views == "auto" and device.type == "cpu"))


def _joined(space: FeatureSpace, sets: Sequence[RegionSet], names: Sequence[str]) -> npt.NDArray[np.float16]:
    """(R, V, D) views of the regions of all sets, the weighted parts side by side; made block by block."""
    pieces = [
        space.join({name: one.parts[name][rows] for name in names}).astype(np.float16)
        for one in sets
        for rows in blocks(len(one))
    ]
    return np.concatenate(pieces)


def _start_from_clusters(
    net: RegionNet,
    space: FeatureSpace,
    novel: RegionSet,
    base: RegionSet | None,
    seed: int,
    normal: int | None,
    n_heads: int,
) -> None:
    """Point the first head at Ward's clusters, the others at one k-means run each, and all at the means of the base classes.

    n_heads : so many; the others are left as they are

    What has no members (regions that are all alike make fewer clusters than asked for) keeps the direction it began with.
    """
    features = vectors(space, novel.parts)  # (R, D)
    known = np.empty((0, features.shape[1]), np.float32)
    if base is not None and base.labels is not None:
        known = centres(vectors(space, base.parts), base.labels, int(base.labels.max()) + 1)
    n_outputs = net.heads.directions.shape[1]
    n_classes = n_outputs - len(known)
    for head in range(n_heads):
        cluster = kmeans if head else ward_kmeans
        labels = cluster(features, n_classes, (seed * 1000 + head) % 2**32)
        found = centres(features, labels, n_classes)
        if normal is not None:  # the cluster of the lowest mean score: most likely false alarms
            members = [novel.scores[labels == k] for k in range(n_classes)]
            weakest = int(np.argmin([scores.mean() if len(scores) else np.inf for scores in members]))
            found[[normal, weakest]] = found[[weakest, normal]]
        directions = net.heads.directions[head].detach()
        start = torch.from_numpy(np.concatenate([known, found])).to(directions.device)  # (B + K, D)
        net.heads.start_from(head, torch.where(start.any(dim=1, keepdim=True), start, directions))
