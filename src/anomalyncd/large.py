"""Many regions: the one rule of what is done exactly and what by a part of them, and which of them are near each other.

Up to `LARGE` rows all is exact: each row is compared with each other one. Above, what grows with the square gives way:

- only rows in cells near each other are compared (`near`), about `COMPARED` with each;
- k-means settles on a random sample of `LARGE` rows, and all rows go to the nearest of its centres;
- means are summed block by block, and rows are made from what is stored when they are asked for (`Lazy`).

What is random comes from the run's `random_state`, so a run has the same tables again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]
LARGE = 10_000  # rows up to which everything is exact
BLOCK = 1024  # rows that are compared, or made, at once
COMPARED = 2048  # rows that a row is compared with where there are more than LARGE
OF_A_CELL = 256  # rows of a cell, in the mean
AXES = 64  # along which cells are laid
STEPS = 5  # of the k-means that lays them
LEARNED = 8192  # rows that tell the axes


class Rows(Protocol):
    """Rows (R, …) that are there, or made when they are asked for."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> Any: ...


class Lazy:
    """Rows that are made anew each time they are asked for.

    Parameters
    ----------
    make : places of rows, or a slice → these rows
    shape : of all rows together
    places : (R,) rows of what `make` knows that are meant; all by default

    Examples
    --------
    >>> squares = Lazy(lambda rows: np.arange(5)[rows, None] ** 2, (5, 1))
    >>> squares[1:3].tolist(), squares.at(np.array([4, 0]))[:1].tolist(), len(squares)
    ([[1], [4]], [[16]], 5)
    """

    def __init__(self, make: Callable[[Any], Any], shape: Sequence[int], places: Places | None = None) -> None:
        self._make, self._places = make, places
        self.shape = (shape[0] if places is None else len(places), *shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        return self._make(rows if self._places is None else self._places[rows])

    def at(self, places: npt.NDArray[Any]) -> Lazy:
        """Some of the rows; places : (S,) int or (R,) bool"""
        own = np.flatnonzero(places) if places.dtype == bool else places
        return Lazy(self._make, self.shape, own if self._places is None else self._places[own])


def is_large(rows: Rows) -> bool:
    """Whether there are too many rows to compare each with each."""
    return len(rows) > LARGE


def at(rows: Rows, places: npt.NDArray[Any]) -> Rows:
    """Some rows, made when they are asked for where the others are; places : (S,) int or (R,) bool"""
    found: Rows = rows.at(places) if isinstance(rows, Lazy) else rows[places]
    return found


def blocks(count: int) -> Iterator[slice]:
    """Slices of at most `BLOCK` rows."""
    return (slice(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK))


def sample(count: int, most: int, seed: int) -> Places:
    """Places of at most `most` of `count` rows, drawn at random, in order.

    Examples
    --------
    >>> sample(3, 5, 0).tolist(), len(sample(100, 5, 0))
    ([0, 1, 2], 5)
    """
    if count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(seed).choice(count, most, replace=False))


def sums_by(rows: Rows, labels: Places, n: int) -> npt.NDArray[np.float64]:
    """Sum of the rows (R, D) of each class (n, D), block by block; rows of a label below 0 are in none.

    Examples
    --------
    >>> sums_by(np.float32([[1, 2], [3, 4], [5, 6]]), np.array([1, -1, 1]), 2).tolist()
    [[0.0, 0.0], [6.0, 8.0]]
    """
    sums = np.zeros((n, rows.shape[1]))
    for block in blocks(len(rows)):
        own = labels[block]
        there = np.flatnonzero(own >= 0)
        classes, column = np.unique(own[there], return_inverse=True)
        members = np.zeros((len(classes), len(own)), np.float32)
        members[column, there] = 1
        sums[classes] += members @ rows[block]
    return sums


