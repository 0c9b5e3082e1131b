"""Processes of Ray that work on blocks: one that dies is replaced, and what it had begun is done again."""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, TypeVar

from ..blocks.engine import Block, Engine, Work
from ..data.dataset import Sample
from ..errors import AnomalyNCDError, RunError, SettingsError
from ..progress import Silent
from ..regions.extract import is_readable
from .start import ask_for_token, ray_for, take_away_left

ATTEMPTS = 4  # at a block: an image that kills its worker every time must end the job
AHEAD = 2  # blocks that a worker has at once, so that it does not wait while the calling process writes
WINDOW = 4  # blocks for each worker that are begun before the first of them is done, where their order counts
T = TypeVar("T")


class Worker:
    """Does one block after the other; Ray makes one in every process, and it keeps what a stage needs between them.

    Parameters
    ----------
    folder : that the command was called in, for names of files that are relative to it
    """

    def __init__(self, folder: str) -> None:
        import cv2
        import torch

        torch.set_num_threads(1)  # one CPU each, or the workers of a machine would fight for them
        cv2.setNumThreads(1)
        with suppress(OSError):  # another machine may not have it, and need not where names are absolute
            os.chdir(folder)
        self.work: Work[Any] | None = None
        self.number = -1

    def pid(self) -> int:
        """Of its process; answered when it is ready."""
        return os.getpid()

    def do(self, number: int, work: list[Any], block: Block) -> tuple[str, list[Any]]:
        """What went wrong, in words, and what was made of the block.

        number : of the work, which is sent (as a reference, in a list so that Ray does not read it each time) and made
            ready once
        """
        import ray

        try:
            if number != self.number:
                self.work, self.number = ray.get(work[0]), number
            assert self.work is not None
            return "", list(self.work(block))
        except (AnomalyNCDError, OSError) as error:
            return str(error) or type(error).__name__, []


@dataclass
class _Hand:
    """A worker, and the blocks that it has: reference of what it will give → place of the block, in order."""

    actor: Any
    has: dict[Any, int] = field(default_factory=dict)


