"""How defect data sets lie on disk: one walk finds the files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from ..errors import DataError
from ..paths import named, resolved, stem_of, suffix_of
from .images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES

_MTD_FILE = re.compile(r"MT_([^/]+)/Imgs/[^/]+")


def find_files(folder: Path, suffixes: Collection[str]) -> list[str]:
    """Sorted POSIX paths, relative to `folder`, of all files below it that have one of the `suffixes`.

    Hidden files and folders are left out. Linked folders are followed, but no folder is entered twice.
    """
    files: list[str] = []
    folders, links = [""], list[str]()
    entered: set[tuple[int, int]] = set()
    while folders or links:
        if not folders:  # links last, so that a folder is known by its own name rather than by a link's
            links.sort(reverse=True)
            folders.append(links.pop())
        prefix = folders.pop()
        here = folder / prefix
        try:
            status = here.stat()
            if (status.st_dev, status.st_ino) in entered:
                continue
            entered.add((status.st_dev, status.st_ino))
            with os.scandir(here) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if _is_folder(entry):
                        (links if entry.is_symlink() else folders).append(f"{prefix}{entry.name}/")
                    elif suffix_of(entry.name) in suffixes:
                        files.append(prefix + entry.name)
        except OSError as error:
            raise DataError(f"{here}: the folder cannot be read ({error.strerror})") from error
    return sorted(files)


def find_images(root: Path, *, other_folders: Sequence[Path] = ()) -> tuple[list[tuple[str, str | None]], list[str]]:
    """(id, label) of each image below `root`, without the folders of maps and masks that lie inside.

    And the names of the images of formats that cannot be read.
    """
    files = find_files(root, IMAGE_SUFFIXES | OTHER_IMAGE_SUFFIXES)
    real_root = resolved(root)
    for other in (resolved(folder) for folder in other_folders):
        if other == real_root:  # x_mask.png and x_map.png lie beside an image x
            companions = {stem_of(file) + ending for file in files for ending in ("_mask", "_map")}
            files = [file for file in files if stem_of(file) not in companions]
        elif other.is_relative_to(real_root):
            inside = f"{other.relative_to(real_root).as_posix()}/"
            files = [file for file in files if not file.startswith(inside)]
    foreign = [file for file in files if suffix_of(file) in OTHER_IMAGE_SUFFIXES]
    files = [file for file in files if suffix_of(file) in IMAGE_SUFFIXES]

    if mtd := [file for file in files if _MTD_FILE.fullmatch(file)]:
        photos = {stem_of(file) for file in mtd if suffix_of(file) != ".png"}
        images = [file for file in mtd if suffix_of(file) != ".png" or stem_of(file) not in photos]
        labels = [file.split("/")[0].removeprefix("MT_").lower() for file in images]
        return [
            (file, "good" if label == "free" else label) for file, label in zip(images, labels, strict=True)
        ], foreign

    products = sorted({file.split("/")[0] for file in files if file.split("/")[1:2] == ["ground_truth"]})
    if products:
        raise DataError(
            f"{root}: expected images of one product, found a folder of products ({named(products)}). "
            f"Give one of them, such as {root / products[0]}"
        )
    return [(file, file.split("/")[0] if "/" in file else None) for file in files], foreign


def product_folder(folder: Path, *parts: str) -> Path:
    """The first of `parts` ("test", …) that `folder`, or the AeBAD_S inside it, has; else `folder`."""
    nested = folder / "AeBAD_S"
    product = nested if nested.is_dir() else folder
    return next((product / part for part in parts if (product / part).is_dir()), folder)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reading it will give a clear error
        return False
