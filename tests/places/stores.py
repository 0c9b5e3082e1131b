"""File systems of fsspec that misbehave, on top of real ones."""

from __future__ import annotations

from typing import Any


class Requests:
    """Hands every request on to a file system, but lets `refuse` fail it first.

    n : requests so far; failed : of them
    """

    def __init__(self, files: Any) -> None:
        self.files, self.n, self.failed = files, 0, 0

    def refuse(self) -> Exception | None:
        return None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.files, name)

        def request(*arguments: Any, **more: Any) -> Any:
            self.n += 1
            if error := self.refuse():
                self.failed += 1
                raise error
            return method(*arguments, **more)

        return request


class EachTwentieth(Requests):
    """A server that fails one request in twenty."""

    def refuse(self) -> Exception | None:
        return OSError("503 Slow Down") if self.n % 20 == 0 else None


class GoesAway(Requests):
    """A server that answers so many requests and no more."""

    def __init__(self, files: Any, answers: float = float("inf")) -> None:
        super().__init__(files)
        self.answers = answers

    def refuse(self) -> Exception | None:
        return ConnectionError("connection refused") if self.n > self.answers else None
