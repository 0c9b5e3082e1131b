"""Images that were dropped onto the page: into a new folder of the workspace, each looked at before it is kept."""

from __future__ import annotations

import os
import re
import threading
import unicodedata
from pathlib import Path

from fastapi import HTTPException

from ..data.images import IMAGE_SUFFIXES, read_image
from ..errors import BadFileError
from ..paths import stem_of, suffix_of
from ..whole import create
from .workspace import Workspace

DROPPED = "dropped"  # folder of the workspace that all of it lies in
MOST_FILES = 5_000  # of one folder
MOST_BYTES = 64_000_000  # of one file
MOST_OF_ALL = 8_000_000_000  # bytes of one folder
LONGEST_NAME = 100


class Uploads:
    """Takes images into folders that it has made itself; no name that is sent leads anywhere else.

    Parameters
    ----------
    workspace : whose folder `dropped` is used
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace, self.path = workspace, workspace.path / DROPPED
        self._lock = threading.Lock()

    def folder(self, title: str) -> str:
        """Make a folder for some images; returns its name."""
        self.path.mkdir(exist_ok=True)
        if self.path.is_symlink():
            raise HTTPException(409, f"The folder “{DROPPED}” of the workspace is a link: remove it first.")
        return self._workspace.new_name(title or "images", self.path)

    def take(self, folder: str, name: str, content: bytes) -> str:
        """Keep an image; returns the name that it has got. An HTTPException where it is none, or there are too many."""
        place = self.path / folder
        if Path(folder).name != folder or folder.startswith(".") or self.path.is_symlink() or place.is_symlink():
            raise HTTPException(404, "There is no such folder.")
        if not place.is_dir():
            raise HTTPException(404, "There is no such folder.")
        plain = plain_name(name)
        if suffix_of(plain) not in IMAGE_SUFFIXES:
            raise HTTPException(415, f"“{plain}” is no image that can be read: PNG, JPEG, BMP, TIFF or WebP.")
        try:
            read_image(content)
        except BadFileError as error:
            raise HTTPException(415, f"“{plain}” cannot be read as an image: {error}") from None
        with self._lock:  # two of one name at once
            return self._keep(place, plain, content)

    @staticmethod
    def _keep(place: Path, plain: str, content: bytes) -> str:
        with os.scandir(place) as entries:
            sizes = {entry.name.casefold(): entry.stat(follow_symlinks=False).st_size for entry in entries}
        if len(sizes) >= MOST_FILES or sum(sizes.values()) + len(content) > MOST_OF_ALL:
            words = f"A folder takes {MOST_FILES:,} images and {MOST_OF_ALL // 10**9} GB at most"
            raise HTTPException(413, f"{words}: copy more of them into a folder, and choose that.")
        free, number = plain, 1
        while free.casefold() in sizes:
            number += 1
            free = f"{stem_of(plain)}-{number}{suffix_of(plain)}"
        create(place / f".{free}.partial", content, becomes=place / free)
        return free


def plain_name(name: str) -> str:
    """The last part of a name, of letters, digits, `.`, `-` and `_`.

    Examples
    --------
    >>> plain_name("../a b/Plate (3).PNG"), plain_name("..")
    ('Plate-3-.PNG', 'image')
    """
    last = re.split(r"[/\\]", unicodedata.normalize("NFKC", name))[-1]
    return re.sub(r"[^\w.-]+", "-", last).strip("-._")[-LONGEST_NAME:].lstrip("-.") or "image"
