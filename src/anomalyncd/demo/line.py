"""The whole line on disk: images, masks, maps and the table of truth."""

from __future__ import annotations

import csv
import inspect
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from ..errors import DataError, SettingsError
from .defects import DEFECT_KINDS, check_kinds
from .scene import DemoImage, make_image

MOST_IMAGES = 1_000_000
_VERSION = 1  # raise it when equal settings give other pixels, so that old folders are not reused
_PNG = [cv2.IMWRITE_PNG_COMPRESSION, 3, cv2.IMWRITE_PNG_STRATEGY, cv2.IMWRITE_PNG_STRATEGY_FILTERED]


def iter_line(
    *,
    n_per_class: int = 16,
    n_normal: int = 24,
    n_combined: int = 4,
    size: int | tuple[int, int] = 320,
    texture: str | Sequence[str] = "brushed_metal",
    kinds: Sequence[str] = DEFECT_KINDS,
    seed: int = 0,
) -> Iterator[DemoImage]:
    """The images of a line one by one, without writing them: good ones, each kind, then combined ones.

    An image depends on its class, its number and the settings, not on how many others are asked for.

    Parameters
    ----------
    n_per_class : images of each defect kind
    n_normal : good images
    n_combined : images with two different kinds
    size : side of the square images, or (H, W)
    texture : a name out of `TEXTURES`, or several that take turns from image to image
    kinds : which of `DEFECT_KINDS` occur
    seed : same seed, same line

    Examples
    --------
    >>> line = iter_line(n_per_class=1, n_normal=1, n_combined=1, size=64, kinds=["hole", "crack"])
    >>> [(item.name, len(item.kinds)) for item in line]
    [('good/000', 0), ('hole/000', 1), ('crack/000', 1), ('combined/000', 2)]
    """
    shape = (size, size) if isinstance(size, int) else size
    textures = [texture] if isinstance(texture, str) else list(texture)
    for label, index in _plan(n_per_class, n_normal, n_combined, kinds):
        class_index = ("good", *DEFECT_KINDS, "combined").index(label)
        rng = np.random.default_rng([seed, class_index, index])
        if label == "combined":
            present = tuple(rng.choice(sorted(set(kinds)), 2, replace=False).tolist())
        else:
            present = () if label == "good" else (label,)
        surface = textures[index % len(textures)]
        yield make_image(present, texture=surface, rng=rng, size=shape, name=f"{label}/{index:03d}")


def make_line(out: str | Path, *, on_image: Callable[[int, int], None] | None = None, **settings: Any) -> Path:
    """Write a line: `images/<label>/<nnn>.png`, `masks/…` (none for good images), `maps/…npy`, `truth.csv`.

    `demo.json` keeps the settings and `truth.csv` (image, label, kinds with ';') comes last: a whole line of
    the same settings is reused, a broken-off one is made again, a folder with anything else is left alone.

    Parameters
    ----------
    out : folder to write, made where missing
    on_image : called with (images done, images in all) after each image
    settings : as in `iter_line`

    Returns
    -------
    The folder.

    Raises
    ------
    DataError
        The folder holds something else, or a line with other settings.
    SettingsError
        A setting is unknown or out of range.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     out = make_line(folder, n_per_class=1, n_normal=1, n_combined=0, size=64, kinds=["hole"])
    ...     sorted(path.relative_to(out).as_posix() for path in out.glob("i*/*/*"))
    ['images/good/000.png', 'images/hole/000.png']
    """
    out = Path(out)
    given = {**inspect.getcallargs(iter_line, **settings)}
    size, texture = given["size"], given["texture"]
    given["size"] = [size, size] if isinstance(size, int) else list(size)
    given["texture"] = [texture] if isinstance(texture, str) else list(texture)
    given["kinds"] = list(given["kinds"])
    stored = {"version": _VERSION, **given}
    plan = _plan(*(given[name] for name in ("n_per_class", "n_normal", "n_combined", "kinds")))
    _check_folder(out, stored)
    if (out / "truth.csv").exists() and all(path.exists() for item in plan for path in _files(out, *item)):
        return out
    (out / "truth.csv").unlink(missing_ok=True)

    rows = []
    for done, ((label, index), item) in enumerate(zip(plan, iter_line(**given), strict=True), start=1):
        if done == 1:  # not before the first image has proved the settings good
            _write(out / "demo.json", json.dumps(stored, indent=2).encode() + b"\n")
        for path, content in zip(_files(out, label, index), _contents(item), strict=False):
            _write(path, content)
        rows.append([f"{item.name}.png", item.label, ";".join(item.kinds)])
        if on_image is not None:
            on_image(done, len(plan))
    table = io.StringIO()
    csv.writer(table, lineterminator="\n").writerows([["image", "label", "kinds"], *rows])
    _write(out / "truth.csv", table.getvalue().encode())
    return out


def _plan(n_per_class: int, n_normal: int, n_combined: int, kinds: Sequence[str]) -> list[tuple[str, int]]:
    """Label and number of every image, in order."""
    check_kinds(kinds)
    if n_combined and len(set(kinds)) < 2:
        raise SettingsError(f"combined images need two kinds of defect, but kinds is {list(kinds)}: set n_combined=0")
    counts = {"good": n_normal, **dict.fromkeys(kinds, n_per_class), "combined": n_combined}
    if min(counts.values()) < 0 or not any(counts.values()):
        raise SettingsError(f"a line needs at least one image and no negative number of them, but got {counts}")
    if sum(counts.values()) > MOST_IMAGES:
        raise SettingsError(f"a line has at most {MOST_IMAGES:,} images, but {sum(counts.values()):,} were asked for")
    return [(label, index) for label, n in counts.items() for index in range(n)]


def _check_folder(out: Path, settings: dict[str, Any]) -> None:
    if out.exists() and not out.is_dir():
        raise DataError(f"{out}: expected a folder for the demo line, found a file. Choose another name.")
    if not out.exists() or not any(out.iterdir()):
        return
    try:
        found = json.loads((out / "demo.json").read_bytes())
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise DataError(f"{out}: expected an empty folder or a demo line, found other files. Choose another folder.")
    if found != settings:
        other = ", ".join(f"{k}={found.get(k)}" for k in settings if found.get(k) != settings[k])
        raise DataError(f"{out}: holds a demo line with other settings ({other}). Choose another folder or delete it.")


def _files(out: Path, label: str, index: int) -> list[Path]:
    """Image, map and, for a defect, mask."""
    name = f"{label}/{index:03d}"
    paths = [out / "images" / f"{name}.png", out / "maps" / f"{name}.npy"]
    return paths if label == "good" else [*paths, out / "masks" / f"{name}.png"]


def _contents(item: DemoImage) -> Iterator[bytes]:
    """The bytes of the files of `_files`, in the same order."""
    yield _png(cv2.cvtColor(item.image, cv2.COLOR_RGB2BGR))
    array = io.BytesIO()
    np.save(array, item.map)
    yield array.getvalue()
    yield _png(item.mask.astype(np.uint8) * 255)


def _png(image: Any) -> bytes:
    return cv2.imencode(".png", image, _PNG)[1].tobytes()


def _write(path: Path, content: bytes) -> None:
    """Write whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
