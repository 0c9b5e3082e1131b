"""Tokens of whole pictures that a network has seen before, so that it need not look at them again. No torch here."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

MOST = 128  # pictures that are held in memory: more than are on their way from a detector to those who describe
Picture = npt.NDArray[np.uint8]
Tokens = npt.NDArray[np.float16]
Values = npt.NDArray[np.float32]


class Shelf(Protocol):
    """Where files are kept, as a run folder does."""

    def put(self, name: str, data: bytes) -> None:
        """Write a file; its folder is made where it is missing."""
        ...

    def place(self, name: str) -> Path:
        """Where it lies."""
        ...


class Seen:
    """Patch tokens (P, C) float16 of pictures (H, W, 3) uint8, by their pixels and the number of the block.

    Parameters
    ----------
    shelf : keeps them as files below `name`, until the caller takes these away; None: in memory, the newest ones, and each
        is handed out once
    blocks : only these are kept, and only where all of them are given; None: whatever is given

    Examples
    --------
    >>> seen, picture = Seen(), np.zeros((2, 2, 3), np.uint8)
    >>> seen.add(picture, [3, 5], np.ones((2, 1, 4), np.float32))
    >>> seen.tokens(picture, [5], (1, 4)).shape
    (1, 1, 4)
    """

    def __init__(self, shelf: Shelf | None = None, name: str = "", blocks: Sequence[int] | None = None) -> None:
        self.shelf, self.name, self.blocks = shelf, name, blocks
        self.places: Collection[int] | None = None
        self._count = 0
        self._held: OrderedDict[str, dict[int, Tokens]] = OrderedDict()

    def keep(self, blocks: Sequence[int] | None, places: Collection[int] | None = None, first: int = 0) -> None:
        """What is kept from now on; places : of the pictures, None for all; first : of those that will come, in order."""
        self.blocks, self.places, self._count = blocks, places, first

    def add(self, picture: Picture, blocks: Sequence[int], tokens: Any) -> None:
        """Keep tokens (L, P, C) after each of the blocks."""
        place, self._count = self._count, self._count + 1
        if (self.places is not None and place not in self.places) or not set(self.blocks or ()) <= set(blocks):
            return
        own = {
            block: np.asarray(values, np.float16)
            for block, values in zip(blocks, tokens, strict=True)
            if self.blocks is None or block in self.blocks
        }
        key = _digest(picture)
        if self.shelf is None:
            self._held[key] = own
            if len(self._held) > MOST:
                self._held.popitem(last=False)
            return
        for block, values in own.items():
            self.shelf.put(self._file(key, block), values.tobytes())

    def tokens(self, picture: Picture, blocks: Sequence[int], shape: tuple[int, int]) -> Tokens | None:
        """(L, P, C) after each of the blocks, of the shape (P, C); None where it was not seen."""
        key = _digest(picture)
        if self.shelf is None:
            own = self._held.pop(key, {})
            return np.stack([own[block] for block in blocks]) if set(blocks) <= set(own) else None
        try:  # a file that was never written, or cut off when a call was killed
            files = [self.shelf.place(self._file(key, block)).read_bytes() for block in blocks]
            return np.stack([np.frombuffer(data, np.float16).reshape(shape) for data in files])
        except (OSError, ValueError):
            return None

    def _file(self, key: str, block: int) -> str:
        return f"{self.name}/{key[:2]}/{key}-{block}"


def tokens_of(
    pictures: Picture,
    blocks: Sequence[int],
    shape: tuple[int, int],
    look: Callable[[Picture, Sequence[int]], Values],
    seen: Seen | None,
) -> Values:
    """Patch tokens (B, L, P, C) of pictures (B, H, W, 3), rounded as those are that were seen before.

    shape : (P, C); look : the network, pictures and blocks → tokens, for the pictures that it has not seen
    """
    found = [None if seen is None else seen.tokens(picture, blocks, shape) for picture in pictures]
    if new := [place for place, tokens in enumerate(found) if tokens is None]:
        for place, tokens in zip(new, look(pictures[new], blocks), strict=True):
            found[place] = tokens.astype(np.float16)
    return np.stack([tokens for tokens in found if tokens is not None]).astype(np.float32)


def _digest(picture: Picture) -> str:
    hashed = hashlib.blake2b(repr(picture.shape).encode(), digest_size=16)
    hashed.update(np.ascontiguousarray(picture).data)
    return hashed.hexdigest()
