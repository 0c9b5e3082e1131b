"""Trainings that one process and several must do alike. As a script: groups of
processes, each of which writes what it saw."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from anomalyncd.config import make_config
from anomalyncd.errors import AnomalyNCDError, DataError
from anomalyncd.learn import network
from anomalyncd.learn.bank import Views
from anomalyncd.learn.distributed import ProcessGroup, join
from anomalyncd.learn.features import RegionEncoder
from anomalyncd.learn.fit import RegionSet, fit_classifier
from anomalyncd.learn.losses import Temperatures, objective
from anomalyncd.learn.network import RegionNet
from anomalyncd.learn.trainer import train
from anomalyncd.model.backbone import MaskGuidedViT, tiny_vit
from anomalyncd.model.heads import make_projector

CPU = torch.device("cpu")
SIDE = 64
N_REGIONS = 11
FEATURES = {"class_token": 1.0, "patches": 0.5, "image": 0, "views": 2}
# Eleven regions: batches of 4, 4, 3 (the last one incomplete, none divisible by 3); of 3, 3, 3, 2; of 5, 5 (one region is
# left over and left out); and of 2, which is fewer regions than there are processes in a group of three.
FITS: dict[str, dict[str, Any]] = {
    "fast": {"preset": "fast", "batch_size": 4, "epochs": 10},
    "fast, base": {"preset": "fast", "batch_size": 3, "epochs": 4, "base": True},
    "paper, bank": {"preset": "paper", "batch_size": 4, "epochs": 6, "views": "bank"},
    "paper, bank, base": {"preset": "paper", "batch_size": 3, "epochs": 2, "views": "bank", "base": True},
    "paper, fresh": {"preset": "paper", "batch_size": 5, "epochs": 2, "views": "fresh"},
    "paper, fresh, base": {"preset": "paper", "batch_size": 2, "epochs": 1, "views": "fresh", "base": True},
}


def pictures(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Crops (R, 72, 72, 3) and masks (R, 72, 72) of squares, stripes and corners in turn."""
    crops = np.random.default_rng(seed).integers(90, 120, (count, 72, 72, 3), dtype=np.uint8)
    masks = np.zeros((count, 72, 72), bool)
    masks[:, 16:56, 16:56] = True
    crops[0::3, 20:52, 20:52] = 250
    crops[1::3, 16:56:4, 16:56] = 0
    crops[2::3, 16:40, 16:40] = [230, 0, 0]
    return crops, masks


def fit(
    group: ProcessGroup, workspace: Path, *, preset: str, base: bool = False, damaged: int | None = None, **learn: Any
) -> dict[str, Any]:
    """History, chosen head, trained block and computed crops of one training; damaged : a crop that cannot be read."""
    features = {"features": FEATURES} if preset == "fast" else {}
    layer = {"crop": {"size": 72}, "model": {"input_size": SIDE}, "learn": {"n_heads": 2, "bank_views": 3, **learn}}
    config = make_config(layer, features, preset=preset)
    vit = MaskGuidedViT(copy.deepcopy(tiny_vit())).requires_grad_(False).eval()
    encoder = RegionEncoder(vit, config.features, input_size=SIDE, train_last_block=config.learn.train_last_block)
    read: list[int] = []

    def regions(count: int, seed: int, labels: np.ndarray | None = None) -> RegionSet:
        crops, masks = pictures(count, seed)

        def crop(index: int) -> tuple[np.ndarray, np.ndarray]:
            read.append(index)
            if index == damaged and seed == 1:
                raise DataError(f"crop {index} is damaged")
            return crops[index], masks[index]

        scores = np.linspace(0.1, 1, count, dtype=np.float32)
        return RegionSet(encoder.encode_crops(crops, masks), scores, crop, labels)

    novel = regions(N_REGIONS, 1)
    labelled = regions(5, 2, np.arange(5) % 2) if base else None
    found = fit_classifier(novel, labelled, 3, config, vit, workspace=workspace, normal=0, group=group)
    return {
        "history": found.history,
        "weight": found.weight.tolist(),
        "last_block": {name: value.ravel()[:50].tolist() for name, value in found.last_block.items()},
        "classes": found.cosines(novel.parts).argmax(axis=1).tolist(),
        "reads": len(read),
    }


