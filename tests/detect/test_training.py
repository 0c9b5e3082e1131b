"""Training that can be killed: the same end, whatever happened on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from anomalyncd.detect.training import STATE, seeded, train


class Killed(Exception):
    pass


def learn(workspace: Path | None = None, *, kill_at: int = 99, width: int = 4, seed: int = 3) -> dict[str, Tensor]:
    """A small regression with batch norm and dropout, whose rounds draw their own data."""
    with seeded(seed):
        net = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width), nn.Dropout(0.5), nn.Linear(width, 1))
    optimiser = torch.optim.AdamW(net.parameters(), weight_decay=0.01)

    def losses(number: int) -> Iterator[Tensor]:
        for step in range(3):
            if (number, step) == (kill_at, 1):
                raise Killed
            inputs = torch.randn(8, 3)
            yield ((net(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()

    train(net, optimiser, losses, rounds=6, seed=seed, rate=lambda number: 0.1 / (1 + number), workspace=workspace)
    assert not net.training
    return net.state_dict()


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(one[name].equal(other[name]) for name in one)


@pytest.mark.parametrize("kills", [[0], [3], [1, 1, 4], [5]])
def test_a_killed_training_ends_as_one_that_was_not(kills: list[int], tmp_path: Path) -> None:
    expected = learn()
    for kill_at in kills:
        torch.rand(7)  # the chance of others has no say
        with pytest.raises(Killed):
            learn(tmp_path, kill_at=kill_at)
    assert same(learn(tmp_path), expected)
    assert same(learn(tmp_path, kill_at=0), expected)  # all rounds are done: nothing is left to be killed


def test_the_seed_decides() -> None:
    assert same(learn(seed=1), learn(seed=1)) and not same(learn(seed=1), learn(seed=2))


def test_chance_is_given_back() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    first = torch.rand(1)
    with seeded(5):
        torch.rand(9)
    assert torch.cat([first, torch.rand(1)]).equal(expected)


@pytest.mark.parametrize("content", [b"", b"nonsense" * 9, None])
def test_a_damaged_state_or_one_of_another_network_is_not_used(content: bytes | None, tmp_path: Path) -> None:
    learn(tmp_path, width=5 if content is None else 4)
    if content is not None:
        (tmp_path / STATE).write_bytes(content)
    assert same(learn(tmp_path), learn())
