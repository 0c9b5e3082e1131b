"""AMEND's neighbours, contrast and regulariser against loops (amend.py)."""

import math

import numpy as np
import pytest
import torch

from anomalyncd.bench.rivals.amend import AMEND, Kept, closeness, wide_contrast
from anomalyncd.bench.rivals.last_block import Outputs
from anomalyncd.bench.rivals.simgcd import SimGCD
from anomalyncd.learn.losses import info_nce


def vectors(n, d=4, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed)).double()


def slow_contrast(first, second, owners, kept, kept_owners, n, m):
    """Anchor by anchor: who is alike, who is compared, and the weighted mean of −log share."""
    z = [row / np.linalg.norm(row) for row in [*first, *second]]
    owner = [*owners, *owners]
    losses = []
    for a in range(len(z)):
        others = [q for q in range(len(kept)) if kept_owners[q] != owner[a]]
        near = sorted(others, key=lambda q: -(z[a] @ kept[q]))[:n]
        far = [p for q in near for p in sorted((p for p in others if p != q), key=lambda p: -(kept[q] @ kept[p]))[:m]]
        other_view = z[(a + len(first)) % len(z)]
        alike = [(1.0, kept[q]) for q in near] + [(0.1, kept[q]) for q in far] + [(1.0, other_view)]
        total = sum(math.exp(z[a] @ kept[q]) for q in [*near, *far])
        total += sum(math.exp(z[a] @ z[b]) for b in range(len(z)) if b != a)
        loss = -sum(weight * math.log(math.exp(z[a] @ v) / total) for weight, v in alike)
        losses.append(loss / sum(weight for weight, _ in alike))
    return np.mean(losses)


@pytest.mark.parametrize(("n", "m"), [(2, 2), (3, 1), (2, 0), (5, 5)])
def test_the_contrast_equals_the_slow_one(n, m):
    kept = Kept()
    kept.add(torch.arange(3, 10), vectors(7, seed=1))
    first, second, owners = vectors(5), vectors(5, seed=2), torch.tensor([0, 3, 4, 9, 11])
    found = wide_contrast(first, second, owners, kept, n, m)
    known, of = kept.vectors.numpy(), kept.owners.tolist()
    assert float(found) == pytest.approx(slow_contrast(first.numpy(), second.numpy(), owners.tolist(), known, of, n, m))


def test_without_neighbours_it_is_the_plain_contrast():
    first, second = vectors(4), vectors(4, seed=1)
    found = wide_contrast(first, second, torch.arange(4), Kept(), 5, 5)
    torch.testing.assert_close(found, info_nce(first, second, 1.0))


def test_an_image_is_kept_once_and_the_oldest_goes(monkeypatch):
    monkeypatch.setattr("anomalyncd.bench.rivals.amend.KEPT", 4)
    kept, rows = Kept(), torch.eye(4)
    kept.add(torch.tensor([5, 6, 5]), rows[:3])  # drawn twice in one batch: the first one counts
    assert kept.owners.tolist() == [5, 6] and kept.vectors.tolist() == rows[:2].tolist()
    kept.add(torch.tensor([7, 5]), 2 * rows[[2, 3]])
    assert kept.owners.tolist() == [6, 7, 5] and kept.vectors.tolist() == rows[[1, 2, 3]].tolist()
    kept.add(torch.tensor([8, 9]), rows[:2])
    assert kept.owners.tolist() == [7, 5, 8, 9]


def test_the_regulariser_equals_the_slow_one_and_pushes_prototypes_apart():
    w = torch.nn.functional.normalize(vectors(5), dim=1)
    pairs = [(i, j) for i in range(5) for j in range(i + 1, 5)]
    squared = {(i, j): float((w[i] - w[j]).square().sum()) for i, j in pairs}
    mean = sum(squared.values()) / len(pairs)
    slow = sum(mean - squared[i, j] + float(w[i] @ w[j]) for i, j in pairs) / 5
    assert float(closeness(w)) == pytest.approx(slow)
    assert slow == pytest.approx(sum(float(w[i] @ w[j]) for i, j in pairs) / 5)  # as the file says
    assert float(closeness(torch.eye(4))) == pytest.approx(0, abs=1e-6)
    assert float(closeness(torch.ones(4, 4) / 2)) == pytest.approx(6 / 4)


def test_the_objective_is_simgcd_with_another_contrast_and_the_regulariser():
    one, two, z_one, z_two = (vectors(6, 5, seed) for seed in range(4))
    prototypes = torch.nn.functional.normalize(vectors(5, seed=9), dim=1)
    labels = torch.tensor([0, 1, 1, -1, -1, -1])
    out = Outputs(torch.arange(6), (one, two), (z_one, z_two), labels, prototypes, 2, 0)
    model = AMEND(3, margin_weight=0.5)
    model._kept = Kept()
    model._kept.add(torch.arange(6, 12), vectors(6, 5, seed=7))
    wide = wide_contrast(z_one, z_two, out.indices, model._kept, 5, 5)
    simgcd = SimGCD(3)._loss(out, 0.35)
    expected = simgcd + 0.65 * (wide - info_nce(z_one, z_two, 1.0)) + 0.5 * closeness(prototypes)
    assert float(model._loss(out, 0.35)) == pytest.approx(float(expected))
    assert set(range(6)) <= set(model._kept.owners.tolist())
