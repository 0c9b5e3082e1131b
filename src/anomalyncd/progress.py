"""How work in progress is shown: not at all by default, as bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

Advance = Callable[..., None]


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
