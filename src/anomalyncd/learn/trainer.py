"""The training loop: optimiser, sampler, schedules, and the choice of the best head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..config import LearnConfig
from .bank import Indices, Views
from .distributed import ALONE, Team
from .losses import LossParts, Temperatures, objective, teacher_temperature
from .network import RegionNet

FINAL_LEARNING_RATE = 1e-3  # share of the first one that the cosine schedule ends at


@dataclass(frozen=True)
class Trained:
    """What training leaves besides the weights.

    history : one row an epoch: epoch, loss and its terms
    best_head : the head with the smallest distillation loss in the last epoch
    """

    history: list[dict[str, float]]
    best_head: int


def train(
    net: RegionNet,
    views: Views,
    labels: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
    config: LearnConfig,
    *,
    n_base: int,
    normal: int | None,
    seed: int,
    on_epoch: Callable[[dict[str, float]], None] | None = None,
    team: Team = ALONE,
) -> Trained:
    """Minimise the objective over `config.epochs`.

    Parameters
    ----------
    views : source of two views of each of R regions
    labels : (R,) base class of labelled regions, −1 for the others
    scores : (R,) crop scores in 0 … 1
    n_base : number of base classes; normal : output of the normal class, or None
    team : processes that all call this with the same arguments, and with views of their own share of each batch
    """
    device = next(net.parameters()).device
    label_tensor = torch.from_numpy(labels).to(device)
    score_tensor = torch.from_numpy(scores).to(device)
    optimiser = torch.optim.SGD(
        parameter_groups(net, config.weight_decay), lr=config.learning_rate, momentum=config.momentum
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, T_max=max(config.epochs, 1), eta_min=config.learning_rate * FINAL_LEARNING_RATE
    )
    history: list[dict[str, float]] = []
    best_head = 0
    team.equalize(net)
    net.train()
    for epoch in range(config.epochs):
        # One generator an epoch: an epoch's draws do not depend on how the ones before it were reached.
        rng = np.random.default_rng([seed, epoch])
        temperatures = Temperatures(
            contrastive=config.contrastive_temperature,
            supervised_contrastive=config.supervised_temperature,
            student=config.student_temperature,
            teacher=teacher_temperature(
                epoch, *config.teacher_temperature, epochs=config.teacher_epochs, step=config.teacher_step
            ),
        )
        order = sample_epoch(labels, rng)
        totals: dict[str, float] = {}
        head_loss = torch.zeros(net.heads.directions.shape[0], device=device)
        for start in range(0, len(order), config.batch_size):
            indices = order[start : start + config.batch_size]
            if len(indices) < 2 and len(order) > 1:
                continue  # a contrast needs company
            logits, projections = _outputs(net, views, indices, rng, team)
            parts, per_head = objective(
                logits, projections, label_tensor[indices], score_tensor[indices],
                n_base=n_base, normal=normal, temperatures=temperatures,
                supervised_weight=config.supervised_weight, entropy_weight=config.entropy_weight,
                contrastive_weight=config.contrastive_weight, correction_threshold=config.correction_threshold,
            )  # fmt: skip
            optimiser.zero_grad(set_to_none=True)
            parts.total.backward()
            team.sum_gradients(net)
            optimiser.step()
            _add(totals, parts, len(indices))
            head_loss += per_head * len(indices)
        schedule.step()
        best_head = int(head_loss.argmin())
        history.append({"epoch": epoch, **{k: round(v / totals["n"], 6) for k, v in totals.items() if k != "n"}})
        if on_epoch:
            on_epoch(history[-1])
    net.eval()
    return Trained(history, best_head)


def _outputs(
    net: RegionNet, views: Views, indices: Indices, rng: np.random.Generator, team: Team
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Logits (M, B, C) and projections (B, D) of two views of the whole batch, this process's share of it computed here."""

    def own() -> list[Tensor]:
        (logits_one, z_one), (logits_two, z_two) = (net(view) for view in views.pair(indices, rng))
        return [logits_one.movedim(1, 0), logits_two.movedim(1, 0), z_one, z_two]

    one, two, z_one, z_two = team.gather(team.attempt(own), len(indices))
    return (one.movedim(0, 1), two.movedim(0, 1)), (z_one, z_two)


def sample_epoch(labels: npt.NDArray[np.int64], rng: np.random.Generator) -> Indices:
    """Order of one epoch (R,): all regions once, or with a base set drawn so that half are labelled in expectation."""
    labelled = labels >= 0
    if not labelled.any() or labelled.all():
        return rng.permutation(len(labels))
    share = np.where(labelled, 1 / labelled.sum(), 1 / (~labelled).sum())
    return rng.choice(len(labels), size=len(labels), p=share / share.sum())


def parameter_groups(net: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Weight decay on matrices, none on biases, norms and scales."""
    trained = [p for p in net.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]


def _add(totals: dict[str, float], parts: LossParts, count: int) -> None:
    terms = {
        "loss": parts.total,
        "contrastive": parts.contrastive,
        "distillation": parts.distillation,
        "entropy": parts.entropy,
        "supervised_contrastive": parts.supervised_contrastive,
        "supervised": parts.supervised,
    }
    for name, value in terms.items():
        totals[name] = totals.get(name, 0.0) + float(value.detach()) * count
    totals["n"] = totals.get("n", 0.0) + count
