"""Where `predict` puts its rows: two tables, or a folder of two Parquet data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import RunError
from ..run.writer import TableWriter, check_table

PART = "part-0.parquet"  # one file, in groups of rows that readers take apart


def places(out: Path) -> tuple[Path, Path]:
    """The tables of images and of regions. A name without an ending is a folder, which other programs read as data sets.

    Examples
    --------
    >>> [path.as_posix() for path in (*places(Path("new.csv")), *places(Path("new")))]
    ['new.csv', 'new_regions.csv', 'new/images', 'new/regions']
    """
    if out.suffix:
        return out, out.with_name(f"{out.stem}_regions{out.suffix}")
    return out / "images", out / "regions"


def check_places(out: Path) -> None:
    """Fail before the work, not after it, where the rows could not be written."""
    if out.suffix:
        check_table(out)
        return
    check_table(out / PART)
    if os.path.lexists(out) and not out.is_dir():
        raise RunError(f"{out}: expected a folder for images/ and regions/, but this is a file. Choose another --out.")
    for folder in places(out):
        others = sorted(path.name for path in folder.glob("*") if path.name != PART and not path.name.startswith(PART))
        if others:
            raise RunError(
                f"{folder}: expected nothing, or an earlier {PART}, but it holds {others[0]}, which would be taken for a "
                "part of the same table. Choose another --out."
            )


@contextmanager
def open_tables(out: Path) -> Iterator[tuple[TableWriter, TableWriter]]:
    """Writers of images and of regions, of which the latter are there first."""
    check_places(out)
    images, regions = (path if out.suffix else path / PART for path in places(out))
    with TableWriter(images) as image_table, TableWriter(regions) as region_table:
        yield image_table, region_table
