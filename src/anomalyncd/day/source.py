"""Tables of `watch` and `predict`, read for the page of a day: when each image came, of which kind it is, its groups."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ..errors import AnomalyNCDError, BadFileError, DataError, MissingDataError, SettingsError, StoreError
from ..export.cells import FORMULA
from ..labels import NORMAL, NOT_THIS_PRODUCT, UNKNOWN, default_name
from ..paths import path_of
from ..places.names import file_named
from ..places.plain import open_plain, reason
from ..places.stored import File, Stored
from ..report.source import COLOURS, NORMAL_COLOUR, SHAPES, UNKNOWN_COLOUR, Look

SQLITE = (".sqlite", ".sqlite3", ".db")
NEEDED = ("image", "label", "class_name")
MOST_GROUPS = 60  # of a grouping that is still read by anyone
OTHER_COLOUR = "#5f6b78"  # what is not this product
HOURS = (6, 14, 22)
NUMBERS = ("label", "area", "x", "y", "width", "height")  # of regions
LARGEST_LABEL = 2**31
FIRST, LAST = pd.Timestamp("1900-01-01"), pd.Timestamp("2200-01-01")  # times that nanoseconds can count
REGION_COLUMNS = ("image", "label", "class_name", "area")
FIGURES = (  # columns that are reckoned with; all others of a CSV are texts
    "seq", "label", "probability", "unknown", "foreign", "false_alarm", "score", "area", "brightness", "contrast",
    "x", "y", "width", "height",
)  # fmt: skip
QUOTED = rf"^'(?=[{re.escape(''.join(FORMULA))}])"
OFFSET = r"(?:(?<=\d)\s*(?:Z|UTC)|(?<=:\d\d)(\.\d+)?\s?[+-]\d\d(?::?\d\d)?)$"  # at the end of a time


@dataclass(frozen=True)
class DayTable:
    """Images that show the product, and what is left out of all shares.

    images : image, label, class_name, time (may be NaT), day (text, "" without a time), is_defect, is_unknown, file, and all
        other columns of the table, as they are written there
    regions : of these images; empty where the table has none
    n_unreadable, n_other : by day, files that could not be read, and images of something else
    begin : hour at which a day begins
    """

    path: Path
    images: pd.DataFrame
    regions: pd.DataFrame
    n_unreadable: dict[str, int]
    n_other: dict[str, int]
    begin: int = 0

    @property
    def days(self) -> list[str]:
        """Days with images or other files, in order; [""] where nothing tells the time."""
        return sorted({*self.images["day"], *self.n_unreadable, *self.n_other} - {""}) or [""]

    @property
    def n_files(self) -> int:
        """All rows of the table."""
        return len(self.images) + sum(self.n_unreadable.values()) + sum(self.n_other.values())

    @property
    def n_timeless(self) -> int:
        """Images that are on no day, because nothing tells their time while it is told of others."""
        return 0 if self.days == [""] else int(self.images["day"].eq("").sum())


def read_table(path: Path, *, time: str = "time", begin: int = 0, root: File | None = None) -> DayTable:
    """Read a table.

    Parameters
    ----------
    path : .csv, .sqlite or .parquet of `watch` or `predict`, or the folder of .parquet files
    time : column of times, "file" for the time of each file. Where the table has no such column, the files are asked
    begin : hour at which a day begins
    root : folder of the images, where names in the table are relative to it and it has no column `file`
    """
    images, found = read_frames(path)
    if missing := [name for name in NEEDED if name not in images]:
        raise DataError(f"{path}: expected a table of `watch` or `predict` with the columns {', '.join(NEEDED)}, but "
                        f"{missing[0]} is not there.")  # fmt: skip
    images = images.assign(image=images["image"].fillna("").astype(str), file=_files(images, root))
    images["time"] = _times(images, time, path)
    shifted = images["time"] - pd.Timedelta(hours=begin)
    images["day"] = shifted.dt.strftime("%Y-%m-%d").fillna("").astype(str)
    unreadable = images["status"].ne("ok") if "status" in images else pd.Series(False, index=images.index)
    numbers = pd.to_numeric(images["label"], errors="coerce")
    unreadable |= ~numbers.between(-LARGEST_LABEL, LARGEST_LABEL)
    other = ~unreadable & images["class_name"].eq(NOT_THIS_PRODUCT)
    n_unreadable, n_other = (
        {str(day): int(n) for day, n in images.loc[rows, "day"].value_counts().items()} for rows in (unreadable, other)
    )
    kept = images[~unreadable & ~other].copy()
    kept["label"] = numbers[kept.index].astype(int)
    kept["class_name"] = kept["class_name"].fillna("").astype(str)
    kept["is_defect"], kept["is_unknown"] = kept["label"] != NORMAL, kept["label"] == UNKNOWN
    found = _sound(found, path)
    of = "seq" if "seq" in kept and "seq" in found else "image"
    if len(found):
        found = found[found[of].isin(kept[of])].merge(kept[[of, "day"]].drop_duplicates(of), on=of, how="left")
    return DayTable(path, kept.reset_index(drop=True), found.reset_index(drop=True), n_unreadable, n_other, begin)


def read_frames(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The tables of images and of regions, the latter without rows where there is none."""
    kind = path_of(path, "table").suffix.lower()
    if not path.exists():
        raise MissingDataError(f"{path}: expected a table of `watch` or `predict`, none found.")
    try:
        if path.is_dir():
            # A file a day, of `watch`; or the data sets `images` and `regions`, of `predict`.
            files = sorted(path.glob("*.parquet"))
            own = [file for file in files if not file.stem.endswith("_regions")] or sorted(
                path.glob("images/*.parquet")
            )
            if not own:
                raise DataError(f"{path}: expected a folder with .parquet files of `watch` or `predict`, none found.")
            beside = [file for file in files if file not in own] or sorted(path.glob("regions/*.parquet"))
            return _joined(own), _joined(beside)
        open_plain(path).close()  # no pipe, which would never end
        if kind in SQLITE:
            # Opened as a file that is read only: a table that `watch` is writing to.
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
                return pd.read_sql("SELECT * FROM images", db), pd.read_sql("SELECT * FROM regions", db)
        if kind not in (".csv", ".parquet"):
            raise SettingsError(f"{path}: expected a table that ends in .csv, .sqlite or .parquet.")
        place = path.with_name(f"{path.stem}_regions{path.suffix}")
        regions = _read(place) if place.is_file() else pd.DataFrame(columns=list(REGION_COLUMNS))
        return _read(path), regions
    except BadFileError as error:
        raise DataError(f"{path}: the table cannot be read ({str(error).rpartition(': ')[2]}).") from error
    except AnomalyNCDError:
        raise
    except (OSError, ValueError, OverflowError, sqlite3.Error, pd.errors.DatabaseError, ImportError) as error:
        raise DataError(f"{path}: the table cannot be read ({reason(error)}).") from error