class RayEngine(Engine):
    """Workers on this machine or on a cluster, started when there is something to do, until the engine is closed.

    Parameters
    ----------
    workers : processes of one CPU each (and one GPU with device="cuda"); by default as many as there are CPUs
    address : of a Ray cluster; by default Ray runs on this machine
    device : of the workers
    """

    def __init__(
        self,
        workers: int | None = None,
        address: str | None = None,
        device: str = "auto",
        progress: Silent | None = None,
    ) -> None:
        if find_spec("ray") is None:
            raise SettingsError("--engine ray needs Ray: pip install 'anomalyncd[ray]', or use --engine local.")
        if workers is not None and workers < 1:
            raise SettingsError(f"--workers must be at least 1, but got {workers}.")
        self.workers, self.address, self.device, self.progress = workers, address, device, progress or Silent()
        self._stack = ExitStack()
        self._hands: list[_Hand] = []
        self._coming: dict[Any, Any] = {}  # what answers when a new worker is ready → the worker
        self._number = 0
        if address is None:
            take_away_left()

    def __enter__(self) -> RayEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self._hands, self._coming = [], {}
        self._stack.close()

    def each(
        self, work: Work[T], blocks: Sequence[Block], *, in_order: bool = False
    ) -> Iterator[tuple[int, Iterable[T]]]:
        if not blocks:
            return
        self._start(len(blocks))
        import ray

        self._number += 1
        for hand in self._hands:
            hand.has.clear()  # of work that was given up
        sent = [ray.put(work)]
        todo, attempts = deque(range(len(blocks))), Counter[int]()
        done: dict[int, list[T]] = {}  # of which an earlier one is not done
        n_given = 0
        while n_given < len(blocks):
            end = n_given + WINDOW * len(self._hands) if in_order else len(blocks)
            self._hand_out(todo, sent, attempts, blocks, end)
            for place, made in self._collect(todo, attempts, blocks):
                done[place] = made
            while done and (not in_order or n_given in done):
                place = n_given if in_order else next(iter(done))
                n_given += 1
                yield place, done.pop(place)

    def check_unread(self, sample: Sample) -> None:
        if is_readable(sample):
            raise RunError(
                f"a worker could not read {sample.image}, which can be read here. Do all machines see images, maps, masks "
                "and the run under the same names? Call the same command again: it does what is missing."
            )

    def _start(self, n_blocks: int) -> None:
        """Ray, and as many workers as there is work for."""
        import ray

        if not ray.is_initialized() and self.address is None:
            ask_for_token(self.progress)
        self._stack.enter_context(ray_for(self.workers or cpus(), self.address))
        most = most_workers(ray.cluster_resources(), self.device)
        for _ in range(min(self.workers or most, most, n_blocks) - len(self._hands) - len(self._coming)):
            self._hire()

    def _hire(self) -> None:
        import ray

        gpus = 1 if self.device.startswith("cuda") else 0
        actor: Any = ray.remote(num_cpus=1, num_gpus=gpus)(Worker).remote(os.getcwd())
        self._coming[actor.pid.remote()] = actor

    def _hand_out(
        self, todo: deque[int], sent: list[Any], attempts: Counter[int], blocks: Sequence[Block], end: int
    ) -> None:
        """Blocks to workers that have few, each in turn.

        A worker may die with two blocks, before the answer for the first has gone out; nobody knows which one it was. So a
        block that a dead worker had is alone with its next one.
        """
        for rank in range(AHEAD):
            for hand in self._hands:
                if len(hand.has) == rank and todo and todo[0] < end:
                    if rank and (attempts[todo[0]] or any(attempts[place] for place in hand.has.values())):
                        continue
                    place = todo.popleft()
                    hand.has[hand.actor.do.remote(self._number, sent, blocks[place])] = place

    def _collect(
        self, todo: deque[int], attempts: Counter[int], blocks: Sequence[Block]
    ) -> Iterator[tuple[int, list[Any]]]:
        """Wait for a worker, and give what it has made; or take another one for it."""
        import ray

        asked = {**self._coming, **{reference: hand for hand in self._hands for reference in hand.has}}
        ready, _ = ray.wait(list(asked), num_returns=1)
        try:
            answer = ray.get(ready[0])
        except ray.exceptions.RayTaskError as error:  # a mistake in the code, which would come again
            raise RunError(f"a worker of Ray failed ({str(error).strip().splitlines()[-1]}).") from error
        except ray.exceptions.RayError as error:
            self._lose(asked[ready[0]], todo, attempts, blocks, error)
            return
        if ready[0] in self._coming:
            self._hands.append(_Hand(self._coming.pop(ready[0])))
            return
        place = asked[ready[0]].has.pop(ready[0])
        if answer[0]:
            raise RunError(answer[0])
        yield place, answer[1]

    def _lose(
        self, lost: Any, todo: deque[int], attempts: Counter[int], blocks: Sequence[Block], error: Exception
    ) -> None:
        """Put back what a dead worker had, and hire another one."""
        import ray

        if isinstance(lost, _Hand):
            places = list(lost.has.values())
            attempts.update(places)
            if attempts[places[0]] >= ATTEMPTS:  # which it had alone
                names = [sample.id for _, sample in blocks[places[0]]]
                raise RunError(
                    f"{names[0]} … {names[-1]}: the worker died {ATTEMPTS} times over these {len(names)} images, for want "
                    "of memory or of one of them. Give fewer --workers, or find the image with --engine local and leave it "
                    "out. What was finished is kept: call the same command again."
                )
            todo.extendleft(reversed(places))
            self._hands.remove(lost)
            with suppress(ray.exceptions.RayError):
                ray.kill(lost.actor)
        else:
            attempts[-1] += 1
            if attempts[-1] >= ATTEMPTS:
                raise RunError(f"no worker of Ray starts ({str(error).strip().splitlines()[-1]}).") from error
            self._coming = {answer: actor for answer, actor in self._coming.items() if actor is not lost}
        self._hire()


def most_workers(there: Mapping[str, float], device: str) -> int:
    """How many fit into what a cluster has.

    Examples
    --------
    >>> most_workers({"CPU": 8.0, "GPU": 2.0}, "cuda"), most_workers({"CPU": 8.0}, "auto")
    (2, 8)
    """
    if not device.startswith("cuda"):
        return int(there.get("CPU", 0)) or 1
    gpus = int(there.get("GPU", 0))
    if not gpus:  # Ray would wait for one for ever
        raise SettingsError(f"--device {device}: Ray has no GPU, here or on the cluster. Use --device cpu.")
    return gpus


def cpus() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
