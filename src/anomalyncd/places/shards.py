"""Archives as WebDataset has them: beside `key.jpg` lie `key.map.npy`, `key.mask.png` and `key.cls`, if there are any."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping

from ..errors import DataError
from ..paths import stem_of
from .stored import Stored

CLASS = ".cls"
LONGEST_LABEL = 1000  # bytes


def belonging(
    ids: Iterable[str], root: Stored, suffixes: Mapping[str, Collection[str]]
) -> dict[str, dict[str, Stored]]:
    """Kind (`map`, `mask`, `cls`) → image id → the member that lies beside the image.

    Parameters
    ----------
    ids : of the images below `root`; one that is the map or mask of another has nothing of its own
    suffixes : kind → those that it may have, as `map` may have .npy in `key.map.npy`
    """
    id_of = {stem_of(id_): id_ for id_ in ids}
    found: dict[str, dict[str, Stored]] = {kind: {} for kind in (*suffixes, CLASS[1:])}
    for name in root.find({CLASS, *(suffix for some in suffixes.values() for suffix in some)}):
        key, suffix = posixpath.splitext(name)
        kind = suffix[1:]
        if suffix != CLASS:
            key, kind = key.rsplit(".", 1)[0], key.rsplit(".", 1)[-1]
        if key not in id_of or (suffix != CLASS and suffix.lower() not in suffixes.get(kind, ())):
            continue
        if other := found[kind].get(id_of[key]):
            raise DataError(
                f"{root}: ambiguous, {other.inner} and {name} both belong to {id_of[key]}. Keep one of them"
            )
        found[kind][id_of[key]] = root / name
    return found


def read_class(file: Stored) -> str | None:
    """The name of a class, as text; None where it is empty."""
    if file.stat().st_size > LONGEST_LABEL:  # before any of it is fetched
        raise DataError(f"{file}: expected the name of a class, but it is longer than any name")
    with file.open() as held:
        text = held.read()
    try:
        return text.decode("utf-8").strip() or None
    except ValueError as error:
        raise DataError(f"{file}: expected the name of a class, in UTF-8 ({error})") from error
