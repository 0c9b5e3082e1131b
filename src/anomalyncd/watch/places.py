"""Files into the folders of their classes, moved or linked, after they were written down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from ..export.formats import safe_name
from ..run.folder import PARTIAL
from .arrivals import marks_of
from .ledger import Ledger, Placing


class Places:
    """The folder that holds a folder for each class.

    Parameters
    ----------
    link : links, hard ones where the file system allows, rather than the files themselves
    """

    def __init__(self, folder: Path, *, link: bool) -> None:
        self.folder, self.link = folder, link

    def target(self, image: str, class_name: str, id: str, taken: Iterable[str] = ()) -> Path:
        """Where an image of this name goes; where one of that name is there already, the content's id is in its name."""
        place = self.folder / safe_name(class_name) / safe_name(image)
        if place.exists() or str(place) in taken:
            place = place.with_name(f"{place.stem}-{id}{place.suffix}")
        return place

    def place(self, ledger: Ledger) -> None:
        """Do what is still to be done, also by a process that was killed. An OSError where a file cannot be placed."""
        todo = ledger.places()
        done = []
        try:
            for one in todo:
                self._place(one)
                done.append(one.seq)
        finally:
            if done:
                ledger.placed(done)

    def _place(self, one: Placing) -> None:
        source, target = Path(one.source), Path(one.target)
        if _content(marks_of(source)) != _content(
            one.marks
        ):  # gone there already, or replaced meanwhile: it has a row to come
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        if self.link:
            _link(source, target)
            return
        try:
            os.rename(source, target)
        except OSError:  # another file system
            partial = target.with_name(target.name + PARTIAL)
            shutil.copy2(source, partial)
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(partial, target)
            if _content(marks_of(source)) == _content(one.marks):
                source.unlink(missing_ok=True)
            return
        if _content(marks_of(target)) != _content(one.marks):  # replaced between the look and the move: it goes back
            _give_back(target, source)


def _content(marks: str | None) -> list[str] | None:
    """Size and time of writing; that of change is another as soon as a file is moved or linked."""
    return None if marks is None else marks.split()[:2]


def _link(source: Path, target: Path) -> None:
    for make in (os.link, os.symlink, shutil.copy2):
        try:
            make(os.path.realpath(source), target)
        except FileExistsError:  # of a process that was killed right after
            pass
        except (OSError, NotImplementedError):
            if make is shutil.copy2:
                raise
            continue  # another file system, or no right to
        return


def _give_back(target: Path, source: Path) -> None:
    place, number = source, 1
    while place.exists():
        number += 1
        place = source.with_name(f"{source.stem} ({number}){source.suffix}")
    os.rename(target, place)
