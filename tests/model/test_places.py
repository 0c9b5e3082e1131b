"""PNI's parts, each formula against a slow, obvious form; the position histogram is tested with the detector."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from anomalyncd.model import places as module
from anomalyncd.model.cascade import places
from anomalyncd.model.places import (
    GAMMA,
    NormalPlaces,
    both_ways,
    features,
    nearest_words,
    neighbour_net,
    principal_axes,
    surprise,
)


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


def test_the_layers_of_the_network() -> None:
    net = neighbour_net(4, 7, 5)
    kinds = [type(layer).__name__ for layer in net]
    unit = ["BatchNorm2d", "ReLU", "Dropout"]
    assert kinds == ["NeighbourConv", *unit, "Conv2d", *unit, "Conv2d", *unit, "Conv2d"]
    sides = [(layer.in_channels, layer.out_channels, *layer.kernel_size, *layer.padding) for layer in net[::4]]
    assert sides == [(4, 512, 5, 5, 2, 2), (512, 512, 1, 1, 0, 0), (512, 512, 1, 1, 0, 0), (512, 7, 1, 1, 0, 0)]
    assert {layer.num_features for layer in net[1::4]} == {512} and {layer.p for layer in net[3::4]} == {0.1}
    assert net[0].seen.sum() == 24 and net[0].seen[2, 2] == 0 and "0.seen" not in net.state_dict()


def memory(window: int = 3, near: int = 1, kinds: int = 3) -> NormalPlaces:
    """Of 9 elements and 4 images of 4 × 5 patches, whose tokens are 2 blocks of 3 numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = neighbour_net(2, kinds, window)
    chance = torch.Generator().manual_seed(1)
    owner, seen = torch.arange(9) // 3, torch.arange(4).repeat_interleave(20)
    first = torch.randint(9, (80,), generator=chance)
    other = (first + 3) % 9  # of another image
    return NormalPlaces(
        {
            "bank": rows(9, 6, seed=2).half(), "owner": owner, "words": torch.stack([first, other], dim=1).int(),
            "place": places(4, 5, 24).flatten().repeat(4).short(), "seen": seen.int(), "mean": rows(1, 6, seed=3)[0],
            "axes": rows(6, 2, seed=4), **{f"net.{name}": value for name, value in net.state_dict().items()},
        },
        window,
        near,
    )  # fmt: skip


def slow_positions(known: NormalPlaces, near: int, without: int | None) -> Tensor:
    allowed = torch.zeros(24, 24, 9, dtype=torch.bool)
    for y in range(24):
        for x in range(24):
            counts = torch.zeros(9)
            for (word, other), place, image in zip(
                known.words.tolist(), known.place.tolist(), known.seen.tolist(), strict=True
            ):
                if image != without and abs(place // 24 - y) <= near and abs(place % 24 - x) <= near:
                    counts[other if int(known.owner[word]) == without else word] += 1
            allowed[y, x] = counts > 0.5 / 9 * counts.sum()
    return allowed.view(576, 9)


@pytest.mark.parametrize("near", [0, 2])
@pytest.mark.parametrize("without", [None, 0, 3])
def test_elements_by_position(near: int, without: int | None) -> None:
    known = memory(near=near)
    assert known.by_position(without).equal(slow_positions(known, near, without))
    assert known.possible.equal(slow_positions(known, near, None))


@pytest.mark.parametrize("without", [None, 1])
def test_scores_are_those_of_a_graph_and_of_loops(without: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    known, tokens = memory(), torch.randn(2, 4, 5, 3, generator=torch.Generator().manual_seed(7))
    whole = known.scores(tokens, without)
    monkeypatch.setattr(module, "AT_ONCE", 3)
    torch.testing.assert_close(known.scores(tokens, without), whole)
    torch.testing.assert_close(known.rows, known.bank.float())
    if without is None:
        with torch.no_grad():
            torch.testing.assert_close(known(tokens).flatten(), whole)
    values = features(tokens)
    torch.testing.assert_close(values, torch.cat([F.normalize(block, dim=-1) for block in tokens], dim=-1) / 2**0.5)
    with torch.no_grad():
        small = (values - known.mean) @ known.axes
        likely = (known.net(small.permute(2, 0, 1)[None])[0] / 2).softmax(dim=0).permute(1, 2, 0) > 0.5 / 9
    torch.testing.assert_close(known.by_neighbours(values), likely.flatten(0, 1))
    kept = [k for k in range(9) if int(known.owner[k]) != without]
    positions, place = slow_positions(known, 1, without), places(4, 5, 24)
    for y in range(4):
        for x in range(5):
            far = [float((values[y, x] - known.rows[k]).norm()) for k in kept]
            allowed = [
                [
                    bool(likely[y, x, min(range(3), key=lambda c, k=k: float((known.rows[k] - known.rows[c]).norm()))])
                    for k in kept
                ],
                [bool(positions[int(place[y, x]), k]) for k in kept],
            ]
            nearest = [min([d for d, ok in zip(far, way, strict=True) if ok] + [max(far)]) for way in allowed]
            assert float(whole[y * 5 + x]) == pytest.approx(0.99 * sum(nearest) / 2 - math.log(0.99), abs=1e-5)


def test_both_ways_count_alike() -> None:
    far = torch.tensor([[1.0, 2.0, 4.0]])
    one, other = torch.tensor([[True, False, False]]), torch.tensor([[False, True, False]])
    assert float(both_ways(far, one, other)) == pytest.approx(0.99 * 1.5 - math.log(0.99))


def test_axes_of_many_rows_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    values = rows(50, 4) * torch.tensor([1.0, 4, 2, 8])
    mean, axes = principal_axes(values, 3)
    monkeypatch.setattr(module, "AT_ONCE", 7)
    again, others = principal_axes(values, 3)
    torch.testing.assert_close(again, mean)
    torch.testing.assert_close((axes * others).sum(0).abs(), torch.ones(3))
    torch.testing.assert_close((axes.T @ axes), torch.eye(3), atol=1e-5, rtol=0)
