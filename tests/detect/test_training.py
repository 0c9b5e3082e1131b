"""Training that can be killed: the same end, whatever happened on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from anomalyncd.detect.training import STATE, seeded, train
from anomalyncd.progress import Advance, Silent


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


def test_steps_by_hand() -> None:
    """Two weights, minimised by w², with the rate of the round and the share of the group."""
    net = nn.Linear(1, 1)
    with torch.no_grad():
        net.weight.fill_(1.0)
        net.bias.fill_(1.0)
    groups = [{"params": [net.weight]}, {"params": [net.bias], "share": 0.5}]
    modes: list[bool] = []

    def losses(number: int) -> Iterator[Tensor]:
        for _ in range(number + 1):  # one step in the first round, two in the second
            modes.append(net.training)
            yield (net.weight**2 + net.bias**2).sum()

    train(net, torch.optim.SGD(groups, lr=9), losses, rounds=2, seed=0, rate=lambda number: (0.1, 0.2)[number])
    assert net.weight.item() == pytest.approx((1 - 2 * 0.1) * (1 - 2 * 0.2) ** 2)
    assert net.bias.item() == pytest.approx((1 - 0.1) * (1 - 0.2) ** 2)
    assert modes == [True] * 3 and not net.training


class Counted(Silent):
    def __init__(self) -> None:
        self.told: list[tuple[str, int] | int] = []

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        self.told.append((name, total))
        yield lambda steps=1, note="": self.told.append(steps)


def test_rounds_are_shown_and_those_of_an_earlier_call_at_once(tmp_path: Path) -> None:
    seen: list[int] = []

    def go(rounds: int) -> list[tuple[str, int] | int]:
        net, shown = nn.Linear(1, 1), Counted()

        def losses(number: int) -> Iterator[Tensor]:
            seen.append(number)
            yield net(torch.ones(1, 1)).sum()

        train(
            net, torch.optim.SGD(net.parameters()), losses, rounds=rounds, seed=0, rate=lambda _: 0.1, name="Work",
            progress=shown, workspace=tmp_path / "new" / "folder",
        )  # fmt: skip
        return shown.told

    assert go(2) == [("Work", 2), 0, 1, 1]
    assert go(5) == [("Work", 5), 2, 1, 1, 1] and seen == [0, 1, 2, 3, 4]
    assert [file.name for file in (tmp_path / "new" / "folder").iterdir()] == [STATE]
    with safe_open(tmp_path / "new" / "folder" / STATE, framework="pt") as stored:
        assert stored.metadata() == {"rounds": "5"}


def test_chance_is_of_all_numbers_in_their_order() -> None:
    def drawn(*numbers: int) -> float:
        with seeded(*numbers):
            return float(torch.rand(()))

    assert len({drawn(1), drawn(2), drawn(1, 2), drawn(2, 1)}) == 4
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence([1, 2]).generate_state(1)[0]))
        assert drawn(1, 2) == float(torch.rand(()))


def test_a_network_that_a_state_does_not_fit_stays_as_it_was(tmp_path: Path) -> None:
    def net(width: int) -> nn.Module:
        with seeded(0):
            return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, width))

    def go(network: nn.Module, rounds: int) -> None:
        def losses(_: int) -> Iterator[Tensor]:
            yield network(torch.ones(1, 3)).sum()

        optimiser = torch.optim.SGD(network.parameters())
        train(network, optimiser, losses, rounds=rounds, seed=0, rate=lambda _: 0.1, workspace=tmp_path)

    go(net(2), 3)
    other, alone = net(4), net(4)
    go(other, 1)  # the first layer would fit
    train(
        alone, torch.optim.SGD(alone.parameters()), lambda _: [alone(torch.ones(1, 3)).sum()], rounds=1, seed=0,
        rate=lambda _: 0.1,
    )  # fmt: skip
    assert same(other.state_dict(), alone.state_dict())


def test_the_chance_of_a_round_is_that_of_the_seed_and_its_number() -> None:
    net, drawn = nn.Linear(1, 1), []

    def losses(number: int) -> Iterator[Tensor]:
        drawn.append(float(torch.rand(())))
        yield net(torch.ones(1, 1)).sum()

    train(net, torch.optim.SGD(net.parameters()), losses, rounds=2, seed=7, rate=lambda _: 0.1)
    for number, found in enumerate(drawn):
        with seeded(7, number):
            assert float(torch.rand(())) == found
