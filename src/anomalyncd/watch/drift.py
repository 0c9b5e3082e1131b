"""Whether a line is still what it was: rank tests of the latest images against the first, at a promised false-alarm rate."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

BLOCK = 10  # images whose mean counts as one: neighbours on a line are alike
REFERENCE = 100  # blocks that tell what the line was, so 1,000 images
WINDOW = 20  # blocks that are tested together, so 200 images
RATE = 0.01  # share of windows of a stable line in which any stream is reported
LIKENESS = 0.15  # correlation of neighbouring blocks above which they are no longer taken for independent
MEANINGS = {  # stream → what it is of, and what may be behind it
    "score": ("score of normal images", "the product, light or camera changed: false alarms may rise"),
    "brightness": ("brightness of images", "light or camera changed"),
    "contrast": ("contrast of images", "light, focus or camera changed"),
    "foreign": ("distance from the images of the run", "the product or its position changed"),
}
STREAMS = tuple(MEANINGS)


@dataclass(frozen=True)
class Shift:
    """A stream that is no more what it was; before, now : medians of the blocks of the reference and of the window."""

    stream: str
    before: float
    now: float
    chance: float

    @property
    def words(self) -> str:
        """For people.

        Examples
        --------
        >>> Shift("brightness", 120.0, 132.0, 1e-6).words
        'brightness of images went up, from 120 to 132. See whether light or camera changed.'
        """
        what, look = MEANINGS[self.stream]
        way = "up" if self.now > self.before else "down"
        return f"{what} went {way}, from {self.before:.4g} to {self.now:.4g}. See whether {look}."


@dataclass
class _Stream:
    block: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)
    window: list[float] = field(default_factory=list)


class DriftMonitor:
    """Compares windows of the latest images with the first ones, stream by stream.

    On a line that does not change, a share `RATE` of windows is reported: each stream that has values has an equal part of
    it. The test asks nothing of how values are distributed, and where neighbouring blocks are alike it asks for more.

    Examples
    --------
    >>> rng, monitor = np.random.default_rng(0), DriftMonitor()
    >>> stable = [monitor.add({"brightness": rng.normal(120, 5)}) for _ in range(3000)]
    >>> sum(map(len, stable))
    0
    >>> darker = [shift for _ in range(400) for shift in monitor.add({"brightness": rng.normal(115, 5)})]
    >>> darker[0].stream, darker[0].before > 119, darker[0].now < 116
    ('brightness', True, True)
    """

    def __init__(self) -> None:
        self._streams = {name: _Stream() for name in STREAMS}
        self.shifted: dict[str, Shift] = {}  # streams whose last window was reported

    def add(self, figures: Mapping[str, float | None]) -> list[Shift]:
        """Take in one image; returns what is to be reported now, which is something only at the end of a window."""
        found = []
        for name, stream in self._streams.items():
            value = figures.get(name)
            if value is None or not math.isfinite(value):
                continue
            stream.block.append(float(value))
            if len(stream.block) < BLOCK:
                continue
            goal = stream.reference if len(stream.reference) < REFERENCE else stream.window
            goal.append(sum(stream.block) / BLOCK)
            stream.block = []
            if len(stream.window) == WINDOW:
                before, now = np.array(stream.reference), np.array(stream.window)
                stream.window = []
                chance = rank_test(before, now, wider=wider(before))
                self.shifted.pop(name, None)
                if chance < RATE / sum(bool(one.block or one.reference) for one in self._streams.values()):
                    shift = Shift(name, float(np.median(before)), float(np.median(now)), chance)
                    self.shifted[name] = shift
                    found.append(shift)
        return found

    @property
    def is_ready(self) -> bool:
        """Whether any stream has its reference."""
        return any(len(stream.reference) == REFERENCE for stream in self._streams.values())

    def state(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        streams = {name: [stream.block, stream.reference, stream.window] for name, stream in self._streams.items()}
        return {
            "streams": streams,
            "shifted": {name: list(vars(shift).values()) for name, shift in self.shifted.items()},
        }

    @classmethod
    def restore(cls, text: str | None) -> DriftMonitor:
        """The inverse of `state`, of its JSON; from the start where there is none, or a damaged one."""
        monitor = cls()
        try:
            state = json.loads(text or "")
            for name in STREAMS:
                block, reference, window = (list(map(float, values)) for values in state["streams"][name])
                monitor._streams[name] = _Stream(block, reference, window)
            for name, (stream, *figures) in state["shifted"].items():
                monitor.shifted[name] = Shift(STREAMS[STREAMS.index(stream)], *map(float, figures))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return cls()
        return monitor


def rank_test(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64], wider: float = 1.0) -> float:
    """Chance that two samples (n,), (m,) of the same stream differ as much in rank (Mann and Whitney, two-sided).

    By the normal approximation, with ties corrected for.

    wider : how much larger the variance is than that of independent values

    Examples
    --------
    >>> rank_test(np.arange(20.0), np.arange(20.0)), rank_test(np.arange(20.0), np.arange(20.0) + 30) < 1e-6
    (1.0, True)
    """
    n, m = len(first), len(second)
    both = np.concatenate([first, second])
    _, counts = np.unique(both, return_counts=True)
    total = n + m
    spread = n * m / 12 * (total + 1 - float((counts**3 - counts).sum()) / (total * (total - 1))) * wider
    if spread <= 0:  # all values are the same
        return 1.0
    difference = abs(float(_ranks(both)[n:].sum()) - m * (total + 1) / 2) - 0.5
    return min(1.0, math.erfc(max(0.0, difference) / math.sqrt(2 * spread)))


def wider(values: npt.NDArray[np.float64]) -> float:
    """How much larger the variance of a mean of (n,) successive values is than if they were independent.

    That of a sequence in which each value is like the one before by a factor ρ and else chance: (1 + ρ) / (1 − ρ), with
    their ranks' correlation for ρ. A steady rise or fall is taken away before: it is drift, and no reason to expect more.

    Examples
    --------
    >>> wider(np.arange(100.0)), wider(np.tile([1.0, 2.0], 50)), wider(np.tile(np.repeat([1.0, 2.0, 3.0, 2.0], 4), 6)) > 2
    (1.0, 1.0, True)
    """
    ranks, time = _ranks(values), np.arange(len(values)) - (len(values) - 1) / 2
    rest = ranks - ranks.mean() - time * float(time @ ranks) / float(time @ time)
    square = float(rest @ rest)
    alike = float(rest[1:] @ rest[:-1]) / square if square > 1e-6 else 0.0
    return (1 + alike) / (1 - alike) if alike > LIKENESS else 1.0


def _ranks(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """1 … n, the mean of them for equal values."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    below = np.cumsum(counts) - counts
    ranks: npt.NDArray[np.float64] = (below + (counts + 1) / 2)[places]
    return ranks
