"""Texts that a spreadsheet would compute."""

from __future__ import annotations

from typing import Any

import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a cell that begins so is computed by a spreadsheet


def safe_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula, with an apostrophe before it; all others as they are.

    Examples
    --------
    >>> safe_cell("=1+1"), safe_cell("-1;2"), safe_cell("crack"), safe_cell(-1)
    ("'=1+1", "'-1;2", 'crack', -1)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def safe_cells(table: pd.DataFrame) -> pd.DataFrame:
    """A table with `safe_cell` of all its texts."""
    texts = [str(name) for name in table if not pd.api.types.is_numeric_dtype(table[name])]
    return table.assign(**{name: table[name].map(safe_cell) for name in texts})
