"""Costly arrays of the rivals on disk: whole folders of .npy files or none, named by what they were made from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from filelock import FileLock

from ... import __version__
from ...checksums import stable_hash
from ...errors import RunError
from ...run.folder import FORMAT, PARTIAL

Array = npt.NDArray[Any]
SMALL = 65_536  # bytes of an array that is rather read than mapped, which an empty one cannot be


class Cache:
    """Arrays that several rivals, seeds and settings share.

    Parameters
    ----------
    folder : of the rivals' own, not the run folder of an `AnomalyNCD`, which keeps strangers out

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

        A second process that wants the same waits for the first instead of doing the work again.
        """
        target = self.folder / f"{name}-{stable_hash(FORMAT, __version__, key)[:24]}"
        partial = target.with_name(target.name + PARTIAL)
        if target.is_dir() and _is_whole(target):
            return target
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with FileLock(target.with_name(f".{target.name}.lock")):
                if not (target.is_dir() and _is_whole(target)):
                    shutil.rmtree(target, ignore_errors=True)
                    shutil.rmtree(partial, ignore_errors=True)
                    partial.mkdir()
                    try:
                        make(partial)
                        os.replace(partial, target)
                    finally:
                        shutil.rmtree(partial, ignore_errors=True)  # what a failure leaves behind is large
        except OSError as error:
            raise RunError(f"{target}: cannot be written ({error.strerror or error}). Make room or mend it.") from error
        return target

    def array(self, name: str, key: Any, make: Callable[[], Array]) -> Array:
        """One array that `make` returns."""

        def write(path: Path) -> None:
            np.save(path / "array.npy", make(), allow_pickle=False)

        found: Array = np.load(self(name, key, write) / "array.npy", allow_pickle=False)
        return found


def _is_whole(folder: Path) -> bool:
    """Whether each array is as long as its header says; one that is not was cut off, by a full disk for instance."""
    for path in folder.glob("*.npy"):
        try:
            np.load(path, mmap_mode="r" if path.stat().st_size > SMALL else None, allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return False
    return True
