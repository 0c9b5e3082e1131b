"""Requests that fail are sent again, a few times, after longer and longer waits."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import AnomalyNCDError, StoreError
from .plain import reason

T = TypeVar("T")
WAITS = (
    0.1,
    0.4,
    1.6,
    5.0,
)  # seconds before each further try, half of it by chance, so that clients don't come together
FINAL = (FileNotFoundError, IsADirectoryError, NotADirectoryError, ImportError, TypeError, AnomalyNCDError)
LONGEST = 300  # characters of what a library says


def patiently(request: Callable[[], T], name: str, sleep: Callable[[float], None] = time.sleep) -> T:
    """What `request` gives; a StoreError where it fails every time, or where it is refused.

    Parameters
    ----------
    name : of what is asked for, in the message

    Examples
    --------
    >>> answers = iter([ConnectionError("reset"), "here"])
    >>> def request():
    ...     answer = next(answers)
    ...     if isinstance(answer, Exception):
    ...         raise answer
    ...     return answer
    >>> patiently(request, "s3://line/a.png", sleep=lambda seconds: None)
    'here'
    """
    for wait in (*WAITS, None):
        try:
            return request()
        except FINAL:
            raise
        except Exception as error:  # each library has errors of its own, and not all are OSErrors
            refused = isinstance(error, PermissionError) or "credential" in type(error).__name__.lower()
            if refused or wait is None:
                raise StoreError(_words(name, error, refused)) from error
            sleep(wait * random.uniform(0.5, 1))
    raise AssertionError("a try without a wait is the last one")


def _words(name: str, error: Exception, refused: bool) -> str:
    said = re.sub(r"\?[^\s'\"]+", "?…", reason(error))  # addresses may carry a signature
    why = f"{type(error).__name__}: {said[:LONGEST]}"
    if refused:
        return f"{name}: the store refuses to read it ({why}). Credentials come from its own settings and environment."
    tries = f"{len(WAITS) + 1} tries failed"
    return f"{name}: the store cannot be reached ({tries}; {why}). Call the same command again when it is back."
