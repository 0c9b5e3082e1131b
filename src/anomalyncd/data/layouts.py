"""How defect data sets lie on disk: one walk finds the files, names tie images to their maps and masks."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from anomalyncd.data.images import IMAGE_SUFFIXES
from anomalyncd.errors import DataError

_MTD_FILE = re.compile(r"MT_([^/]+)/Imgs/[^/]+")
_N_NAMED = 3  # files that an error names before it only counts


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


def find_images(root: Path, *, other_folders: Sequence[Path] = ()) -> list[tuple[str, str | None]]:
    """(id, label) of each image below `root`, without the folders of maps and masks that lie inside."""
    files = find_files(root, IMAGE_SUFFIXES)
    real_root = root.resolve()
    for other in (folder.resolve() for folder in other_folders):
        if other == real_root:
            files = _without_companions(files)
        elif other.is_relative_to(real_root):
            inside = f"{other.relative_to(real_root).as_posix()}/"
            files = [file for file in files if not file.startswith(inside)]

    mtd_files = [file for file in files if _MTD_FILE.fullmatch(file)]
    if mtd_files:
        photos = {stem_of(file) for file in mtd_files if suffix_of(file) != ".png"}
        return [
            (file, _mtd_label(file)) for file in mtd_files if suffix_of(file) != ".png" or stem_of(file) not in photos
        ]

    products = sorted({file.split("/")[0] for file in files if file.split("/")[1:2] == ["ground_truth"]})
    if products:
        raise DataError(
            f"{root}: expected images of one product, found a folder of products ({_named(products)}). "
            f"Give one of them, such as {root / products[0]}"
        )
    return [(file, file.split("/")[0] if "/" in file else None) for file in files]


def match_files(
    ids: Sequence[str], folder: Path, *, suffixes: Collection[str], ending: str, root: Path
) -> dict[str, Path]:
    """The one file in `folder` for each image id, where there is one: `<name>.*` or `<name><ending>.*`.

    `folder` mirrors the tree of the ids or, if nothing is found that way, is flat. `root` is the folder of
    the images: if it is the same, no image is its own companion. Raises DataError where a pair is ambiguous.
    """
    files = find_files(folder, suffixes)
    if folder.resolve() == root.resolve():
        images = set(ids)
        files = [file for file in files if file not in images]
    by_stem: dict[str, list[str]] = defaultdict(list)
    for file in files:
        by_stem[stem_of(file)].append(file)

    stems = [stem_of(id_) for id_ in ids]
    if not any(stem in by_stem or stem + ending in by_stem for stem in stems):
        stems = [PurePosixPath(stem).name for stem in stems]

    found: dict[str, Path] = {}
    owner: dict[str, str] = {}
    for id_, stem in zip(ids, stems, strict=True):
        candidates = by_stem.get(stem, []) + by_stem.get(stem + ending, [])
        if not candidates:
            continue
        if len(candidates) > 1:
            raise DataError(f"{folder}: ambiguous, {_named(candidates)} all belong to {id_}. Keep one of them")
        file = candidates[0]
        if file in owner:
            raise DataError(
                f"{folder / file}: ambiguous, it may belong to {owner[file]} or to {id_}. "
                "Put the files into the same subfolders as the images, under the images' names"
            )
        owner[file] = id_
        found[id_] = folder / file
    return found


def product_folder(folder: Path, *parts: str) -> Path:
    """The first of `parts` ("test", …) that `folder`, or the AeBAD_S inside it, has; else `folder`."""
    nested = folder / "AeBAD_S"
    product = nested if nested.is_dir() else folder
    return next((product / part for part in parts if (product / part).is_dir()), folder)


def missing_maps_message(folder: Path, n_images: int, missing: Sequence[str]) -> str:
    """What to say when images have no map."""
    return (
        f"{folder}: expected one map for each of {n_images} images, none found for {_named(missing)}. "
        "A map has its image's name with .npy, .tif, .tiff or .png, in the same subfolder. "
        "Pass --detector to compute maps."
    )


def suffix_of(file: str) -> str:
    """Lower-case suffix with its dot."""
    return os.path.splitext(file)[1].lower()


def stem_of(file: str) -> str:
    """The path without its last suffix."""
    return os.path.splitext(file)[0]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; reading it will give a clear error
        return False


def _without_companions(files: list[str]) -> list[str]:
    """Leave out x_mask.png and x_map.png where they lie beside an image x."""
    stems = {stem_of(file) for file in files}
    companions = {stem + ending for stem in stems for ending in ("_mask", "_map")}
    return [file for file in files if stem_of(file) not in companions]


def _mtd_label(file: str) -> str:
    label = file.split("/")[0].removeprefix("MT_").lower()
    return "good" if label == "free" else label


def _named(names: Sequence[str]) -> str:
    rest = len(names) - _N_NAMED
    return ", ".join(names[:_N_NAMED]) + (f" and {rest} more" if rest > 0 else "")