def near(queries: Rows, references: Rows, seed: int = 0) -> Iterator[tuple[Any, Any]]:
    """Which rows to compare: some queries and some references at a time, places or slices, until all queries had a turn.

    Where neither is large, all references for each block of queries. Else those of the cells that are nearest to the
    queries: the references are laid into cells by k-means along their main axes, and the queries of a cell are compared
    with the cells around it, nearest first, until these are `COMPARED` references. So what is compared grows with the
    number of queries, and no more. A query's nearest reference lies in these cells as good as always where rows form groups;
    where they do not, distances hardly differ, and one that is nearly as near is found.

    Parameters
    ----------
    queries : (Q, D) and references : (M, D) unit vectors; may be the same
    seed : for the sample that cells are laid by

    Examples
    --------
    >>> x = np.eye(3, dtype=np.float32)
    >>> [(x[some] @ x[others].T).shape for some, others in near(x, x)]
    [(3, 3)]
    """
    if not (is_large(queries) or is_large(references)) or len(references) <= COMPARED:
        yield from ((block, slice(None)) for block in blocks(len(queries)))
        return
    axes = _axes(references, seed)
    laid = _projected(references, axes)
    centres = _centres(laid, seed, max(1, len(laid) // OF_A_CELL))
    members = _members(_nearest(laid, centres), len(centres))
    sizes = np.array([len(own) for own in members])
    own_cell = _nearest(laid if queries is references else _projected(queries, axes), centres)
    del laid
    for cell, asking in enumerate(_members(own_cell, len(centres), most=None)):
        if not len(asking):
            continue
        order = np.argsort(((centres - centres[cell]) ** 2).sum(axis=1), kind="stable")
        enough = int(np.searchsorted(np.cumsum(sizes[order]), min(COMPARED, sizes.sum()))) + 1
        others = np.concatenate([members[one] for one in order[:enough]])
        yield from ((asking[block], others) for block in blocks(len(asking)))


def heaped(rows: Rows, count: int, seed: int) -> Places:
    """Rows (R, D) in at most `count` small heaps of what is alike, (R,) from 0 on.

    Examples
    --------
    >>> heaped(np.eye(2, dtype=np.float32)[[0, 1, 0, 1]], 2, seed=0).tolist() in ([0, 1, 0, 1], [1, 0, 1, 0])
    True
    """
    laid = _projected(rows, _axes(rows, seed))
    return np.unique(_nearest(laid, _centres(laid, seed, count)), return_inverse=True)[1]


def _axes(rows: Rows, seed: int) -> Floats:
    """The main axes of some rows (D, A)."""
    some = np.asarray(rows[sample(len(rows), LEARNED, seed)], np.float32)
    some = some - some.mean(axis=0)
    # Directions that a few random mixtures of the rows span, turned once towards the widest.
    mixed = np.random.default_rng(seed).standard_normal((len(some), 2 * AXES)).astype(np.float32)
    span = np.linalg.qr(some.T @ mixed)[0]
    span = np.linalg.qr(some.T @ (some @ span))[0]
    _, _, turned = np.linalg.svd(some @ span, full_matrices=False)
    found: Floats = (span @ turned.T)[:, :AXES]
    return found


def _projected(rows: Rows, axes: Floats) -> Floats:
    return np.concatenate([np.asarray(rows[block], np.float32) @ axes for block in blocks(len(rows))])


def _centres(laid: Floats, seed: int, count: int) -> Floats:
    """Centres of cells (C, A), by a few steps of k-means on some of the rows."""
    some = laid[sample(len(laid), 32 * count, seed)]
    centres: Floats = some[sample(len(some), count, seed + 1)].copy()
    for _ in range(STEPS):
        labels = _nearest(some, centres)
        sizes = np.bincount(labels, minlength=count)
        order = np.argsort(labels, kind="stable")
        there = np.flatnonzero(sizes)
        starts = np.concatenate([[0], np.cumsum(sizes[there])[:-1]])
        centres[there] = np.add.reduceat(some[order], starts, axis=0) / sizes[there, None]
    return centres


def _nearest(laid: Floats, centres: Floats) -> Places:
    """The nearest centre of each row."""
    half = (centres**2).sum(axis=1) / 2
    return np.concatenate([(laid[block] @ centres.T - half).argmax(axis=1) for block in blocks(len(laid))])


def _members(cells: Places, count: int, most: int | None = 2 * OF_A_CELL) -> list[Places]:
    """Rows of each cell; of one that has very many, as where rows are all the same, some from all over."""
    order = np.argsort(cells, kind="stable")
    found = np.split(order, np.cumsum(np.bincount(cells, minlength=count))[:-1])
    if most is None:
        return found
    return [own if len(own) <= most else own[np.linspace(0, len(own) - 1, most).astype(np.int64)] for own in found]
