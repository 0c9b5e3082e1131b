"""How defect data sets lie on disk: one walk finds the files."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeVar

from ..errors import DataError
from ..paths import is_inside, named, resolved, stem_of, suffix_of
from ..places.plain import find_plain
from ..places.stored import File, Stored
from .images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES

F = TypeVar("F", Path, Stored, File)
_MTD_FILE = re.compile(r"MT_([^/]+)/Imgs/[^/]+")


def find_files(folder: File, suffixes: Collection[str]) -> list[str]:
    """Sorted POSIX paths, relative to `folder`, of all files below it that have one of the `suffixes`; no hidden ones."""
    return folder.find(suffixes) if isinstance(folder, Stored) else find_plain(folder, suffixes)


def find_images(root: File, *, other_folders: Sequence[File] = ()) -> tuple[list[tuple[str, str | None]], list[str]]:
    """(id, label) of each image below `root`, without the folders of maps and masks that lie inside.

    And the names of the images of formats that cannot be read.
    """
    files = find_files(root, IMAGE_SUFFIXES | OTHER_IMAGE_SUFFIXES)
    real_root = resolved(root)
    for other in (resolved(folder) for folder in other_folders if is_inside(folder, root)):
        if other == real_root:  # x_mask.png and x_map.png lie beside an image x
            companions = {stem_of(file) + ending for file in files for ending in ("_mask", "_map")}
            files = [file for file in files if stem_of(file) not in companions]
        else:
            inside = f"{other.relative_to(real_root).as_posix()}/"  # type: ignore[arg-type]
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


def product_folder(folder: F, *parts: str) -> F:
    """The first of `parts` ("test", …) that `folder`, or the AeBAD_S inside it, has; else `folder`."""
    nested = folder / "AeBAD_S"
    product = nested if nested.is_dir() else folder
    return next((product / part for part in parts if (product / part).is_dir()), folder)
