"""Names tie images to their maps and masks, which lie in folders or, maps, in one stack."""

from __future__ import annotations

import os
import posixpath
from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from ..errors import DataError
from ..paths import counted, is_inside, named, resolved, stem_of, suffix_of
from ..places.stored import File, Stored
from .images import IMAGE_SUFFIXES
from .layouts import find_files
from .maps import MAP_SUFFIXES, StackRow, open_stack, read_row_names

_SPLITS = frozenset({"test", "ground_truth"})  # folders of a product that say nothing of what an image shows
_KNOWN = IMAGE_SUFFIXES | {".npy"}
_SUFFIXES = {"map": MAP_SUFFIXES, "mask": _KNOWN}


def find_companions(
    what: str, place: File, root: File, ids: Sequence[str], all_ids: Sequence[str]
) -> tuple[dict[str, File | StackRow], list[str]]:
    """Image id → its map or mask, where there is one; and the names of those that are of no image.

    Parameters
    ----------
    what : "map" or "mask"; every image needs a map, and some image a mask
    place : folder, or stack of maps
    root : folder of the images; where it is `place` or lies inside, no image is its own companion
    ids, all_ids : of the images relative to `root`, and with those that were excluded, in the order of a stack's rows
    """
    found: dict[str, File | StackRow] = {}
    if isinstance(place, Path) and place.is_file():
        found, surplus = _match_rows(place, root, ids, all_ids)
    else:
        names = find_files(place, _SUFFIXES[what])
        if is_inside(root, place):
            inside = resolved(root).relative_to(resolved(place)).as_posix()  # type: ignore[arg-type]
            images = {posixpath.normpath(posixpath.join(inside, id_)) for id_ in all_ids}
            names = [name for name in names if name not in images]
        match, surplus = match_names(ids, names, ending=f"_{what}", root=root, source=place, all_ids=all_ids)
        found = {id_: place / names[position] for id_, position in match.items()}
    missing = [id_ for id_ in ids if id_ not in found]
    if missing and what == "map":
        raise DataError(missing_maps(place, len(ids), missing, surplus))
    if not found:
        others = f". {counted(surplus, 'mask')} of no image: {named(surplus)}" if surplus else ""
        raise DataError(
            f"{place}: expected masks for {len(ids)} images, found none that matches. "
            f"The mask of {ids[0]} would be {stem_of(ids[0])}.png or {stem_of(ids[0])}_mask.png{others}"
        )
    return found, surplus


