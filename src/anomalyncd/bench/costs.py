"""What a measurement is made of, and what each part costs: `costs.yaml`, in passes of one image through the trunk."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
import yaml

from ..checksums import stable_hash
from ..config import Config
from ..model.backbone import MaskGuidedViT, load_vit
from ..run.stages import definite
from .clock import Part
from .experiment import OURS
from .measure import Laboratory, Trial

SIDE, BATCH = 224, 8  # of the images that are timed
REFERENCES = 400  # a detector that compares images compares each with so many at most


def parts_of(trial: Trial, measurement: str, laboratory: Laboratory) -> list[Part]:
    """The parts of a measurement, those that it shares with others included."""
    data, base, config = trial.data, trial.base, definite(trial.config)
    network = config.model.model_dump(mode="json")
    found = [_part("timing", [data.fingerprint, trial.row.name, measurement], _amounts(trial))]
    if laboratory.makes_maps(trial):
        key = [data.fingerprint, laboratory.source_key(trial)]
        found.append(_part(f"maps: {trial.source}", key, _amounts(trial), "maps: other"))
    if measurement in ("boxes", "values"):
        return found
    if trial.row.method != OURS:
        rival = [data.fingerprint, laboratory.source_key(trial), trial.row.method, trial.row.settings, trial.seed]
        found.append(_part(f"rival: {trial.row.method}", rival, _amounts(trial), "rival: other"))
        found.append(_part("rivals: views", [data.fingerprint, network], _amounts(trial)))
        if base is not None:
            found.append(_part("rivals: base views", [data.fingerprint, base.fingerprint, network], _amounts(trial)))
        return found
    kind = "preset paper" if trial.row.preset == "paper" else "default"
    frozen = [laboratory.source_key(trial), network, *(
        section.model_dump(mode="json") for section in (config.binarize, config.crop, config.features)
    )]  # fmt: skip
    found.append(_part("regions", [data.fingerprint, *frozen, config.learn.bank_views], _amounts(trial)))
    if base is not None:
        found.append(_part("base set", [base.fingerprint, *frozen[1:], kind], _amounts(trial)))
    learned = [data.fingerprint, *frozen, config.learn.model_dump(mode="json"), trial.seed, base and base.fingerprint]
    found.append(_part(f"learning: {kind}", learned, _amounts(trial)))
    if measurement in ("modules", "attention"):
        found.append(_part(measurement, learned, _amounts(trial)))
    return found


def seconds_of_a_pass(config: Config) -> float:
    """What an image of 224 pixels takes through the trunk, several at a time."""
    config = definite(config)
    vit = MaskGuidedViT(load_vit(config.model.backbone, file=config.model.weights), precision=config.precision)
    side = vit.fit_size(SIDE)
    images = np.zeros((BATCH, side, side, 3), np.uint8)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        vit.patches(images, [vit.n_blocks - 1])
        took.append(time.perf_counter() - began)
    return min(took) / BATCH


def _amounts(trial: Trial) -> dict[str, float]:
    """What costs are in proportion to."""
    images = len(trial.data.labels)
    return {
        "once": 1,
        "image": images,
        "normal": len(trial.data.normal),
        "pair": images * min(images, REFERENCES),
        "base": 0 if trial.base is None else len(trial.base.dataset.samples),
        "class": trial.data.n_classes,
    }


def _part(kind: str, key: Any, amounts: Mapping[str, float], like: str = "") -> Part:
    costs = _costs().get(kind) or _costs()[like]
    return Part(kind, stable_hash(kind, key)[:16], sum(cost * amounts[name] for name, cost in costs.items()))


@cache
def _costs() -> dict[str, dict[str, float]]:
    content: dict[str, dict[str, float]] = yaml.safe_load(
        files(__package__).joinpath("costs.yaml").read_text(encoding="utf-8")
    )
    return content
