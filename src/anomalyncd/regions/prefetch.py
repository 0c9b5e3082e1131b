"""Reading while others compute."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")
WORKERS = min(4, os.cpu_count() or 1)  # decoders, OpenCV and the sweep let go of Python's lock
DEPTH = 2 * WORKERS  # results that wait, so that memory does not grow with the number of inputs


def prefetch(work: Callable[[S], T], inputs: Iterable[S]) -> Iterator[T]:
    """`map` in threads that run a few inputs ahead of whoever takes the results; in order, and no more than a few wait.

    Examples
    --------
    >>> list(prefetch(len, ["a", "bb", ""]))
    [1, 2, 0]
    """
    waiting: deque[Future[T]] = deque()
    with ThreadPoolExecutor(WORKERS, thread_name_prefix="anomalyncd-prefetch") as pool:
        try:
            for value in inputs:
                waiting.append(pool.submit(work, value))
                if len(waiting) > DEPTH:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
