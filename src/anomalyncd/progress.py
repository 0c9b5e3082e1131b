"""How work in progress is shown: not at all by default, as bars on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[..., None]


class Silent:
    """Shows nothing; the interface that the estimator talks to."""

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        """A piece of work of `total` steps; call the yielded function as `advance(steps=1, note="")`."""
        yield lambda steps=1, note="": None

    def say(self, text: str) -> None:
        """One line about something worth knowing."""

    def warn(self, text: str) -> None:
        """One line about something that may be wrong."""


class Terminal(Silent):
    """Progress bars and lines through rich, on standard error, so that standard output stays a result."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False)

    @contextmanager
    def task(self, name: str, total: int) -> Iterator[Advance]:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (
            TextColumn("{task.description:<22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )  # fmt: skip
        with Progress(*columns, console=self.console) as progress:
            handle = progress.add_task(name, total=total, note="")
            yield lambda steps=1, note="": progress.update(handle, advance=steps, note=note)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"warning: {text}", style="yellow", markup=False)
