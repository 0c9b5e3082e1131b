"""Work on blocks of samples, and where it is done: here, or by workers (`ray.pool`).

An image's numbers depend in their last bits on the images that go through a network with it. So a stage cuts its samples
into blocks in one way, whoever does the work, and what is made of a block depends on nothing but the block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from ..data.dataset import Sample

T = TypeVar("T")
Block = Sequence[tuple[int, Sample]]  # samples with their places in the whole list
# What is made of a block, bit by bit. It goes to other processes, so it must be small: a network is loaded where it is used.
Work = Callable[[Block], Iterable[T]]


def blocks_of(samples: Sequence[Sample], size: int, order: Sequence[int] | None = None) -> list[Block]:
    """Blocks of so many samples, the last one smaller; order : in which they are taken.

    Examples
    --------
    >>> from pathlib import Path
    >>> samples = [Sample(name, Path(name)) for name in ("a.png", "b.png", "c.png")]
    >>> [[index for index, _ in block] for block in blocks_of(samples, 2, [2, 0, 1])]
    [[2, 0], [1]]
    """
    places = range(len(samples)) if order is None else order
    return [
        [(index, samples[index]) for index in places[start : start + size]] for start in range(0, len(places), size)
    ]


class Engine:
    """Does the work here, one block after the other, in order; to be closed in the end, with `with`."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of what the work was done with."""

    def each(
        self, work: Work[T], blocks: Sequence[Block], *, in_order: bool = False
    ) -> Iterator[tuple[int, Iterable[T]]]:
        """Place of each block in the list, and what is made of it, as it is ready; in_order : in the order of the list."""
        for place, block in enumerate(blocks):
            yield place, work(block)

    def check_unread(self, sample: Sample) -> None:
        """Called for a sample that could not be read: a RunError where that is a fault of where the work was done."""
