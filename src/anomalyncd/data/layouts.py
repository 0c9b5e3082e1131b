"""How defect data sets lie on disk: one walk finds the files, names tie images to their maps and masks."""

from __future__ import annotations

import os
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from ..errors import DataError
from .images import IMAGE_SUFFIXES, OTHER_IMAGE_SUFFIXES

_MTD_FILE = re.compile(r"MT_([^/]+)/Imgs/[^/]+")
_SPLITS = frozenset({"test", "ground_truth"})  # folders of a product that say nothing of what an image shows
_KNOWN = IMAGE_SUFFIXES | {".npy"}
_N_NAMED = 5  # files that a message names before it only counts


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
    return scan_images(root, other_folders=other_folders)[0]


def scan_images(root: Path, *, other_folders: Sequence[Path] = ()) -> tuple[list[tuple[str, str | None]], list[str]]:
    """What `find_images` finds, and the images of formats that cannot be read."""
    files = find_files(root, IMAGE_SUFFIXES | OTHER_IMAGE_SUFFIXES)
    real_root = root.resolve()
    for other in (folder.resolve() for folder in other_folders):
        if other == real_root:
            files = _without_companions(files)
        elif other.is_relative_to(real_root):
            inside = f"{other.relative_to(real_root).as_posix()}/"
            files = [file for file in files if not file.startswith(inside)]
    foreign = [file for file in files if suffix_of(file) in OTHER_IMAGE_SUFFIXES]
    files = [file for file in files if suffix_of(file) in IMAGE_SUFFIXES]

    mtd_files = [file for file in files if _MTD_FILE.fullmatch(file)]
    if mtd_files:
        photos = {stem_of(file) for file in mtd_files if suffix_of(file) != ".png"}
        images = [file for file in mtd_files if suffix_of(file) != ".png" or stem_of(file) not in photos]
        return [(file, _mtd_label(file)) for file in images], foreign

    products = sorted({file.split("/")[0] for file in files if file.split("/")[1:2] == ["ground_truth"]})
    if products:
        raise DataError(
            f"{root}: expected images of one product, found a folder of products ({named(products)}). "
            f"Give one of them, such as {root / products[0]}"
        )
    return [(file, file.split("/")[0] if "/" in file else None) for file in files], foreign


@dataclass(frozen=True)
class Match:
    """found : image id → position of its name; surplus : names of no image, those of other products aside."""

    found: dict[str, int]
    surplus: list[str]


