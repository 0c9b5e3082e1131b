"""Training in several processes (`torchrun`): each computes its share of every batch, and the losses are those of the
whole batch. Where there is one process, nothing is exchanged."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import AnomalyNCDError, RunError, SettingsError

T = TypeVar("T")
# Helpers wait while the leader cuts regions out of all images; a process that dies is noticed at once, without this.
PATIENCE = timedelta(days=30)


class LostProcessError(RunError):
    """Another process of the group is gone."""


class ProcessGroup:
    """Processes that train one network together. Process 0 leads: it alone reads the command, writes and prints.

    Every process computes the loss of the whole batch from outputs that were gathered, so a gradient reaches each
    process as the derivative by its own outputs, and the sum over the processes is the gradient of one process.

    Attributes
    ----------
    rank, size : which of how many processes this is
    busy : whether the others are in the middle of something, so that they would not understand a message
    """

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size, self.busy = rank, size, False

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> npt.NDArray[np.int64]:
        """Rows of a batch of `count` that this process computes.

        Every process has equally many; the last ones begin again at row 0 where the batch does not suffice, and `gather`
        drops what is there twice.

        Examples
        --------
        >>> [ProcessGroup(rank, 3).share(5).tolist() for rank in range(3)]
        [[0, 1], [2, 3], [4, 0]]
        """
        each = -(-count // self.size)
        return np.arange(self.rank * each, (self.rank + 1) * each) % count

    def gather(self, tensors: Sequence[Tensor], count: int) -> list[Tensor]:
        """Rows of all processes: each tensor (share, …) → (count, …), differentiable by the rows of this process."""
        if self.size == 1:
            return list(tensors)
        own = torch.cat([tensor.flatten(1) for tensor in tensors], dim=1)
        shares = [torch.empty_like(own) for _ in range(self.size)]
        with _collective():
            dist.all_gather(shares, own.detach())
        shares[self.rank] = own  # the one that a gradient goes back to
        parts = torch.cat(shares)[:count].split([tensor[0].numel() for tensor in tensors], dim=1)
        return [part.unflatten(1, tensor.shape[1:]) for part, tensor in zip(parts, tensors, strict=True)]

    def sum_gradients(self, net: nn.Module) -> None:
        """Add up the gradients of all processes; every process has the sum afterwards."""
        if self.size == 1:
            return
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        with _collective():
            dist.all_reduce(flat)
        for gradient, total in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))

    def equalize(self, net: nn.Module) -> None:
        """Give all processes the parameters of the leader."""
        if self.size == 1:
            return
        with _collective():
            for parameter in net.parameters():
                dist.broadcast(parameter.data, 0)

    def attempt(self, work: Callable[[], T]) -> T:
        """Do what may fail in one process alone (no exchange within): it fails in all of them then, and nobody waits."""
        if self.size == 1:
            return work()
        problem: Exception | None = None
        try:
            out = work()
        except Exception as error:
            problem = error
        first_failed = torch.tensor([self.size if problem is None else self.rank])
        with _collective():
            dist.all_reduce(first_failed, dist.ReduceOp.MIN)
        rank = int(first_failed)
        if rank == self.size:
            return out
        words = str(problem) if isinstance(problem, AnomalyNCDError) else f"{type(problem).__name__}: {problem}"
        said = self._broadcast(words.encode(), rank)
        self.busy = False
        raise problem or RunError(f"process {rank} of {self.size}: {said.decode()}")

    @contextmanager
    def work_on(self, task: Mapping[str, Any]) -> Iterator[None]:
        """Leader: hand the helpers a task of JSON values, and share in it within the context."""
        if self.size > 1:
            self._broadcast(json.dumps(task).encode())
            self.busy = True
            self.attempt(lambda: None)  # as every helper does, with what it must read before it can begin
        yield
        self.busy = False

    def dismiss(self) -> None:
        """Leader: let the helpers go. In the middle of a task they would not understand: they end when this process does."""
        if self.size > 1 and not self.busy:
            with suppress(LostProcessError):  # who is gone need not be let go
                self._broadcast(b"")
            dist.destroy_process_group()

    def wait(self) -> dict[str, Any] | None:
        """Helper: the next task, or None when there are no more. A task begins with an `attempt`, as the leader's does."""
        message = self._broadcast(b"")
        if not message:
            dist.destroy_process_group()
            return None
        self.busy = True
        task: dict[str, Any] = json.loads(message)
        return task

    def check(self, device: torch.device, *, banked: bool) -> None:
        """Say early what cannot work with several processes; banked : whether views are kept in a file."""
        if self.size == 1:
            return
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        if str(device) not in ("cpu", "cuda"):  # cuda is the one that `join` chose for this process
            raise SettingsError(
                f"several processes can train on cpu or cuda, one GPU each, but device is {device}. Set it to auto, cpu or "
                "cuda, and choose GPUs with CUDA_VISIBLE_DEVICES."
            )
        if device.type == "cuda" and torch.cuda.device_count() < local:
            raise SettingsError(
                f"{local} processes need {local} GPUs here, but there are {torch.cuda.device_count()}. Lower "
                "--nproc-per-node."
            )
        if banked and local < self.size:
            raise SettingsError(
                "a view bank is for processes of one machine, but there are more. Set learn.views to fresh."
            )

    def _broadcast(self, message: bytes, source: int = 0) -> bytes:
        """The message that process `source` passes here, in every process."""
        length = torch.tensor([len(message)])
        with _collective():
            dist.broadcast(length, source)
            content = bytearray(message if self.rank == source else int(length))
            if content:
                dist.broadcast(torch.frombuffer(content, dtype=torch.uint8), source)
        return bytes(content)


ALONE = ProcessGroup()
_group = ALONE


def process_group() -> ProcessGroup:
    """The processes that this one belongs to: itself alone unless `join` was called."""
    return _group


def join() -> ProcessGroup:
    """Meet the other processes that `torchrun` started, each with a GPU of its own where there are enough."""
    global _group
    local = int(os.environ.get("LOCAL_RANK", 0))
    if local < torch.cuda.device_count():
        torch.cuda.set_device(local)
    with _collective():
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo", timeout=PATIENCE)
    _group = ProcessGroup(dist.get_rank(), dist.get_world_size())
    return _group


@contextmanager
def _collective() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise LostProcessError(
            "another process of this run has ended, or cannot be reached. What was finished "
            "is kept: call the same command again to go on."
        ) from error
