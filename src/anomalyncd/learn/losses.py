"""The five losses of the paper's Eq. 4 and Appendix A, as its code trains them (the paper prints two with slips).

Notation: B crops, two views each. All functions are pure; features need not be normalised beforehand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Self-supervised contrastive loss L_rep.

    With unit vectors z and both views of every crop as anchors:
    mean over the 2B anchors a of −log( exp(z_a·z_pos/τ) / Σ_{n ≠ a} exp(z_a·z_n/τ) ), the positive being the other view.

    Parameters
    ----------
    first, second : (B, D) projections of the two views
    """
    z = F.normalize(torch.cat([first, second]), dim=-1)
    similarity = (z @ z.T / temperature).fill_diagonal_(float("-inf"))  # an anchor is no candidate for itself
    batch = len(first)
    positive = torch.arange(2 * batch, device=z.device).roll(batch)
    return F.cross_entropy(similarity, positive)


def supervised_contrastive(first: Tensor, second: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss L^l_rep.

    Mean over the 2B anchors a of −1/|P_a| Σ_{p ∈ P_a} log( exp(z_a·z_p/τ) / Σ_{n ≠ a} exp(z_a·z_n/τ) ), where P_a are all
    other views with the label of a (its own second view among them).

    Parameters
    ----------
    first, second : (B, D); labels : (B,) int
    """
    z = F.normalize(torch.cat([first, second]), dim=-1)
    label = torch.cat([labels, labels])
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_probability = (z @ z.T / temperature).masked_fill(itself, float("-inf")).log_softmax(dim=1)
    positives = (label[:, None] == label[None, :]) & ~itself
    return -(log_probability.masked_fill(~positives, 0.0).sum(1) / positives.sum(1)).mean()


def supervised_classification(first: Tensor, second: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of labelled crops L^l_cls: mean over both views of −log softmax(logits/τ_s)[label].

    Parameters
    ----------
    first, second : (B, C) logits; labels : (B,) int
    """
    return F.cross_entropy(torch.cat([first, second]) / temperature, torch.cat([labels, labels]))


def pseudo_labels(logits: Tensor, n_base: int, temperature: float) -> Tensor:
    """Teacher probabilities q = softmax(logits/τ_t) with the base classes ruled out, detached.

    Parameters
    ----------
    logits : (B, C); the first `n_base` outputs are the base classes
    """
    logits = logits.detach().clone()
    logits[:, :n_base] = float("-inf")
    return (logits / temperature).softmax(dim=-1)


def correct_pseudo_labels(targets: Tensor, scores: Tensor, normal: int, threshold: float) -> Tensor:
    """Pseudo-label correction (Eq. 5): q ← w·e + (1 − w)·q, w = max(threshold − score, 0), e one-hot of the normal class.

    Parameters
    ----------
    targets : (B, C) probabilities; scores : (B,) crop scores in 0 … 1; normal : column of the normal class

    Examples
    --------
    >>> correct_pseudo_labels(torch.tensor([[0.0, 1.0]]), torch.tensor([0.3]), normal=0, threshold=0.5)
    tensor([[0.2000, 0.8000]])
    """
    weight = (threshold - scores).clamp(min=0).unsqueeze(1)
    e = torch.zeros_like(targets)
    e[:, normal] = 1
    return weight * e + (1 - weight) * targets


def self_distillation(
    first: Tensor, second: Tensor, first_target: Tensor, second_target: Tensor, temperature: float
) -> Tensor:
    """Pseudo-label supervision L^u_cls: each view's student prediction against the *other* view's pseudo label.

    ½ · mean over crops of [CE(q₂, softmax(l₁/τ_s)) + CE(q₁, softmax(l₂/τ_s))].

    Parameters
    ----------
    first, second : (B, C) student logits; first_target, second_target : (B, C) pseudo labels of the same views
    """
    one = -(second_target * (first / temperature).log_softmax(-1)).sum(-1)
    two = -(first_target * (second / temperature).log_softmax(-1)).sum(-1)
    return (one + two).mean() / 2


def mean_entropy(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Regulariser L^u_reg = Σ p̄ log p̄ + log C ≥ 0, so that minimising it *maximises* the entropy of the mean prediction p̄.

    Parameters
    ----------
    first, second : (B, C) student logits of unlabelled crops
    """
    mean = (torch.cat([first, second]) / temperature).softmax(-1).mean(0)
    out: Tensor = torch.special.xlogy(mean, mean).sum() + math.log(len(mean))
    return out


def teacher_temperature(epoch: int, start: float = 0.07, end: float = 0.04, epochs: int = 40, step: int = 4) -> float:
    """τ_t: falls from `start` to `end` in equal steps, one every `step` epochs; the last `step` of the first `epochs` have
    `end` already, as in the paper's code.

    Examples
    --------
    >>> [round(teacher_temperature(epoch), 4) for epoch in (0, 3, 4, 35, 36, 99)]
    [0.07, 0.07, 0.0667, 0.0433, 0.04, 0.04]
    """
    falls = epochs // step - 1
    return end if epoch >= falls * step else start + (end - start) * (epoch // step) / falls


@dataclass(frozen=True)
class Temperatures:
    """One softmax temperature each. METHOD: paper and code swap the two contrastive ones, so both are settings."""

    contrastive: float = 1.0
    supervised_contrastive: float = 0.07
    student: float = 0.1
    teacher: float = 0.04


@dataclass(frozen=True)
class LossParts:
    """The five terms, each a scalar tensor (0 where it does not apply), and their weighted sum."""

    total: Tensor
    contrastive: Tensor
    distillation: Tensor
    entropy: Tensor
    supervised_contrastive: Tensor
    supervised: Tensor


def objective(
    logits: tuple[Tensor, Tensor],
    projections: tuple[Tensor, Tensor],
    labels: Tensor,
    scores: Tensor,
    *,
    n_base: int,
    normal: int | None,
    temperatures: Temperatures,
    supervised_weight: float,
    entropy_weight: float,
    contrastive_weight: float = 1.0,
    correction_threshold: float = 0.5,
) -> tuple[LossParts, Tensor]:
    """Eq. 4 for several heads: L = λ (L^l_rep + L^l_cls) + (1 − λ)(L_rep + L^u_cls + μ L^u_reg), heads averaged.

    Without labelled crops the labelled terms vanish, and so does the factor (1 − λ).

    Parameters
    ----------
    logits : two (M, B, C) of the two views
    projections : two (B, D)
    labels : (B,) int, base class or −1 for unlabelled
    scores : (B,) crop scores, for the pseudo-label correction
    normal : column of the normal class, or None for no correction

    Returns
    -------
    the loss terms, and L^u_cls + μ L^u_reg of each head (M,), detached, by which the best head is chosen
    """
    zero = projections[0].sum() * 0
    labelled = labels >= 0
    unlabelled = ~labelled
    supervised = supervised_rep = distillation = entropy = zero
    per_head = torch.zeros(len(logits[0]), device=zero.device)
    if unlabelled.any():
        terms, entropies = [], []
        for one, two in zip(logits[0][:, unlabelled], logits[1][:, unlabelled], strict=True):
            targets = [pseudo_labels(view, n_base, temperatures.teacher) for view in (one, two)]
            if normal is not None and correction_threshold >= 0:
                targets = [correct_pseudo_labels(q, scores[unlabelled], normal, correction_threshold) for q in targets]
            terms.append(self_distillation(one, two, targets[0], targets[1], temperatures.student))
            entropies.append(mean_entropy(one, two, temperatures.student))
        distillation, entropy = torch.stack(terms).mean(), torch.stack(entropies).mean()
        per_head = (torch.stack(terms) + entropy_weight * torch.stack(entropies)).detach()
    if labelled.any():
        known = labels[labelled]
        supervised = torch.stack(
            [
                supervised_classification(one, two, known, temperatures.student)
                for one, two in zip(logits[0][:, labelled], logits[1][:, labelled], strict=True)
            ]
        ).mean()
        if contrastive_weight:
            supervised_rep = supervised_contrastive(
                projections[0][labelled], projections[1][labelled], known, temperatures.supervised_contrastive
            )
    contrastive = info_nce(*projections, temperatures.contrastive) if contrastive_weight else zero
    weight = supervised_weight if n_base else 0.0
    total = weight * (contrastive_weight * supervised_rep + supervised) + (1 - weight) * (
        contrastive_weight * contrastive + distillation + entropy_weight * entropy
    )
    parts = LossParts(total, contrastive, distillation, entropy, supervised_rep, supervised)
    return parts, per_head
