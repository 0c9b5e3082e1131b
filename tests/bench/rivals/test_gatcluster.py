"""GATCluster's targets, window and losses against loops (gatcluster.py)."""

import math

import numpy as np
import pytest
import torch

from anomalyncd.bench.rivals.gatcluster import (
    Attentive,
    balance,
    gaussian,
    negative_entropy,
    pair_loss,
    same_cluster,
    sharpen,
)


def probabilities(n, k, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)).double().softmax(dim=1)


def test_targets_equal_the_slow_ones():
    q = probabilities(6, 3)
    columns = [sum(q[n, j].item() for n in range(6)) for j in range(3)]
    for function, power in ((balance, 1), (sharpen, 2)):
        slow = [[q[n, j].item() ** power / columns[j] for j in range(3)] for n in range(6)]
        slow = [[value / sum(row) for value in row] for row in slow]
        np.testing.assert_allclose(function(q), slow, rtol=1e-3)
    assert (sharpen(q).max(dim=1).values - balance(q).max(dim=1).values).mean() > 0


def test_the_window_falls_off_around_its_place():
    grid = Attentive(4, (3, 2), 2).places
    assert grid.tolist() == [[y, x] for y in (0, 0.5, 1) for x in (0, 1)]
    window = torch.tensor([[0.5, 1.0, 0.4], [0.1, 0.2, 1.0]])
    slow = [
        [math.exp(-((y - a) ** 2 + (x - b) ** 2) / (2 * 0.05 * width)) for y, x in grid.tolist()]
        for a, b, width in window.tolist()
    ]
    np.testing.assert_allclose(gaussian(grid, window), slow, rtol=1e-2, atol=1e-6)


def test_losses_equal_the_slow_ones():
    p = probabilities(5, 3)
    mean = [sum(p[n, j].item() for n in range(5)) / 5 for j in range(3)]
    assert float(negative_entropy(p)) == pytest.approx(sum(value * math.log(value) for value in mean))
    labels = [0, 0, 1, 2, 1]
    same = torch.tensor([[float(a == b) for b in labels] for a in labels]).double()
    terms = []
    for i in range(5):
        for j in range(i):  # a pair with itself costs nothing: its cosine is 1
            cosine = float(p[i] @ p[j] / p[i].norm() / p[j].norm())
            terms.append(-math.log(cosine if labels[i] == labels[j] else 1 - cosine))
    assert float(pair_loss(p, same)) == pytest.approx(sum(terms) / (len(terms) + 5), rel=1e-6)


def test_pairs_are_believed_only_where_every_cluster_has_its_share():
    sure = torch.eye(3)[[0, 1, 2, 0, 1, 2]]
    assert same_cluster(sure, 3, seed=0).tolist() == [[float(i % 3 == j % 3) for j in range(6)] for i in range(6)]
    one_sided = torch.eye(2)[[0] * 40 + [1]]  # one of 41, where a tenth of half of them would be two
    assert same_cluster(one_sided, 2, seed=0).tolist() == torch.eye(41).tolist()


def test_both_branches_see_the_map():
    net = Attentive(6, (2, 2), 3)
    mean, whole, attended = net(torch.randn(4, 4, 6))
    assert mean.shape == (4, 32)
    for found in (whole, attended):
        torch.testing.assert_close(found.sum(dim=1), torch.ones(4))
    attended[:, 0].sum().backward()
    assert net.window[0].weight.grad is not None and net.whole[0].weight.grad is None
