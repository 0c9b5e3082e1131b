"""Costly arrays of the rivals on disk: whole folders of .npy files or none, named by what they were made from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import __version__
from ...checksums import stable_hash
from ...run.folder import PARTIAL, RunFolder

Array = npt.NDArray[Any]


class Cache:
    """Arrays that several rivals, seeds and settings share.

    Parameters
    ----------
    folder : of the rivals' own, not the run folder of an `AnomalyNCD`

    Examples
    --------
    >>> import tempfile
    >>> cache = Cache(Path(tempfile.mkdtemp()))
    >>> cache.array("squares", [3], lambda: np.arange(3) ** 2).tolist()
    [0, 1, 4]
    >>> cache.array("squares", [3], lambda: 1 / 0).tolist()  # made before
    [0, 1, 4]
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, key: Any, make: Callable[[Path], None]) -> Path:
        """The folder that `make` fills, given a path to write to; it is only called where there is none for this key.

        A second process that wants to write waits for the first. `make` must not ask the cache for anything.
        """
        target = self.folder / f"{name}-{stable_hash(__version__, key)[:24]}"
        if not _is_whole(target):
            with RunFolder(self.folder).writing(patience=-1):  # sweeps away what a failure leaves behind
                if not _is_whole(target):
                    partial = target.with_name(target.name + PARTIAL)
                    shutil.rmtree(target, ignore_errors=True)
                    partial.mkdir()
                    make(partial)
                    partial.rename(target)
        return target

    def array(self, name: str, key: Any, make: Callable[[], Array]) -> Array:
        """One array that `make` returns."""
        folder = self(name, key, lambda path: np.save(path / "array.npy", make(), allow_pickle=False))
        found: Array = np.load(folder / "array.npy", allow_pickle=False)
        return found


def _is_whole(folder: Path) -> bool:
    """Whether each array is as long as its header says; one that is not was cut off, by a full disk for instance."""
    try:
        for path in folder.glob("*.npy"):
            np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return False
    return folder.is_dir()