def match_names(
    ids: Sequence[str], names: Sequence[str], *, ending: str, root: Path, source: Path, left_out: Sequence[str] = ()
) -> Match:
    """Tie each image to the one of `names` that is the end of its path: `<name>` or `<name><ending>`, with any suffix.

    How much of the path the names hold is the same for all: what matches most images, of equal ones the longest. So
    names within one product (`crack/000.png`) match, and those of many products (`hazelnut/crack/000.png`). Folders
    called test or ground_truth do not count. Where nothing matches so, names without any folder do.

    Parameters
    ----------
    ids : POSIX paths of the images relative to `root`, whose own path tells the product
    names : POSIX paths
    source : of the names, for errors
    left_out : ids of images that need no name but may have one

    Raises
    ------
    DataError
        Two names for one image, or two images for one name.

    Examples
    --------
    >>> names = ["bottle/good/000.png", "hazelnut/crack/000_map.png", "hazelnut/crack/001.png"]
    >>> match_names(["crack/000.jpg"], names, ending="_map", root=Path("mvtec/hazelnut/test"), source=Path("maps"))
    Match(found={'crack/000.jpg': 1}, surplus=['hazelnut/crack/001.png'])
    """
    keys = ["/".join(_steps(stem_of(name) if suffix_of(name) in _KNOWN else name)) for name in names]
    positions: dict[str, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        positions[key].append(position)

    def candidates(path: Sequence[str]) -> list[int]:
        key = "/".join(path)
        return positions.get(key, []) + positions.get(key + ending, [])

    paths, others = ([_image_steps(root, id_) for id_ in some] for some in (ids, left_out))
    folders = [path[:-1] for path in paths]
    shared = [
        low for low, _ in takewhile(lambda pair: pair[0] == pair[1], zip(min(folders), max(folders), strict=False))
    ]
    own = _image_steps(root, "any")[:-1]
    if shared[: len(own)] != own:  # a table that lies elsewhere
        own = shared
    deepest = max((key.count("/") for key in keys), default=0)
    choices = (range(max(0, len(own) - deepest), len(own) + 1), range(len(own) + 1, len(shared) + 1))
    cut = _best_cut(choices, lambda cut: sum(bool(candidates(path[cut:])) for path in paths))
    paths, others = ([path[-1:] if cut is None else path[cut:] for path in some] for some in (paths, others))

    found: dict[str, int] = {}
    owner: dict[int, str] = {}
    for id_, path in zip(ids, paths, strict=True):
        fitting = candidates(path)
        if not fitting:
            continue
        if len(fitting) > 1:
            several = named([names[position] for position in fitting])
            raise DataError(f"{source}: ambiguous, {several} all belong to {id_}. Keep one of them")
        position = fitting[0]
        if position in owner:
            raise DataError(
                f"{source}: ambiguous, {names[position]} may belong to {owner[position]} or to {id_}. "
                "Put the maps or masks into the same subfolders as the images, under the images' names"
            )
        owner[position] = id_
        found[id_] = position

    claimed = {*owner, *(position for path in others for position in candidates(path))}
    product = "" if cut is None else "".join(f"{step}/" for step in own[cut:])
    flat = max(map(len, paths)) == 1
    surplus = [
        name
        for position, (name, key) in enumerate(zip(names, keys, strict=True))
        if not found or (position not in claimed and key.startswith(product) and not (flat and "/" in key))
    ]
    return Match(found, surplus)


def match_files(
    ids: Sequence[str],
    folder: Path,
    *,
    suffixes: Collection[str],
    ending: str,
    root: Path,
    left_out: Sequence[str] = (),
) -> tuple[dict[str, Path], list[str]]:
    """The one file in `folder` for each image id, where there is one, and the files of no image; as `match_names`.

    `root` is the folder of the images: where it is `folder` or lies inside, no image is its own companion.
    """
    files = find_files(folder, suffixes)
    if is_inside(root, folder):
        inside = root.resolve().relative_to(folder.resolve()).as_posix()
        images = {posixpath.normpath(posixpath.join(inside, id_)) for id_ in (*ids, *left_out)}
        files = [file for file in files if file not in images]
    match = match_names(ids, files, ending=ending, root=root, source=folder, left_out=left_out)
    return {id_: folder / files[position] for id_, position in match.found.items()}, match.surplus


def product_folder(folder: Path, *parts: str) -> Path:
    """The first of `parts` ("test", …) that `folder`, or the AeBAD_S inside it, has; else `folder`."""
    nested = folder / "AeBAD_S"
    product = nested if nested.is_dir() else folder
    return next((product / part for part in parts if (product / part).is_dir()), folder)


def missing_maps_message(
    source: Path, n_images: int, missing: Sequence[str], surplus: Sequence[str] = (), *, stacked: bool = False
) -> str:
    """What to say when images have no map; `surplus`: the names of maps that match no image."""
    others = f"{counted(surplus, 'map')} of no image: {named(surplus)}. " if surplus else ""
    files = "with .npy, .tif, .tiff or .png, in the same subfolder"
    return (
        f"{source}: expected one map for each of {n_images} images, none found for {named(missing)} "
        f"({len(missing)} of {n_images}). {others}"
        f"A map has its image's name{', with the subfolder' if stacked else f' {files}'}. Pass --detector to compute maps."
    )


def named(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    rest = len(names) - _N_NAMED
    return ", ".join(names[:_N_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def counted(names: Sequence[str], what: str) -> str:
    """How many of what there are: "1 map", "2 maps"."""
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def is_inside(folder: Path, other: Path) -> bool:
    """Whether `folder` is `other` or lies below it."""
    return folder.resolve().is_relative_to(other.resolve())


def posix(path: str) -> str:
    """A path that may have been written on Windows, with slashes."""
    return path.replace("\\", "/")


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


def _steps(stem: str) -> list[str]:
    """Folders and name of a POSIX path, without the folders that a map's path need not have."""
    *folders, name = stem.split("/")
    return [folder for folder in folders if folder not in _SPLITS and folder not in ("", ".")] + [name]


def _best_cut(choices: Sequence[range], n_matched: Callable[[int], int]) -> int | None:
    """How many leading folders to cut off, by the first of the choices in which anything matches."""
    for cuts in choices:
        counts = [n_matched(cut) for cut in cuts]
        if any(counts):
            return cuts[counts.index(max(counts))]
    return None


def _image_steps(root: Path, id_: str) -> list[str]:
    return _steps(stem_of(Path(os.path.abspath(root / id_)).as_posix()))
