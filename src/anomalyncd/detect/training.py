"""How detectors learn that have something to train: a bar, a seed, and a file that a killed training goes on from."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from ..progress import Silent

STATE = "training.safetensors"


def train(
    net: nn.Module,
    optimiser: torch.optim.Optimizer,
    losses: Callable[[int], Iterable[Tensor]],
    *,
    rounds: int,
    seed: int,
    rate: Callable[[int], float],
    name: str = "Training",
    progress: Silent | None = None,
    workspace: Path | None = None,
) -> None:
    """Minimise losses, round after round, and leave the network in evaluation mode.

    All chance of a round comes from the seed and its number, so that a training that was killed ends as one that was not.

    Parameters
    ----------
    losses : number of a round → the losses of its steps, each of which is taken before the next is asked for
    rounds : how many there are; the state is kept after each
    rate : number of a round → learning rate, of which a group of parameters may have a `share`
    workspace : folder of the state; None keeps none. What an earlier call left there is gone on from where it fits the
        network, so it must be of the same inputs and settings
    """
    done = 0 if workspace is None else _resume(workspace / STATE, net, optimiser)
    with (progress or Silent()).task(name, rounds) as advance:
        advance(done)
        for number in range(done, rounds):
            for group in optimiser.param_groups:
                group["lr"] = rate(number) * group.get("share", 1)
            net.train()
            with seeded(seed, number):
                for loss in losses(number):
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
            if workspace is not None:
                _keep(workspace / STATE, net, optimiser, number + 1)
            advance()
    net.eval()


@contextmanager
def seeded(*numbers: int) -> Iterator[None]:
    """torch's own chance, from these numbers alone; afterwards it is as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))
        yield


def _keep(file: Path, net: nn.Module, optimiser: torch.optim.Optimizer, done: int) -> None:
    """Whole or not at all."""
    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    for place, state in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{place}.{name}": torch.as_tensor(value) for name, value in state.items()}
    tensors = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.partial")
    partial.write_bytes(safetensors.torch.save(tensors, metadata={"rounds": json.dumps(done)}))
    os.replace(partial, file)


def _resume(file: Path, net: nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Bring both to where an earlier call left them, and say how many rounds it had done; 0 where that is of no use."""
    try:
        with safe_open(file, framework="pt") as stored:
            done = int(json.loads(stored.metadata()["rounds"]))
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        before = {name: value.clone() for name, value in net.state_dict().items()}
        try:
            net.load_state_dict({k.removeprefix("net."): v for k, v in tensors.items() if k.startswith("net.")})
        except RuntimeError:
            net.load_state_dict(before)
            return 0
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):  # none, or a damaged one
        return 0
    state: dict[int, dict[str, Any]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, place, what = name.split(".")
            state.setdefault(int(place), {})[what] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
    return done
