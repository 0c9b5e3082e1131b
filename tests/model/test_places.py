"""PNI's parts, each formula against a slow, obvious form; the position histogram is tested with the detector."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anomalyncd.model.places import GAMMA, nearest_words, neighbour_net, principal_axes, surprise


def rows(count: int, width: int = 8, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


def test_the_score_is_the_likeliest_allowed_element_or_the_farthest() -> None:
    distances = rows(20).abs()
    allowed = rows(20, seed=1) > 0.5
    allowed[3] = False
    for row, (near, flags) in enumerate(zip(distances.tolist(), allowed.tolist(), strict=True)):
        chosen = [d for d, flag in zip(near, flags, strict=True) if flag] + [max(near)]
        likelihood = max(GAMMA * math.exp(-GAMMA * d) for d in chosen)
        assert float(surprise(distances, allowed)[row]) == pytest.approx(-math.log(likelihood), abs=1e-5)


def test_words_are_the_nearest_and_the_nearest_of_another_image() -> None:
    patches, bank, owner = rows(30), rows(12, seed=1), torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3])
    words, kinds = nearest_words(patches, bank, owner, 5)
    for patch, (first, other), kind in zip(patches, words.tolist(), kinds.tolist(), strict=True):
        order = sorted(range(12), key=lambda m: float((patch - bank[m]).norm()))
        assert first == order[0] and kind == min(order, key=lambda m: (m >= 5, order.index(m)))
        assert other == next(m for m in order if owner[m] != owner[first])


def test_the_axes_are_those_of_the_largest_spread() -> None:
    values = rows(300, 5) * torch.tensor([1.0, 5, 0.1, 3, 0.2]) + 7
    mean, axes = principal_axes(values, 2)
    torch.testing.assert_close(mean, values.mean(0))
    expected = torch.linalg.svd(values - values.mean(0), full_matrices=False).Vh[:2]
    torch.testing.assert_close((expected @ axes).abs(), torch.eye(2), atol=1e-3, rtol=0)
    assert principal_axes(values, 9)[1].shape == (5, 5)


def test_a_neighbourhood_is_all_around_a_patch_but_not_the_patch() -> None:
    net = neighbour_net(4, 7, 3).eval()
    grid = rows(4 * 36, 1).view(1, 4, 6, 6)
    changed = grid.clone()
    changed[..., 2, 3] += 1
    differs = (net(grid) != net(changed)).any(dim=1)[0]
    expected = torch.zeros(6, 6, dtype=torch.bool)
    expected[1:4, 2:5] = True
    expected[2, 3] = False
    assert differs.equal(expected)
    # As a linear layer on the eight neighbours, zeros beyond the border.
    padded, first = F.pad(grid[0], (1, 1, 1, 1)), net[0]
    around = [(y, x) for y in range(3) for x in range(3) if (y, x) != (1, 1)]
    slow = sum(first.weight[:, :, y, x] @ padded[:, y, x + 5] for y, x in around) + first.bias
    torch.testing.assert_close(first(grid)[0, :, 0, 5], slow)
