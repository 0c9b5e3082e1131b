"""One way to compile a loop that numpy cannot express."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numba

Function = TypeVar("Function", bound=Callable[..., object])


def jit(function: Function) -> Function:
    """Compile with numba at the first call, kept on disk for the next process.

    Compiled functions should call compiled functions of their own file only: what is kept on disk holds the
    code of the functions called, and numba renews it only when the caller's file has changed.

    Where neither the package folder nor the user's cache folder is writable (a locked-down container), numba
    refuses to cache; the function is then compiled once in every process instead.
    """
    try:
        compiled: Function = numba.njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:
        compiled = numba.njit(function, nogil=True, error_model="numpy")
    return compiled
