"""The figures that the paper prints, by the number of their table, to stand beside our own."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from ..errors import SettingsError


def table(name: str) -> dict[str, Any]:
    """A table of the paper by its number, `"1"` … `"17"`; `"T"` and `"fixed"` are figures, `"page"` is the page of its code.

    It has a `title`, its `label` in the LaTeX source, perhaps a `note` on what to know before comparing, and what `columns`
    mean. Its `rows` hold what identifies them (text: `dataset`, `method`, `detector`, `variant`, `base`, `product`) and
    figures (floats: `nmi`, `ari`, `f1`, `aupro`, …; scores are shares of 1), none where the paper has only a picture.

    Examples
    --------
    >>> table("4")["title"], len(table("4")["rows"])
    ('Mask mechanism', 4)
    """
    tables = _read()
    if name not in tables:
        raise SettingsError(f"table of the paper must be one of {', '.join(tables)}, but got {name!r}.")
    found = tables[name]
    return {**found, "rows": [found.get("shared", {}) | row for row in found["rows"]]}


def figures(name: str, **match: str) -> list[dict[str, Any]]:
    """The rows of a table in which every column of `match` has that text; empty where none has.

    Examples
    --------
    >>> figures("1", dataset="mtd", method="anomalyncd")
    [{'dataset': 'mtd', 'method': 'anomalyncd', 'detector': 'musc', 'nmi': 0.268, 'ari': 0.228, 'f1': 0.509}]
    >>> [row["f1"] for row in figures("15", dataset="mtd", detector="patchcore", variant="0.5")]
    [0.715]
    """
    return [row for row in table(name)["rows"] if match.items() <= row.items()]


@cache
def _read() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(files(__package__).joinpath("paper.yaml").read_text(encoding="utf-8"))
    return content