def match_names(
    ids: Sequence[str], names: Sequence[str], *, ending: str, root: File, source: File, all_ids: Sequence[str] = ()
) -> tuple[dict[str, int], list[str]]:
    """Tie each image to the one of `names` that is the end of its path: `<name>` or `<name><ending>`, with any suffix.

    How much of the path the names hold is the same for all: what matches most images, of equal ones the longest. So
    names within one product (`crack/000.png`) match, and those of many products (`hazelnut/crack/000.png`). Folders
    called test or ground_truth do not count. Where nothing matches so, names without any folder do.

    Parameters
    ----------
    ids : POSIX paths of the images relative to `root`, whose own path tells the product
    names : POSIX paths
    source : of the names, for errors
    all_ids : ids with those of images that need no name but may have one

    Returns
    -------
    Image id → position of its name; and the names of no image, those of other products aside.

    Raises
    ------
    DataError
        Two names for one image, or two images for one name.

    Examples
    --------
    >>> names = ["bottle/good/000.png", "hazelnut/crack/000_map.png", "hazelnut/crack/001.png"]
    >>> match_names(["crack/000.jpg"], names, ending="_map", root=Path("mvtec/hazelnut/test"), source=Path("maps"))
    ({'crack/000.jpg': 1}, ['hazelnut/crack/001.png'])
    """
    keys = ["/".join(_steps(stem_of(name) if suffix_of(name) in _KNOWN else name)) for name in names]
    positions: dict[str, list[int]] = defaultdict(list)
    for position, key in enumerate(keys):
        positions[key].append(position)

    def candidates(path: Sequence[str]) -> list[int]:
        key = "/".join(path)
        return positions.get(key, []) + positions.get(key + ending, [])

    def image_steps(id_: str) -> list[str]:
        return _steps(stem_of(_whole(root, id_)))

    paths = [image_steps(id_) for id_ in ids]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    shared = [folders[0] for folders in takewhile(lambda folders: len(set(folders)) == 1, levels)]
    own = image_steps("any")[:-1]
    if shared[: len(own)] != own:  # a table that lies elsewhere
        own = shared
    deepest = max((key.count("/") for key in keys), default=0)
    begin, product = -1, ""  # names without any folder
    for cuts in (range(max(0, len(own) - deepest), len(own) + 1), range(len(own) + 1, len(shared) + 1)):
        counts = [sum(bool(candidates(path[cut:])) for path in paths) for cut in cuts]
        if any(counts):
            begin = cuts[counts.index(max(counts))]
            product = "".join(f"{step}/" for step in own[begin:])
            break

    found: dict[str, int] = {}
    owner: dict[int, str] = {}
    for id_, path in zip(ids, paths, strict=True):
        fitting = candidates(path[begin:])
        if len(fitting) > 1:
            several = named([names[position] for position in fitting])
            raise DataError(f"{source}: ambiguous, {several} all belong to {id_}. Keep one of them")
        for position in fitting:
            if position in owner:
                raise DataError(
                    f"{source}: ambiguous, {names[position]} may belong to {owner[position]} or to {id_}. "
                    "Put the maps or masks into the same subfolders as the images, under the images' names"
                )
            owner[position], found[id_] = id_, position

    claimed = {*owner, *(position for id_ in all_ids for position in candidates(image_steps(id_)[begin:]))}
    flat = all(len(path[begin:]) == 1 for path in paths)
    surplus = [
        name
        for position, (name, key) in enumerate(zip(names, keys, strict=True))
        if not found or (position not in claimed and key.startswith(product) and not (flat and "/" in key))
    ]
    return found, surplus


def missing_maps(source: File, n_images: int, missing: Sequence[str], surplus: Sequence[str] = ()) -> str:
    """What to say when images have no map; `surplus`: the names of maps that match no image."""
    others = f"{counted(surplus, 'map')} of no image: {named(surplus)}. " if surplus else ""
    stacked = source.suffix.lower() == ".npy"
    files = ", with the subfolder" if stacked else " with .npy, .tif, .tiff or .png, in the same subfolder"
    return (
        f"{source}: expected one map for each of {n_images} images, none found for {named(missing)} "
        f"({len(missing)} of {n_images}). {others}A map has its image's name{files}. Pass --detector to compute maps."
    )


def _match_rows(
    stack: Path, root: File, ids: Sequence[str], all_ids: Sequence[str]
) -> tuple[dict[str, File | StackRow], list[str]]:
    n_rows, named_rows = len(open_stack(stack)), read_row_names(stack)
    if named_rows is None:
        kept = set(ids)
        for order in (all_ids, [id_ for id_ in all_ids if id_ in kept]):
            if len(order) == n_rows:
                return {id_: StackRow(stack, index) for index, id_ in enumerate(order)}, []
        table, text = stack.with_suffix(".csv"), stack.with_suffix(".txt")
        raise DataError(
            f"{stack}: expected one map for each of {len(ids)} images, found {n_rows} maps. To say which image each is of, "
            f"put the images' names into {table.name} (column 'image') or {text.name} (one a line) beside it"
        )
    source, names = named_rows
    if len(names) != n_rows:
        raise DataError(
            f"{source}: expected a name for each of {n_rows} maps in {stack.name}, found {len(names)} names"
        )
    match, surplus = match_names(ids, names, ending="_map", root=root, source=source, all_ids=all_ids)
    return {id_: StackRow(stack, position) for id_, position in match.items()}, surplus


def _whole(root: File, id_: str) -> str:
    """The path of an image, with an archive called as the folder that it was made from."""
    if isinstance(root, Stored):
        return f"{root.store.name}/{root.inner}/{id_}".replace(".tar/", "/")
    return Path(os.path.abspath(root / id_)).as_posix()


def _steps(stem: str) -> list[str]:
    """Folders and name of a POSIX path, without the folders that a map's path need not have."""
    *folders, name = stem.split("/")
    return [folder for folder in folders if folder not in _SPLITS and folder not in ("", ".")] + [name]
