"""What a service did so far, in the text format of Prometheus."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Histogram:
    """How many values lay below each bound.

    Examples
    --------
    >>> sizes = Histogram((1, 2))
    >>> for value in (1, 2, 5): sizes.add(value)
    >>> print(*sizes.lines("size"), sep="\\n")
    size_bucket{le="1"} 1
    size_bucket{le="2"} 2
    size_bucket{le="+Inf"} 3
    size_sum 8
    size_count 3
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str = "") -> list[str]:
        """Lines of the text format; labels : as `path="/x"`"""
        before, so_far, out = f"{labels}," if labels else "", 0, []
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            so_far += count
            out.append(f'{name}_bucket{{{before}le="{bound}"}} {so_far}')
        braces = f"{{{labels}}}" if labels else ""
        return [*out, f"{name}_sum{braces} {self.total:g}", f"{name}_count{braces} {so_far}"]


class Metrics:
    """Counts of all threads of one service."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds: dict[str, Histogram] = {}
        self._batches, self._batch_seconds = Histogram(BATCHES), Histogram(SECONDS)
        self._images: Counter[str] = Counter({"known": 0, "unknown": 0, "unreadable": 0})

    def answered(self, path: str, status: int, seconds: float) -> None:
        """One request; path : of a route, not what a client made up"""
        with self._lock:
            self._requests[path, status] += 1
            self._seconds.setdefault(path, Histogram(SECONDS)).add(seconds)

    def worked(self, size: int, seconds: float) -> None:
        """One batch."""
        with self._lock:
            self._batches.add(size)
            self._batch_seconds.add(seconds)

    def seen(self, outcome: str) -> None:
        """One image: `known`, `unknown` or `unreadable`."""
        with self._lock:
            self._images[outcome] += 1

    def text(self, gauges: Sequence[tuple[str, str, Callable[[], float]]]) -> str:
        """All of it; gauges : name, meaning and value of what is so just now"""
        lines: list[str] = []

        def add(name: str, kind: str, meaning: str, some: Sequence[str]) -> None:
            lines.extend((f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *some))

        with self._lock:
            name = "anomalyncd_requests_total"
            counts = [f'{name}{{path="{p}",status="{s}"}} {n}' for (p, s), n in sorted(self._requests.items())]
            add(name, "counter", "Requests by status.", counts)
            name = "anomalyncd_request_seconds"
            times = [line for p, found in sorted(self._seconds.items()) for line in found.lines(name, f'path="{p}"')]
            add(name, "histogram", "From the head of a request to the end of its answer.", times)
            name = "anomalyncd_images_total"
            add(
                name, "counter", "Images by outcome.", [f'{name}{{outcome="{k}"}} {n}' for k, n in self._images.items()]
            )
            name = "anomalyncd_batch_images"
            add(name, "histogram", "Images that the network saw at once.", self._batches.lines(name))
            name = "anomalyncd_batch_seconds"
            add(name, "histogram", "Time of a batch.", self._batch_seconds.lines(name))
            classed = self._images["known"] + self._images["unknown"]
            share = self._images["unknown"] / classed if classed else 0.0
            name = "anomalyncd_unknown_share"
            add(name, "gauge", "Share of unknown ones among the images classed so far.", [f"{name} {share:g}"])
        for name, meaning, value in gauges:
            add(name, "gauge", meaning, [f"{name} {value():g}"])
        return "\n".join(lines) + "\n"