def _sound(regions: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Regions with numbers where numbers belong: tables go through many hands. Those without a class are left out."""
    if not len(regions):
        return regions
    if missing := [name for name in ("image", "label") if name not in regions]:
        raise DataError(f"{path}: expected regions with the columns image and label, but {missing[0]} is not there.")
    numbers = {name: pd.to_numeric(regions[name], errors="coerce") for name in NUMBERS if name in regions}
    numbers.setdefault("area", pd.Series(np.nan, index=regions.index))
    regions = regions.assign(
        **{name: values.where(np.isfinite(values.astype(float))) for name, values in numbers.items()}
    )
    regions = regions[regions["label"].between(-LARGEST_LABEL, LARGEST_LABEL)]
    return regions.assign(label=regions["label"].astype(int), image=regions["image"].astype(str))


def _read(path: Path) -> pd.DataFrame:
    open_plain(path).close()
    if path.suffix.lower() == ".parquet":
        return pd.read_parquet(path)
    # Names, classes and lots may look like numbers ("0012"), or like nothing ("NA"). Spreadsheets of half the world write
    # semicolons.
    with path.open("rb") as file:
        head = file.readline()
    separator = ";" if head.count(b";") > head.count(b",") else ","
    table = pd.read_csv(path, sep=separator, dtype="str", keep_default_na=False, encoding="utf-8-sig")
    for name in {"image", "class_name", "file"} & set(table):  # as they were before --quote-formulas
        table[name] = table[name].str.replace(QUOTED, "", regex=True)
    return table.assign(
        **{name: pd.to_numeric(table[name].replace("", None), errors="coerce") for name in FIGURES if name in table}
    )


def _joined(files: Sequence[Path]) -> pd.DataFrame:
    tables = [_read(file) for file in files]
    some = [table for table in tables if len(table)]
    if not some:
        return tables[0] if tables else pd.DataFrame(columns=list(REGION_COLUMNS))
    return pd.concat(some, ignore_index=True)


def _files(images: pd.DataFrame, root: File | None) -> pd.Series:
    """Where each image lies, "" where nothing tells."""
    if "file" in images:
        return images["file"].fillna("").astype(str)
    names = images["image"].astype(str)
    if root is None:
        return names.where(names.map(os.path.isabs), "")
    if isinstance(root, Stored):
        return names.map(lambda name: str(root / name))
    return f"{path_of(root, '--images')}{os.sep}" + names


def _times(images: pd.DataFrame, column: str, path: Path) -> pd.Series:
    """When each image came, by the clock of the line."""
    if column != "file" and column in images:
        # By the clock that hung there: the offset is of no use to people.
        texts = images[column].astype(str).str.strip().str.replace(OFFSET, r"\1", regex=True)
        times = pd.to_datetime(texts, errors="coerce", format="ISO8601")
        times = times.where(times.between(FIRST, LAST))
        if len(times) and times.isna().all():
            raise DataError(
                f"{path}: expected times as 2026-11-18T06:00:00 in the column {column}, but found {texts.iloc[0]!r}."
            )
        return times.astype("datetime64[ns]")
    if column not in ("time", "file"):
        raise DataError(f"{path}: expected a column {column} with times, but there is none.")
    return pd.Series([_changed(file) for file in images["file"]], index=images.index, dtype="datetime64[ns]")


def _changed(file: str) -> pd.Timestamp:
    """When a file was written, by the clock of this machine; NaT where it is gone."""
    try:
        seconds = file_named(file).stat().st_mtime_ns / 1e9 if file else None
    except (OSError, ValueError, StoreError):
        seconds = None
    return pd.NaT if seconds is None else pd.Timestamp.fromtimestamp(seconds)  # type: ignore[return-value]


def groups_of(images: pd.DataFrame, by: str, hours: Sequence[int] = HOURS, begin: int = 0) -> pd.Series:
    """The group of each image, in an ordered type: of a column, or of `hour`, `shift`, `day`, `folder`.

    hours : at which shifts begin; begin : hour at which a day begins, and so the order of hours and shifts

    Examples
    --------
    >>> times = pd.to_datetime(["2026-11-18 05:59", "2026-11-18 06:00", "2026-11-18 23:10"])
    >>> found = groups_of(pd.DataFrame({"time": times}), "shift", begin=6)
    >>> found.tolist(), found.cat.categories.tolist()
    (['22–06', '06–14', '22–06'], ['06–14', '22–06'])
    """
    if by in images:  # of its own name, before a meaning that the program gives it
        column = images[by]
        if pd.api.types.is_float_dtype(column) and (column.dropna() % 1 == 0).all():
            column = column.astype("Int64")  # whole numbers, which gaps had made broken ones
        return _ordered(column.astype("str").where(column.notna(), ""), _natural)
    if by in ("hour", "shift"):
        starts = sorted(hours) if by == "shift" else list(range(24))
        ends = [*starts[1:], starts[0]]
        names = [
            f"{start:02d}–{end:02d}" if by == "shift" else f"{start:02d}:00"
            for start, end in zip(starts, ends, strict=True)
        ]
        clock = images["time"].dt.hour
        places = np.searchsorted(starts, clock.fillna(0), side="right") - 1
        groups = pd.Series([names[place] for place in places], index=images.index).where(clock.notna(), "")
        rank = {name: (start - begin) % 24 for name, start in zip(names, starts, strict=True)}
        return _ordered(groups, lambda name: rank.get(name, -1))
    if by == "folder":
        return _ordered(images["image"].astype(str).str.extract(r"^([^/]+)/", expand=False).fillna(""), _natural)
    columns = ", ".join(map(str, images.columns[:8]))
    raise SettingsError(f"--by {by}: expected hour, shift, day, folder or a column of the table ({columns}, …).")


def _ordered(groups: pd.Series, rank: Callable[[str], Any]) -> pd.Series:
    return groups.astype(pd.CategoricalDtype(sorted(groups.unique(), key=rank), ordered=True))


def _natural(name: str) -> list[tuple[int, float, str]]:
    """As people sort: lot 9 before lot 10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, float(part), part) if part.isdecimal() else (1, 0.0, part) for part in parts]


def look_of(label: int, name: str) -> Look:
    """How a kind is shown, as in the report of a run."""
    place = max(0, label - 1)
    colour = {NORMAL: NORMAL_COLOUR, UNKNOWN: UNKNOWN_COLOUR}.get(label, COLOURS[place % len(COLOURS)])
    return Look(label, name or default_name(label), colour, SHAPES[place % len(SHAPES)], f"kind-{label}")
