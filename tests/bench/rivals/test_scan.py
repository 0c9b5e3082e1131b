"""SCAN's losses and neighbours against loops (scan.py)."""

import math

import numpy as np
import pytest
import torch

from anomalyncd.bench.rivals.scan import nearest, neighbour_loss, self_label_loss


def probabilities(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double().softmax(dim=-1)


def slow_neighbour_loss(anchors, others, weight):
    n, k = anchors.shape
    agreement = sum(math.log(sum(anchors[b, i] * others[b, i] for i in range(k))) for b in range(n)) / n
    mean = [sum(anchors[b, i] for b in range(n)) / n for i in range(k)]
    return -agreement - weight * -sum(p * math.log(p) for p in mean)


def test_the_loss_of_neighbours_equals_the_slow_one():
    one, two = probabilities(3, 6, 4), probabilities(3, 6, 4, seed=1)
    expected = [slow_neighbour_loss(a, b, 5.0) for a, b in zip(one.numpy(), two.numpy(), strict=True)]
    np.testing.assert_allclose(neighbour_loss(one, two, 5.0), expected)


def test_an_empty_cluster_has_a_finite_gradient():
    logits = torch.tensor([[[200.0, 0.0], [200.0, 0.0]]], requires_grad=True)
    neighbour_loss(logits.softmax(dim=-1), logits.softmax(dim=-1), 5.0).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_neighbours_are_the_nearest_others():
    angles = torch.tensor([0.0, 0.1, 0.15, 2.0, 2.3])
    vectors = torch.stack([angles.cos(), angles.sin()], dim=1)
    expected = [sorted((i for i in range(5) if i != a), key=lambda i: abs(angles[i] - angles[a]))[:2] for a in range(5)]
    assert nearest(vectors, 2).tolist() == expected


def slow_self_label_loss(sure, logits, confidence):
    """Mean over the classes that are named of the mean cross-entropy of the images that name them."""
    by_class = {}
    for row, values in zip(sure, logits, strict=True):
        if max(row) > confidence:
            label = int(np.argmax(row))
            total = sum(math.exp(value) for value in values)
            by_class.setdefault(label, []).append(-math.log(math.exp(values[label]) / total))
    return sum(sum(losses) / len(losses) for losses in by_class.values()) / len(by_class)


def test_self_labels_are_sure_and_every_class_counts_alike():
    sure = probabilities(12, 3) ** 4
    sure = sure / sure.sum(dim=1, keepdim=True)
    logits = torch.randn(12, 3, generator=torch.Generator().manual_seed(2)).double()
    chosen = (sure.max(dim=1).values > 0.7).sum()
    assert 0 < chosen < 12
    found = self_label_loss(sure, logits, 0.7)
    assert float(found) == pytest.approx(slow_self_label_loss(sure.tolist(), logits.tolist(), 0.7), rel=1e-6)


def test_without_a_sure_one_nothing_moves():
    logits = torch.randn(4, 3, requires_grad=True)
    self_label_loss(torch.full((4, 3), 1 / 3), logits, 0.99).backward()
    assert (logits.grad == 0).all()
