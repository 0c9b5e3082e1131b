"""How work in progress is shown: not at all by default, as bars on a terminal, or in a file for another program."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

Advance = Callable[..., None]
WRITE_SECONDS = 0.25  # between two looks of another program at how far the work is


class Silent:
    """Shows nothing; the interface that the estimator talks to.

    call : what was called, for the run's log; empty where Python code called
    """

    call = ""

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        """A piece of work of `total` steps; call the yielded function as `advance(steps=1, note="")`."""
        yield lambda steps=1, note="": None

    def say(self, text: str) -> None:
        """One line about something worth knowing."""

    def warn(self, text: str) -> None:
        """One line about something that may be wrong."""

    def note(self, text: str) -> None:
        """One line for the run's log only."""


class Terminal(Silent):
    """Progress bars and lines through rich, on standard error, so that standard output stays a result.

    One bar is shown at a time: of two that are open at once, the one that moved last. Work without steps shows none.

    Parameters
    ----------
    bars : False shows warnings only
    """

    def __init__(self, *, bars: bool = True) -> None:
        from rich.console import Console

        self.bars = bars
        self.console = Console(stderr=True, highlight=False)
        self._shown: Progress | None = None

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        if not self.bars or total == 0:
            yield lambda steps=1, note="": None
            return

        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        bar = Progress(
            TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=self.console,
        )  # fmt: skip
        handle = bar.add_task(name, start=False, total=total, note="")

        def show() -> None:
            if self._shown is not bar:
                self._hide()
                bar.start_task(handle)
                bar.start()
                self._shown = bar

        def advance(steps: int = 1, note: str = "") -> None:
            show()
            bar.update(handle, advance=steps, note=note)

        if self._shown is None:
            show()
        try:
            yield advance
        finally:
            if self._shown is bar:
                self._hide()

    def say(self, text: str) -> None:
        if self.bars:
            self.console.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", markup=False, soft_wrap=True)

    def _hide(self) -> None:
        if self._shown is not None:
            self._shown.stop()
            self._shown = None


class Recorded(Terminal):
    """Writes how far the work is into a JSON file, whole each time, for another program; lines go to standard error.

    `stage`, `step` of `total`, `seconds` in this stage and `at`, the time of writing; `done`, the stages before it and the
    seconds of each.

    Examples
    --------
    >>> import tempfile
    >>> progress = Recorded(Path(tempfile.mkdtemp()) / "progress.json")
    >>> with progress.task("Regions", 2) as advance:
    ...     advance()
    >>> [each["stage"] for each in json.loads(progress.path.read_text())["done"]]
    ['Regions']
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path, self._written = path, 0.0
        self._done: list[dict[str, Any]] = []

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        started, step = time.monotonic(), 0

        def write(stage: str = name, *, now: bool = False) -> None:
            if not now and time.monotonic() - self._written < WRITE_SECONDS:
                return
            self._written = time.monotonic()
            seconds = round(self._written - started, 2)
            content = {"stage": stage, "step": step, "total": total, "seconds": seconds, "at": time.time()}
            draft = self.path.with_suffix(".partial")
            with suppress(OSError):  # no work fails because nobody can be told of it
                draft.write_text(json.dumps({**content, "done": self._done}), encoding="utf-8")
                os.replace(draft, self.path)

        def advance(steps: int = 1, note: str = "") -> None:
            nonlocal step
            step += steps
            write()

        write(now=True)
        try:
            yield advance
        finally:
            self._done.append({"stage": name, "seconds": round(time.monotonic() - started, 2)})
            write("", now=True)
