"""A folder for each class with its images in it."""

from __future__ import annotations

import os
import re
import shutil
import unicodedata
from collections.abc import Callable, Collection, Sequence
from pathlib import Path, PurePosixPath

from ..data.images import begins_as_image
from ..labels import UNKNOWN
from .source import Image, Results
from .target import MARKER

LONGEST = 150  # bytes of a name; a file system takes 255
LONGEST_SUFFIX = 6
RESERVED = re.compile(r"^(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\.|$)", re.IGNORECASE)  # devices on Windows


def copy_images(
    results: Results, images: Sequence[Image], folder: Path, link: bool, on_image: Callable[[], None]
) -> list[str]:
    """Put each image into the folder of its class.

    Parameters
    ----------
    link : hard links where the file system allows, else symbolic ones, else copies

    Returns
    -------
    Names of the images whose file is gone or cannot be read.
    """
    names: dict[str | int, str] = {UNKNOWN: "unknown"}  # equal names are one class, but no other is taken for unknown
    taken = {MARKER, "unknown"}
    for class_name in dict.fromkeys(results.classes.values()):
        names[class_name] = safe_name(class_name, taken)
        taken.add(names[class_name].casefold())
    in_folder: dict[str, set[str]] = {name: set() for name in names.values()}
    missing = []
    for image in images:
        place = names[UNKNOWN if image.label == UNKNOWN else image.class_name]
        name = safe_name(image.name, in_folder[place])
        if image.file is not None and _place(image.file, folder / place / name, link):
            in_folder[place].add(name.casefold())
        else:
            missing.append(image.name)
        on_image()
    return missing


def safe_name(name: str, taken: Collection[str] = ()) -> str:
    """A name for a file or folder that every system takes and that, in lower case (`casefold`), is not among those taken.

    Slashes become underscores, so it never leads out of its folder.

    Examples
    --------
    >>> safe_name("a/b"), safe_name("CON"), safe_name(".."), safe_name("Riß, 3 µm?")
    ('a_b', 'CON_', '_', 'Riß, 3 µm_')
    >>> safe_name("Crack/000.png", {"crack_000.png"})
    'Crack_000_2.png'
    """
    name = unicodedata.normalize("NFC", name).strip("/")
    name = "".join(letter if letter.isprintable() and letter not in '<>:"/\\|?*' else "_" for letter in name)
    name = name.rstrip(" .")
    suffix = PurePosixPath(name).suffix if len(PurePosixPath(name).suffix) <= LONGEST_SUFFIX else ""
    # Of a long name the end: there are the numbers.
    stem = name.removesuffix(suffix).encode("utf-8")[-LONGEST:].decode("utf-8", errors="ignore").strip(" .") or "_"
    stem = RESERVED.sub(r"\1_\2", stem)
    candidate, number = stem + suffix, 1
    while candidate.casefold() in taken:
        number += 1
        candidate = f"{stem}_{number}{suffix}"
    return candidate


def _place(source: Path, target: Path, link: bool) -> bool:
    """Whether the file is an image, and so was placed; a table that somebody else made may name any other file."""
    if not begins_as_image(source):
        return False
    target.parent.mkdir(exist_ok=True)
    for make in (os.link, os.symlink) if link else ():
        try:
            make(source.resolve(), target)
            return True
        except (OSError, NotImplementedError):
            continue  # another file system, or no right to
    shutil.copy2(source, target)
    return True
