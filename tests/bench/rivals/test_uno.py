"""UNO's targets and loss against loops (uno.py)."""

import math

import numpy as np
import pytest
import torch

from anomalyncd.bench.rivals.uno import HEADS, OVERCLUSTERING, Heads, sinkhorn, swapped_loss, targets


def cosines(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)).double() * 2 - 1


def slow_sinkhorn(values):
    """As the paper writes it: Q of exp(cosine / ε), rows to 1 / K and columns to 1 / B in turn, times B."""
    n, k = values.shape
    q = np.exp(values.T / 0.05)
    q /= q.sum()
    for _ in range(3):
        for i in range(k):
            q[i] /= q[i].sum() * k
        for b in range(n):
            q[:, b] /= q[:, b].sum() * n
    return (q * n).T


def test_sinkhorn_equals_the_slow_one_and_fills_classes_alike():
    values = cosines(12, 3)
    shares = sinkhorn(values)
    np.testing.assert_allclose(shares, slow_sinkhorn(values.numpy()), rtol=1e-6)
    np.testing.assert_allclose(shares.sum(dim=1), 1)
    crowded = sinkhorn(torch.tensor([[0.9, 0.0]] * 8).double())  # all alike: each belongs to both by halves
    np.testing.assert_allclose(crowded, 0.5)


def test_extreme_cosines_are_no_trouble():
    assert torch.isfinite(sinkhorn(torch.tensor([[1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]))).all()
    assert torch.isfinite(sinkhorn(torch.tensor([[1.0, -30.0], [1.0, -30.0]]))).all()


def slow_loss(one, two, labels, n_base):
    """Both directions, image by image."""
    unlabelled = [b for b, label in enumerate(labels) if label < 0]
    total = 0.0
    for view, other in ((one, two), (two, one)):
        shares = slow_sinkhorn(other[unlabelled][:, n_base:])
        for b, label in enumerate(labels):
            powers = [math.exp(value / 0.1) for value in view[b]]
            logs = [math.log(power / sum(powers)) for power in powers]
            if label >= 0:
                total -= logs[label]
            else:
                share = shares[unlabelled.index(b)]
                total -= sum(share[i] * logs[n_base + i] for i in range(len(share)))
    return total / 2 / len(labels)


@pytest.mark.parametrize("labels", [[0, -1, 1, -1, -1, 0], [-1] * 6])
def test_the_swapped_loss_equals_the_slow_one(labels):
    n_base = 2 if max(labels) >= 0 else 0
    one, two = cosines(HEADS, 6, n_base + 3), cosines(HEADS, 6, n_base + 3, seed=1)
    expected = [slow_loss(a, b, labels, n_base) for a, b in zip(one.numpy(), two.numpy(), strict=True)]
    np.testing.assert_allclose(swapped_loss(one, two, torch.tensor(labels), n_base), expected, rtol=1e-6)


def test_targets_of_unlabelled_images_never_name_a_base_class():
    goals = targets(cosines(5, 6), torch.tensor([-1, 1, -1, -1, 0]), n_base=2)
    assert (goals[[0, 2, 3], :2] == 0).all()
    assert goals[1].tolist() == [0, 1, 0, 0, 0, 0] and goals[4].tolist() == [1, 0, 0, 0, 0, 0]


def test_outputs_are_base_classes_and_then_new_ones():
    few, many = Heads(8, 2, 3).eval()(torch.randn(5, 8))
    assert few.shape == (HEADS, 5, 2 + 3) and many.shape == (HEADS, 5, 2 + OVERCLUSTERING * 3)
    assert (few[:, :, :2] == many[0, :, :2]).all()  # one head of base classes for all
    assert few.abs().max() <= 1.0001
