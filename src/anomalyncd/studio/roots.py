"""Folders that the page may choose from: those given at the start and what lies in them, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..data.images import IMAGE_SUFFIXES
from ..errors import SettingsError
from ..paths import suffix_of

MOST_ENTRIES = 20_000  # of a folder that are looked at
MOST_FOLDERS = 2_000  # that are shown
SAMPLES = 8  # images of a folder that are shown


class OutsideError(Exception):
    """A place that is not inside a root, or not there; in words without paths of this machine."""


@dataclass(frozen=True)
class Listing:
    """What a folder holds: names of folders and of some images, and how many images there are.

    more : more entries than were looked at
    """

    folders: list[str]
    images: list[str]
    n_images: int
    more: bool


class Roots:
    """Folders to choose from, by number; everything in them goes by its path inside.

    Examples
    --------
    >>> import tempfile
    >>> roots = Roots([Path(tempfile.mkdtemp())])
    >>> roots.find(0, "../etc")
    Traceback (most recent call last):
    anomalyncd.studio.roots.OutsideError: “../etc” is not a place inside the folders that the studio may use.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise SettingsError(
                    f"{folder}: expected a folder with images for the studio to choose from, none found."
                )
        self.folders = list(dict.fromkeys(folder.resolve() for folder in folders))

    @property
    def names(self) -> list[str]:
        """Of each root, as the page shows it."""
        return [folder.name or str(folder) for folder in self.folders]

    def find(self, root: int, place: str) -> Path:
        """The real path of a place; links are followed as long as they stay inside."""
        shown = place if len(place) <= 80 else f"{place[:80]}…"
        refused = OutsideError(f"“{shown}” is not a place inside the folders that the studio may use.")
        relative = Path(place)
        if not 0 <= root < len(self.folders) or "\0" in place or relative.anchor or ".." in relative.parts:
            raise refused
        try:
            path = (self.folders[root] / relative).resolve()
            inside = path.is_relative_to(self.folders[root]) and path.exists()
        except (OSError, RuntimeError, ValueError):  # links in a circle, names that no file can have
            raise refused from None
        if not inside:
            raise refused
        return path

    def folder(self, root: int, place: str) -> Path:
        """The real path of a folder."""
        path = self.find(root, place)
        if not path.is_dir():
            raise OutsideError(f"“{path.name}” is no folder.")
        return path

    def list(self, root: int, place: str) -> Listing:
        """What a folder holds, hidden ones and links that lead out left out."""
        path = self.folder(root, place)
        folders, images, n_seen = [], [], 0
        try:
            with os.scandir(path) as entries:
                for entry in entries:
                    n_seen += 1
                    if n_seen > MOST_ENTRIES:
                        break
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        folders.append(entry.name)
                    elif suffix_of(entry.name) in IMAGE_SUFFIXES:
                        images.append(entry.name)
        except OSError as error:
            raise OutsideError(f"“{path.name}” cannot be read ({error.strerror}).") from None
        shown = [name for name in sorted(folders, key=str.casefold) if self._stays(root, path / name)]
        return Listing(shown[:MOST_FOLDERS], sorted(images)[:SAMPLES], len(images), n_seen > MOST_ENTRIES)

    def _stays(self, root: int, path: Path) -> bool:
        try:
            return not path.is_symlink() or path.resolve().is_relative_to(self.folders[root])
        except (OSError, RuntimeError):
            return False