def gradients(group: ProcessGroup, n_regions: int = 7) -> list[list[float]]:
    """Gradient of one step by every parameter: all five losses, labelled and unlabelled regions in one batch."""
    rng = np.random.default_rng(0)
    views = Views(CPU, rng.normal(size=(n_regions, 1, 6)).astype(np.float32), group=group)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = RegionNet(6, 5, 2)
    indices = np.arange(n_regions)
    labels = torch.tensor([0, -1, 1, -1, 0, -1, -1])[:n_regions]
    (logits_one, z_one), (logits_two, z_two) = (net(view) for view in views.pair(indices, rng))
    one, two, z_one, z_two = group.gather([logits_one.movedim(1, 0), logits_two.movedim(1, 0), z_one, z_two], n_regions)
    parts, _ = objective(
        (one.movedim(0, 1), two.movedim(0, 1)), (z_one, z_two), labels, torch.linspace(0, 1, n_regions), n_base=2,
        normal=2, temperatures=Temperatures(), supervised_weight=0.3, entropy_weight=2.0,
    )  # fmt: skip
    parts.total.backward()
    group.sum_gradients(net)
    return [p.grad.flatten()[:200].tolist() for p in net.parameters() if p.grad is not None]


def disagreement(group: ProcessGroup) -> list[float]:
    """Weights after a training that the processes begin with different networks: all must have the leader's."""
    net = RegionNet(6, 3, 1, contrastive=False)
    with torch.no_grad():
        net.heads.directions.fill_(0.1 + group.rank)
        net.heads.directions[0, :, 0] = torch.tensor([1.0, 2.0, 3.0]) + group.rank
    vectors = np.random.default_rng(0).normal(size=(6, 2, 6)).astype(np.float32)
    config = make_config({"learn": {"epochs": 2, "batch_size": 4}}).learn
    train(net, Views(CPU, vectors, group=group), np.full(6, -1), np.ones(6, np.float32), config, seed=0)
    found: list[float] = net.heads.directions.flatten().tolist()
    return found


def failure(group: ProcessGroup, workspace: Path, views: str) -> str:
    """What a training says when one crop, which one process alone reads first, cannot be read."""
    try:
        fit(group, workspace, preset="paper", batch_size=4, epochs=2, views=views, damaged=1)
    except AnomalyNCDError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def loss(group: ProcessGroup) -> str:
    """What the leader sees when another process dies."""
    if not group.leads:
        os._exit(9)
    try:
        gradients(group)
    except AnomalyNCDError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


@patch.object(network, "make_projector", partial(make_projector, hidden=512))  # most of the time otherwise
def everything(group: ProcessGroup, workspace: Path) -> dict[str, Any]:
    """All scenes, one after the other: after a failure the processes go on together."""
    found: dict[str, Any] = {"bank error": failure(group, workspace / "broken", "bank")} if group.size > 1 else {}
    found |= {name: fit(group, workspace, **settings) for name, settings in FITS.items()}
    found["gradients"], found["few gradients"] = gradients(group), gradients(group, 2)
    found["weights"] = disagreement(group)
    if group.size > 1:
        found["fresh error"] = failure(group, workspace, "fresh")
    return found


def member(rank: int, size: int, port: int, folder: Path) -> None:
    """One process of a group: writes what it saw."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": size, "RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({name: str(value) for name, value in place.items()})
    group = join()
    seen, file = everything(group, folder), folder / f"seen{rank}.json"
    file.write_text(json.dumps(seen))
    seen["loss"] = loss(group)
    file.write_text(json.dumps(seen))


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


if __name__ == "__main__":
    folder, sizes = Path(sys.argv[1]), [int(size) for size in sys.argv[2:]]
    fork = multiprocessing.get_context(
        "fork"
    )  # what is imported here is there in all of them: most of the time otherwise
    members = []
    for size in sizes:
        port = free_port()
        (folder / str(size)).mkdir()
        members += [fork.Process(target=member, args=(rank, size, port, folder / str(size))) for rank in range(size)]
    for process in members:
        process.start()
    for process in members:
        process.join()
