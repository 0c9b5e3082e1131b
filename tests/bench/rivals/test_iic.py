"""IIC's loss against loops (iic.py)."""

import math

import numpy as np
import pytest
import torch

from anomalyncd.bench.rivals.iic import OVERCLUSTERING, SUB_HEADS, Heads, information_loss


def slow_loss(one, two):
    """−I of the symmetric joint distribution, pair by pair."""
    n, k = one.shape
    joint = [
        [sum(one[b, i] * two[b, j] + one[b, j] * two[b, i] for b in range(n)) / 2 / n for j in range(k)]
        for i in range(k)
    ]
    rows = [sum(joint[i]) for i in range(k)]
    return -sum(joint[i][j] * math.log(joint[i][j] / (rows[i] * rows[j])) for i in range(k) for j in range(k))


def test_the_loss_is_minus_the_mutual_information():
    one, two = torch.randn(2, 3, 7, 4, generator=torch.Generator().manual_seed(0)).double().softmax(dim=-1)
    expected = [slow_loss(a, b) for a, b in zip(one.numpy(), two.numpy(), strict=True)]
    np.testing.assert_allclose(information_loss(one, two), expected, rtol=1e-6)


def test_it_prefers_many_even_clusters_and_views_that_agree():
    even, uneven = torch.eye(4)[None], torch.eye(4)[[0, 0, 0, 1]][None]
    nothing = torch.full((1, 4, 4), 0.25)
    values = [float(information_loss(*pair)) for pair in ((even, even), (uneven, uneven), (even, even.roll(1, 1)))]
    assert values[0] == pytest.approx(-math.log(4), abs=1e-5) and values[0] < values[1] < 0
    assert float(information_loss(nothing, nothing)) == pytest.approx(0, abs=1e-6)
    assert values[2] > values[0]


def test_both_heads_stand_on_one_layer():
    net = Heads(8, 3).eval()
    for name, outputs in (("A", OVERCLUSTERING * 3), ("B", 3)):
        found = net(torch.randn(5, 8), name)
        assert found.shape == (SUB_HEADS, 5, outputs)
        torch.testing.assert_close(found.sum(dim=-1), torch.ones(SUB_HEADS, 5))
        net.zero_grad()
        found[0, 0, 0].backward()
        assert net.body[0].weight.grad.abs().sum() > 0
