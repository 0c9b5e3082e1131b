"""One way to compile a loop that numpy cannot express."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, ParamSpec, TypeVar

Given = ParamSpec("Given")
Answer = TypeVar("Answer")


def jit(function: Callable[Given, Answer]) -> Callable[Given, Answer]:
    """Compile with numba at the first call, kept on disk for the next process. Until then numba is not imported.

    Compiled functions call no other compiled function: what is kept on disk would hold its code as it was.

    Where neither the package folder nor the user's cache folder is writable (a locked-down container), numba
    refuses to cache; the function is then compiled once in every process instead.
    """

    @cache
    def compiled() -> Callable[Given, Answer]:
        import numba

        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        try:
            made: Callable[Given, Answer] = numba.njit(function, cache=True, **options)
        except RuntimeError:
            made = numba.njit(function, **options)
        return made

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
        return compiled()(*args, **kwargs)

    return call
