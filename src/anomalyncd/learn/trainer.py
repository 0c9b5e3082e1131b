"""The training loop: optimiser, sampler, schedules, and the choice of the best head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ..config import LearnConfig
from .bank import Indices, Views
from .losses import Temperatures, objective, teacher_temperature
from .network import RegionNet

FINAL_LEARNING_RATE = 1e-3  # share of the first one that the cosine schedule ends at
MOMENTUM = 0.9
WEIGHT_DECAY = 5e-5


def train(
    net: RegionNet,
    views: Views,
    labels: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
    config: LearnConfig,
    *,
    seed: int,
    n_base: int = 0,
    normal: int | None = None,
    on_epoch: Callable[[dict[str, float]], None] = lambda row: None,
    teacher: Callable[[int], float] = teacher_temperature,
) -> tuple[list[dict[str, float]], int]:
    """Minimise the objective over `config.epochs`.

    Where `views` belong to several processes, all of them call this with the same arguments.

    Parameters
    ----------
    views : of R regions
    labels : (R,) base class of labelled regions, −1 for the others; scores : (R,) float32 crop scores in 0 … 1
    n_base : number of base classes, which are the first outputs; normal : output of the normal class, or None
    on_epoch : called with each row of the history
    teacher : epoch → τ_t

    Returns
    -------
    One row an epoch: epoch, loss and its terms; and the head whose distillation and entropy together have the smallest mean
    over the batches of the last epoch
    """
    device = next(net.parameters()).device
    goals, levels = (torch.from_numpy(values).to(device) for values in (labels, scores))  # (R,) each
    optimiser = torch.optim.SGD(parameter_groups(net), lr=config.learning_rate, momentum=MOMENTUM)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, T_max=max(config.epochs, 1), eta_min=config.learning_rate * FINAL_LEARNING_RATE
    )
    history: list[dict[str, float]] = []
    best_head = 0
    views.group.equalize(net)
    net.train()
    for epoch in range(config.epochs):
        # One generator an epoch: an epoch's draws do not depend on how the ones before it were reached.
        rng = np.random.default_rng([seed, epoch])
        step = partial(
            objective, n_base=n_base, normal=normal, temperatures=Temperatures(teacher=teacher(epoch)),
            supervised_weight=config.supervised_weight, entropy_weight=config.entropy_weight,
            contrastive_weight=config.contrastive_weight, correction_threshold=config.correction_threshold,
        )  # fmt: skip
        batches = sample_batches(labels, config.batch_size, rng)
        totals: dict[str, float] = {}
        head_loss = torch.zeros(net.heads.directions.shape[0], device=device)  # (M,)
        n_seen = 0
        for indices in batches:
            parts, per_head = step(*_outputs(net, views, indices, rng), goals[indices], levels[indices])
            optimiser.zero_grad(set_to_none=True)
            parts.total.backward()
            views.group.sum_gradients(net)
            optimiser.step()
            for name, term in vars(parts).items():
                totals[name] = totals.get(name, 0.0) + float(term.detach()) * len(indices)
            head_loss += per_head
            n_seen += len(indices)
        schedule.step()
        best_head = int(head_loss.argmin())
        means = {"loss" if name == "total" else name: round(total / n_seen, 6) for name, total in totals.items()}
        history.append({"epoch": epoch, **means})
        on_epoch(history[-1])
    net.eval()
    return history, best_head


def _outputs(
    net: RegionNet, views: Views, indices: Indices, rng: np.random.Generator
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Logits (M, B, C) and projections (B, D) of two views of the whole batch, this process's share of it computed here."""

    def own() -> list[Tensor]:
        (logits_one, z_one), (logits_two, z_two) = (net(view) for view in views.pair(indices, rng))
        return [logits_one.movedim(1, 0), logits_two.movedim(1, 0), z_one, z_two]

    one, two, z_one, z_two = views.group.gather(views.group.attempt(own), len(indices))
    return (one.movedim(0, 1), two.movedim(0, 1)), (z_one, z_two)


def sample_epoch(labels: npt.NDArray[np.int64], rng: np.random.Generator) -> Indices:
    """Order of one epoch (R,): all regions once, or with a base set drawn so that half are labelled in expectation."""
    labelled = labels >= 0
    if not labelled.any() or labelled.all():
        return rng.permutation(len(labels))
    share = np.where(labelled, 1 / labelled.sum(), 1 / (~labelled).sum())
    return rng.choice(len(labels), size=len(labels), p=share / share.sum())


def sample_batches(labels: npt.NDArray[np.int64], size: int, rng: np.random.Generator) -> list[Indices]:
    """The batches of one epoch, at least one. A single region that is left over is left out: a contrast needs company.

    With a base set a batch needs labelled and unlabelled regions, else it is left out; where no batch has both, the epoch is
    drawn again.
    """
    labelled = labels >= 0
    while True:
        order = sample_epoch(labels, rng)
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if labelled.all() or not labelled.any():
            return [batch for batch in batches if len(batch) > 1] or batches
        if batches := [batch for batch in batches if labelled[batch].any() and not labelled[batch].all()]:
            return batches


def parameter_groups(net: nn.Module) -> list[dict[str, object]]:
    """Weight decay on matrices, none on biases, norms and scales."""
    trained = [p for p in net.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
