"""A workbook with a small picture of each image: for people whose tool is a spreadsheet."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import pandas as pd

from ..data.images import read_image
from ..errors import BadFileError, SettingsError, StoreError
from ..places.stored import File
from .source import Image

SIDE = 72  # pixels of a picture's longer side
MOST_PICTURES = 20_000  # they are held in memory while the workbook is written
MOST_ROWS = 1_048_575  # of a sheet, below its header
QUALITY = 80
LONGEST_CELL = 32_767  # characters


def check_xlsx() -> None:
    """Fail before the work where the library is not there."""
    if find_spec("openpyxl") is None:
        raise SettingsError("--format xlsx needs openpyxl: pip install 'anomalyncd[xlsx]'.")


def write_xlsx(
    path: Path, tables: dict[str, pd.DataFrame], images: Sequence[Image], on_image: Callable[[], None]
) -> list[str]:
    """Sheets `images` (with a picture in the first column) and `regions`; returns the names of images whose file is gone.

    Texts stay texts: a name that begins with = is no formula.
    """
    from openpyxl import Workbook
    from openpyxl.drawing.image import Image as Drawing
    from openpyxl.utils import get_column_letter

    book = Workbook()
    book.remove(book.active)
    missing = []
    for name, table in tables.items():
        if len(table) > MOST_ROWS:
            raise SettingsError(
                f"--format xlsx: a sheet holds {MOST_ROWS:,} rows, but {name} has {len(table):,}. Take csv."
            )
        sheet = book.create_sheet(Path(name).stem)
        first = 2 if sheet.title == "images" else 1
        columns = [*(["picture"] if first == 2 else []), *map(str, table.columns)]
        for column, title in enumerate(columns, start=1):
            _set(sheet.cell(1, column), title)
            sheet.column_dimensions[get_column_letter(column)].width = max(9, min(40, 1.2 * len(title)))
        for row, values in enumerate(table.itertuples(index=False), start=2):
            for column, value in enumerate(values, start=first):
                _set(sheet.cell(row, column), value)
        sheet.freeze_panes = sheet.cell(2, first + 1)
        sheet.auto_filter.ref = sheet.dimensions
        if first == 2:
            sheet.column_dimensions["A"].width = SIDE / 6.5
            rows = {str(image): row for row, image in enumerate(table["image"], start=2)}
            for number, image in enumerate(images):
                data = _thumbnail(image.file) if number < MOST_PICTURES else None
                if data is not None and image.name in rows:
                    sheet.add_image(Drawing(io.BytesIO(data)), f"A{rows[image.name]}")
                    sheet.row_dimensions[rows[image.name]].height = SIDE * 0.78
                elif number < MOST_PICTURES:
                    missing.append(image.name)
                on_image()
    book.save(path)
    return missing


def _set(cell: Any, value: Any) -> None:
    if value is None or (isinstance(value, float) and value != value) or value is pd.NA:
        return
    if isinstance(value, str):
        from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

        cell.value = ILLEGAL_CHARACTERS_RE.sub(" ", value)[:LONGEST_CELL]
        cell.data_type = "s"  # never a formula
        if value[:1] in "=+-@":
            cell.quotePrefix = True
    else:
        cell.value = value.item() if hasattr(value, "item") else value


def _thumbnail(file: File | None) -> bytes | None:
    if file is None:
        return None
    try:
        image = read_image(file)
    except (BadFileError, StoreError):
        return None
    scale = SIDE / max(image.shape[:2])
    size = tuple(max(1, round(length * scale)) for length in image.shape[1::-1])
    small = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
    return bytes(cv2.imencode(".jpg", small[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])[1])
