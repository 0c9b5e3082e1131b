"""Where an export goes: a folder that appears whole or not at all, and that takes the place of nothing but an export."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from .. import __version__
from ..errors import AnomalyNCDError, RunError, SettingsError
from ..paths import resolved
from ..places.stored import File
from ..run.folder import PARTIAL, RunFolder
from ..runtime.folder import MARKER

__all__ = ["MARKER", "check_outside", "whole_folder", "write_json"]


@contextmanager
def whole_folder(out: Path, format: str, notes: Mapping[str, Any]) -> Iterator[Path]:
    """Yield a new folder to write to; at the end it becomes `out`, in the place of an earlier export of this format.

    notes : what else to say in export.json, read at the end
    """
    _check_free(out, format)
    out = resolved(out)
    partial, old = out.with_name(out.name + PARTIAL), out.with_name(f"{out.name}.old{PARTIAL}")
    try:
        for leftover in (partial, old):  # of a call that was killed
            if (leftover / MARKER).is_file() or (leftover.is_dir() and not any(leftover.iterdir())):
                shutil.rmtree(leftover)
            elif leftover.exists():
                raise RunError(f"{leftover}: is in the way of the export. Remove it, or choose another --out.")
        partial.mkdir(parents=True)
        try:
            _write_marker(partial, format, {})
            yield partial
            _write_marker(partial, format, notes)
            if out.exists():
                os.replace(out, old)
            os.replace(partial, out)
        except BaseException:
            with suppress(OSError):
                shutil.rmtree(partial)
            if old.exists() and not out.exists():
                os.replace(old, out)
            raise
        shutil.rmtree(old, ignore_errors=True)
    except AnomalyNCDError:  # of which some are OSErrors
        raise
    except OSError as error:
        raise RunError(f"{out}: cannot write the export ({error.strerror or error}). Nothing was changed.") from error


def check_outside(out: Path, run: RunFolder, images: Iterable[tuple[str, File | None]]) -> None:
    """An export among the images would be taken for images by the next call that reads their folder.

    One that lies in the run must not be led out of it by a link. images : names, and where they lie
    """
    if Path(os.path.abspath(out)).is_relative_to(os.path.abspath(run.path)):
        run.place(os.path.relpath(out, run.path))
    place = resolved(out)
    if place.is_relative_to(resolved(run.path)):  # which is outside: `discover` has seen to it
        return
    folders: dict[Path, None] = {}
    for name, file in images:
        if isinstance(file, Path):
            folders[file.parent] = None
            parts = Path(name).parts
            if not Path(name).is_absolute() and file.parts[-len(parts) :] == parts:
                folders[file.parents[len(parts) - 1]] = None
    for folder in folders:
        if place.is_relative_to(resolved(folder)):
            raise SettingsError(
                f"{out}: the export would lie inside {folder}, where the images are. Choose an --out outside."
            )


def write_json(path: Path, value: Any) -> None:
    """Write JSON; lists that are given as iterators, at any depth of dictionaries, are never whole in memory."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        _write(file, value)
        file.write("\n")


def _write(file: IO[str], value: Any) -> None:
    if isinstance(value, Iterator):
        file.write("[")
        for index, item in enumerate(value):
            file.write(",\n" if index else "\n")
            _write(file, item)
        file.write("\n]")
    elif isinstance(value, Mapping):
        file.write("{")
        for index, (key, item) in enumerate(value.items()):
            file.write((", " if index else "") + json.dumps(key, ensure_ascii=False) + ": ")
            _write(file, item)
        file.write("}")
    else:
        file.write(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _write_marker(folder: Path, format: str, notes: Mapping[str, Any]) -> None:
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    own = {"format": format, "anomalyncd": __version__, "files": [name for name in files if name != MARKER]}
    text = json.dumps({**own, **notes}, indent=1, ensure_ascii=False)
    (folder / MARKER).write_text(text + "\n", encoding="utf-8", newline="\n")


def _check_free(out: Path, format: str) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise RunError(f"{out}: expected a folder for the export, but this is a file. Choose another --out.")
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if not path.is_dir()} - {MARKER}
    advice = f"Choose another --out, or remove {out} yourself."
    try:
        if not (out / MARKER).is_file():  # a pipe would never end
            raise FileNotFoundError
        marker = json.loads((out / MARKER).read_text(encoding="utf-8"))
        other, own = marker["format"], set(marker["files"])
    except FileNotFoundError:
        if not any(out.iterdir()):
            return
        name = min(found, default=next(out.iterdir()).name)
        raise RunError(
            f"{out}: expected an empty folder or an earlier export, but it holds other files ({name}). {advice}"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{out / MARKER}: expected the file of an earlier export ({error}). {advice}") from error
    if other != format:
        raise RunError(f"{out}: holds an export to {other}, and this one is to {format}. {advice}")
    if added := sorted(found - own):
        raise RunError(f"{out}: holds files that the earlier export did not write ({added[0]}). {advice}")
