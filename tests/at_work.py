"""Work as others see it: steps of progress, and the processes of Ray that do it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from anomalyncd.progress import Advance, Silent


class Steps(Silent):
    """Notes each step and the warnings; calls `then` with the number of images that are done."""

    def __init__(self, then: Callable[[int], None] = lambda done: None) -> None:
        self.steps: list[int] = []
        self.warnings: list[str] = []
        self.then = then

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        def advance(steps: int = 1, note: str = "") -> None:
            self.steps.append(steps)
            self.then(sum(self.steps))

        yield advance

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def busy_workers() -> list[int]:
    """Processes below this one that work for Ray."""
    parents: dict[int, int] = {}
    workers = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status, command = (folder / "stat").read_text(), (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = int(status.rpartition(")")[2].split()[1])
        if command.startswith(b"ray::Worker"):
            workers.append(int(folder.name))
    return [pid for pid in workers if os.getpid() in ancestors(pid, parents)]


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found = set[int]()
    while (pid := parents.get(pid, 0)) > 1:
        found.add(pid)
    return found
